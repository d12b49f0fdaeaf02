"""Test what verifies our figures: the conclusions on figures of an H200, and numpy's comparison by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verify_gpu import Row
from benchmarks.verify_plain import numpy_error
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.worker.parity import Outputs

pytestmark = pytest.mark.slow

CASE = Case("net", "eager", "eager", "inference", "fp32", 16, "cuda", 0, ModelSource("net"))
QUIET = {"event": 2.0, "gpu": 1.99, "enqueue": 0.3}


def row(**ms: float) -> Row:
    return Row(CASE, {**QUIET, **ms}, {}, power_capped=False)


def test_only_what_was_taken_is_a_ratio():
    assert row().words == {}
    assert row(gpu_flushed=2.02, nvbench_cold=2.0).words == {"flushed": "+1.00%"}
    off = row(gpu_flushed=2.05, nvbench_cold=2.0, plain=2.0, our_error=3e-4, numpy_error=1e-4)
    assert off.words == {"flushed": "+2.50%", "plain off": "+0.00%", "parity": "3.00"}
    assert not off.agrees


@pytest.mark.parametrize(("plain", "off"), [(2.03, "-1.48%"), (1.97, "+1.52%"), (2.1, "-4.76%")])
def test_a_script_is_within_two_percent_of_our_latency(plain, off):
    assert row(plain=plain).words == {"plain off": off}
    assert row(plain=plain).agrees == (off != "-4.76%")


def test_nothing_is_concluded_where_the_host_sets_the_latency():
    # ViT, eager, fp16: the device works 1.94 ms of it.
    assert row(event=2.6795, gpu=1.9369, enqueue=2.6, plain=5.1087).words == {}
    no_gate = Row(CASE, {"event": 4.5, "enqueue": 4.4, "plain": 9.0}, {}, power_capped=False)
    assert no_gate.words == {}
    by_the_device = Row(CASE, {"event": 10.4, "enqueue": 4.4, "plain": 10.5}, {}, power_capped=False)
    assert by_the_device.words == {"plain off": "-0.95%"}


def test_the_largest_relative_error_over_the_items_that_both_have(tmp_path):
    truth = [np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[2.0], [9.0]])]
    further = [np.array([[7.0, 7.0]] * 2), np.array([[1.0]] * 2)]
    Outputs.of_runs(["logits", "pooled"], [truth, further], 2).save(tmp_path / "reference.npz")
    outputs = [np.array([[3.0, 4.5]], np.float32), np.array([[2.0]], np.float32)]
    assert numpy_error(outputs, tmp_path / "reference.npz") == pytest.approx(0.5 / 5)
    with pytest.raises(ValueError, match="zip"):
        numpy_error(outputs[:1], tmp_path / "reference.npz")
