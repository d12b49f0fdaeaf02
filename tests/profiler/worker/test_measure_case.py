"""One case measured in this process by the real engines, on the CPU: what its row must and must not hold."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engines.pytorch.eager import EagerSession
from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.processor import PROC
from profiler.results.result import Result
from profiler.worker.measure_case import measure_case
from profiler.worker.prepare_model import prepare_export, prepare_model
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow

FACTORIES = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 16)
    def forward(self, x):
        q, k = self.project(x).chunk(2, dim=-1)
        return (q @ k.transpose(1, 2)).softmax(-1).mean(1)

def attention():
    return Attention()

def pooling():
    return nn.AvgPool1d(2)

def nan():
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    nn.init.constant_(model[1].weight, float("nan"))
    return model
"""


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`measure("attention", engine="ort")`: the Result of one case of that factory's model."""
    (tmp_path / "worker_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "worker_factories", raising=False)

    def run(factory: str, engine: str = "eager", pass_: str = "inference", seconds: float = 0.05) -> Result:
        source = ModelSource(factory, factory=f"worker_factories:{factory}", input_shape=(4, 8))
        prepared: Prepared = prepare_model((source, tmp_path / "cache"), lambda message: None)
        if engine == "ort":
            path, seconds = prepare_export((source, "fp32", tmp_path / "cache"), lambda message: None)
            prepared = replace(prepared, onnx={"fp32": path}, export_s={"fp32": seconds})
        case = Case(factory, engine, engine, pass_, "fp32", 2, "cpu", 0, source)  # type: ignore[arg-type]
        return measure_case(Task(case, prepared, Budget(seconds=seconds, min_samples=3)), lambda message: None)

    return run


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_products_of_two_activations_are_proved(measure, engine: str) -> None:
    result = measure("attention", engine)
    assert (result.status, result.reason) == ("ok", None)
    assert set(result.proof.compute_types) == {"float32"}
    assert result.proof.compute_types["float32"] >= 2


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_a_model_without_products_is_unproven_and_no_failure(measure, engine: str) -> None:
    result = measure("pooling", engine)
    assert result.status == "ok"
    assert any(warning.kind == "unproven" for warning in result.warnings)


@pytest.mark.skipif(not (PROC / "stat").exists(), reason="/proc is Linux's")
def test_a_case_that_others_took_the_processors_from_is_disturbed(measure, busy_processors: int) -> None:
    result = measure("attention", seconds=1.0)
    (warning,) = (warning for warning in result.warnings if warning.kind == "disturbed")
    assert warning.text.startswith("other processes took ")
    assert f" % of {busy_processors} processors" in warning.text or busy_processors == 1
    assert result.figures["disturbance"] > 0.05


def test_a_loss_that_is_not_finite_fails_the_row(measure) -> None:
    result = measure("nan", pass_="training")
    assert (result.status, result.reason) == ("failed", "the loss is not finite")


def test_outputs_that_are_not_finite_fail_the_row(measure) -> None:
    result = measure("nan")
    assert result.status == "failed"
    assert "not finite" in result.reason


def test_wrong_outputs_and_a_proof_that_contradicts_are_both_reasons(measure, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = EagerSession.proof
    monkeypatch.setattr(EagerSession, "proof", lambda session: replace(proof(session), tf32=True))
    result = measure("nan")
    assert result.status == "failed"
    assert "the outputs are not finite" in result.reason
    assert "TF32 was on at fp32" in result.reason


def test_what_the_bookkeeping_needs_is_not_the_models_memory(measure, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = EagerSession.memory

    def costly(session: EagerSession):
        np.ones(400 * 2**17).sum()  # 400 MiB
        return declared(session)

    monkeypatch.setattr(EagerSession, "memory", costly)
    assert measure("attention").figures["host_peak_mib"] < 300
