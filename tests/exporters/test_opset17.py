"""A graph lowered to opset 17 has none of the newer forms, is valid, and computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from matrix_product import write_text

from exporters.opset17 import OPSET, lowered
from exporters.source import ModelError

pytestmark = pytest.mark.slow

NEW = """
net (float[n, 4, 6] x) => (float[n, 4, 6] y, float[n, 1, 6] z, float[n, 4, 3] a, int64[1] s, int64[2] t, int64[3] u)
<int64[1] axes = {1}, float[6] scale = {1, 2, 3, 4, 5, 6}>
{
    middle = ReduceMean (x, axes)
    top = ReduceMax <keepdims = 1> (x, axes)
    z = Sub (top, middle)
    normal = LayerNormalization <axis = -1> (x, scale)
    y = Gelu (normal)
    a, b = Split <axis = 2, num_outputs = 2> (x)
    s = Shape <start = 0, end = 1> (x)
    t = Shape <start = -2> (x)
    u = Shape <start = 0> (x)
}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    write_text(tmp_path / "net.onnx", NEW)
    return tmp_path / "net.onnx"


def test_newer_forms_become_those_of_17(graph):
    newer = {"LayerNormalization", "Gelu", "CastLike"}
    model = lowered(graph, lambda operator: operator not in newer)
    onnx.checker.check_model(model, full_check=True)
    assert [own.version for own in model.opset_import if not own.domain] == [OPSET]
    assert not newer & {node.op_type for node in model.graph.node}
    assert not [node for node in model.graph.node if node.op_type == "Shape" and node.attribute]
    for node in model.graph.node:
        if node.op_type.startswith("Reduce"):
            assert (len(node.input), "axes" in {a.name for a in node.attribute}) == (1, True)
    x = np.random.default_rng(0).standard_normal((3, 4, 6), dtype=np.float32)
    expected, found = (
        onnxruntime.InferenceSession(content).run(None, {"x": x})
        for content in (graph.read_bytes(), model.SerializeToString())
    )
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_what_has_no_parts_stays_for_the_parser_to_refuse(graph):
    model = lowered(graph, lambda operator: operator != "Split")
    assert {"LayerNormalization", "Gelu", "Split"} <= {node.op_type for node in model.graph.node}


def test_computed_axes_are_refused(tmp_path):
    write_text(tmp_path / "g.onnx", "g (float[n, 4] x, int64[1] axes) => (float[n, 1] y) { y = ReduceMean (x, axes) }")
    with pytest.raises(ModelError, match="computes its axes"):
        lowered(tmp_path / "g.onnx", lambda operator: True)
