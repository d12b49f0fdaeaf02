"""How a run of several cases goes, with the measuring of one case played: what is measured again, and what is added."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.base import Building, BuiltAhead, Job, Proof, Warning
from engines.catalog import ENGINES
from exporters.source import ModelSource
from profiler.job.case import Budget, Case, CaseId
from profiler.job.config import Config
from profiler.machine import Target
from profiler.nvml import Reading
from profiler.processes.messages import Outcome, Status
from profiler.processes.process import Call
from profiler.results.result import Result, WallTime
from profiler.results.run_folder import RunFolder
from profiler.run import runner as module
from profiler.run import supervise
from profiler.run.quiet import Quiet
from profiler.worker.prepare_model import build_ahead
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow


class Silent:
    def __init__(self) -> None:
        self.told: list[CaseId] = []
        self.stayed: list[CaseId] = []
        self.announced: list[str] = []
        self.processes: list[list[int]] = []

    def preparing(self, what: str, done: int, total: int) -> None:
        pass

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        pass

    def announce(self, what: str) -> None:
        self.announced.append(what)

    def ended(self, case: Case, result: Result, counts: bool = True) -> None:
        (self.told if counts else self.stayed).append(case.id)


def case(variant: str, batch: int = 1) -> Case:
    return Case("alexnet", "eager", variant, "inference", "fp32", batch, "cpu", 0, ModelSource("alexnet"))


SECONDS = 2.0
"""That measuring a case takes."""


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Quiet
) -> Callable[..., tuple[RunFolder, Silent, WallTime]]:
    """Runs cases; `results` gives, by case id, what each measurement of it returns."""

    def go(
        cases: list[Case], results: dict[CaseId, list[Result]], repeats: float = 0.5, folder: RunFolder | None = None
    ) -> tuple[RunFolder, Silent, WallTime]:
        folder, display = folder or RunFolder.create(tmp_path), Silent()

        def measure_one(_: object, task: Task, *__: object) -> Result:
            result = results[task.case.id].pop(0)
            result.phases = {"measure": SECONDS}
            return result

        monkeypatch.setattr(supervise.Supervisor, "measure_one", measure_one)
        monkeypatch.setattr(module, "prepare", lambda cases, *_: {case.model: Prepared() for case in cases})
        job = {"models": [{"name": "alexnet"}], "engines": [{"name": "eager"}], "budget": {"repeats": repeats}}
        roofs = {"copy_gb_s": 10.0, "fp32_tflops": 1.0}
        config, environment = Config.model_validate(job), {"roofs": roofs}
        runner = module.Runner(folder, config, Target("cpu"), cases, cases, environment, display)
        with contextlib.suppress(KeyboardInterrupt):
            runner.measure(cases)
        return folder, display, runner.wall

    return go


def result(case: Case, ms: float, throttled: bool = False) -> Result:
    warnings = [Warning("throttled", "sw-thermal-slowdown")] if throttled else []
    return Result(case.id, "ok", clock="host", samples={"host": [ms]}, warnings=warnings)


REMEASURED = Warning("remeasured", "the first take was throttled: sw-thermal-slowdown")


def test_a_case_taken_while_the_card_slowed_down_is_measured_again_at_the_end(run) -> None:
    first, second = case("a"), case("b")
    results = {
        first.id: [result(first, 9.0, throttled=True), result(first, 5.0)],
        second.id: [result(second, 3.0)],
    }
    folder, display, wall = run([first, second], results)
    assert display.told == [first.id, second.id, first.id]
    assert display.announced == ["measuring 1 case again"]
    found = folder.results()
    assert found[first.id].samples == {"host": [5.0]}
    assert found[first.id].warnings == [REMEASURED]
    assert found[second.id].warnings == []
    assert len(folder.journal.read_text().splitlines()) == 3
    assert wall.seconds["measure"] == 3 * SECONDS


def test_rounds_end_when_no_case_is_disturbed_any_more(run) -> None:
    cases = [case("a"), case("b"), case("c")]
    takes = {"a": [True, True, True, False], "b": [True, False], "c": [False]}
    results = {c.id: [result(c, float(n), hot) for n, hot in enumerate(takes[c.variant])] for c in cases}
    folder, display, _ = run(cases, results, repeats=9)
    assert display.announced == [
        "measuring 2 cases again",
        "measuring 1 case again, round 2",
        "measuring 1 case again, round 3",
    ]
    assert not any(results.values()), "every take was asked for, and none besides"
    found = folder.results()
    assert [found[c.id].samples["host"] for c in cases] == [[3.0], [1.0], [0.0]]
    assert [found[c.id].warnings for c in cases] == [[REMEASURED], [REMEASURED], []]


@pytest.mark.parametrize(("repeats", "again"), [(0, 0), (0.25, 1), (0.5, 2), (1, 4), (1.5, 6)])
def test_measuring_again_ends_when_its_share_of_the_time_is_spent(run, repeats: float, again: int) -> None:
    cases = [case(name) for name in "abcd"]
    results = {c.id: [result(c, 9.0, throttled=True) for _ in range(9)] for c in cases}
    _, display, wall = run(cases, results, repeats)
    assert wall.seconds["measure"] == (4 + again) * SECONDS
    if 0 < again < 4:
        assert (
            display.announced[-1] == f"{again} of 4 cases measured again, {4 - again} not (`budget.repeats` was spent)"
        )


def test_a_repeat_that_was_no_less_disturbed_is_named(run) -> None:
    one = case("a")
    takes = [result(one, ms, throttled=True) for ms in (9.0, 8.0)]
    for take in takes:
        take.figures["disturbance"] = 0.5
    folder, display, _ = run([one], {one.id: takes})
    assert folder.results()[one.id].samples == {"host": [9.0]}
    assert display.stayed == [one.id]


def test_nothing_more_is_measured_again_where_the_machine_is_as_busy_as_before(run) -> None:
    cases = [case(name) for name in "abcd"]
    takes = {c.id: [result(c, 9.0) for _ in range(9)] for c in cases}
    for take in (take for of_case in takes.values() for take in of_case):
        take.figures["disturbance"] = 0.9
        take.warnings.append(Warning("disturbed", "other processes took 90 % of 2 processors"))
    folder, display, wall = run(cases, takes, repeats=9)
    assert display.announced[1:] == ["2 of 4 cases measured again, 2 not (the machine was as busy as before)"]
    assert wall.seconds["measure"] == 6 * SECONDS
    assert run(cases, takes, repeats=9, folder=folder)[2].seconds["measure"] == 2 * SECONDS, "resumed: none of it twice"


def test_another_time_that_failed_does_not_lose_the_first(run) -> None:
    hot = case("a")
    folder, display, wall = run(
        [hot], {hot.id: [result(hot, 9.0, throttled=True), Result(hot.id, "timeout", ["too long"])]}
    )
    assert folder.results()[hot.id].samples == {"host": [9.0]}
    assert (display.told, display.stayed) == ([hot.id], [hot.id])
    assert wall.seconds["measure"] == 2 * SECONDS


def test_what_a_resumed_run_measures_again_is_marked_and_does_not_lose_the_first(run) -> None:
    """What was interrupted before its end: the journal has a disturbed row that was not measured again yet."""
    good, bad = case("a"), case("b")
    results = {c.id: [result(c, 9.0, throttled=True)] for c in (good, bad)}
    folder, _, _ = run([good, bad], results, repeats=0)
    results = {good.id: [result(good, 5.0)], bad.id: [Result(bad.id, "crashed", ["it ended"])]}
    found = run([good, bad], results, repeats=0, folder=folder)[0].results()
    assert (found[good.id].samples, found[good.id].warnings) == ({"host": [5.0]}, [REMEASURED])
    assert (found[bad.id].status, found[bad.id].samples) == ("ok", {"host": [9.0]})


def process(call: Call, tick: object) -> Outcome:
    """Stands for a case's process: it ended at once, and entered its phases at these times."""
    entered = {"fork": 0.0, "measure": 2.0, "energy": 4.0, "check": 9.0}
    result = Result(case("x").id, "ok", figures={"peak_memory_mib": 10.0, "baseline_mib": 0.0})
    return Outcome("ok", value=result, entered=entered)


