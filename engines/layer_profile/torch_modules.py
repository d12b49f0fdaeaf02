"""Profile a torch module: its operators as layers, under the modules' names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from engines.base import Layer
from engines.layer_profile.node_mapping import Origin
from engines.layer_profile.torch_trace import Iteration, Span, median_layers, record

_MODULE = "module: "
_BACKWARD = "autograd::engine::evaluate_function: "
_ACCUMULATE = "AccumulateGrad"
_NO_MODULE = -1


@dataclass
class Operator:
    """An operator that no other one called."""

    kind: str
    path: str
    """The module whose forward called it; for a backward operator, that of its forward one."""
    call: int
    """Which call of that module, counted from 0 in an iteration; _NO_MODULE for what none called, such as a loss."""
    is_backward: bool
    ms: float
    """On the host, until kernels are counted."""


def profile_module(
    model: torch.nn.Module, run: Callable[[], object], device: str, origins: Sequence[Origin]
) -> list[Layer]:
    """One layer per operator that a module called, in running order; a training step's backward operators too.
    `origins` say which exported nodes the modules became. On CUDA a layer's time is its operator's kernels'."""
    with _announced(model):
        trace = record(run, device)
    return median_layers([iteration_layers(iteration, device, origins) for iteration in trace.iterations])


@contextmanager
def _announced(model: torch.nn.Module) -> Iterator[None]:
    """Annotate the trace with the name of every module whose forward runs."""
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
    """One iteration's operators, the gradients' accumulation as one layer, and kernels that no operator launched."""
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
    # One a parameter, each too short for a line of its own.
    gradients = [o.ms for o in operators if o.kind == _ACCUMULATE]
    return layers + ([Layer("gradients", _ACCUMULATE, (), sum(gradients))] if gradients else []) + strangers


def read_operators(spans: Sequence[Span]) -> tuple[list[Operator], dict[int, int]]:
    """The operators that no other one called, in running order; and for every operator's id, which of them it is in."""
    operators: list[Operator] = []
    outermost: dict[int, int] = {}
    running: dict[int, list[tuple[float, int | None, str, int]]] = {}
    calls: dict[str, int] = {}
    made: dict[int | None, tuple[str, int]] = {}
    for span in spans:
        stack = running.setdefault(span.thread, [])
        while stack and stack[-1][0] <= span.start:
            stack.pop()
        _, number, path, call = stack[-1] if stack else (0.0, None, "", _NO_MODULE)
        backward = span.name.startswith(_BACKWARD)
        if span.is_annotation and span.name.startswith(_MODULE):
            path = span.name.removeprefix(_MODULE)
            call = calls[path] = calls.get(path, -1) + 1
        elif not span.is_annotation:
            if number is None:
                number = len(operators)
                path, call = made.get(span.sequence, ("", _NO_MODULE)) if backward else (path, call)
                operators.append(Operator(_kind(span.name), path, call, backward, span.ms))
            outermost[span.id] = number
            if span.sequence is not None and not backward:
                # Several operators may bear one number: the last of them made the backward operator.
                made[span.sequence] = path, call
        stack.append((span.end, number, path, call))
    return operators, outermost


def covered_by(operators: Sequence[Operator], origins: Sequence[Origin]) -> list[tuple[str, ...]]:
    """For each operator the exported nodes that it became; none for backward operators.

    A module's calls share its nodes in order. Within a call operators and nodes of one name are pairs; whatever is left
    of both belongs together. A module without nodes covers those that hold its parameters: the exporter has folded it.
    """
    calls: dict[tuple[str, int], list[int]] = {}
    for number, operator in enumerate(operators):
        if not operator.is_backward and operator.call != _NO_MODULE:
            calls.setdefault((operator.path, operator.call), []).append(number)
    covered: list[tuple[str, ...]] = [()] * len(operators)
    for (path, call), members in calls.items():
        count = sum(of == path for of, _ in calls)
        own = [origin for origin in origins if origin.path == path]
        if own and len(own) % count == 0:
            share = len(own) // count
            own = own[call * share : (call + 1) * share]
        own = own or [origin for origin in origins if path in origin.modules]
        for number in [*members]:
            pair = next((o for o in own if o.operator.strip("_") == operators[number].kind.strip("_")), None)
            if pair is not None:
                covered[number] = (pair.node,)
                own.remove(pair)
                members.remove(number)
        for number in members:
            covered[number] = tuple(o.node for o in own)
    return covered


def _kind(name: str) -> str:
    """conv2d for aten::conv2d, ConvolutionBackward0 for its backward operator."""
    return name.removeprefix(_BACKWARD).removeprefix("aten::").removeprefix("torch::autograd::")
