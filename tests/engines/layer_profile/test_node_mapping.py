"""Which exported nodes a runtime's steps cover: what kept its name, what data flow tells, and what cannot be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from engines.layers import Step, covered_nodes, node_name, origins, steps_of
from exporters.cache import Cache
from exporters.inputs import read_onnx
from exporters.onnx_export import export_onnx
from exporters.source import ModelSource

Node = tuple[str, str, list[str], str]
"""Operator, name, inputs, output."""

BLOCK: list[Node] = [
    ("Conv", "conv", ["x", "w", "b"], "c"),
    ("Relu", "relu", ["c"], "r"),
    ("MaxPool", "pool", ["r"], "p"),
    ("Conv", "conv_1", ["p", "w_1", "b_1"], "c_1"),
    ("Relu", "relu_1", ["c_1"], "r_1"),
    ("Conv", "conv_2", ["r_1", "w_2", "b_2"], "c_2"),
    ("Add", "add", ["c_2", "p"], "a"),
    ("Relu", "relu_2", ["a"], "r_2"),
    ("GlobalAveragePool", "mean", ["r_2"], "y"),
]
"""A residual block behind a stem, as torch.onnx names such things."""
NAMES = [name for _, name, _, _ in BLOCK]


def graph(nodes: list[Node]) -> onnx.GraphProto:
    """Channels are 16 everywhere; names that begin with w and b are weights and biases."""
    given = {output for *_, output in nodes}
    constants = sorted({t for _, _, inputs, _ in nodes for t in inputs} - given - {"x"})
    kernel, zeros = np.ones((16, 16, 3, 3), "float32"), np.zeros(16, "float32")
    made = [
        helper.make_node(
            kind, inputs, [output], name=name, **({"pads": [1] * 4} if kind in ("Conv", "MaxPool") else {}),
            **({"kernel_shape": [3, 3]} if kind == "MaxPool" else {}),
        )
        for kind, name, inputs, output in nodes
    ]  # fmt: skip
    return helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(kernel if t.startswith("w") else zeros, t) for t in constants],
    )


def step(kind: str, inputs: str, output: str, name: str = "") -> Step:
    return Step(name, kind, tuple(inputs.split()), (output,))


def optimized(exported: onnx.GraphProto, level: str, folder: Path) -> list[Step]:
    """The steps that ONNX Runtime makes of it."""
    options, path = onnxruntime.SessionOptions(), folder / "optimized.onnx"
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    model = helper.make_model(exported, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return steps_of(read_onnx(path).graph)


def anonymous(steps: list[Step], exported: onnx.GraphProto, constants: bool) -> list[Step]:
    """The same steps after a runtime has renamed them and their tensors, all but inputs and perhaps constants."""
    kept = {"x"} | ({t.name for t in exported.initializer} if constants else set())
    return [
        Step(
            f"step {n}", s.kind, tuple(t if t in kept else f"{t}'" for t in s.inputs), tuple(f"{t}'" for t in s.outputs)
        )
        for n, s in enumerate(steps)
    ]


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_onnx_runtimes_steps_cover_every_node_once(level: str, tmp_path: Path) -> None:
    exported = graph(BLOCK)
    steps = optimized(exported, level, tmp_path)
    covered = covered_nodes(exported, steps)
    assert sorted(name for names in covered for name in names) == sorted(NAMES)
    if level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"):
        assert covered == [(name,) for name in NAMES]
    else:
        assert {("conv", "relu"), ("conv_1", "relu_1")} <= set(covered)


def test_onnx_runtime_fuses_what_a_reader_expects(tmp_path: Path) -> None:
    exported = graph(BLOCK)
    covered = covered_nodes(exported, optimized(exported, "ORT_ENABLE_ALL", tmp_path))
    # Where the blocked layout is not used (on ARM, say), the sum has a step of its own.
    if ("conv_2", "add", "relu_2") not in covered:
        parts = [names for names in covered if names and names[0] in ("conv_2", "add", "relu_2")]
        assert parts == [("conv_2",), ("add",), ("relu_2",)]
    assert [c for c in covered if c][:3] == [("conv", "relu"), ("pool",), ("conv_1", "relu_1")]


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("constants", [True, False])
def test_renamed_steps_are_found_by_what_they_read(level: str, constants: bool, tmp_path: Path) -> None:
    exported = graph(BLOCK)
    steps = optimized(exported, level, tmp_path)
    assert covered_nodes(exported, anonymous(steps, exported, constants)) == covered_nodes(exported, steps)


def test_a_chain_belongs_to_the_step_that_gives_its_end() -> None:
    exported = graph([*BLOCK[:2], ("MaxPool", "pool", ["r"], "y")])
    steps = [step("FusedConv", "x w b", "r"), step("MaxPool", "r", "y")]
    assert covered_nodes(exported, steps) == [("conv", "relu"), ("pool",)]


def test_a_sum_belongs_to_the_step_that_runs_last() -> None:
    nodes: list[Node] = [
        ("Conv", "left", ["x", "w", "b"], "l"),
        ("Conv", "right", ["x", "w_1", "b_1"], "r"),
        ("Add", "add", ["l", "r"], "a"),
        ("Relu", "relu", ["a"], "y"),
    ]
    steps = [step("Conv", "x k1 b_1", "t1"), step("Conv", "x k2 b t1", "t2"), step("ReorderOutput", "t2", "y")]
    assert covered_nodes(graph(nodes), steps) == [("right",), ("left", "add", "relu"), ()]


def test_the_parts_of_a_normalization_belong_to_it_and_not_to_what_they_read() -> None:
    nodes: list[Node] = [
        ("Conv", "conv", ["x", "w", "b"], "c"),
        ("ReduceMean", "mean", ["c"], "m"),
        ("Sub", "sub", ["c", "m"], "s"),
        ("Mul", "square", ["s", "s"], "q"),
        ("ReduceMean", "variance", ["q"], "v"),
        ("Sqrt", "root", ["v"], "d"),
        ("Div", "div", ["s", "d"], "y"),
    ]
    steps = [step("Conv", "x w b", "c"), step("LayerNormalization", "c scale", "y")]
    expected = [("conv",), ("mean", "sub", "square", "variance", "root", "div")]
    assert covered_nodes(graph(nodes), steps) == expected


def test_padding_belongs_to_the_convolution_that_does_it() -> None:
    nodes: list[Node] = [("Pad", "pad", ["x", "pads"], "p"), ("Conv", "conv", ["p", "w", "b"], "y")]
    assert covered_nodes(graph(nodes), [step("Conv", "x w b", "y")]) == [("pad", "conv")]


def test_int8_convolution_covers_its_conversions() -> None:
    nodes: list[Node] = [
        ("QuantizeLinear", "q", ["x", "s"], "xq"),
        ("DequantizeLinear", "dq", ["xq", "s"], "xd"),
        ("DequantizeLinear", "weights", ["w", "s_w"], "wd"),
        ("Conv", "conv", ["xd", "wd", "b"], "c"),
        ("Relu", "relu", ["c"], "r"),
        ("QuantizeLinear", "q_1", ["r", "s_1"], "rq"),
        ("DequantizeLinear", "dq_1", ["rq", "s_1"], "y"),
    ]
    steps = [
        step("QuantizeLinear", "x s", "xq", "q"),
        step("QLinearConv", "xq s w s_w s_1 b", "rq"),
        step("DequantizeLinear", "rq s_1", "y", "dq_1"),
    ]
    assert covered_nodes(graph(nodes), steps) == [("q",), ("dq", "conv", "relu", "q_1"), ("dq_1",)]


def test_what_is_computed_ahead_belongs_to_no_step() -> None:
    nodes: list[Node] = [
        ("Shape", "shape", ["x"], "n"),
        ("Gather", "gather", ["n", "index"], "k"),
        ("Mul", "scaled", ["b", "b_1"], "bias"),
        ("Conv", "conv", ["x", "w", "bias"], "c"),
        ("Reshape", "reshape", ["c", "k"], "y"),
    ]
    steps = [step("Conv", "x w folded", "c"), step("Reshape", "c constant", "y")]
    assert covered_nodes(graph(nodes), steps) == [("conv",), ("reshape",)]
    # Where it was not, it has a step of its own.
    ran = [step("Shape", "x", "n", "shape"), step("Gather", "n index", "k"), *steps[:1], step("Reshape", "c k", "y")]
    assert covered_nodes(graph(nodes), ran) == [("shape",), ("gather",), ("conv",), ("reshape",)]


def test_a_step_that_moves_data_covers_nothing_it_did_not_compute() -> None:
    exported = graph([*BLOCK[:2], ("Transpose", "own", ["r"], "y")])
    steps = [
        step("Transpose", "x", "nhwc"),
        step("FusedConv", "nhwc k b", "t"),
        step("Transpose", "t", "r"),
        step("Transpose", "r", "y"),
    ]
    assert covered_nodes(exported, steps) == [(), ("conv", "relu"), (), ("own",)]


def test_twins_that_cannot_be_told_apart_are_nobodys() -> None:
    nodes: list[Node] = [
        ("Conv", "left", ["x", "w"], "l"),
        ("Conv", "right", ["x", "w_1"], "r"),
        ("Concat", "concat", ["l", "r"], "y"),
    ]
    steps = [step("Conv", "x k1", "t1"), step("Conv", "x k2", "t2"), step("Concat", "t1 t2", "y")]
    assert covered_nodes(graph(nodes), steps) == [(), (), ("concat",)]
    # A bias that one of them alone reads tells them apart.
    nodes[0] = ("Conv", "left", ["x", "w", "b"], "l")
    steps[0] = step("Conv", "x k1 b", "t1")
    assert covered_nodes(graph(nodes), steps) == [("left",), ("right",), ("concat",)]


def test_a_node_without_a_name_goes_by_its_result() -> None:
    exported = graph([("Conv", "", ["x", "w", "b"], "c"), ("Relu", "", ["c"], "y")])
    assert [node_name(node) for node in exported.node] == ["c", "y"]
    assert covered_nodes(exported, [step("FusedConv", "x w b", "y")]) == [("c", "y")]


def test_no_steps_cover_nothing() -> None:
    assert covered_nodes(graph(BLOCK), []) == []
    assert covered_nodes(graph(BLOCK), [step("Mystery", "q", "z")]) == [()]


@pytest.mark.slow
def test_origins_are_the_modules_and_operators_that_torch_ran(small: ModelSource, tmp_path: Path) -> None:
    found = origins(read_onnx(export_onnx(small, "fp32", Cache(tmp_path / "cache")).path).graph)
    by_operator = {origin.operator: origin for origin in found}
    assert {"relu", "max_pool2d", "linear"} <= by_operator.keys()
    assert by_operator["relu"].path == "2"
    assert by_operator["linear"].path == "6"
    assert by_operator["linear"].modules == {"6"}
    # The batch normalization went into the convolution before it, whose weights the node holds.
    folded = next(origin for origin in found if origin.path == "1")
    assert folded.modules == {"0"}
    assert [origin.path for origin in found] == sorted((o.path for o in found), key=lambda path: int(path or 9))


def test_a_graph_of_another_exporter_has_no_origins() -> None:
    exported = graph(BLOCK)
    assert origins(exported) == []
    entry = exported.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'a"
    assert origins(exported) == []
