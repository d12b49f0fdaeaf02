"""What a run does with its roofs: recorded measurements in turn, and a real run of a model that skips its work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler

from engines.base import Proof
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.machine import Target
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, run_one
from profiler.results.result import Result
from profiler.results.roofline import placed
from profiler.results.run_folder import RunFolder
from profiler.run import roofs as module
from profiler.run.roofs import RunRoofs
from profiler.worker.roofline import Measured

pytestmark = pytest.mark.slow

LOW = {"fp32_tflops": 0.03, "copy_gb_s": 4.0, "cache_mib": 100.0}
"""As measured on two cores while others took 70 % of them."""
ALONE = {"fp32_tflops": 0.5, "copy_gb_s": 18.0, "cache_mib": 100.0}


class Display:
    def __init__(self) -> None:
        self.said: list[str] = []

    def preparing(self, what: str, done: int, total: int) -> None:
        pass

    def announce(self, what: str) -> None:
        self.said.append(what)

    def ended(self, case: Case, result: Result, counts: bool = True) -> None:
        self.said.append(f"{result.status} {case.id}")


def case(name: str, precision: str = "fp32") -> Case:
    return Case(name, "eager", "eager", "inference", precision, 1, "cpu", 0, ModelSource(name))


def measured(name: str, ms: float) -> Result:
    """A row of one GFLOP that was found right."""
    figures = {"flops_per_item": 1e9, "moved_mib": 10.0}
    samples, proof = {"host": [ms] * 3}, Proof(compute_types={"float32": 3})
    return Result(
        case(name).id, "ok", reference="eager-fp32-cpu", clock="host", samples=samples, figures=figures, proof=proof
    )


class Played:
    """A run of these rows, whose roofs come out one after another as recorded; `others` work at its end."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        rows: dict[str, float],
        *played: Measured,
        others: str | None = None,
    ) -> None:
        self.folder, self.environment, self.display = RunFolder.create(folder), dict[str, Any](), Display()
        self.cases, self.left, self.asked = [case(name) for name in rows], list(played), list[Any]()
        monkeypatch.setattr(module, "run_one", self._measure)
        monkeypatch.setattr(module, "other_work", lambda nvml: others)
        self.roofs = RunRoofs(self.folder, Target("cpu"), 3.0, self.environment, self.display)  # type: ignore[arg-type]
        self.roofs.measure(self.cases)
        for name, ms in rows.items():
            self.folder.append(measured(name, ms))
        self.roofs.confirm(self.cases)
        self.roofs.raise_to(self.cases)

    def _measure(self, call: Call) -> Outcome:
        self.asked.append(call.argument)
        return Outcome("ok", value=self.left.pop(0))

    def row(self, name: str) -> Result:
        """As the tables have it."""
        written = json.loads((self.folder.path / "environment.json").read_text())
        assert written == self.environment
        return placed(
            case(name), self.folder.results()[case(name).id], written["roofs"], written.get("roofs_disturbance")
        )


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    return lambda rows, *played, **how: Played(tmp_path, monkeypatch, rows, *played, **how)


def test_rows_below_the_roofs_are_no_reason_to_measure_again(play: Callable[..., Played]) -> None:
    run = play({"net": 40.0}, Measured(LOW, quiet=True))
    assert run.environment["roofs"] == run.environment["measured_roofs"] == LOW
    assert run.row("net").figures["fraction_of_peak"] == pytest.approx(1 / 40 / 0.03)


def test_a_right_row_is_judged_by_roofs_measured_after_it(play: Callable[..., Played]) -> None:
    """As on the afternoon on which others took 70 % of two cores while the roofs were measured."""
    run = play({"net": 2.5}, Measured(LOW, quiet=False), Measured(ALONE, quiet=True))
    row = run.row("net")
    assert (row.status, row.warnings) == ("ok", [])
    assert row.figures["fraction_of_peak"] == pytest.approx(0.8)
    assert run.environment["roofs"] == run.environment["measured_roofs"] == ALONE


def test_a_busy_machine_warns_and_fails_no_row(play: Callable[..., Played]) -> None:
    busy = Measured(LOW, False, "other processes took 70 % of 2 processors")
    run = play({"net": 2.5, "slow": 50.0}, busy, others="other processes took 60 % of 2 processors")
    assert len(run.asked) == 1, "not again on a machine that is busy"
    row = run.row("net")
    assert (row.status, row.figures["fraction_of_peak"]) == ("ok", None)
    (warning,) = row.warnings
    assert str(warning).startswith("below-floor: 13.3× faster than this machine's measured peak allows")
    assert "--resume" in warning.text
    assert "too low: while it was measured, other processes took 70 %" in warning.text
    assert "Winograd" not in warning.text
    assert run.environment["roofs_disturbance"] == busy.disturbance
    said = "peak FLOP/s and bandwidth may be too low: other processes took 70 % of 2 processors"
    assert run.display.said == [said]
    slow = run.row("slow")
    assert slow.figures["fraction_of_peak"] is None, "the peak may be too low"
    assert slow.figures["floor_ms"] == pytest.approx(1 / 0.03)
    assert slow.warnings == []


