"""Profile iterations with torch.profiler, and find the exported nodes that a runtime's layers cover.

torch.profiler (Kineto) writes Chrome's trace format: operators and annotations with their host intervals, kernels with
the calls that launched them and the operators that were running then.
"""

from __future__ import annotations

import ast
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import torch
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile

from engines.base import Layer

ITERATIONS = 5
"""Profiled iterations, after a first one that starts the profiler."""
_ITERATION, _CALL = "profiler: iteration", "profiler: call"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_MODULE = "module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_ACCUMULATE = "AccumulateGrad"
_MOVES = {
    *("Transpose", "ReorderInput", "ReorderOutput", "Reformat", "MemcpyFromHost", "MemcpyToHost"),
    *("Cast", "QuantizeLinear", "DequantizeLinear"),
}
"""Steps that runtimes insert to change a result's layout, device or type."""
_NCHWC = "_nchwc"
"""ONNX Runtime calls a node in its blocked layout <the tensor it gave>_nchwc (optimizer/nchwc_transformer.cc)."""
_SHAPES = ("Shape", "Size", "Constant")


@dataclass(frozen=True)
class Origin:
    """Origin of an exported node, as torch.onnx wrote it into the node's metadata."""

    node: str
    path: str
    """The module that ran the operator, such as "layer1.0.bn1"; empty for the model itself."""
    operator: str
    """The ATen operator, such as "add"."""
    modules: frozenset[str]
    """Modules whose parameters the node holds: the exporter folds a batch normalization into its convolution."""


def node_name(node: onnx.NodeProto) -> str:
    """Return the node's name, else its first output's."""
    return node.name or next(iter(node.output), "")


def covered_nodes(graph: onnx.GraphProto, steps: Sequence[onnx.NodeProto]) -> list[tuple[str, ...]]:
    """Name the exported nodes that every step, a node of the runtime's optimized graph, covers; both in running order.

    At most one step covers a node, and no step if the node was computed ahead of the run or cannot be matched. A step
    owns a node if a name survives: the node's, its result's, or a constant's that only this node reads. Nodes that went
    into another (an activation, a sum, parts of a normalization) belong to the step whose result they change, else to
    their reader's.
    """
    nodes = list(graph.node)
    producer = {t: n for n, node in enumerate(nodes) for t in node.output if t}
    folded = _computed_ahead(graph)
    owner = _owners_by_name(nodes, producer, folded, steps)
    # A step without nodes has a node of its kind somewhere: no other step may take it.
    lost = {step.op_type for n, step in enumerate(steps) if n not in set(owner.values())} - _MOVES
    is_open = [
        n not in owner and n not in folded and not any(kind.endswith(node.op_type) for kind in lost)
        for n, node in enumerate(nodes)
    ]
    visible = {t for step in steps for t in step.output}
    for number, node in enumerate(nodes):
        owners = [owner.get(n) for t in node.input if (n := producer.get(t)) is not None and n not in folded]
        hidden = [n for t in node.input if t not in visible and (n := owner.get(producer.get(t, -1))) is not None]
        if is_open[number] and hidden and None not in owners:
            owner[number] = max(hidden)  # It changes a result before the step puts it out.
    readers: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        for tensor in node.input:
            readers.setdefault(tensor, []).append(number)
    for number in reversed(range(len(nodes))):
        reading = [owner[r] for t in nodes[number].output if t for r in readers.get(t, ()) if r in owner]
        if is_open[number] and number not in owner and reading:
            owner[number] = min(reading)  # It prepares for the first step that reads its result.
    covered: list[list[str]] = [[] for _ in steps]
    for number in sorted(owner):
        covered[owner[number]].append(node_name(nodes[number]))
    return [tuple(names) for names in covered]


