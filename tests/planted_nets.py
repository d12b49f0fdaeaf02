"""Nets with a layer that costs int8 its accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def conv_net(path: Path, seed: int, layers: int = 10) -> tuple[Path, int]:
    """Write a net of convolutions, of which one's first channel is much larger than all others; return its number."""
    rng, nodes, weights, value = np.random.default_rng(seed), [], [], "x"
    bad = int(rng.integers(layers - 1))
    for n in range(layers):
        weight = rng.normal(0, 0.16, (8, 3 if n == 0 else 8, 3, 3)).astype(np.float32)
        weight[0] *= 3000 if n == bad else 1
        weight[:, 0] /= 3000 if n == bad + 1 else 1
        weights.append(numpy_helper.from_array(weight, f"w{n}"))
        nodes += [helper.make_node("Conv", [value, f"w{n}"], [f"c{n}"], f"c{n}", pads=[1] * 4),
                  helper.make_node("Relu", [f"c{n}"], [f"r{n}"])]  # fmt: skip
        value = f"r{n}"
    ends = [("x", ["N", 3, 8, 8]), (value, ["N", 8, 8, 8])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path, bad
