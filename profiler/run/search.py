"""Decide by the cells so far what to measure next: neighbours of each engine's best, and cases to skip."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import polars as pl

from engines.catalog import ENGINES
from engines.options import PRECISION_TABLE
from profiler.job.case import Case
from profiler.job.plan import builds_long
from profiler.machine.target import usable_cores
from profiler.results.cells import Row
from profiler.results.choice import Choice, cell_name, choices
from profiler.results.result import Result
from profiler.results.warning_kinds import DISTURBED
from profiler.tables.numbers import listed, times
from profiler.worker.task import Task

_REACH = 1.5
"""Try no options of an engine whose best is this many times slower than the best of all: none makes up for that."""
_MEASURED = {"worse", "better", "equivalent", "unclear"}
"""Reason codes of cells that lost by their latency, not by a limit."""
_CLEAR = 2.0
"""A winner is clear if it is this many times as fast as its base.

On an H200 the fastest TF32 was then 1.16 to 2.4 times slower than the fastest fp16: 13 networks and ViT-B/16, batch 1
to 64 (docs/results). Within one engine TF32 was faster than fp16 in a fifth of the cells.
"""


def next_trials(cells: pl.DataFrame, plan: Iterable[Case], ended: Container[str]) -> list[Case]:
    """Return the untried neighbours of each engine's best cell, for engines that may still win their group.

    `ended` has the ids of tried cases. Trials that take minutes to build wait until no others are left.
    """
    by_id = {case.id: case for case in plan}
    tried = {identity(case) for case in by_id.values() if case.id in ended}
    trials = dict[Any, Case]()
    for _, choice in choices(cells):
        fastest = _fastest_of_engines(choice)
        for cell in fastest:
            if cell["latency_ms"] <= _REACH * fastest[0]["latency_ms"]:
                for case in neighbours(by_id[cell["case_ids"][0]]):
                    trials.setdefault(identity(case), case)
    new = [case for key, case in trials.items() if key not in tried]
    return [case for case in new if not builds_long(case)] or new


def neighbours(case: Case, cores: float | None = None) -> list[Case]:
    """Return the case with one searched option changed, for each option and each of its other values.

    Values of `threads` are below `cores`, by default this machine's.
    """
    cores = usable_cores() if cores is None else cores
    return [
        with_option(case, name, value)
        for name, option in ENGINES[case.engine].options.declared().items()
        if option.search and case.device in option.devices
        for value in (option.default, *option.search)
        if value != _options(case)[name] and not (name == "threads" and int(str(value)) >= cores)
    ]


def label(engine: str, options: Mapping[str, Any]) -> str:
    """Name a configuration by its engine and non-default options, such as "compiled+channels_last"."""
    declared = ENGINES[engine].options.declared()
    differs = {
        name: options[name] for name in declared if options.get(name, declared[name].default) != declared[name].default
    }
    return "+".join([engine, *(name if value is True else f"{name}={value}" for name, value in differs.items())])


def trials_of(journal: Iterable[str], plan: Sequence[Case]) -> list[Case]:
    """Return the trials whose ids are in the journal: neighbours of planned cases or of other trials."""
    unplanned = {*journal} - {case.id for case in plan}
    waiting = [case for case in plan if not case.replicate and case.unsupported is None] if unplanned else []
    trials = dict[str, Case]()
    while waiting:
        for trial in neighbours(waiting.pop(), math.inf):  # Another machine may have measured it.
            if trial.id in unplanned and trial.id not in trials:
                trials[trial.id] = trial
                waiting.append(trial)
    return list(trials.values())


def contributions(cells: pl.DataFrame, plan: Iterable[Case]) -> list[str]:
    """Say how much slower each group's winner is without each of its options, and which engines had no trials."""
    by_id, lines = {case.id: case for case in plan}, []
    for key, choice in choices(cells):
        if choice.winner is None:
            continue
        winner, slower = by_id[choice.winner["case_ids"][0]], []
        reasons = {identity(by_id[loser.cell["case_ids"][0]]): loser.reasons[0] for loser in choice.losers}
        for name, option in ENGINES[winner.engine].options.declared().items():
            reason = reasons.get(identity(with_option(winner, name, option.default)))
            if _options(winner)[name] != option.default and reason and reason.code == "worse" and reason.value:
                slower.append(f"{name}: {times(reason.value, reason.low, reason.high)}")
        skipped = {
            identity(by_id[loser.cell["case_ids"][0]]) for loser in choice.losers if loser.cell["status"] == "skipped"
        }
        around = {*map(identity, neighbours(winner))} - skipped
        is_whole = all(key in reasons and reasons[key].code in _MEASURED for key in around)
        end = "no option makes a clear difference" if is_whole else "not all of its options were measured"
        end = f"slower without {listed(slower)}" if slower else end
        lines.append(f"{key['model']}, batch {key['batch_size']}, {cell_name(choice.winner)}: {end}")
        tried = {case.engine for case in by_id.values() if case.variant.startswith(f"{case.engine}+")}
        fastest, best_ms = _fastest_of_engines(choice), choice.winner["latency_ms"]
        untried = [c for c in fastest if c["engine"] not in {*tried, winner.engine}]
        others = [c for c in untried if neighbours(by_id[c["case_ids"][0]])]
        if names := [f"{c['engine']} ({times(c['latency_ms'] / best_ms)} slower)" for c in others]:
            lines.append(f"  options not tried of {listed(names)}")
    return lines


