"""How a run of several cases goes, with the measuring of one case played: what is measured again, and what is added."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from runs import Told

from engines.base import Building, BuiltAhead, Proof, Warning
from exporters.source import ModelSource
from profiler.job import plan
from profiler.job.case import Budget, Case
from profiler.job.config import config_of
from profiler.machine.nvml import Gpu
from profiler.machine.target import Target
from profiler.processes.holders import Holders
from profiler.processes.messages import Outcome, Status
from profiler.processes.process import Call
from profiler.results.result import Result
from profiler.results.roofline import Measured
from profiler.results.run_folder import RunFolder
from profiler.run import command
from profiler.run import runner as module
from profiler.run.progress import Display
from profiler.run.runner import Runner, is_better
from profiler.run.supervisor import Supervisor
from profiler.run.watch import Watcher
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow

SECONDS = 2.0
"""Seconds that measuring a case takes."""
QUIET = {"roofs": {"copy_gb_s": 10.0, "fp32_tflops": 1.0}, "roofs_quiet": True}


def case(variant: str = "a", precision: str = "fp32") -> Case:
    return Case("alexnet", "eager", variant, "inference", precision, 1, "cpu", 0, ModelSource("alexnet"))


def take(
    disturbance: float | None = None, status: Status = "ok", ms: float = 1.0, kind: str = "disturbed", of: str = "a"
) -> Result:
    warnings = [Warning(kind, f"other processes took {disturbance}")] if kind else []
    figures = {"disturbance": disturbance}
    return Result(case(of).id, status, clock="host", samples={"host": [ms]}, figures=figures, warnings=warnings)


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        (take(0.4), take(0.5), False),
        (take(0.5), take(0.4), True),
        (take(0.4, ms=1.0), take(0.5, ms=0.5), False),
        (take(0.5, ms=0.5), take(0.4, ms=1.0), True),
        (take(0.1), take(0.2, kind=""), True),
        (take(0.4), take(None), False),
        (take(1.0), take(1.0), False),
        (take(None), take(0.4), True),
        (take(0.4), take(0.0, "failed", kind=""), False),
    ],
)
def test_the_less_disturbed_take_counts_and_never_the_faster_one(first, second, counts):
    assert is_better(second, first) == counts


@pytest.mark.parametrize(
    ("status", "kinds", "retry", "waits"),
    [
        ("ok", ["throttled"], False, False),
        ("failed", [], False, False),
        ("failed", [], True, True),
        ("ok", ["outliers", "remeasured"], True, False),
        ("ok", ["throttled", "remeasured"], True, True),
    ],
)
def test_retry_measures_what_failed_or_was_slowed_down(status, kinds, retry, waits):
    result = Result(case().id, status, warnings=[Warning(kind, "as it was") for kind in kinds])
    assert command.waiting({case().id: result}, [case()], skips=True, retry=retry) == [case()] * waits


@pytest.mark.parametrize("skips", [True, False])
def test_a_skipped_case_waits_for_a_run_that_skips_nothing(skips):
    journal = {case().id: Result(case().id, "skipped")}
    assert command.waiting(journal, [case()], skips, retry=True) == ([] if skips else [case()])


def idle(folder: Path, quiet: Any) -> Supervisor:
    """A supervisor without a GPU."""
    return Supervisor(folder, (), Watcher(None, folder, folder), quiet, Holders())


Run = Callable[..., tuple[RunFolder, Told, int]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the variants of `takes`, which has by variant what each measurement of it returns."""

    def go(
        takes: dict[str, list[Result]],
        repeats: float = 0.5,
        folder: RunFolder | None = None,
        environment: dict[str, Any] = QUIET,
        skip: bool = False,
    ) -> tuple[RunFolder, Told, int]:
        measured: list[str] = []
        folder, display, cases = folder or RunFolder.create(tmp_path), Told(), [case(name) for name in takes]

        def measure_one(_: object, task: Task, *__: object) -> Result:
            measured.append(task.case.id)
            return replace(takes[task.case.variant].pop(0), case_id=task.case.id, phases={"measure": SECONDS})

        monkeypatch.setattr(Supervisor, "measure_one", measure_one)
        monkeypatch.setattr(module, "prepare", lambda cases, *_: {case.model: Prepared() for case in cases})
        config = config_of({"models": ["alexnet"], "engines": ["eager"], "budget": {"repeats": repeats}, "skip": skip})
        runner = Runner(folder, config, Target("cpu"), cases, cases, dict(environment), display)
        with contextlib.suppress(KeyboardInterrupt):
            runner.measure(cases)
        return folder, display, len(measured)

    return go


