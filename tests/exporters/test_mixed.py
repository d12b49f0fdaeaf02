"""Graphs whose chosen nodes stay in float32: 16 bits between casts, int8 without pairs; and planted faults, found."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from matrix_product import write_text
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.transformers.float16 import convert_float_to_float16
from planted_nets import conv_net

from exporters.inputs import input_specs
from exporters.int8 import PLACEMENTS, feeds, named, write_quantized
from exporters.mixed import MixedGraph
from exporters.source import ModelSource
from profiler.worker.bisection import bisect

pytestmark = pytest.mark.slow

SOFTMAX = """
g (float[N, 4] x) => (float[N, 4] y) <int64[1] axis = {-1}> {
    n = Neg (x)
    a = Neg (n)
    e = Exp (a)
    s = ReduceSum (e, axis)
    d = Div (e, s)
    y = Relu (d)
}"""
"""Its exponential overflows beyond 11.1."""
SCALED = """
g (float[N, 4] x) => (float[N, 4] y)
<float[4, 1] w = {900.0, 900.0, 900.0, 900.0}> {
    a = Relu (x)
    m = MatMul (a, w)
    k = Constant <value = float {1000.0}> ()
    d = Div (m, k)
    y = Sub (a, d)
}"""
X = np.array([[34.0, 32.0, 30.0, 28.0], [1.0, 2.0, 3.0, 4.0]], np.float16)


@pytest.mark.parametrize(
    ("sums", "expected"),
    [("in 16 bits", ["Exp", "ReduceSum", "Div"]), ("in float32, as torch exports them", ["Exp", "Cast", "Div"])],
)
def test_softmax_that_overflows_is_whole_with_its_nodes_in_float32(sums, expected, tmp_path):
    mixed = in_fp16(tmp_path, SOFTMAX)
    if "torch" in sums:
        model = onnx.load(mixed.graph)
        (place,) = (n for n, node in enumerate(model.graph.node) if node.op_type == "ReduceSum")
        model.graph.node[place].input[0], model.graph.node[place].output[0] = "wide", "sum"
        model.graph.node.insert(place + 1, helper.make_node("Cast", ["sum"], ["s"], to=TensorProto.FLOAT16))
        model.graph.node.insert(place, helper.make_node("Cast", ["e"], ["wide"], to=TensorProto.FLOAT))
        onnx.save(model, mixed.graph)
    truth = np.exp(X.astype(float))
    truth /= truth.sum(1, keepdims=True)
    kept, errors = bisect(mixed.feeders, error_of(mixed, tmp_path, X, truth))
    assert math.isinf(errors[frozenset()])
    assert [operator for _, operator, _ in mixed.nodes(kept)] == expected
    assert errors[kept] < 1e-3


def test_product_that_overflows_before_a_division_is_found_with_it(tmp_path):
    mixed = in_fp16(tmp_path, SCALED)
    truth = X - X.astype(float) @ np.full((4, 1), 900.0) / 1000
    kept, errors = bisect(mixed.feeders, error_of(mixed, tmp_path, X, truth))
    assert [operator for _, operator, _ in mixed.nodes(kept)] == ["MatMul", "Div"]
    assert errors[kept] < 1e-3


def in_fp16(folder: Path, text: str) -> MixedGraph:
    model = convert_float_to_float16(onnx.load(write_text(folder / "fp32.onnx", text)), disable_shape_infer=True)
    onnx.save(model, folder / "fp16.onnx")
    return MixedGraph(ModelSource("m"), folder / "fp16.onnx", "fp16")


def error_of(mixed: MixedGraph, folder: Path, x: np.ndarray, truth: np.ndarray) -> Callable[[frozenset[int]], float]:
    def error(kept: frozenset[int]) -> float:
        mixed.write(kept, folder / "kept.onnx")
        with np.errstate(all="ignore"):
            (ours,) = ReferenceEvaluator(str(folder / "kept.onnx")).run(None, {"x": x})
        assert ours.dtype == np.float16
        return float(np.linalg.norm(ours.astype(float) - truth) / np.linalg.norm(truth))

    return error


@pytest.mark.parametrize("kind", PLACEMENTS)
@pytest.mark.parametrize("seed", range(4))
def test_outlier_channel_planted_anywhere_in_int8_is_found(seed, kind, tmp_path):
    fp32, bad = conv_net(tmp_path / "fp32.onnx", seed)
    source = ModelSource("net", onnx=fp32)
    specs = named(source, fp32, input_specs(source))
    write_quantized(source, fp32, feeds([], specs, range(8)), PLACEMENTS[kind], tmp_path / "int8.onnx")
    mixed = MixedGraph(source, tmp_path / "int8.onnx", kind, fp32)
    x, truth = np.random.default_rng(1).standard_normal((3, 3, 8, 8), np.float32), None

    def outputs(path: Path) -> np.ndarray:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": x})[0]

    truth = outputs(fp32)

    def error(kept: frozenset[int]) -> float:
        mixed.write(kept, tmp_path / "kept.onnx")
        return float(np.linalg.norm(outputs(tmp_path / "kept.onnx") - truth) / np.linalg.norm(truth))

    kept, errors = bisect(mixed.feeders, error)
    convolutions = {name for name, operator, _ in mixed.nodes(kept) if operator == "Conv"}
    assert f"c{bad + 1}" in convolutions
    assert convolutions <= {f"c{bad}", f"c{bad + 1}"}
    assert errors[kept] < errors[frozenset()] / 2
    assert errors[frozenset(range(len(mixed.parts)))] < 1e-5, "weights are those of the fp32 graph"
    assert len(errors) <= math.ceil(math.log2(len(mixed.parts))) + 4