def with_option(case: Case, name: str, value: object) -> Case:
    options = {**case.options, name: value}
    return replace(case, variant=label(case.engine, options), options=options, replicate=0)


def _options(case: Case) -> dict[str, Any]:
    return asdict(ENGINES[case.engine].options(**case.options))


def identity(case: Case) -> tuple[object, ...]:
    """Return a key that a configuration has whatever its variant's name."""
    axes = case.model, case.engine, case.pass_, case.precision, case.batch_size, case.setting
    return (*axes, *sorted((name, str(value)) for name, value in _options(case).items()))


def _fastest_of_engines(choice: Choice) -> list[Row]:
    """Return the fastest eligible cell of each engine, the fastest engine first."""
    eligible = [choice.best] if choice.best else []
    eligible += [loser.cell for loser in choice.losers if {reason.code for reason in loser.reasons} <= _MEASURED]
    eligible.sort(key=lambda cell: cell["latency_ms"])
    best: dict[str, Row] = {}
    for cell in eligible:
        best.setdefault(cell["engine"], cell)
    return list(best.values())


def same_programs(tasks: Iterable[Task], plan: Iterable[Case]) -> list[Result]:
    """Return a result for each task whose NHWC changes nothing, since no tensor is an image."""
    planned = {identity(case): case.variant for case in plan if case.unsupported is None}
    results = []
    for case in (task.case for task in tasks if not task.prepared.has_images):
        if case.options.get("channels_last"):
            plain = planned.get(identity(with_option(case, "channels_last", value=False)))
            reason = f"the same program as {plain}: NHWC is for images, and no input or weight has their dimensions"
            results += [Result(case.id, "skipped", [reason])] if plain else []
    return results


def beaten(tasks: Iterable[Task], plan: Iterable[Case], cells: pl.DataFrame) -> list[Result]:
    """Return a result for each task at TF32 that fewer bits have beaten clearly, within the error limit.

    The winner's variant is measured at TF32 all the same: that tells what exact weights cost. Labels may set another
    limit, so that with scores nothing is beaten. `cells` are those so far.
    """
    planned = {(*_place(case), case.variant) for case in plan if case.precision == "tf32" and case.unsupported is None}
    winners: dict[tuple[object, ...], Row] = {
        (key["model"], key["pass"], key["batch_size"], key["setting"] or ""): choice.best
        for key, choice in choices(cells)
        if choice.best and _is_clear(choice.best, [c for c in choice.cells if c["is_base"] and c["status"] == "ok"])
    }
    results = []
    for case in (task.case for task in tasks if (task.case.pass_, task.case.precision) == ("inference", "tf32")):
        best = winners.get(_place(case))
        if best and best["variant"] != case.variant and (*_place(case), best["variant"]) in planned:
            speed = f"at least {_CLEAR:g} times as fast as the base, within the error limit"
            reason = f"{cell_name(best)} is {speed}; TF32 was not tried"
            results.append(Result(case.id, "skipped", [reason], beaten_by=cell_name(best)))
    return results


def _is_clear(best: Row, bases: Sequence[Row]) -> bool:
    is_narrow = PRECISION_TABLE[best["precision"]].bits < PRECISION_TABLE["tf32"].bits
    is_quiet = all(DISTURBED not in cell["footnotes"] for cell in (best, *bases))
    lows = [base["latency_low_ms"] or base["latency_ms"] for base in bases]
    is_far = bool(lows) and min(lows) >= _CLEAR * best["latency_ms"]
    return is_narrow and is_quiet and is_far and best["accuracy"] is None


def _place(case: Case) -> tuple[object, ...]:
    return case.model, case.pass_, case.batch_size, case.setting