class Watched:
    """A watcher with one reading a second; the card draws 100 W, and 500 W and slows down from the fifth second on."""

    dead = False

    def between(self, start: float, end: float) -> list[Reading]:
        hot = {True: (500.0, 0x40), False: (100.0, 0)}
        return [Reading(float(s), 50.0 + s, hot[s > 4][0], 1980.0, 40.0, hot[s > 4][1]) for s in range(12) if s <= end]

    def ended(self) -> bool:
        return self.dead


def test_telemetry_is_of_the_sampling_and_not_of_the_energy_loop(monkeypatch, tmp_path: Path, alone: Quiet) -> None:
    monkeypatch.setattr(supervise, "run_one", process)
    task = Task(case("a"), Prepared(), Budget())
    got = supervise.Supervisor(tmp_path, (), Watched(), alone).measure_one(task, lambda phase: None)
    assert got.figures["power_w"] == 100.0
    assert not got.figures["throttled"]
    assert got.figures["peak_memory_mib"] == 59.0  # Until the checks begin, the energy loop included.
    assert got.warnings == []


def test_a_row_without_telemetry_says_so(monkeypatch, tmp_path: Path, alone: Quiet) -> None:
    monkeypatch.setattr(supervise, "run_one", process)
    monkeypatch.setattr(Watched, "dead", True)
    got = supervise.Supervisor(tmp_path, (), Watched(), alone).measure_one(
        Task(case("a"), Prepared(), Budget()), lambda _: None
    )
    assert [warning.kind for warning in got.warnings] == ["telemetry"]