def hot(*ms: float) -> list[Result]:
    return [take(kind="throttled", ms=each) for each in ms]


def cool(ms: float) -> Result:
    return take(ms=ms, kind="")


def test_a_case_taken_while_the_card_slowed_down_is_measured_again_once_at_the_end(run):
    cooler = [take(0.5, ms=7.0), take(0.4, ms=6.0)]
    folder, display, measured = run({"a": [*hot(9.0), cool(5.0)], "b": [cool(3.0)], "c": cooler}, repeats=9)
    a, b, c = (case(name).id for name in "abc")
    assert display.told == [a, b, c, a, c]
    assert display.announced == ["measuring 2 cases again, for at most 54 s"]
    found = folder.results()
    assert {id_: found[id_].samples["host"] for id_ in (a, b, c)} == {a: [5.0], b: [3.0], c: [6.0]}
    assert [[warning.kind for warning in found[id_].warnings] for id_ in (a, b, c)] == [
        *(["remeasured"], [], ["disturbed", "remeasured"])
    ]
    assert len(folder.journal.read_text().splitlines()) == 5
    assert measured == 5
    first, *later = display.left[:3]
    assert first > 3 * SECONDS, "as estimated"
    assert later == pytest.approx([2 * SECONDS, SECONDS]), "as the cases so far"


def test_the_time_left_has_a_build_for_each_configuration_without_one(tmp_path, monkeypatch, alone):
    cases = [replace(case("trt", precision), engine="trt") for precision in ("fp16", "fp32")]
    cases[1:1] = [replace(cases[0], replicate=number) for number in (1, 2)]

    def run(_: object, function: str, task: Task, *__: object) -> Outcome:
        if function.endswith("build_ahead"):
            return Outcome("ok", value=BuiltAhead(cached=True), seconds={"build": 0.5 if task.case.replicate else 40.0})
        return Outcome("ok", seconds={"measure": SECONDS})

    monkeypatch.setattr(Supervisor, "_run", run)
    monkeypatch.setattr(
        Supervisor,
        "_result",
        lambda _, id_, outcome: Result(id_, "ok", clock="host", samples={"host": [1.0]}, phases=outcome.seconds),
    )
    monkeypatch.setattr(Supervisor, "_add_telemetry", lambda *_: None)
    display, config = Told(), config_of({"models": ["alexnet"], "engines": ["trt"]})
    runner = Runner(RunFolder.create(tmp_path), config, Target("cpu"), cases, cases, dict(QUIET), display)
    runner.supervisor = idle(tmp_path, alone)
    runner.measure_each([Task(each, Prepared(), Budget()) for each in cases])
    assert display.left[1:] == pytest.approx([3 * SECONDS + 40, 2 * (SECONDS + 0.5) + 40, SECONDS + 0.5 + 40])
    again = replace(cases[0], variant="again", options={"rebuild": True})
    runner.measure_each([Task(again, Prepared(), Budget())])
    assert not runner.supervisor.has_built(again), "each replicate builds, and has its own build_s"
    assert list(dict.fromkeys(display.counted)) == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 5)]


@pytest.mark.parametrize(
    ("options", "ahead", "is_cached", "seconds"),
    [({}, 0, False, 22), ({"mode": "max-autotune"}, 0, False, 34), ({}, 1, False, 34), ({}, 0, True, 34)],
)
def test_a_build_of_minutes_or_ahead_of_its_case_or_cached_is_no_estimate_of_others(
    tmp_path, monkeypatch, alone, options, ahead, is_cached, seconds
):
    first, other = (replace(case(name), engine="compiled") for name in "ab")
    first, phases = replace(first, options=options), {"build": 20.0, "measure": SECONDS}
    proof = Proof(build=Building(seconds=20.0, cached=is_cached))
    monkeypatch.setattr(Supervisor, "measure_one", lambda *_: Result(first.id, "ok", phases=phases, proof=proof))
    config = config_of({"models": ["alexnet"], "engines": ["compiled"], "budget": {"seconds": 1}})
    runner = Runner(RunFolder.create(tmp_path), config, Target("cpu"), [], [], {}, Told())
    runner.supervisor = idle(tmp_path, alone)
    runner.supervisor.cold |= {first.id: 20.0} if ahead else {}
    runner.measure_each([Task(first, Prepared(), Budget())])
    assert runner.estimate(other) == seconds
    runner.tasks[other.id] = Task(other, Prepared(failures={"model": Outcome("failed", "no weights")}), Budget())
    assert runner.estimate(other) == 0, "a row, but no process"


