"""Layers of every engine of the CPU on one tiny network; a GPU's trace and ONNX Runtime's profile as written down."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sessions import cache_beside, make_job
from torch.nn.modules import module as torch_module

import engines
from engines import layers as torch_trace
from engines.base import Layer, Session
from engines.layers import (
    Kernel,
    Operator,
    Origin,
    Span,
    covered_by,
    covered_nodes,
    iteration_layers,
    median_layers,
    node_name,
    origins,
    read_operators,
)
from engines.ort import OrtSession, session_options
from engines.ort_layers import GraphRun, NodeRun, device_layers, host_layers, launched_in, read_runs
from exporters.cache import Cache
from exporters.onnx_export import export_onnx
from exporters.onnx_files import read_onnx
from exporters.source import ModelSource

FACTORY = """
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.conv2(self.relu(self.bn1(self.conv1(x)))) + x)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.pool, self.block = nn.Conv2d(3, 16, 3), nn.MaxPool2d(2), Block()
        self.drop, self.fc = nn.Dropout(), nn.Linear(784, 10)

    def forward(self, x):
        return self.fc(self.drop(self.block(self.pool(self.stem(x).relu())).flatten(1)))
"""
SOURCE = ModelSource("tiny", factory="tiny_for_layers:Tiny", input_shape=(3, 16, 16))
OPERATORS = [
    ("stem", "conv2d"), ("relu", "relu"), ("pool", "max_pool2d"),
    ("block.conv1", "conv2d"), ("block.bn1", "batch_norm"), ("block.relu", "relu"),
    ("block.conv2", "conv2d"), ("block", "add"), ("block.relu", "relu"),
    ("flatten", "flatten"), ("drop", "dropout"), ("fc", "linear"),
]  # fmt: skip
"""Return the modules' calls in eval mode; a call of the model's own goes by its operator's name."""


cache = cache_beside("tiny_for_layers", FACTORY)


@pytest.fixture
def open_session(cache: Cache) -> Callable[..., Any]:
    """`open_session("eager", "training")`, with the exported graph, whose nodes its layers name."""

    def start(engine: str, pass_: Any = "inference", **options: Any) -> Session:
        job = make_job(SOURCE, cache, engine, "fp32", pass_, **options)
        return engines.open_session(engine, replace(job, onnx=export_onnx(SOURCE, "fp32", cache).path))

    return start


@pytest.fixture(scope="module")
def exported(cache: Cache) -> list[str]:
    """The exported graph's nodes, in its order: convolutions with folded normalization, activations, …"""
    return [node_name(node) for node in read_onnx(export_onnx(SOURCE, "fp32", cache).path).graph.node]


def of_kind(nodes: list[str], *words: str) -> list[str]:
    return [node for node in nodes if any(word in node.lower() for word in words)]


def test_eager_has_a_layer_for_each_operator_in_order(open_session, exported):
    layers: list[Layer] = open_session("eager").layers()
    assert [(layer.name, layer.kind) for layer in layers] == OPERATORS
    assert all(layer.ms > 0 for layer in layers)
    stem, conv1, conv2 = of_kind(exported, "conv")
    relus, (add,) = of_kind(exported, "relu"), of_kind(exported, "add")
    nodes = {(layer.name, number): layer.nodes for number, layer in enumerate(layers)}
    assert nodes["stem", 0] == (stem,)
    assert nodes["block.conv1", 3] == nodes["block.bn1", 4] == (conv1,), "the exporter folds one into the other"
    assert nodes["block.conv2", 6] == (conv2,)
    assert nodes["block", 7] == (add,)
    assert [nodes["relu", 1], nodes["block.relu", 5], nodes["block.relu", 8]] == [(relu,) for relu in relus]
    assert nodes["drop", 10] == ()
    assert {node for layer in layers for node in layer.nodes} == set(exported)


def test_profiling_leaves_no_hooks_behind_and_the_session_as_it_was(open_session):
    hooks = len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)
    session = open_session("eager")
    session.run(lambda name: None)
    before = session.outputs()[0].copy()
    session.layers()
    assert (len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)) == hooks
    session.run(lambda name: None)
    assert (session.outputs()[0] == before).all()
    session.model.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no luck")))
    with pytest.raises(RuntimeError, match="no luck"):
        session.layers()
    assert (len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)) == hooks


