"""How a run of several cases goes, with the measuring of one case played: what is measured again, and what is added."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from exporters.source import ModelSource
from profiler import run as module
from profiler.case import Budget, Case
from profiler.environment import Target
from profiler.result import Result
from profiler.store import RunFolder
from profiler.task import Prepared, Task
from profiler.telemetry import Reading
from profiler.walltime import WallTime


class Silent:
    def __init__(self) -> None:
        self.told: list[str] = []

    def preparing(self, what: str, done: int, total: int) -> None:
        pass

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        pass

    def ended(self, case: Case, result: Result) -> None:
        self.told.append(case.id)


def case(variant: str) -> Case:
    return Case("alexnet", "eager", variant, "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[RunFolder, Silent, WallTime]]:
    """Runs cases; `results` gives, by case id, what each measurement of it returns."""

    def go(cases: list[Case], results: dict[str, list[Result]]) -> tuple[RunFolder, Silent, WallTime]:
        folder, display = RunFolder.create(tmp_path), Silent()

        def measure_one(task: Task, *_: object) -> Result:
            result = results[task.case.id].pop(0)
            result.phases = {"measure": 2.0}
            return result

        monkeypatch.setattr(module, "measure_one", measure_one)
        monkeypatch.setattr(module, "prepare", lambda cases, *_: {case.model: Prepared() for case in cases})
        runner = module.Runner(folder, Budget(), Target("cpu"), display)
        runner.measure(cases)
        return folder, display, runner.wall

    return go


def result(case: Case, ms: float, throttled: bool) -> Result:
    return Result(case.id, "ok", clock="host", samples={"host": [ms]}, telemetry={"throttled": throttled})


def test_a_case_taken_while_the_card_slowed_down_is_measured_once_more_at_the_end(run) -> None:
    first, second = case("a"), case("b")
    results = {
        first.id: [result(first, 9.0, throttled=True), result(first, 5.0, throttled=False)],
        second.id: [result(second, 3.0, throttled=False)],
    }
    folder, display, wall = run([first, second], results)
    assert display.told == [first.id, second.id, first.id]
    found = folder.results()
    assert found[first.id].samples == {"host": [5.0]}
    assert found[first.id].warnings == ["remeasured: first taken while the card slowed down"]
    assert found[second.id].warnings == []
    assert len(folder.journal.read_text().splitlines()) == 3
    assert wall.seconds["measure"] == 6.0


def test_a_case_that_is_slowed_down_again_is_not_measured_a_third_time(run) -> None:
    hot = case("a")
    folder, display, _ = run([hot], {hot.id: [result(hot, 9.0, throttled=True), result(hot, 8.0, throttled=True)]})
    assert display.told == [hot.id] * 2
    assert folder.results()[hot.id].telemetry["throttled"]


def reading(memory_mib: float | None = None, reasons: int = 0) -> Reading:
    return Reading(0.0, memory_mib, 300.0, 1980.0, 45.0, reasons)


def test_reasons_seen_while_measuring_are_warnings_of_their_own(run) -> None:
    got = Result("x", "ok")
    module._add_readings(got, [], [reading(reasons=0x4), reading(reasons=0x40)])
    assert got.telemetry["throttled"]
    assert [warning.split(":")[0] for warning in got.warnings] == ["throttled", "power-cap"]


def test_memory_that_only_a_poll_saw_is_in_the_peak_and_in_what_no_allocator_knows_of() -> None:
    parts = {
        "peak_memory_mib": 900.0,
        "other_mib": 100.0,
        "library_mib": 60.0,
        "slack_mib": 40.0,
        "baseline_mib": 600.0,
    }
    got = Result("x", "ok", memory=dict(parts))
    module._add_readings(got, [reading(1400.0), reading(None), reading(1530.0)], [])
    assert got.memory == parts | {"peak_memory_mib": 930.0, "other_mib": 130.0, "library_mib": 90.0}
    module._add_readings(got, [reading(1000.0)], [])
    assert got.memory["peak_memory_mib"] == 930.0


def test_a_journal_of_such_a_result_can_be_read_back() -> None:
    got = Result("x", "ok", telemetry={"throttled": True, "energy_mj_per_item": 61.5})
    assert Result.from_json(json.dumps(json.loads(got.to_json()))) == got
