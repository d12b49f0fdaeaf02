"""A matrix product as an ONNX file, the smallest model that has weights, and graphs as ONNX writes them in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper


def write_product(path: Path, weight: Any, names: str = "x y", batch: Any = "n", beside: str | None = None) -> Path:
    """From an input (batch, rows) to an output (batch, columns), of these names; `beside` is a file for the weight."""
    ends = names.split()
    shapes = zip(ends, weight.shape, strict=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, size]) for name, size in shapes)
    node = helper.make_node("MatMul", [ends[0], "w"], ends[1:])
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path, save_as_external_data=beside is not None, location=beside, size_threshold=0)
    return path


def write_text(path: Path, text: str, **weights: Any) -> Path:
    """Write a graph of opset 20 and its weights, such as "g (float[n, 4] x) => (float[n, 4] y) { y = Add (x, w) }"."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


WEIGHT = np.random.default_rng(1).standard_normal((6, 5), dtype=np.float32)


def write_theirs(path: Path) -> Path:
    """From `values` to `scores`, by WEIGHT, which lies in a file beside it."""
    return write_product(path, WEIGHT, "values scores", beside="weights.bin")