def _owners_by_name(
    nodes: Sequence[onnx.NodeProto], producer: Mapping[str, int], folded: set[int], steps: Sequence[onnx.NodeProto]
) -> dict[int, int]:
    """Map nodes to the steps with their name, constant or result, and chains before them."""
    owner: dict[int, int] = {}
    named = {**producer, **{node.name: n for n, node in enumerate(nodes) if node.name}}
    read = Counter(t for node in nodes for t in set(node.input))
    used = Counter(t for step in steps for t in set(step.input))
    constant = {
        t: n
        for n, node in enumerate(nodes)
        for t in node.input
        if t not in producer and read[t] == used[t] == 1 and n not in folded
    }
    for number, step in enumerate(steps):
        candidates = [named.get(node_name(step).removesuffix(_NCHWC)), *map(constant.get, step.input)]
        for node in (*candidates, *map(named.get, step.output)):
            if node is not None and (step.op_type not in _MOVES or step.op_type == nodes[node].op_type):
                owner.setdefault(node, number)
    for last, number in list(owner.items()):  # A step's end, such as an activation: go back to its own kind of node.
        chain = [last]
        while not steps[number].op_type.endswith(nodes[chain[-1]].op_type):
            before = {producer[t] for t in nodes[chain[-1]].input if t in producer} - folded - owner.keys()
            if len(before) != 1:
                break
            chain += before
        else:
            owner |= dict.fromkeys(chain, number)
    return owner


def _computed_ahead(graph: onnx.GraphProto) -> set[int]:
    """Find nodes that compute from constants, or from shapes, which are constant once the sizes are set."""
    constants, folded = {t.name for t in graph.initializer}, set()
    for number, node in enumerate(graph.node):
        if node.op_type in _SHAPES or all(t in constants for t in node.input if t):
            folded.add(number)
            constants.update(node.output)
    return folded


def origins(graph: onnx.GraphProto) -> list[Origin]:
    """Read the nodes' origins from torch.onnx's metadata, in the graph's order; nodes without it are left out."""
    constants = {t.name for t in graph.initializer}
    located = []
    for node in graph.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        keys = ("name_scopes", "class_hierarchy")
        scopes, classes = (ast.literal_eval(metadata.get(f"pkg.torch.onnx.{key}", "[]")) for key in keys)
        if len(scopes) > 1 and classes:
            operator = (*classes[-1].split("."), "")[1]  # "aten.add.Tensor": namespace, operator, overload.
            holders = frozenset(t.rpartition(".")[0] for t in node.input if t in constants and "." in t)
            located.append(Origin(node_name(node), scopes[-2], operator, holders))
    return located


@dataclass(frozen=True)
class Span:
    """An operator ("aten::relu") or a module's call on the host; times in microseconds on the trace's clock."""

    name: str
    start: float
    end: float
    thread: int
    id: int
    """Kernels refer to the operator that launched them by this number."""
    sequence: int | None
    """Shared by a forward operator and its backward one."""

    @property
    def ms(self) -> float:
        return (self.end - self.start) / 1000


@dataclass(frozen=True)
class Kernel:
    """A kernel, copy or fill on the device; `launched` in microseconds on the host, as Span's times."""

    name: str
    launched: float
    ms: float
    operator: int | None
    """`Span.id` of the operator that launched it."""


@dataclass
class Iteration:
    """Events between `start` and `end`: spans by their start, kernels in the device's order.

    The call returned to the host at `returned`, and was waited for until `end`.
    """

    start: float
    returned: float
    end: float
    spans: list[Span] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


@dataclass(frozen=True)
class Trace:
    """The profiled iterations; `unix_ns` is the Unix time, in nanoseconds, of the trace's time 0."""

    iterations: list[Iteration]
    unix_ns: int


