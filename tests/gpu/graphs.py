"""Small ONNX graphs, and jobs of them, for the tests of TensorRT's run half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engines.base import Job
from engines.options import TrtOptions
from exporters.inputs import graph_specs, input_specs, seeded_inputs
from exporters.source import ModelSource

BATCH = 4
CHANNELS, SIZE, CLASSES = 8, 16, 10
WEIGHTS = CHANNELS * 3 * 9 + CHANNELS + CHANNELS * CLASSES + CLASSES


def convolution(path: Path, kind: int = TensorProto.FLOAT) -> Path:
    """x (batch, 3, 16, 16) → convolution, pooling, product → y (batch, 10), all in one type; seeded weights."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = 0.3 * generator.standard_normal(shape)
        return numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(kind)), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "v", "d"], ["y"], "fc"),
    ]
    weights = [weight("w", CHANNELS, 3, 3, 3), weight("b", CHANNELS), weight("v", CHANNELS, CLASSES)]
    weights.append(weight("d", CLASSES))
    x = helper.make_tensor_value_info("x", kind, ["batch", 3, SIZE, SIZE])
    y = helper.make_tensor_value_info("y", kind, ["batch", CLASSES])
    return _save(helper.make_graph(nodes, "convolution", [x], [y], weights), path)


def mixed(path: Path, width: int = 6) -> Path:
    """Two inputs of two sizes, int64 and fp16, and two outputs, bool and bf16, without a convolution or product.

    numbers, halves (batch, width) → positive = numbers > 0; scaled = numbers * halves.
    """
    nodes = [
        helper.make_node("Cast", ["numbers"], ["n"], "to_float", to=TensorProto.FLOAT),
        helper.make_node("Cast", ["halves"], ["h"], "widen", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["n", "h"], ["product"], "multiply"),
        helper.make_node("Cast", ["product"], ["scaled"], "narrow", to=TensorProto.BFLOAT16),
        helper.make_node("Greater", ["numbers", "zero"], ["positive"], "greater"),
    ]
    zero = numpy_helper.from_array(np.zeros(1, np.int64), "zero")
    inputs = [
        helper.make_tensor_value_info("numbers", TensorProto.INT64, ["batch", width]),
        helper.make_tensor_value_info("halves", TensorProto.FLOAT16, ["batch", width]),
    ]
    outputs = [
        helper.make_tensor_value_info("positive", TensorProto.BOOL, ["batch", width]),
        helper.make_tensor_value_info("scaled", TensorProto.BFLOAT16, ["batch", width]),
    ]
    return _save(helper.make_graph(nodes, "mixed", inputs, outputs, [zero]), path)


def source_of(onnx: Path, **more: Any) -> ModelSource:
    source = ModelSource("net", onnx=onnx, **more)
    integers = [spec.name for spec in graph_specs(source, onnx) if "int" in spec.dtype]
    return replace(source, inputs=dict.fromkeys(integers, (0, 2)))


def job_of(onnx: Path, precision: str = "native", batch: int = BATCH, **options: Any) -> Job:
    source = source_of(onnx)
    inputs = tuple(seeded_inputs(input_specs(source), batch))
    return Job(source, "inference", precision, batch, "cuda", TrtOptions(**options), inputs, onnx=onnx, engine="trt")


def run(session: Any, times: int = 1) -> Any:
    for _ in range(times):
        session.run(lambda name: None)
    return session.outputs()


def _save(graph: onnx.GraphProto, path: Path) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path
