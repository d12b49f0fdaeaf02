"""What memory cannot hold is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.source import ModelSource
from profiler.job.case import Case, Pass
from profiler.nvml import Gpu
from profiler.run import fits


def test_a_step_that_memory_cannot_hold_is_not_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(bytes(8 * 2**20))
    source = ModelSource("m", factory="net:make", weights=tmp_path / "w.safetensors")
    weights = fits.weight_mib(source)
    assert weights == 8
    assert fits.weight_mib(ModelSource("m", factory="net:make")) is None
    monkeypatch.setattr(fits, "available_memory_mib", lambda: 10.0)
    assert fits.too_large_to_prepare("prepare_model", (source,), weights) is None
    refused = fits.too_large_to_prepare("prepare_gradients", (source,), weights)
    assert refused is not None
    assert refused.status == "oom"
    assert "reference gradients would take at least 0.0 GiB (5 ×" in str(refused.reason)
    assert fits.too_large_to_prepare("prepare_export", (source, "fp32"), weights) is None
    assert fits.too_large_to_prepare("prepare_export", (source, "int8"), weights) is not None


def test_as_many_side_by_side_as_memory_holds_of_the_largest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fits, "usable_cores", lambda: 16)
    monkeypatch.setattr(fits, "available_memory_mib", lambda: 20_000.0)
    assert fits.at_once([]) == 16
    assert fits.at_once([0.0, 200.0]) == 8
    assert fits.at_once([None]) == fits.at_once([400.0]) == 4
    assert fits.at_once([1e6]) == 1
    state = tmp_path / "state.pt"
    state.write_bytes(bytes(3 * 2**20))
    assert fits.weight_mib(ModelSource("m", factory="net:make"), state) == 3


def test_weights_larger_than_the_card_are_a_row_in_words() -> None:
    gpu = Gpu(0, "GPU-0", "a card", 4096.0, "580")
    source = ModelSource("m", factory="net:make")

    def refusal(precision: str, pass_: Pass = "inference") -> str:
        case = Case("m", "eager", "eager", pass_, precision, 1, "cuda", 0, source)
        outcome = fits.too_large_to_run(case, 6144.0, gpu)
        return "" if outcome is None else f"{outcome.status}: {outcome.reason}"

    assert refusal("fp32").startswith(
        "oom: not started: the weights alone take 6.0 GiB at fp32, and the GPU has 4.0 GiB"
    )
    assert not refusal("fp16")
    assert "weights and gradients alone take 6.0 GiB at fp16" in refusal("fp16", "training")