def record(run: Callable[[], object], device: str) -> Trace:
    """Profile ITERATIONS calls of `run`, and wait for each. Raises RuntimeError if a GPU's kernels stay invisible."""
    on_cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    wait = torch.get_device_module(device).synchronize
    run()  # A first call may search for algorithms, which would swell the trace.
    wait()
    with profile(activities=activities) as profiler:
        for _ in range(1 + ITERATIONS):
            with record_function(_ITERATION):
                with record_function(_CALL):
                    run()
                wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = parse(json.loads(path.read_text()))
    del trace.iterations[0]
    if on_cuda and not all(iteration.kernels for iteration in trace.iterations):
        raise RuntimeError(
            "torch.profiler saw no kernel in some iterations: CUPTI could not be loaded, or another profiler holds it"
        )
    return trace


def parse(written: dict[str, Any]) -> Trace:
    """Read a trace in Chrome's format, as Kineto writes it, by iteration."""
    events = [event for event in written["traceEvents"] if event.get("ph") == "X"]
    events.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))  # Enclosing events first.
    marks = {
        name: [_interval(e) for e in events if (e.get("cat"), e["name"]) == ("user_annotation", name)]
        for name in (_ITERATION, _CALL)
    }
    iterations = [
        Iteration(start, returned, end)
        for (start, end), (_, returned) in zip(marks[_ITERATION], marks[_CALL], strict=True)
    ]
    launched = {e["args"].get("correlation"): float(e["ts"]) for e in reversed(events) if e.get("cat") in _LAUNCHES}
    for event in events:
        category, args, (start, end) = event.get("cat"), event.get("args", {}), _interval(event)
        if category in _KERNELS:
            at = launched.get(args.get("correlation"), start)
            if (inside := _at(iterations, at)) is not None:
                inside.kernels.append(Kernel(event["name"], at, (end - start) / 1000, args.get("External id")))
        elif category == "cpu_op" or (category == "user_annotation" and event["name"].startswith(_MODULE)):
            numbers = args.get("External id", -1), args.get("Sequence number")
            if (inside := _at(iterations, start)) is not None:
                inside.spans.append(Span(event["name"], start, end, event["tid"], *numbers))
    return Trace(iterations, int(written.get("baseTimeNanoseconds", 0)))


def median_layers(iterations: Sequence[Sequence[Layer]]) -> list[Layer]:
    """Take each layer's median over the iterations that ran the same layers in the same order."""
    shapes = [tuple((layer.name, layer.kind, layer.nodes) for layer in layers) for layers in iterations]
    if not shapes:
        return []
    usual, _ = Counter(shapes).most_common(1)[0]
    like = [layers for layers, shape in zip(iterations, shapes, strict=True) if shape == usual]
    return [
        Layer(name, kind, nodes, median(layers[number].ms for layers in like))
        for number, (name, kind, nodes) in enumerate(usual)
    ]


