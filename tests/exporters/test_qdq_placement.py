"""Where the int8 graph for TensorRT has its Q/DQ pairs, and that it computes what the float one does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from thin_networks import thin_source

from engines.catalog import ENGINES
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.int8 import quantize, quantized_key
from exporters.onnx_export import export_onnx
from exporters.qdq_placement import PLACEMENTS, WEIGHTED, residuals
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.worker.task import graph_of

pytestmark = pytest.mark.slow

SOURCE = thin_source("resnet50")


@pytest.fixture(scope="module")
def path(exports: Cache) -> Path:
    return quantize(SOURCE, exports, "int8-operands").path


@pytest.mark.slow
def test_a_pair_an_operand_and_one_a_residual(path: Path) -> None:
    graph = onnx.load(path).graph
    count = Counter(node.op_type for node in graph.node)
    assert (count["Conv"], count["Gemm"], count["Add"]) == (12, 1, 3)
    # The weights are stored in int8, with nothing to quantize.
    assert (count["QuantizeLinear"], count["DequantizeLinear"]) == (12 + 1 + 3, 2 * (12 + 1) + 3)
    maker = {name: node.op_type for node in graph.node for name in node.output}
    for node in graph.node:
        of = [maker.get(name) for name in node.input]
        if node.op_type in WEIGHTED:
            assert of[:2] == ["DequantizeLinear"] * 2
        elif node.op_type == "Add":
            assert sorted(map(str, of)) == ["Conv", "DequantizeLinear"]
        elif node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            assert "DequantizeLinear" not in of
    (output,) = graph.output
    assert maker[output.name] == "Gemm"
    names = Counter(name for node in graph.node for name in node.input)
    assert all(names[tensor.name] for tensor in graph.initializer), "what the removed pairs had is gone"


@pytest.mark.slow
def test_it_computes_what_the_float_graph_does(path: Path, exports: Cache) -> None:
    x = {"x": seeded_inputs(input_specs(SOURCE), 3)[0]}
    graphs = (export_onnx(SOURCE, "fp32", exports).path, path)
    floats, integers = (
        onnxruntime.InferenceSession(g, providers=["CPUExecutionProvider"]).run(None, x)[0] for g in graphs
    )
    assert 1e-3 < np.linalg.norm(integers - floats) / np.linalg.norm(floats) < 0.1


def write(path: Path, nodes: list[tuple[str, str, str]]) -> Path:
    """A graph of nodes such as ("Conv", "x w", "a"), without names, in which w and b are constants."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4, 4, 4]) for name in ("x", "y")]
    constants = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, 4, 1, 1], np.ones(16)),
        helper.make_tensor("b", TensorProto.FLOAT, [1], np.ones(1)),
    ]
    made: list[Any] = [helper.make_node(operator, i.split(), o.split()) for operator, i, o in nodes]
    onnx.save(helper.make_model(helper.make_graph(made, "g", values[:1], values[1:], constants)), path)
    return path


@pytest.mark.parametrize(
    ("nodes", "residual"),
    [
        ([("Conv", "x w", "a"), ("Add", "a x", "y")], "x"),
        # Of two convolutions the nearer one to the input is the shortcut's, wherever it is in the file.
        ([("Conv", "x w", "a"), ("Conv", "a w", "c"), ("Conv", "x w", "d"), ("Add", "c d", "y")], "d"),
        ([("Conv", "x w", "d"), ("Conv", "x w", "a"), ("Conv", "a w", "c"), ("Add", "d c", "y")], "d"),
        ([("Conv", "x w", "a"), ("Add", "a b", "y")], None),  # A bias.
        ([("Conv", "x w", "a"), ("Relu", "a", "c"), ("Add", "c x", "y")], None),
        ([("Conv", "x w", "a"), ("Relu", "a", "c"), ("Add", "a c", "y")], None),  # What others read is stored anyway.
        ([("Conv", "x w", "a"), ("Add", "a a", "y")], None),
    ],
)
def test_residuals(nodes: list[tuple[str, str, str]], residual: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "g.onnx", nodes)
    found, others = residuals(path)
    assert list(found.values()) == ([] if residual is None else [residual])
    assert len(found) + len(others) == 1
    names = [node.name for node in onnx.load(path).graph.node]
    assert all(names)
    assert len(set(names)) == len(nodes)


def test_which_engine_runs_which_graph(tmp_path: Path) -> None:
    def graph(engine: str, precision: str = "int8", **source: Any) -> str:
        return graph_of(Case("a", engine, engine, "inference", precision, 1, "cuda", 0, ModelSource("a", **source)))

    found = {name: graph(name) for name, engine in ENGINES.items() if engine.needs == "onnx"}
    operands = dict.fromkeys(("ort-trt", "ort-trt-rtx", "trt", "trt-rtx"), "int8-operands")
    assert found == dict.fromkeys(("ort", "ort-openvino", "ort-plugin", "openvino"), "int8") | operands
    assert set(found.values()) == set(PLACEMENTS)
    assert (graph("trt", "tf32"), graph("trt", "fp16")) == ("fp32", "fp16")
    assert graph("trt", graphs={"int8": tmp_path / "theirs.onnx"}) == "int8", "the user's own"


def test_each_graph_has_its_own_place_in_the_cache() -> None:
    keys = {quantized_key(ModelSource("alexnet"), [], placement) for placement in PLACEMENTS.values()}
    assert len(keys) == len(PLACEMENTS)