def test_a_busy_machine_that_looked_quiet_fails_no_row_either(play: Callable[..., Played]) -> None:
    busy = Measured(LOW, False, "other processes took 70 % of 2 processors")
    run = play({"nothing": 0.1}, busy, busy)
    assert (len(run.asked), run.row("nothing").status) == (2, "ok"), "before, and once after"


def test_a_quiet_measurement_ends_the_doubt(play: Callable[..., Played]) -> None:
    run = play({"net": 40.0}, Measured(LOW, False, "the GPU slowed down"), Measured(ALONE, quiet=True))
    assert run.row("net").figures["fraction_of_peak"] == pytest.approx(1 / 40 / 0.5)
    assert "roofs_disturbance" not in run.environment
    assert "roofs_disturbance" not in json.loads((run.folder.path / "environment.json").read_text())


def test_a_row_that_is_impossible_on_a_quiet_machine_fails(play: Callable[..., Played]) -> None:
    run = play({"nothing": 0.1, "net": 2.5}, Measured(LOW, quiet=False), Measured(ALONE, quiet=True))
    row = run.row("nothing")
    assert row.status == "failed"
    assert (row.reason or "").startswith("rejected: 20.0× faster than this machine's measured peak allows")
    assert run.display.said[-1] == f"failed {case('nothing').id}"
    assert run.environment["roofs"] == ALONE, "what is not believed raises nothing"
    assert run.row("net").figures["fraction_of_peak"] == pytest.approx(0.8)


def test_a_quiet_measurement_before_the_row_decides_nothing(play: Callable[..., Played]) -> None:
    run = play({"net": 2.5}, Measured(LOW, quiet=True), Measured(LOW, quiet=False))
    assert run.row("net").status == "ok"


def test_where_nobody_can_tell_whether_a_machine_is_busy_the_better_of_two_decides(
    play: Callable[..., Played],
) -> None:
    unknown = [Measured(roofs, quiet=None) for roofs in (LOW, LOW)]
    assert play({"nothing": 0.1}, *unknown).row("nothing").status == "failed"
    unknown[1] = Measured(ALONE, quiet=None)
    assert play({"net": 2.5}, *unknown).row("net").status == "ok"


def test_a_row_somewhat_above_raises_the_roof_if_nothing_else_does(play: Callable[..., Played]) -> None:
    run = play({"net": 20.0, "other": 40.0}, Measured(LOW, quiet=True), Measured(LOW, quiet=False))
    assert run.environment["roofs"] == {**LOW, "fp32_tflops": pytest.approx(0.05)}
    assert run.environment["measured_roofs"] == LOW
    assert [run.row(name).figures["fraction_of_peak"] for name in ("net", "other")] == [1.0, pytest.approx(0.5)]
    assert run.row("net").warnings == []


def test_roofs_that_cannot_be_measured_again_are_kept(play: Callable[..., Played]) -> None:
    run = play({"net": 2.5}, Measured(LOW, quiet=True), None)
    assert (run.row("net").status, run.environment["roofs"]) == ("ok", LOW)


def test_a_resumed_run_keeps_the_highest(play: Callable[..., Played]) -> None:
    run = play({"net": 2.5}, Measured(ALONE, quiet=True))
    run.left = [Measured({**LOW, "bf16_tflops": 0.03}, quiet=True)]
    run.roofs.measure([case("net", "bf16")])
    assert run.environment["measured_roofs"] == {**ALONE, "bf16_tflops": 0.03}
    assert run.environment["roofs"] == {**ALONE, "bf16_tflops": 0.5}, "which a library may widen to fp32"
    run.roofs.measure([case("net", "bf16")])
    assert not run.left


def test_roofs_of_an_older_version_were_measured(play: Callable[..., Played]) -> None:
    run = play({"net": 2.5}, Measured(ALONE, quiet=True))
    del run.environment["measured_roofs"]
    run.roofs.measure([case("net")])
    assert (run.roofs.measured, len(run.asked)) == (ALONE, 1)


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
        return replace(outcome, value=replace(outcome.value, roofs=roofs, quiet=quiet, disturbance=""))

    monkeypatch.setattr(module, "run_one", measure)
    monkeypatch.setattr(module, "other_work", lambda nvml: None)
    (tmp_path / "idle.py").write_text(IDLE)
    (tmp_path / "job.yaml").write_text(JOB)
    done = profiler("job.yaml", cwd=tmp_path, PROFILER_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "results").iterdir()
    rows = {row["model"]: row for row in pl.read_parquet(path / "results.parquet").to_dicts()}
    idle, honest = rows["idle"], rows["honest"]
    if quiet:
        assert idle["status"] == "failed"
        assert "faster than this machine's measured peak allows" in idle["reason"]
        assert "failed " in done.stdout
    else:
        assert (idle["status"], idle["fraction_of_peak"]) == ("ok", None)
        assert [warning.partition(":")[0] for warning in idle["warnings"] if "floor" in warning] == ["below-floor"]
    assert honest["status"] == "ok"
    assert 0 < honest["fraction_of_peak"] <= 1
    assert not [warning for warning in honest["warnings"] if warning.startswith("below-floor")]
    peaks = json.loads((path / "environment.json").read_text())
    assert peaks["roofs"].keys() == peaks["measured_roofs"].keys()
    assert all(peaks["measured_roofs"][name] <= roof for name, roof in peaks["roofs"].items())