def _interval(event: dict[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _at(iterations: Sequence[Iteration], time: float) -> Iteration | None:
    return next((i for i in iterations if i.start <= time <= i.end), None)


@dataclass
class Operator:
    """An operator that no other operator called."""

    kind: str
    path: str | None
    """The module whose forward called it, or called its forward operator; None outside of modules, as in a loss."""
    call: int
    """Number of the module's earlier calls in the iteration."""
    is_backward: bool
    ms: float
    """On the host, until kernels are counted."""


def profile_module(
    model: torch.nn.Module, run: Callable[[], object], device: str, origins: Sequence[Origin]
) -> list[Layer]:
    """Profile one layer per operator that a module called, backward operators too; on CUDA by the kernels' time."""
    with _announced(model):
        trace = record(run, device)
    return median_layers([iteration_layers(iteration, device, origins) for iteration in trace.iterations])


@contextmanager
def _announced(model: torch.nn.Module) -> Iterator[None]:
    """Annotate the trace with each module's name while its forward runs."""
    names = {module: name for name, module in model.named_modules()}
    running: list[Any] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        running.append(record_function(_MODULE + names.get(module, "")))
        running[-1].__enter__()

    def leave(module: torch.nn.Module, _: Any, __: Any) -> None:
        running.pop().__exit__(None, None, None)

    hooks = register_module_forward_pre_hook(enter), register_module_forward_hook(leave)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def iteration_layers(iteration: Iteration, device: str, origins: Sequence[Origin]) -> list[Layer]:
    """List operators, the accumulation of gradients as one layer, and kernels that no operator launched."""
    operators, outermost = read_operators(iteration.spans)
    strangers = []
    if device == "cuda":
        for operator in operators:
            operator.ms = 0.0
        for kernel in iteration.kernels:
            if kernel.operator in outermost:
                operators[outermost[kernel.operator]].ms += kernel.ms
            else:
                strangers.append(Layer(kernel.name, "kernel", (), kernel.ms))
    nodes = covered_by(operators, origins)
    layers = [
        Layer(o.path or o.kind, o.kind, covered, o.ms)
        for o, covered in zip(operators, nodes, strict=True)
        if o.kind != _ACCUMULATE
    ]
    # Each parameter has one, too short for its own layer.
    gradients = [o.ms for o in operators if o.kind == _ACCUMULATE]
    return layers + ([Layer("gradients", _ACCUMULATE, (), sum(gradients))] if gradients else []) + strangers


def read_operators(spans: Sequence[Span]) -> tuple[list[Operator], dict[int, int]]:
    """Return the outermost operators in running order, and a map of all operators' ids to their outermost ones."""
    operators: list[Operator] = []
    outermost: dict[int, int] = {}
    running: dict[int, list[tuple[float, int | None, str | None, int]]] = {}
    forward_paths: dict[int | None, str | None] = {}
    calls = Counter[str]()
    for span in spans:
        stack = running.setdefault(span.thread, [])
        while stack and stack[-1][0] <= span.start:
            stack.pop()
        _, number, path, call = stack[-1] if stack else (0.0, None, None, 0)
        if span.name.startswith(_MODULE):
            path = span.name.removeprefix(_MODULE)
            call = calls[path]
            calls[path] += 1
        else:
            backward = span.name.startswith(_BACKWARD)
            if number is None:
                number = len(operators)
                path = forward_paths.get(span.sequence) if backward else path
                operators.append(Operator(_kind(span.name), path, call, backward, span.ms))
            outermost[span.id] = number
            if span.sequence is not None and not backward:
                # Several operators may share one number: the last one made the backward operator.
                forward_paths[span.sequence] = path
        stack.append((span.end, number, path, call))
    return operators, outermost


def covered_by(operators: Sequence[Operator], origins: Sequence[Origin]) -> list[tuple[str, ...]]:
    """Name the exported nodes of every operator; backward operators have none.

    A module's calls share its nodes evenly, in order. Within a call, an operator covers the node of its name; operators
    without one cover all remaining nodes. A folded module, without nodes, covers the nodes that hold its parameters.
    """
    nodes: dict[str | None, list[Origin]] = {}
    for origin in origins:
        nodes.setdefault(origin.path, []).append(origin)
    calls: dict[tuple[str, int], list[int]] = {}
    for number, operator in enumerate(operators):
        if operator.path is not None and not operator.is_backward:
            calls.setdefault((operator.path, operator.call), []).append(number)
    times, counts = Counter(path for path, _ in calls), Counter(origin.path for origin in origins)
    covered: list[tuple[str, ...]] = [()] * len(operators)
    for (path, call), members in calls.items():
        candidates = nodes[path] if path in nodes else [origin for origin in origins if path in origin.modules]
        share, uneven = divmod(counts[path], times[path])
        if share and not uneven:
            candidates = candidates[call * share : (call + 1) * share]
        for number in members:
            pair = next((o for o in candidates if o.operator.strip("_") == operators[number].kind.strip("_")), None)
            if pair is not None:
                covered[number] = (pair.node,)
                candidates.remove(pair)
        for number in members:
            covered[number] = covered[number] or tuple(origin.node for origin in candidates)
    return covered


def _kind(name: str) -> str:
    return name.removeprefix(_BACKWARD).removeprefix("aten::").removeprefix("torch::autograd::")