def test_what_was_disturbed_is_measured_again_before_it_is_known_what_may_win(run, monkeypatch):
    known = []
    monkeypatch.setattr(Runner, "missing_replicates", lambda runner, _: known.append([*runner.display.told]) or [])
    run({"a": [*hot(9.0), cool(5.0)], "b": [cool(3.0)]}, repeats=9)
    a, b = (case(name).id for name in "ab")
    assert known == [[a, b, a]] * 2, "what further processes show may be another that may win"


@pytest.mark.parametrize(("repeats", "again"), [(0, 0), (0.25, 1), (0.5, 2), (1, 4), (1.5, 4)])
def test_measuring_again_ends_when_its_share_of_the_time_is_spent(run, repeats, again):
    _, _, measured = run({name: hot(9.0, 8.0, 7.0) for name in "abcd"}, repeats)
    assert measured == 4 + again


@pytest.mark.parametrize(
    ("shares", "busy_share", "again"), [([0.5] * 3, 0.4, 0), ([0.5] * 3, 0.0, 3), ([0.5, 0.5, 0.1], 0.4, 3)]
)
def test_after_three_hopeless_cases_a_busy_machine_is_asked_for_no_more(run, monkeypatch, shares, busy_share, again):
    monkeypatch.setattr(module, "busy_share", lambda: busy_share)
    _, display, measured = run(
        {name: [take(share), take(share)] for name, share in zip("abc", shares, strict=True)}, repeats=9
    )
    assert measured == 3 + again
    told = [text for text in display.announced if text.startswith("3 cases ran beside too much other work")]
    assert bool(told) == (again == 0) and all(text.endswith("--wait-for-idle 10 waits for its end") for text in told)


def test_a_resumed_run_knows_its_hopeless_cases(run, monkeypatch):
    folder, _, _ = run({name: [take(0.5)] for name in "abc"}, repeats=0)
    monkeypatch.setattr(module, "busy_share", lambda: 0.4)
    _, _, measured = run({"d": [*hot(9.0), *hot(8.0)]}, folder=folder, repeats=9)
    assert measured == 1


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_what_failed_is_not_measured_again_though_it_was_disturbed(run, status):
    _, display, _ = run({"a": [take(0.5, status)]}, repeats=9)
    assert (display.told, display.announced) == ([case().id], [])


def test_another_time_that_failed_does_not_lose_the_first(run):
    folder, display, _ = run({"a": [*hot(9.0), take(status="timeout", kind="")], "b": hot(9.0)}, repeats=0)
    assert len(display.told) == 2
    takes = {"a": [take(status="timeout", kind="")], "b": [cool(5.0)]}
    folder, display, _ = run(takes, repeats=0, folder=folder)  # As --retry does.
    assert (display.told, display.stayed) == ([case("b").id], [case("a").id])
    found = folder.results()
    assert [found[case(name).id].samples["host"] for name in "ab"] == [[9.0], [5.0]]


