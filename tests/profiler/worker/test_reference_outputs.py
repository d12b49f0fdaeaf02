"""Reference outputs are of as many items as the CPU can afford."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engines.catalog import reference_of
from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.worker import reference_outputs
from profiler.worker.measure_case import measure_case
from profiler.worker.outputs import read_outputs
from profiler.worker.prepare_model import prepare_model
from profiler.worker.reference_outputs import affordable
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
    assert (made.reference_items, made.reference_name(reference_of("factory")[1])) == (8, "eager-fp32-cpu")
