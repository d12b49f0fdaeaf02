"""Find what is added to rows besides what measuring them gives: first calls at new shapes, and why kernels are slower.

The shapes of a configuration are walked so that the first call at each that is new is timed. A walk begins at the
smallest shape that the run has, whichever of them this start measures: what a run was resumed for changes no figure,
and the shape that has none, since its first call is `first_run_s`, is always that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engines.base import Warning
from engines.catalog import Training, reference_of
from exporters.errors import cut
from profiler.job.case import Case, CaseId, Role
from profiler.processes.messages import Outcome
from profiler.results.result import Result
from profiler.results.warning_kinds import SLOWER_KERNELS, disturbances
from profiler.stats.samples import median
from profiler.tables.numbers import times
from profiler.worker.task import Task

_FACTOR = 1.1
"""So much longer than eager a case takes the device before it is asked why."""
_NAMED = 3
_NAME_CHARACTERS = 60
"""Kernels of templates have names of several hundred characters."""


def walks(
    plan: Sequence[Case], chosen: Sequence[Case], waiting: Collection[CaseId], journal: Mapping[CaseId, Result]
) -> list[list[Case]]:
    """The walks that are to be made: the cases of one configuration at its shapes, in the plan's order.

    They are of the cases of the `plan` that are `waiting` or have been measured, up to the last of `chosen` that lacks
    its figure.
    """
    found: dict[tuple[CaseId, Training], list[Case]] = {}
    for case in plan:
        there = case.id in waiting or (case.id in journal and journal[case.id].status == "ok")
        if case.shape and case.role is Role.CELL and case.unsupported is None and there:
            found.setdefault((replace(case.id, setting=""), case.training), []).append(case)
    lacking = {case.id for case in chosen} - timed(journal).keys()
    last = [max((n for n, case in enumerate(walk) if case.id in lacking), default=0) for walk in found.values()]
    return [walk[: n + 1] for walk, n in zip(found.values(), last, strict=True) if n]


def timed(journal: Mapping[CaseId, Result]) -> dict[CaseId, float]:
    """The milliseconds of those that are known already."""
    found = ((id_, result.figures.get("first_call_ms")) for id_, result in journal.items())
    return {id_: ms for id_, ms in found if ms is not None}


def add_reasons(
    tasks: Sequence[Task], results: Mapping[CaseId, Result], profile: Callable[[Task], Outcome]
) -> list[Result]:
    """The results that get the warning; `profile` gives the kernels of a case in milliseconds a call."""
    known: dict[CaseId, Outcome] = {}

    def kernels(task: Task) -> Outcome:
        if task.case.id not in known:
            known[task.case.id] = profile(task)
        return known[task.case.id]

    warned = []
    for task, eager, factor in slower_than_eager(tasks, results):
        outcomes = kernels(task), kernels(eager)
        bad = next((outcome for outcome in outcomes if outcome.status != "ok"), None)
        why = f"not named: {bad.reason}" if bad else kernels_that_differ(*(each.value for each in outcomes))
        text = f"the device takes {times(factor)} what it takes in eager at {task.case.precision}: {why}"
        result = results[task.case.id]
        warned.append(replace(result, warnings=[*result.warnings, Warning(SLOWER_KERNELS, text)]))
    return warned


def slower_than_eager(tasks: Sequence[Task], results: Mapping[CaseId, Result]) -> list[tuple[Task, Task, float]]:
    """Each case whose device time is above plain eager's of the same cell and interpreter, with that and the factor.

    A row that was disturbed, or has the warning already, is left out.
    """
    base = reference_of("canonical")[0]
    plain = [task for task in tasks if task.case.engine == base and not task.case.options]
    cells = {_cell(task.case): task for task in reversed(plain)}
    found = []
    for task in tasks:
        eager = cells.get(_cell(task.case))
        if eager is None or eager is task or task.case.role is not Role.CELL:
            continue
        own, theirs = (_device_ms(results.get(each.case.id)) for each in (task, eager))
        if own and theirs and own > _FACTOR * theirs:
            found.append((task, eager, own / theirs))
    return found


def _cell(case: Case) -> tuple[CaseId, Path | None]:
    return replace(case.id, variant=""), case.python


def _device_ms(result: Result | None) -> float | None:
    """The median of the device's own time; None of what was not measured, was disturbed or was asked before."""
    if result is None or result.status != "ok" or not result.samples.get("gpu") or disturbances(result.warnings):
        return None
    return None if any(warning.kind == SLOWER_KERNELS for warning in result.warnings) else median(result.samples["gpu"])


def kernels_that_differ(own: Mapping[str, float], eager: Mapping[str, float]) -> str:
    """Like "mine 1.90 ms, … where eager runs its 0.40 ms": those in which one spends more than the other, or of eager
    its longest, where all that it runs is run here, too."""
    if not (more := _most(own, eager)):
        return "the same kernels, no slower while they were profiled"
    return f"{more} where eager runs {_most(eager, own) or _most(eager, {}) or 'none'}"


def _most(these: Mapping[str, float], those: Mapping[str, float]) -> str:
    """The kernels in which `these` spend most more than `those`, with their own milliseconds."""
    more = {name: ms - those.get(name, 0.0) for name, ms in these.items()}
    total = sum(ms for ms in more.values() if ms > 0)
    worst = [name for name in sorted(more, key=lambda name: -more[name]) if more[name] > 0.05 * total][:_NAMED]
    return ", ".join(f"{cut(name, _NAME_CHARACTERS)} {these[name]:.3g} ms" for name in worst)