TRIAL = "eager+channels_last"
RIGHT = {"rel_l2_error": 0.0, "rel_l2_error_high": 0.0}


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """`play(cases, ms, within, search=True)` gives each case its `ms(case)`, 10 s later; returns what counted."""

    def go(
        cases: list[Case],
        ms: Callable[[Case], float],
        within: float | None,
        disturbed: str = "",
        **job: Any,
    ) -> list[str]:
        now, beside_work = [0.0], {case(disturbed).id}

        def measure_one(_: object, task: Task, *__: object) -> Result:
            now[0] += 10.0
            warnings = [Warning("disturbed", "by others")] if task.case.id in beside_work else []
            beside_work.discard(task.case.id)
            given: dict[str, Any] = {"warnings": warnings, "phases": {"measure": 10.0}, "figures": RIGHT}
            return Result(task.case.id, "ok", clock="host", samples={"host": [ms(task.case)] * 9}, **given)

        monkeypatch.setattr(plan, "CONFIRMING_PROCESSES", 2)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(Supervisor, "measure_one", measure_one)
        monkeypatch.setattr(module, "prepare", lambda cases, *_: {case.model: Prepared() for case in cases})
        config = config_of({"models": ["alexnet"], "engines": [*{case.engine: 0 for case in cases}], **job})
        folder, display = RunFolder.create(tmp_path), Told()
        runner = Runner(folder, config, Target("cpu"), cases, cases, dict(QUIET), display)
        if within is not None:
            runner.begin_in(within)
        runner.measure(cases)
        return [id_.partition("/")[2] for id_ in display.told]

    return go


@pytest.mark.parametrize("skip", [True, False])
def test_tf32_is_skipped_but_for_the_variant_that_won_with_fewer_bits(play, skip):
    ms = {"fp32": 8.0, "fp16": 1.0, "tf32": 3.0}
    cases = [case("eager"), *(case(name, bits) for bits in ("tf32", "fp16") for name in ("compiled", "b"))]
    told = play(cases, lambda each: ms[each.precision] * (1 + (each.variant == "b")), None, skip=skip)
    assert ("b/inference/tf32/b1/r0" in told) != skip
    assert "compiled/inference/tf32/b1/r0" in told


def test_a_row_with_figures_is_never_skipped(run, monkeypatch):
    monkeypatch.setattr(module, "same_programs", lambda tasks, plan: [Result(t.case.id, "skipped") for t in tasks])
    monkeypatch.setattr(module, "beaten", lambda *_: [])
    folder, _, _ = run({"a": hot(9.0)}, repeats=0)
    folder, _, measured = run({"a": [cool(5.0)], "b": [cool(1.0)]}, folder=folder, skip=True)
    assert {id_: result.status for id_, result in folder.results().items()} == {
        case("a").id: "ok",
        case("b").id: "skipped",
    }
    assert measured == 1


@pytest.mark.parametrize(
    ("within", "names"),
    [(100.0, ["eager", *"bcdef", "eager", *"gh"]), (150.0, ["eager", *"bcdefghi", *[TRIAL] * 3, "h"])],
)
def test_a_search_within_a_time_keeps_some_to_confirm_what_wins_and_what_waited_comes_last(
    play, monkeypatch, within, names
):
    monkeypatch.setattr(plan, "BASE_PROCESSES", 2)
    monkeypatch.setattr(plan, "MOST_PROCESSES", 2)
    ms = lambda each: 1.0 if each.options else 4.0 if each.is_base else 40.0  # noqa: E731
    cases = [case(name) for name in ("eager", *"bcdefghi")]
    told = play(cases, ms, within, "h", search=True, budget={"repeats": 9})
    assert [name.partition("/")[0] for name in told] == names
    (confirmed,) = (name for name in told if "/r1" in name)
    assert confirmed.partition("/")[0] == (TRIAL if TRIAL in names else "eager")


@pytest.mark.parametrize(
    ("within", "names"), [(60.0, ["eager", *"bc", "b", "b"]), (110.0, ["eager", *"bcdefg", "b", "b", "h"])]
)
def test_a_run_within_a_time_confirms_what_wins_before_it_measures_the_last_cases(play, within, names):
    ms = lambda each: 1.0 if each.variant == "b" else 40.0  # noqa: E731
    told = play([case(name) for name in ("eager", *"bcdefgh")], ms, within, budget={"repeats": 0})
    assert [name.partition("/")[0] for name in told] == names


