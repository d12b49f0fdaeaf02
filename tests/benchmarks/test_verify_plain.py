"""Test the numpy comparison that verifies our figures, on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verify_plain import numpy_error
from profiler.worker.parity import Outputs

pytestmark = pytest.mark.slow


def test_the_largest_relative_error_over_the_items_that_both_have(tmp_path):
    truth = [np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[2.0], [9.0]])]
    further = [np.array([[7.0, 7.0]] * 2), np.array([[1.0]] * 2)]
    Outputs.of_runs(["logits", "pooled"], [truth, further], 2).save(tmp_path / "reference.npz")
    outputs = [np.array([[3.0, 4.5]], np.float32), np.array([[2.0]], np.float32)]
    assert numpy_error(outputs, tmp_path / "reference.npz") == pytest.approx(0.5 / 5)
    with pytest.raises(ValueError, match="zip"):
        numpy_error(outputs[:1], tmp_path / "reference.npz")
