"""Reference outputs are of as many items as the CPU can afford."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engines.catalog import reference_of
from exporters.build_model import restore
from exporters.inputs import seeded_inputs
from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.worker import reference_outputs
from profiler.worker.measure_case import measure_case
from profiler.worker.outputs import read_outputs, read_reference
from profiler.worker.prepare_model import prepare_model
from profiler.worker.reference_outputs import _runs, affordable
from profiler.worker.task import Task

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        if len(x) == %d:
            raise ValueError("not so many items")
        return self.layer(x)
"""


def test_as_many_items_as_time_and_memory_allow() -> None:
    assert affordable(0.5, 100.0, 4000.0) == 8
    assert affordable(20.0, 0.0, 4000.0) == 2
    assert affordable(0.1, 700.0, 4000.0) == 4
    assert affordable(1000.0, 90_000.0, 4000.0) == 1
    assert affordable(0.1, 90_000.0, None) == 8


def test_further_batches_are_run_as_long_as_they_are_affordable() -> None:
    assert _runs(8, 0.1, 1000, None) == 8
    assert _runs(8, 2.0, 1000, None) == 4
    assert _runs(8, 0.1, 2**26, None) == 2
    assert _runs(8, 60.0, 2**30, None) == _runs(100, 0.1, 1000, None) == _runs(8, 0.1, 1000, 5) == 1
    assert (_runs(5, 0.1, 1000, None), _runs(8, 0.1, 1000, 20)) == (12, 2)


def test_a_reference_has_the_items_that_a_whole_batch_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = source(tmp_path, "plain_net", 0, monkeypatch)
    made = prepare_model((model, ("cpu",), tmp_path / "cache"), lambda message: None)
    assert made.reference is not None and made.state is not None
    assert (made.reference_batch, made.reference_items, made.outputs) == (8, 64, ((8, 4),))
    (rows,) = read_reference(made.reference, 8, 64).rows.values()
    with torch.no_grad():
        whole = restore(model, made.state)(torch.from_numpy(seeded_inputs(made.specs, 64)[0]))
    np.testing.assert_allclose(rows, whole, rtol=1e-5, atol=1e-6)


def source(tmp_path: Path, name: str, impossible: int, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    (tmp_path / f"{name}.py").write_text(NET % impossible)
    monkeypatch.syspath_prepend(tmp_path)
    return ModelSource(name, factory=f"{name}:Net", input_shape=(6,))


def test_a_reference_of_fewer_items_is_compared_with_these_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = source(tmp_path, "slow_net", 8, monkeypatch)
    monkeypatch.setattr(reference_outputs, "CPU_SECONDS", 0.0)
    made = prepare_model((model, ("cpu",), tmp_path / "cache"), lambda message: None)
    assert made.reference is not None
    assert [array.shape for array in read_outputs(made.reference).values()] == [(1, 4)]
    case = Case("slow_net", "eager", "eager", "inference", "fp32", 2, "cpu", 0, model)
    result = measure_case(Task(case, made, Budget(seconds=0.05)), lambda message: None)
    assert (result.status, result.reference) == ("ok", "eager-fp32-cpu, 1 of 8 items"), result.reason
    assert result.figures["rel_l2_error"] < 1e-5
    other = replace(made, taken=replace(made.taken, device="cuda", items=4))
    assert other.reference_name(reference_of("onnx")[1]) == "ort-cuda-unoptimized, 4 of 8 items"


def test_what_is_ended_on_the_cpu_and_cannot_have_the_gpu_is_of_one_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = source(tmp_path, "ended_net", 8, monkeypatch)
    monkeypatch.setattr(reference_outputs, "CPU_SECONDS", -1.0)
    monkeypatch.setattr(torch.cuda, "Stream", None)  # As where no GPU answers.
    made = prepare_model((model, ("cpu", "cuda"), tmp_path / "cache"), lambda message: None)
    assert (made.taken.device, made.taken.items) == ("cpu", 1)


def test_a_model_that_cannot_run_one_item_has_a_reference_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = source(tmp_path, "no_single", 1, monkeypatch)
    made = prepare_model((model, ("cpu",), tmp_path / "cache"), lambda message: None)
    assert (made.reference_items, made.reference_name(reference_of("factory")[1])) == (64, "eager-fp32-cpu")