@pytest.mark.parametrize(
    ("within", "engine", "planned", "names"),
    [
        (25.0, "eager", 1, ["eager", "b"]),
        (25.0, "eager", 2, ["eager", "b"]),
        (35.0, "eager", 1, ["eager", *"bc"]),
        (60.0, "compiled", 1, ["eager", *"bccc"]),
    ],
)
def test_a_rival_comes_before_further_processes_of_a_base_without_any(
    play, monkeypatch, within, engine, planned, names
):
    monkeypatch.setattr(plan, "BASE_PROCESSES", 3)
    ms = {"eager": 9.0, "b": 8.0, "c": 1.0}
    rivals = [replace(case(name), engine=engine) for name in "bc"]
    rivals.append(replace(case("d"), unsupported="no GPU"))
    bases = [replace(case("eager"), replicate=number) for number in range(planned)]
    told = play([*bases, *rivals], lambda each: ms[each.variant], within, budget={"repeats": 0})
    assert [name.partition("/")[0] for name in told] == names


@pytest.mark.parametrize(("within", "first"), [(None, "compiled"), (900.0, "eager")])
def test_a_run_with_little_time_begins_with_its_base(play, within, first):
    cases = [replace(case("compiled"), engine="compiled"), case("eager")]
    assert play(cases, lambda _: 1.0, within)[0].partition("/")[0] == first


def test_of_the_journals_rows_only_disturbed_ones_are_kept_and_without_their_samples(tmp_path):
    folder, config = RunFolder.create(tmp_path), config_of({"models": ["alexnet"], "engines": ["eager"]})
    for result in (cool(1.0), take(0.5, of="b"), take(0.5, "failed", of="c")):
        folder.append(result)
    runner = Runner(folder, config, Target("cpu"), [], [], {}, Told())
    runner.firsts = runner.first_takes()
    assert {id_: first.samples for id_, first in runner.firsts.items()} == {case("b").id: {}}


def test_a_slow_start_leaves_more_time_for_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 108.0))
    config = config_of({"models": ["alexnet"], "engines": ["eager"]})
    runner = Runner(RunFolder.create(tmp_path), config, Target("cpu"), [], [], {}, Told())
    for started, deadline in ((107.0, 162.0), (100.0, 152.0), (88.0, 138.0)):
        runner.started = started
        runner.begin_in(60.0)
        assert runner.deadline == deadline


def test_what_a_run_took_counts_from_the_start_of_the_command(tmp_path):
    output, cases = io.StringIO(), [replace(case(), unsupported="no such device")]
    config, folder = config_of({"models": ["alexnet"], "engines": ["eager"]}), RunFolder.create(tmp_path)
    runner = Runner(folder, config, Target("cpu"), cases, cases, dict(QUIET), Display(Console(file=output)))
    runner.started -= 7200.0
    command.measure_cases(runner, Console(file=output), report=False)
    assert "\nTook 2 h" in output.getvalue()


LOW = {"fp32_tflops": 0.03, "copy_gb_s": 4.0, "cache_mib": 100.0}
"""As measured on two cores while others took 70 % of them."""


def test_roofs_that_cannot_be_measured_are_none_and_in_doubt(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "run_one", lambda call: Outcome("failed", "no time"))
    config, environment = config_of({"models": ["alexnet"], "engines": ["eager"]}), dict[str, Any]()
    Runner(RunFolder.create(tmp_path), config, Target("cpu"), [], [], environment, Told())._measure_roofs([case()])
    assert environment == {"roofs": {}, "roofs_quiet": False}


def test_a_later_wave_measures_only_the_roofs_that_lack(tmp_path, monkeypatch):
    asked: list[Any] = []

    def run_one(call: Call) -> Outcome:
        asked.append(call.argument[1])
        return Outcome("ok", value=Measured({"bf16_tflops": 0.5, "copy_gb_s": 11.0}, quiet=True))

    monkeypatch.setattr(module, "run_one", run_one)
    config, environment = config_of({"models": ["alexnet"], "engines": ["eager"]}), dict(QUIET)
    runner = Runner(RunFolder.create(tmp_path), config, Target("cpu"), [], [], environment, Told())
    for precision in ("fp32", "bf16"):
        runner._measure_roofs([case(precision=precision)])
    assert asked == [("bf16",)]
    assert environment["roofs"] == {"copy_gb_s": 10.0, "fp32_tflops": 1.0, "bf16_tflops": 1.0}, "fp32 is any type's"