def reading(memory_mib: float | None = None, reasons: int = 0) -> Reading:
    return Reading(0.0, memory_mib, 300.0, 1980.0, 45.0, reasons)


def test_reasons_seen_while_measuring_are_warnings_of_their_own(run) -> None:
    got = Result(case("x").id, "ok")
    supervise._add_readings(got, [], [reading(reasons=0x4), reading(reasons=0x40)])
    assert got.figures["throttled"]
    assert [warning.kind for warning in got.warnings] == ["throttled", "power-cap"]


def test_memory_that_only_a_poll_saw_is_in_the_peak_and_in_what_no_allocator_knows_of() -> None:
    parts = {
        "peak_memory_mib": 900.0,
        "other_mib": 100.0,
        "library_mib": 60.0,
        "slack_mib": 40.0,
        "baseline_mib": 600.0,
    }
    got = Result(case("x").id, "ok", figures=dict(parts))
    supervise._add_readings(got, [reading(1400.0), reading(None), reading(1530.0)], [])
    assert got.figures.items() >= (parts | {"peak_memory_mib": 930.0, "other_mib": 130.0, "library_mib": 90.0}).items()
    supervise._add_readings(got, [reading(1000.0)], [])
    assert got.figures["peak_memory_mib"] == 930.0


def test_a_journal_of_such_a_result_can_be_read_back() -> None:
    got = Result(case("x").id, "ok", figures={"throttled": True, "energy_mj_per_item": 61.5})
    assert Result.from_json(json.dumps(json.loads(got.to_json()))) == got


def test_an_engine_that_builds_does_so_before_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch, alone: Quiet
) -> None:
    built: list[Job] = []

    def build(job: Job) -> BuiltAhead:
        job.phase("build")
        built.append(job)
        return BuiltAhead(False, [Warning("engine-cache", "a damaged or foreign file was built again")])

    engine = replace(ENGINES["eager"], module="an_engine_that_builds", builds="anywhere")
    monkeypatch.setitem(sys.modules, engine.module, SimpleNamespace(build=build))
    monkeypatch.setitem(ENGINES, "eager", engine)
    called: list[str] = []

    def process(call: Call, tick: object) -> Outcome:
        """Building is done for real, in this process, and measuring is simulated."""
        called.append(call.function)
        if call.function == "profiler.worker.prepare_model:build_ahead":
            return Outcome("ok", value=build_ahead(call.argument, lambda message: None), seconds={"build": 3.0})
        proof = Proof(build=Building(seconds=3.0, cached=True))
        entered = {"fork": 0.0, "measure": 2.0, "check": 9.0}
        return Outcome("ok", value=Result(case("x").id, "ok", proof=proof), seconds={"load": 1.0}, entered=entered)

    monkeypatch.setattr(supervise, "run_one", process)
    watcher = SimpleNamespace(between=lambda *_: [], ended=lambda: False)
    found = supervise.Supervisor(tmp_path, (), watcher, alone).measure_one(
        Task(case("a"), Prepared(), Budget()), lambda _: None
    )
    assert called == ["profiler.worker.prepare_model:build_ahead", "profiler.worker.measure_case:measure_case"]
    assert (built[0].engine, built[0].batch_size) == ("eager", 1)
    assert found.proof == Proof(build=Building(seconds=3.0, cached=False))
    assert found.warnings == [Warning("engine-cache", "a damaged or foreign file was built again")]
    assert found.phases == {"build": 3.0, "load": 1.0}


@pytest.mark.parametrize(
    ("status", "kinds", "repeats", "retry", "done"),
    [
        ("ok", ["outliers"], 0.5, False, True),
        ("ok", ["throttled"], 0.5, False, False),
        ("ok", ["throttled"], 0, False, True),
        ("ok", ["throttled", "remeasured"], 0.5, False, True),
        ("failed", [], 0.5, False, True),
        ("failed", ["throttled"], 0.5, False, True),
        ("failed", [], 0.5, True, False),
        ("ok", [], 0.5, True, True),
        ("ok", ["throttled", "remeasured"], 0.5, True, False),
        ("ok", ["throttled"], 0, True, False),
        ("ok", ["outliers", "remeasured"], 0.5, True, True),
    ],
)
def test_a_resumed_run_measures_what_was_slowed_down_and_not_yet_again(
    status: Status, kinds: list[str], repeats: float, retry: bool, done: bool
) -> None:
    result = Result(case("x").id, status, warnings=[Warning(kind, "as it was") for kind in kinds])
    assert module.is_done(result, Budget(repeats=repeats), retry) == done