def test_eager_training_has_backward_operators_under_their_modules(open_session):
    layers = open_session("eager", "training").layers()
    forward = [layer for layer in layers if (layer.name, layer.kind) in OPERATORS]
    assert [(layer.name, layer.kind) for layer in forward] == OPERATORS
    backward = [layer for layer in layers if "Backward" in layer.kind]
    convolutions = [layer.name for layer in backward if layer.kind.startswith("Convolution")]
    assert convolutions == ["block.conv2", "block.conv1", "stem"]
    assert [layer.name for layer in backward if layer.kind.startswith("NativeBatchNorm")] == ["block.bn1"]
    assert {layer.nodes for layer in backward} == {()}
    assert layers.index(backward[0]) > layers.index(forward[-1])
    (loss,) = (layer for layer in layers if layer.kind == "cross_entropy_loss")
    assert loss.nodes == ()
    assert [layer.kind for layer in layers].count("AccumulateGrad") == 1


def test_ort_covers_every_exported_node_once(open_session, exported, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    layers = open_session("ort").layers()
    assert sorted(node for layer in layers for node in layer.nodes) == sorted(exported)
    stem, conv1, conv2 = of_kind(exported, "conv")
    fused = {layer.nodes for layer in layers if "Conv" in layer.kind}
    relus = of_kind(exported, "relu")
    assert {(stem, relus[0]), (conv1, relus[1])} <= fused
    assert any(conv2 in nodes for nodes in fused)
    order = [exported.index(layer.nodes[0]) for layer in layers if layer.nodes]
    assert order == sorted(order)
    assert all(layer.ms >= 0 for layer in layers)
    assert sum(layer.ms for layer in layers) > 0
    assert list(tmp_path.iterdir()) == [], "the profile is gone"


def test_onnx_runtimes_clock_is_the_traces(cache, tmp_path):
    """Each run happened inside its call: what kernels on a GPU are told apart by."""
    job = make_job(SOURCE, cache, "ort", "fp32")
    options = session_options(job)
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = OrtSession(job, options)
    recorded = torch_trace.record(lambda: session.run(lambda name: None), "cpu")
    nominal = (session.session.get_profiling_start_time_ns() - recorded.unix_ns) / 1000
    runs = read_runs(Path(session.session.end_profiling()), torch_trace.ITERATIONS)
    for run, call in zip(runs, recorded.iterations, strict=True):
        assert call.start - 5 <= run.start + nominal <= run.end + nominal <= call.returned + 5


# What a GPU gives, as it stands in the files.


def event(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": named}


def iteration_events(start: float, slow: float = 1.0) -> list[dict[str, Any]]:
    first = int(start)
    return [
        event("user_annotation", "profiler: iteration", start, 100, External_id=first),
        event("user_annotation", "profiler: call", start, 60, External_id=first + 1),
        event("user_annotation", "module: conv", start + 1, 20, External_id=first + 2),
        event("cpu_op", "aten::conv2d", start + 2, 15, External_id=first + 3),
        event("cpu_op", "aten::cudnn_convolution", start + 3, 10, External_id=first + 4),
        event("cuda_runtime", "cudaLaunchKernel", start + 4, 1, correlation=first + 5),
        event("cuda_driver", "cuLaunchKernel", start + 6, 1, correlation=first + 6),
        event("cpu_op", "aten::relu", start + 30, 5, External_id=first + 7),
        event("cuda_runtime", "cudaLaunchKernel", start + 31, 1, correlation=first + 8),
        event("cuda_runtime", "cudaMemcpyAsync", start + 50, 1, correlation=first + 9),
        event("kernel", "nchwToNhwc", start + 40, 3 * slow, correlation=first + 5, External_id=first + 4),
        event("kernel", "cudnn_conv", start + 45, 20 * slow, correlation=first + 6, External_id=first + 4),
        event("kernel", "relu_kernel", start + 66, 7, correlation=first + 8, External_id=first + 7),
        event("gpu_memcpy", "Memcpy DtoH", start + 75, 2, correlation=first + 9, External_id=first + 1),
        event("gpu_user_annotation", "module: conv", start + 40, 25, External_id=first + 2),
    ]


WRITTEN = {
    "baseTimeNanoseconds": 5_000_000_000,
    "traceEvents": [{"ph": "M", "name": "process_name"}, *iteration_events(1000), *iteration_events(2000, slow=2.0)],
}


def test_kernels_belong_to_the_iteration_that_launched_them():
    read = torch_trace.parse(WRITTEN)
    assert read.unix_ns == 5_000_000_000
    first, second = read.iterations
    assert (first.start, first.returned, first.end) == (1000, 1060, 1100)
    assert [kernel.name for kernel in second.kernels] == ["nchwToNhwc", "cudnn_conv", "relu_kernel", "Memcpy DtoH"]
    assert [kernel.launched for kernel in first.kernels] == [1004, 1006, 1031, 1050]
    assert second.kernels[1].ms == pytest.approx(0.040)
    assert [span.name for span in first.spans] == [
        "module: conv", "aten::conv2d", "aten::cudnn_convolution", "aten::relu",
    ]  # fmt: skip


def test_an_operators_time_on_a_gpu_is_its_kernels():
    origins = [Origin("node_conv", "conv", "conv2d", frozenset({"conv"}))]
    layers = median_layers(
        [iteration_layers(iteration, "cuda", origins) for iteration in torch_trace.parse(WRITTEN).iterations]
    )
    assert [(layer.name, layer.kind, layer.nodes) for layer in layers] == [
        ("conv", "conv2d", ("node_conv",)),
        ("relu", "relu", ()),
        ("Memcpy DtoH", "kernel", ()),
    ]
    assert [layer.ms for layer in layers] == pytest.approx([(0.023 + 0.046) / 2, 0.007, 0.002])


def span(name: str, start: float, end: float, id: int = 0, sequence: int | None = None, thread: int = 1) -> Span:
    return Span(name, start, end, thread, id, sequence)


def test_a_backward_operator_in_another_thread_finds_its_module():
    spans = [
        span("module: ", 0, 50),
        span("aten::zeros", 1, 2, 1, sequence=7),
        span("module: fc", 5, 40),
        span("aten::linear", 6, 30, 2, sequence=7),
        span("aten::addmm", 7, 29, 3, sequence=7),
        span("autograd::engine::evaluate_function: AddmmBackward0", 60, 90, 4, sequence=7, thread=2),
        span("AddmmBackward0", 61, 89, 5, sequence=7, thread=2),
        span("aten::mm", 62, 80, 6, thread=2),
        span("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 91, 92, 8, thread=2),
    ]
    operators, outermost = read_operators(spans)
    assert [(o.kind, o.path, o.is_backward) for o in operators] == [
        ("zeros", "", False),
        ("linear", "fc", False),
        ("AddmmBackward0", "fc", True),
        ("AccumulateGrad", None, True),
    ]
    assert outermost == {1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2, 8: 3}
    assert operators[2].ms == pytest.approx(0.03)


def operator(kind: str, path: str, call: int = 0) -> Operator:
    return Operator(kind, path, call, False, 1.0)


def origin(node: str, path: str, kind: str = "", *modules: str) -> Origin:
    return Origin(node, path, kind, frozenset(modules))


def test_a_module_that_is_called_twice_shares_its_nodes_in_order():
    origins = [origin("r", "relu", "relu"), origin("a", "", "add"), origin("r_1", "relu", "relu")]
    operators = [operator("relu_", "relu"), operator("add", ""), operator("relu_", "relu", 1)]
    assert covered_by(operators, origins) == [("r",), ("a",), ("r_1",)]
    assert covered_by([*operators, operator("relu_", "relu", 2)], origins)[3] == (), "a call more than were exported"
    origins = [origin(f"{call}{part}", "attention", part) for call in "ab" for part in "123"]
    calls = [operator("attention", "attention", call) for call in (0, 1)]
    assert covered_by(calls, origins) == [("a1", "a2", "a3"), ("b1", "b2", "b3")]


def test_a_folded_module_covers_the_node_that_holds_its_weights():
    origins = [origin("conv", "bn", "batch_norm", "conv"), origin("conv_1", "other", "conv2d", "other")]
    assert covered_by([operator("conv2d", "conv"), operator("batch_norm", "bn")], origins) == [("conv",), ("conv",)]
    assert covered_by([operator("dropout", "drop")], origins) == [()]


def test_a_graph_of_another_exporter_has_no_origins():
    assert origins(graph(CONV)) == []


def layer(name: str, ms: float) -> Layer:
    return Layer(name, "k", (), ms)


def test_median_is_over_the_iterations_that_ran_the_same():
    usual = [[layer("a", ms), layer("b", 2 * ms)] for ms in (1.0, 3.0, 80.0)]
    assert median_layers([*usual, [layer("a", 9.0)]]) == [layer("a", 3.0), layer("b", 6.0)]
    assert median_layers([]) == []


# ONNX Runtime's profile.


def node_event(name: str, kind: str, ts: int, dur: int) -> dict[str, Any]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": {"op_name": kind}}


def run_events(start: int, slow: int = 1) -> list[dict[str, Any]]:
    return [
        {"cat": "Session", "name": "model_run", "ts": start, "dur": 200, "args": {}},
        {"cat": "Session", "name": "SequentialExecutor::Execute", "ts": start + 1, "dur": 198, "args": {}},
        node_event("conv", "FusedConv", start + 10, 40 * slow),
        node_event("inner", "Add", start + 101, 5),
        node_event("loop", "Loop", start + 100, 50),
        node_event("fc", "Gemm", start + 160, 30),
    ]


KINDS = {"conv": "FusedConv", "loop": "Loop", "fc": "Gemm"}
STEPS = [helper.make_node(kind, [], [], name) for name, kind in KINDS.items()]
COVERED = [("node_conv", "node_relu"), ("node_loop",), ("node_fc",)]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps([*run_events(0, slow=2), *run_events(1000), *run_events(2000, slow=2)]))
    return path


def test_a_profiles_nodes_are_those_of_the_graph_itself_in_the_last_runs(profile):
    runs = read_runs(profile, last=2)
    assert [(run.start, run.end) for run in runs] == [(1000, 1200), (2000, 2200)]
    assert [node.name for node in runs[0].nodes] == ["conv", "loop", "fc"]
    layers = host_layers(runs, STEPS, COVERED)
    assert [(layer.name, layer.kind, layer.nodes) for layer in layers] == [
        ("conv", "FusedConv", COVERED[0]),
        ("loop", "Loop", COVERED[1]),
        ("fc", "Gemm", COVERED[2]),
    ]
    assert [layer.ms for layer in layers] == pytest.approx([0.060, 0.050, 0.030])
    with pytest.raises(RuntimeError, match="has 3 runs, 4 were made"):
        read_runs(profile, last=4)


def kernel(launched: float, ms: float = 1.0) -> Kernel:
    return Kernel("kernel", launched, ms, None)


NODES = [NodeRun("a", "Conv", 10, 50), NodeRun("b", "Relu", 60, 70), NodeRun("c", "Gemm", 71, 90)]


def test_a_kernel_belongs_to_the_node_in_whose_interval_it_was_launched():
    kernels = [kernel(112), kernel(149, 2.0), kernel(165), kernel(189), kernel(190.4, 4.0)]
    times, strangers = launched_in(NODES, kernels, offset=100)
    assert times == [3.0, 1.0, 5.0]
    assert strangers == []


def test_a_clock_that_is_shifted_pairs_the_same():
    run = GraphRun(30, 70, [NodeRun("a", "Conv", 32, 40), NodeRun("b", "Relu", 42, 50)])
    trace = torch_trace.Trace([torch_trace.Iteration(0, 100, 120, [], [kernel(35), kernel(45, 2.0)])], 10**9)
    steps = [helper.make_node(kind, [], [], name) for kind, name in (("Conv", "a"), ("Relu", "b"))]
    for shift in (0, 10**9, -(10**9)):
        layers = device_layers([run], trace.unix_ns + shift, trace, steps, [(), ()])
        assert [(layer.name, layer.ms) for layer in layers] == [("a", 1.0), ("b", 2.0)]


def test_clocks_that_do_not_fit_are_an_error():
    with pytest.raises(RuntimeError, match="30 of 30 kernels lie outside"):
        launched_in(NODES, [kernel(5000)] * 30, offset=0)
    assert launched_in([], [kernel(5)], offset=0) == ([], [kernel(5)])
    few, many = ([kernel(15)] * 100 + [kernel(5000)] * count for count in (7, 8))
    assert len(launched_in(NODES, few, offset=0)[1]) == 7, "a twentieth and two"
    with pytest.raises(RuntimeError, match="lie outside"):
        launched_in(NODES, many, offset=0)


# Which exported nodes a runtime's steps cover.


Node = tuple[str, str, str, str]
"""Operator, name, inputs, output. Names that begin with w, b, s or k are constants."""


def graph(*nodes: Node) -> onnx.GraphProto:
    given = {output for *_, output in nodes}
    constants = sorted({t for _, _, inputs, _ in nodes for t in inputs.split()} - given - {"x"})
    made = [helper.make_node(kind, inputs.split(), [output], name=name) for kind, name, inputs, output in nodes]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    arrays = [numpy_helper.from_array(np.zeros(2, "float32"), t) for t in constants]
    return helper.make_graph(made, "g", values[:1], values[1:], arrays)


def step(kind: str, inputs: str, output: str, name: str = "") -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name)


CONV, RELU = ("Conv", "conv", "x w b", "c"), ("Relu", "relu", "c", "r")
COVERS: dict[str, tuple[list[Node], list[onnx.NodeProto], list[tuple[str, ...]]]] = {
    "a chain belongs to the step that gives its end": (
        [CONV, RELU, ("MaxPool", "pool", "r", "y")],
        [step("FusedConv", "x w b", "r"), step("MaxPool", "r", "y")],
        [("conv", "relu"), ("pool",)],
    ),
    "a blocked layout's step goes by its result's name": (
        [("Conv", "conv", "x w", "c"), RELU, ("MaxPool", "pool", "r", "y")],
        [step("Conv", "x k", "t", "r_nchwc"), step("MaxPool", "t", "u", "y_nchwc"), step("ReorderOutput", "u", "y")],
        [("conv", "relu"), ("pool",), ()],
    ),
    "a sum belongs to the step that runs last": (
        [
            *(("Conv", "left", "x w b", "l"), ("Conv", "right", "x w_1 b_1", "r")),
            *(("Add", "add", "l r", "a"), ("Relu", "relu", "a", "y")),
        ],
        [step("Conv", "x k1 b_1", "t1"), step("Conv", "x k2 b t1", "t2"), step("ReorderOutput", "t2", "y")],
        [("right",), ("left", "add", "relu"), ()],
    ),
    "the parts of a normalization belong to it and not to what they read": (
        [
            *(CONV, ("ReduceMean", "mean", "c", "m"), ("Sub", "sub", "c m", "d"), ("Mul", "square", "d d", "q")),
            *(("ReduceMean", "variance", "q", "v"), ("Sqrt", "root", "v", "e"), ("Div", "div", "d e", "y")),
        ],
        [step("Conv", "x w b", "c"), step("LayerNormalization", "c scale", "y")],
        [("conv",), ("mean", "sub", "square", "variance", "root", "div")],
    ),
    "padding belongs to the convolution that does it": (
        [("Pad", "pad", "x spads", "p"), ("Conv", "conv", "p w b", "y")],
        [step("Conv", "x w b", "y")],
        [("pad", "conv")],
    ),
    "an int8 convolution covers its conversions": (
        [
            *(("QuantizeLinear", "q", "x s", "xq"), ("DequantizeLinear", "dq", "xq s", "xd")),
            *(("DequantizeLinear", "weights", "w s_w", "wd"), ("Conv", "conv", "xd wd b", "c"), RELU),
            *(("QuantizeLinear", "q_1", "r s_1", "rq"), ("DequantizeLinear", "dq_1", "rq s_1", "y")),
        ],
        [
            step("QuantizeLinear", "x s", "xq", "q"),
            step("QLinearConv", "xq s w s_w s_1 b", "rq"),
            step("DequantizeLinear", "rq s_1", "y", "dq_1"),
        ],
        [("q",), ("dq", "conv", "relu", "q_1"), ("dq_1",)],
    ),
    "what is computed ahead belongs to no step": (
        [
            *(("Shape", "shape", "x", "n"), ("Gather", "gather", "n kindex", "k")),
            *(
                ("Mul", "scaled", "b b_1", "bias"),
                ("Conv", "conv", "x w bias", "c"),
                ("Reshape", "reshape", "c k", "y"),
            ),
        ],
        [step("Conv", "x w folded", "c"), step("Reshape", "c constant", "y")],
        [("conv",), ("reshape",)],
    ),
    "a step that moves data covers nothing it did not compute": (
        [CONV, RELU, ("Transpose", "own", "r", "y")],
        [
            *(step("Transpose", "x", "nhwc"), step("FusedConv", "nhwc k b", "t")),
            *(step("Transpose", "t", "r"), step("Transpose", "r", "y")),
        ],
        [(), ("conv", "relu"), (), ("own",)],
    ),
    "twins that cannot be told apart are nobody's": (
        [("Conv", "left", "x w", "l"), ("Conv", "right", "x w_1", "r"), ("Concat", "concat", "l r", "y")],
        [step("Conv", "x k1", "t1"), step("Conv", "x k2", "t2"), step("Concat", "t1 t2", "y")],
        [(), (), ("concat",)],
    ),
    "a node without a name goes by its result": (
        [("Conv", "", "x w b", "c"), ("Relu", "", "c", "y")],
        [step("FusedConv", "x w b", "y")],
        [("c", "y")],
    ),
    "a step of something else covers nothing": ([CONV], [step("Mystery", "q", "z")], [()]),
}


@pytest.mark.parametrize("case", COVERS)
def test_a_step_covers_the_nodes_that_it_computes(case):
    nodes, steps, expected = COVERS[case]
    assert covered_nodes(graph(*nodes), steps) == expected