@pytest.mark.parametrize(
    ("ms", "quiet", "status"), [(0.1, True, "failed"), (0.1, False, "ok"), (20.0, True, "ok"), (40.0, True, "ok")]
)
def test_only_what_is_impossible_on_a_quiet_machine_fails(run, ms, quiet, status):
    result = replace(cool(ms), figures={"flops_per_item": 1e9, "moved_mib": 10.0}, reference="eager-fp32-cpu")
    result.proof = Proof(compute_types={"float32": 3})
    result.samples = {"host": [ms] * 3}
    folder, _, _ = run({"a": [result]}, environment={"roofs": LOW, "roofs_quiet": quiet})
    assert folder.results()[case().id].status == status
    (row,) = folder.write_parquet("suite", [case()], {"roofs": LOW})[0].to_dicts()
    if not quiet:
        kinds = [warning.partition(":")[0] for warning in row["warnings"]]
        assert (kinds, row["fraction_of_peak"]) == (["below-floor"], None)


@pytest.mark.parametrize(("within", "first", "before"), [(None, "a", 1), (900.0, "a", 2), (900.0, "eager", 2)])
def test_the_first_row_comes_before_the_roofs_and_is_held_against_them(tmp_path, monkeypatch, within, first, before):
    """Within a time those of its rivals do, too, also in the next wave after the base's."""
    display, seen = Told(), list[list[str]]()

    def run_one(call: Call) -> Outcome:
        seen.append(list(display.told))
        return Outcome("ok", value=Measured(LOW, quiet=True))

    def measure_one(_: object, task: Task, *__: object) -> Result:
        figures = {"flops_per_item": 1e9, "moved_mib": 10.0}
        result = replace(cool(0.1 if task.case.variant == first else 40.0), case_id=task.case.id, figures=figures)
        return replace(result, proof=Proof(compute_types={"float32": 3}), phases={"measure": SECONDS})

    monkeypatch.setattr(module, "run_one", run_one)
    monkeypatch.setattr(Supervisor, "measure_one", measure_one)
    monkeypatch.setattr(module, "prepare", lambda cases, *_: {case.model: Prepared() for case in cases})
    config, cases = config_of({"models": ["alexnet"], "engines": ["eager"]}), [case(first), case("b")]
    folder, ids = RunFolder.create(tmp_path), [case.id for case in cases]
    runner = Runner(folder, config, Target("cpu"), cases, cases, {}, display)
    if within is not None:
        runner.begin_in(within)
    runner.measure(cases)
    assert (seen, display.told) == ([ids[:before]], [*ids[:before], ids[0], *ids[before:]])
    assert [result.status for result in folder.results().values()] == ["failed", "ok"]
    assert "floor_ms" not in folder.results()[ids[0]].figures, "a figure of the table, not of the journal"


def compiler(folder: Path, quiet: Any, is_over: Callable[[float], bool], estimate: Callable[[Case], float]) -> Runner:
    config = config_of({"models": ["alexnet"], "engines": ["eager"]})
    runner: Any = Runner(RunFolder(folder), config, Target("cpu"), [], [], {}, Told())
    runner.supervisor, runner.is_over, runner.estimate = idle(folder, quiet), is_over, estimate
    return runner


def building(asked: list[str]) -> Callable[..., list[Outcome]]:
    """Stand for run_all: note what is to be built, and fail it."""

    def run_all(calls: list[Call], slots: int, tick: Callable[[int], None]) -> list[Outcome]:
        asked.extend(call.argument.case.id for call in calls)
        return [Outcome("failed", "it is not told here")] * len(calls)

    return run_all


@pytest.mark.parametrize(("left", "built"), [(math.inf, 4), (30.0, 0), (75.0, 2), (140.0, 4)])
def test_compiling_ahead_leaves_the_time_of_what_compiles_nothing(tmp_path, monkeypatch, alone, left, built):
    asked: list[str] = []

    monkeypatch.setattr(module, "run_all", building(asked))
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    runner = compiler(
        tmp_path, alone, lambda seconds: seconds > left, lambda case: 25.0 if case.engine == "compiled" else 10.0
    )
    compiled = [replace(case(), engine="compiled", variant=f"compiled{number}") for number in range(4)]
    runner.build_ahead([Task(each, Prepared(), Budget()) for each in (*compiled, case(), case("b"))])
    assert asked == [each.id for each in compiled[:built]]


