"""Decide which disturbed cases are measured again, for how long, and which take of a case counts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from engines.base import Warning
from profiler.job.case import CaseId
from profiler.results.result import Result
from profiler.results.warning_kinds import REMEASURED, disturbances, first_taken

RETAKEN = ("ok", "oom", "timeout")
"""What another take may mend: what failed, such as by wrong outputs, or crashed does so on a quiet machine too."""


class Takes:
    """The takes of the cases that were disturbed, and the time that measuring them again has taken.

    `known` are the journal's results: what a resumed run measures again replaces a row of theirs only if it is better.
    Measuring again may take `share` of the time that the first measuring took; both are counted in the processes.
    """

    def __init__(self, known: Mapping[CaseId, Result], share: float) -> None:
        self.share = share
        self._counted: dict[CaseId, Result] = {}
        self._first: dict[CaseId, Result] = {}
        self._seconds = {True: 0.0, False: 0.0}
        for result in known.values():
            self._count(result)

    @property
    def disturbed(self) -> Collection[CaseId]:
        """The cases that are to be measured again."""
        return self._counted.keys()

    @property
    def has_time(self) -> bool:
        """Whether another case may be measured again: the one that is begun is always ended."""
        return self._seconds[True] < self.share * self._seconds[False]

    def add(self, result: Result, again: bool) -> bool:
        """Whether this take of its case counts; it is marked as `remeasured` where it replaces another one.

        `again` says that its time is one of measuring again.
        """
        self._seconds[again] += sum(result.phases.values())
        before = self._counted.get(result.case_id)
        if before is not None:
            if not is_better(result, before):
                return False
            reason = f"first taken {first_taken(self._first[result.case_id].warnings)}"
            result.warnings.append(Warning(REMEASURED, reason))
        self._count(result)
        return True

    def _count(self, result: Result) -> None:
        if result.status in RETAKEN and disturbances(result.warnings):
            # Without its samples and figures, which would fill the memory of a run of many cases.
            share = {"disturbance": result.figures.get("disturbance")}
            judged = Result(result.case_id, result.status, figures=share, warnings=list(result.warnings))
            self._counted[result.case_id] = judged
            self._first.setdefault(result.case_id, judged)
        else:
            self._counted.pop(result.case_id, None)


def is_better(second: Result, first: Result) -> bool:
    """Whether the second take of a case counts, and not the first one, which was disturbed.

    Never by latency: the faster of two takes is faster than the case is. Of two that were disturbed as much the first
    one stays: the share ends at 1, which two takes on a machine with more work than processors both reach.
    """
    if (second.status == "ok") != (first.status == "ok"):
        return second.status == "ok"
    before = _disturbance(first)
    return not disturbances(second.warnings) or before == math.inf or _disturbance(second) < before


def _disturbance(result: Result) -> float:
    """How much disturbed a take, where that is known."""
    share = result.figures.get("disturbance")
    return math.inf if share is None else share
