"""How one case is measured: what its process sent, its telemetry, and a build in a process of its own."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.base import Building, BuiltAhead, Job, Proof, Warning
from engines.catalog import ENGINES
from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.machine.nvml import Reading
from profiler.processes.holders import Holders
from profiler.processes.messages import Outcome
from profiler.processes.process import Call
from profiler.results.result import Kept, Result, Stage
from profiler.run import supervisor as module
from profiler.worker.prepare_model import build_ahead
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow


def case() -> Case:
    return Case("alexnet", "eager", "a", "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))


class Watched:
    """A watcher with one reading a second; the card draws 100 W, and 500 W and slows down from the fifth second on."""

    def between(self, start: float, end: float) -> list[Reading]:
        states = {True: (500.0, 0x40), False: (100.0, 0)}
        return [
            Reading(float(s), 50.0 + s, states[s > 4][0], 1980.0, 40.0, states[s > 4][1]) for s in range(12) if s <= end
        ]


def supervised(folder: Path, watcher: Any, quiet: Any) -> module.Supervisor:
    return module.Supervisor(folder, (), watcher, quiet, Holders())


FORGED = [None, 3, -1.0, "soon", [], {}, [3], {"host": "x"}, {"host": [None]}, {"x": [math.nan]}, (), object]
PARTS = ["value", "salvage"]


def test_whatever_a_process_sends_its_case_has_a_row():
    supervisor = supervised(Path(), None, None)
    for part, forged, is_kept in itertools.product([*PARTS, *Result.__dataclass_fields__], FORGED, (True, False)):
        result = Result(case().id, "ok", clock="host", samples={"host": [1.0, 2.0]})
        outcome = Outcome("ok", entered={"measure": 2.0, "check": 3.0})
        if part in PARTS:
            outcome = replace(outcome, **{part: forged})
        else:
            result = replace(result, **{part: forged})
        outcome = replace(outcome, salvage=Kept(result, Stage.COMPLETE)) if is_kept else replace(outcome, value=result)
        found = supervisor._result(case().id, outcome)
        assert found.case_id == case().id
        assert Result.from_json(found.to_json()).status == found.status
        assert found.status == "crashed" or found.latency_ms == 1.5, (part, forged, is_kept)


def process(call: Call, tick: object) -> Outcome:
    """Stand for a case's process: it ended at once, and entered its phases at these times."""
    entered = {"fork": 0.0, "measure": 2.0, "energy": 4.0, "check": 9.0}
    figures: dict[str, float | None] = {"peak_memory_mib": 10.0, "baseline_mib": 0.0}
    result = Result(case().id, "ok", clock="event", samples={"event": [1.0]}, figures=figures)
    return Outcome("ok", value=result, entered=entered)


def test_telemetry_is_of_the_sampling_and_not_of_the_energy_loop(monkeypatch, tmp_path, alone):
    monkeypatch.setattr(module, "run_one", process)
    task = Task(case(), Prepared(), Budget())
    got = supervised(tmp_path, Watched(), alone).measure_one(task, lambda phase: None, math.inf)
    assert (got.figures["power_w"], got.figures["throttled"]) == (100.0, False)
    assert got.figures["peak_memory_mib"] == 59.0  # Until the checks begin, the energy loop included.
    assert got.warnings == []


@pytest.mark.parametrize("shared", [(True, False), (False, True), (False, False)])
def test_a_row_says_that_another_run_had_the_device_before_or_after_it(monkeypatch, tmp_path, shared):
    monkeypatch.setattr(module, "run_one", process)
    left = list(shared)
    quiet = SimpleNamespace(start=lambda: None, is_shared=lambda: left.pop(0))
    watcher = SimpleNamespace(between=lambda *_: [])
    got = supervised(tmp_path, watcher, quiet).measure_one(
        Task(case(), Prepared(), Budget()), lambda phase: None, math.inf
    )
    assert [warning.kind for warning in got.warnings] == ["disturbed"] * any(shared)


def test_readings_become_warnings_and_memory_that_only_a_poll_saw():
    def reading(memory_mib: float | None = None, reasons: int = 0) -> Reading:
        return Reading(0.0, memory_mib, 300.0, 1980.0, 45.0, reasons)

    parts = {"peak_memory_mib": 900.0, "other_mib": 100.0, "library_mib": 60.0, "slack_mib": 40.0}
    got = Result(case().id, "ok", figures={**parts, "baseline_mib": 600.0})
    polls = [reading(1400.0), reading(None), reading(1530.0)]
    module._add_readings(got, polls, [reading(reasons=0x4), reading(reasons=0x40)])
    expected = {"peak_memory_mib": 930.0, "other_mib": 130.0, "library_mib": 90.0, "slack_mib": 40.0}
    assert got.figures.items() >= expected.items()
    assert [warning.kind for warning in got.warnings] == ["throttled", "power-cap"]
    module._add_readings(got, [reading(1000.0)], [])
    assert got.figures["peak_memory_mib"] == 930.0


def test_an_engine_that_builds_does_so_before_in_a_process_of_its_own(tmp_path, monkeypatch, alone):
    built: list[Job[Any]] = []

    def build(job: Job[Any]) -> BuiltAhead:
        job.phase("build")
        built.append(job)
        return BuiltAhead(False, [Warning("engine-cache", "a damaged or foreign file was built again")])

    engine = replace(ENGINES["eager"], module="an_engine_that_builds", builds="anywhere")
    monkeypatch.setitem(sys.modules, engine.module, SimpleNamespace(build=build))
    monkeypatch.setitem(ENGINES, "eager", engine)
    called: list[str] = []

    def process(call: Call, tick: object) -> Outcome:
        """Build for real, in this process, and play the measuring."""
        called.append(call.function)
        if call.function == "profiler.worker.prepare_model:build_ahead":
            return Outcome("ok", value=build_ahead(call.argument, lambda message: None), seconds={"build": 3.0})
        proof = Proof(build=Building(seconds=3.0, cached=True))
        entered = {"fork": 0.0, "measure": 2.0, "check": 9.0}
        result = Result(case().id, "ok", clock="host", samples={"host": [1.0]}, proof=proof)
        return Outcome("ok", value=result, seconds={"load": 1.0}, entered=entered)

    monkeypatch.setattr(module, "run_one", process)
    watcher = SimpleNamespace(between=lambda *_: [])
    task = Task(case(), Prepared(), Budget())
    found = supervised(tmp_path, watcher, alone).measure_one(task, lambda _: None, math.inf)
    assert called == ["profiler.worker.prepare_model:build_ahead", "profiler.worker.measure_case:measure_case"]
    assert (built[0].engine, built[0].batch_size) == ("eager", 1)
    assert found.proof == Proof(build=Building(seconds=3.0, cached=False))
    assert [warning.kind for warning in found.warnings] == ["engine-cache"]
    assert found.phases == {"build": 3.0, "load": 1.0}