@pytest.mark.parametrize(("cores", "built"), [(2, "fg"), (6, "fgh"), (16, "fghi")])
def test_idle_cores_compile_later_cases(tmp_path, monkeypatch, alone, cores, built):
    asked = list[str]()
    monkeypatch.setattr(module, "run_all", building(asked))
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    runner = compiler(tmp_path, alone, lambda _: False, lambda _: 1.0)
    first, *later = (Task(replace(case(name), engine="compiled"), Prepared(), Budget()) for name in "fghi")
    runner.build_ahead([first], [Task(case("ort"), Prepared(), Budget()), *later])
    assert asked == [case(name).id for name in built]
    runner.build_ahead([Task(case("b"), Prepared(), Budget())], later)
    assert asked == [case(name).id for name in built], "a wave that compiles nothing waits for no build"


@pytest.mark.parametrize(("cores", "left", "prepared"), [(2, math.inf, "abc"), (4, 900.0, "abc"), (4, math.inf, "ab")])
def test_idle_cores_prepare_all_later_waves_with_the_second(tmp_path, monkeypatch, cores, left, prepared):
    calls = list[list[str]]()
    monkeypatch.setattr(module, "usable_cores", lambda: cores)
    monkeypatch.setattr(module, "failure", lambda *_: None)

    def prepare(cases: Sequence[Case]) -> list[Task]:
        calls.append([each.variant for each in cases])
        return [Task(each, Prepared(), Budget()) for each in cases]

    measured = list[str]()
    runner: Any = SimpleNamespace(
        is_over=lambda: False, deadline=left, first_seconds=0.0, prepare=prepare, _measure_roofs=lambda _: None,
        config=SimpleNamespace(skip=False), chosen=[], _skip=lambda tasks, results: list(tasks),
        build_ahead=lambda *_: None,
        supervisor=SimpleNamespace(quiet=SimpleNamespace(start=int)),
        measure_each=lambda tasks, **_: float(measured.extend(task.case.variant for task in tasks) or 0.0),
    )  # fmt: skip
    runner._make_ready = partial(Runner._make_ready, runner)
    Runner._measure_waves(runner, [[case("a")], [case("b")], [case("c")]])
    assert measured == ["a", "b", "c"]
    assert [call[0] for call in calls] == list(prepared)


def test_a_search_for_the_largest_batch_has_the_memory_of_the_gpu(tmp_path):
    config = config_of({"models": ["alexnet"], "engines": ["eager"]})
    target, folder = Target("cuda", Gpu(0, "GPU-1", "A card", 81_920.0, "580.95")), RunFolder.create(tmp_path)
    assert Runner(folder, config, target, [], [], {}, Told())._search(case(), False).gpu_mib == 81_920.0


@pytest.mark.parametrize(
    ("outlier", "of_rival", "further"),
    [(5.5, [0.6] * 4, []), (13.8, [0.6] * 4, [3, 4, 5]), (5.5, [0.6, 0.6, 0.6, 6.0], []), (13.8, [], [])],
)
def test_a_base_too_wide_for_a_factor_gets_further_processes(tmp_path, monkeypatch, outlier, of_rival, further):
    monkeypatch.setattr(plan, "BASE_PROCESSES", 3)
    monkeypatch.setattr(plan, "CONFIRMING_PROCESSES", 3)
    base = replace(case("eager"), variant="eager")
    cases = [replace(base, replicate=n) for n in range(3)]
    winners = [replace(base, engine="ort", variant="ort", replicate=n) for n in range(len(of_rival))]
    config = config_of({"models": ["alexnet"], "engines": ["eager", "ort"]})
    planned = [*cases, *winners[:1]]
    runner = Runner(RunFolder.create(tmp_path), config, Target("cpu"), planned, planned, {}, Told())
    times = zip([*cases, *winners], (outlier, 5.5, 5.6, *of_rival), strict=True)
    for ended, ms in times:
        figures = {"rel_l2_error": 0.0, "rel_l2_error_high": 0.0}
        result = Result(ended.id, "ok", clock="host", throughput=1e3 / ms, samples={"host": [ms] * 20}, figures=figures)
        runner.run.append(result)
    assert [(missing.variant, missing.replicate) for missing in runner.missing_replicates(3)] == [
        ("eager", number) for number in further
    ]
