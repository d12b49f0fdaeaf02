"""Small ONNX graphs, and jobs of them, for the tests of TensorRT's run half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matrix_product import write_text

from engines.base import Job
from engines.options import TrtOptions
from exporters.inputs import graph_specs, input_specs, seeded_inputs
from exporters.source import ModelSource

BATCH = 4
CHANNELS, SIZE, CLASSES = 8, 16, 10
WEIGHTS = CHANNELS * 3 * 9 + CHANNELS + CHANNELS * CLASSES + CLASSES


def convolution(path: Path) -> Path:
    """x (batch, 3, 16, 16) → convolution, pooling, product → y (batch, 10); seeded weights."""
    generator = np.random.default_rng(0)
    shapes = {"w": (CHANNELS, 3, 3, 3), "b": (CHANNELS,), "v": (CHANNELS, CLASSES), "d": (CLASSES,)}
    nodes = "[conv] c = Conv <pads = [1, 1, 1, 1]> (x, w, b)  [relu] r = Relu (c)  [pool] p = GlobalAveragePool (r)"
    nodes += "  [flatten] f = Flatten (p)  [fc] y = Gemm (f, v, d)"
    ends = f"(float[batch, 3, {SIZE}, {SIZE}] x) => (float[batch, {CLASSES}] y)"
    weights = {name: (0.3 * generator.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    return write_text(path, f"convolution {ends} {{ {nodes} }}", **weights)


def mixed(path: Path, width: int = 6) -> Path:
    """Two inputs of two sizes, int64 and fp16, and two outputs, bool and bf16, without a convolution or product.

    numbers, halves (batch, width) → positive = numbers > 0; scaled = numbers * halves.
    """
    inputs = f"int64[batch, {width}] numbers, float16[batch, {width}] halves"
    outputs = f"bool[batch, {width}] positive, bfloat16[batch, {width}] scaled"
    nodes = "[to_float] n = Cast <to = 1> (numbers)  [widen] h = Cast <to = 1> (halves)  [multiply] m = Mul (n, h)"
    nodes += "  [narrow] scaled = Cast <to = 16> (m)  [greater] positive = Greater (numbers, zero)"
    return write_text(path, f"mixed ({inputs}) => ({outputs}) <int64[1] zero = {{0}}> {{ {nodes} }}")


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
