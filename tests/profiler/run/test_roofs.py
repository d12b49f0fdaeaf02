"""A run's roofs and the rows that they fail: recorded measurements, and a real run of a model that skips its work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
from runs import Profiler

from engines.base import Proof
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.machine import Target
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, run_one
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.run import roofs as module
from profiler.run.progress import PlainDisplay
from profiler.run.roofs import RunRoofs
from profiler.worker.roofline import Measured

pytestmark = pytest.mark.slow

LOW = {"fp32_tflops": 0.03, "copy_gb_s": 4.0, "cache_mib": 100.0}
"""As measured on two cores while others took 70 % of them."""
ALONE = {"fp32_tflops": 0.5, "copy_gb_s": 18.0, "cache_mib": 100.0}


def case(precision: str = "fp32") -> Case:
    return Case("net", "eager", "eager", "inference", precision, 1, "cpu", 0, ModelSource("net"))


def took(ms: float) -> Result:
    """A row of one GFLOP that was found right."""
    figures = {"flops_per_item": 1e9, "moved_mib": 10.0}
    samples, proof = {"host": [ms] * 3}, Proof(compute_types={"float32": 3})
    return Result(
        case().id, "ok", reference="eager-fp32-cpu", clock="host", samples=samples, figures=figures, proof=proof
    )


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunRoofs]:
    """A run whose roofs come out one after another as recorded."""

    def play(environment: dict[str, Any], *found: Measured | None) -> RunRoofs:
        left = list(found)
        monkeypatch.setattr(module, "run_one", lambda call: Outcome("ok", value=left.pop(0)))
        run, display = RunFolder.create(tmp_path), PlainDisplay(Console(quiet=True))
        return RunRoofs(run, Target("cpu"), 3.0, environment, display)

    return play


def test_roofs_are_measured_once_and_kept(play: Callable[..., RunRoofs]) -> None:
    environment: dict[str, Any] = {}
    roofs = play(environment, Measured(ALONE, quiet=True), Measured({**LOW, "bf16_tflops": 0.03}, quiet=False))
    roofs.measure([case()])
    roofs.measure([case()])
    assert environment == {"roofs": ALONE, "roofs_quiet": True}
    roofs.measure([case("bf16")])
    assert environment == {"roofs": {**ALONE, "bf16_tflops": 0.03}, "roofs_quiet": False}
    roofs.measure([case("bf16")])


def test_roofs_that_cannot_be_measured_judge_nothing(play: Callable[..., RunRoofs]) -> None:
    environment: dict[str, Any] = {}
    roofs, result = play(environment, None), took(1e-6)
    roofs.measure([case()])
    roofs.judge(case(), result)
    assert (environment, result.status) == ({"roofs": {}, "roofs_quiet": False}, "ok")


@pytest.mark.parametrize(
    ("ms", "quiet", "status"), [(0.1, True, "failed"), (0.1, False, "ok"), (20.0, True, "ok"), (40.0, True, "ok")]
)
def test_only_what_is_impossible_on_a_quiet_machine_fails(
    play: Callable[..., RunRoofs], ms: float, quiet: bool, status: str
) -> None:
    roofs, result = play({}, Measured(LOW, quiet)), took(ms)
    roofs.measure([case()])
    roofs.judge(case(), result)
    assert result.status == status


# A real run.

IDLE = """
import torch
from torch import nn

class Idle(nn.Module):
    # Computes once; after that it hands out what it has.
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(16, 128, 3), nn.Conv2d(128, 128, 3), nn.AdaptiveAvgPool2d(1))
        self.known = None
    def forward(self, x):
        if self.known is None or self.known.shape[0] != x.shape[0]:
            self.known = self.layers(x)
        return self.known

def idle():
    return Idle()

def honest():
    return Idle().layers
"""
JOB = """
models:
  - {name: idle, factory: "idle:idle", input: [16, 48, 48]}
  - {name: honest, factory: "idle:honest", input: [16, 48, 48]}
engines: [eager]
batch_sizes: [2]
device: cpu
budget: {seconds: 0.1, min_samples: 3}
"""


@pytest.mark.parametrize("quiet", [True, False])
def test_a_session_that_skips_its_work_fails_on_a_quiet_machine(
    profiler: Profiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    """All of it is real but whether others disturbed the measuring of the roofs, which a test cannot choose.

    So that they do not fail the honest row where they did, the roofs are three times what was measured.
    """

    def measure(call: Call) -> Outcome:
        outcome = run_one(call)
        roofs = {name: 3 * roof for name, roof in outcome.value.roofs.items()}
        return replace(outcome, value=replace(outcome.value, roofs=roofs, quiet=quiet))

    monkeypatch.setattr(module, "run_one", measure)
    (tmp_path / "idle.py").write_text(IDLE)
    (tmp_path / "job.yaml").write_text(JOB)
    done = profiler("job.yaml", cwd=tmp_path, PROFILER_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "results").iterdir()
    rows = {row["model"]: row for row in pl.read_parquet(path / "results.parquet").to_dicts()}
    idle, honest = rows["idle"], rows["honest"]
    if quiet:
        assert idle["status"] == "failed"
        assert "faster than the measured peak allows" in idle["reason"]
        assert "failed " in done.stdout
    else:
        assert (idle["status"], idle["fraction_of_peak"]) == ("ok", None)
        assert [warning.partition(":")[0] for warning in idle["warnings"] if "floor" in warning] == ["below-floor"]
    assert honest["status"] == "ok"
    assert 0 < honest["fraction_of_peak"] <= 1
    assert not [warning for warning in honest["warnings"] if warning.startswith("below-floor")]
    assert json.loads((path / "environment.json").read_text())["roofs_quiet"] == quiet
