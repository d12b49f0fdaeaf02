"""Decide which shapes of each configuration are walked, so that the first call at each that is new is timed.

A walk begins at the smallest shape that the run has, whichever of them this start measures: what a run was resumed for
changes no figure, and the shape that has none, since its first call is `first_run_s`, is always that one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from exporters.source import shape_words
from profiler.job.case import Case, CaseId, Role
from profiler.results.result import Result
from profiler.results.warning_kinds import UNTIMED


def walks(plan: Sequence[Case], waiting: Collection[CaseId], journal: Mapping[CaseId, Result]) -> list[list[Case]]:
    """The walks that are to be made: the cases of one configuration at its shapes, in the plan's order.

    They are of the cases of the `plan` that are `waiting` or have been measured, up to the last that lacks its figure:
    of several shapes those but the first that wait, or were measured as the first one, before a smaller one was there.
    """
    found: dict[tuple[str, str], list[Case]] = {}
    for case in plan:
        there = case.id in waiting or (case.id in journal and journal[case.id].status == "ok")
        if case.shape and case.role is Role.CELL and case.unsupported is None and there:
            shape = "/".join(shape_words(case.shape))
            found.setdefault((str(case.id).removesuffix(shape), case.model), []).append(case)
    return [walk[: last + 1] for walk in found.values() if (last := _last_untimed(walk, waiting, journal))]


def timed(journal: Mapping[CaseId, Result]) -> dict[CaseId, float]:
    """The milliseconds that are known already."""
    return {id_: ms for id_, result in journal.items() if (ms := result.figures.get("first_call_ms")) is not None}


def _last_untimed(walk: Sequence[Case], waiting: Collection[CaseId], journal: Mapping[CaseId, Result]) -> int:
    """The place of the last case that lacks its figure; 0, the first one's, where none does."""
    known = timed(journal)
    tried = {id_ for id_, result in journal.items() if any(each.kind == UNTIMED for each in result.warnings)}
    return max(
        (n for n, case in enumerate(walk) if case.id not in known and case.id not in tried - {*waiting}), default=0
    )
