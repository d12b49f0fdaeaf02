"""A float32 graph in float64: where it differs from ONNX Runtime, and where it is not evaluated."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from matrix_product import write_text

from exporters.float64 import evaluate

pytestmark = pytest.mark.slow

SMALL = "g (float[n, 4] x) => (float[n, 4] y) <float shift = {-20}> { a = Add (x, shift)  y = Sigmoid (a) }"


def test_small_probabilities_have_all_their_digits(tmp_path):
    write_text(tmp_path / "g.onnx", SMALL)
    x = np.zeros((2, 4), np.float32)
    found = evaluate(tmp_path / "g.onnx", {"x": x}, 10)
    assert found is not None
    assert found["y"].dtype == np.float64
    np.testing.assert_allclose(found["y"], 1 / (1 + np.exp(20.0)), rtol=1e-12)


def test_what_takes_too_long_or_is_unknown_is_not_evaluated(tmp_path):
    write_text(tmp_path / "g.onnx", SMALL)
    assert evaluate(tmp_path / "g.onnx", {"x": np.zeros((2, 4), np.float32)}, 1e-6) is None
    model = onnx.load(tmp_path / "g.onnx")
    model.graph.node[0].op_type = "Strange"
    onnx.save(model, tmp_path / "strange.onnx")
    assert evaluate(tmp_path / "strange.onnx", {"x": np.zeros((2, 4), np.float32)}, 10) is None
