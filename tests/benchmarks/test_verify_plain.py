"""The comparison in numpy with which parity figures are verified, by numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.verify_plain import numpy_error

pytestmark = pytest.mark.slow


def test_the_largest_relative_error_over_the_items_that_both_have(tmp_path: Path) -> None:
    truth = {"0 logits": np.array([[3.0, 4.0], [0.0, 0.0]]), "1 pooled": np.array([[2.0], [9.0]])}
    np.savez(tmp_path / "reference.npz", **truth)
    outputs = [np.array([[3.0, 4.5]], np.float32), np.array([[2.0]], np.float32)]
    assert numpy_error(outputs, tmp_path / "reference.npz") == pytest.approx(0.5 / 5)
    with pytest.raises(ValueError, match="zip"):
        numpy_error(outputs[:1], tmp_path / "reference.npz")
