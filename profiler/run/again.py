"""Decide which disturbed cases are measured again, for how long, and which take of a case counts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from engines.base import Warning
from profiler.job.case import CaseId
from profiler.results.result import Result
from profiler.results.warning_kinds import DISTURBED, REMEASURED, retaken

RETAKEN = ("ok", "oom", "timeout")
"""What another take may mend: what failed, such as by wrong outputs, or crashed does so on a quiet machine too."""
_IN_VAIN = 2
"""After so many takes in a row beside as much other work no more cases are measured again."""


class Takes:
    """The takes of the cases that were disturbed, and the time that measuring them again has taken.

    `known` are the journal's results: a resumed run measures the disturbed ones of them again once, and replaces a row
    only by one that is better. Measuring its own again may take `share` of the time that all else took; both are
    counted in the processes.
    """

    def __init__(self, known: Mapping[CaseId, Result], share: float) -> None:
        self.share = share
        self._counted: dict[CaseId, Result] = {}
        self._first: dict[CaseId, Result] = {}
        self._seconds = {True: 0.0, False: 0.0}
        self._in_vain = 0
        for result in known.values():
            self._count(result)
        self._known = frozenset(self._counted)
        self._left = set(self._counted)

    @property
    def doubtful(self) -> Collection[CaseId]:
        """Return the cases whose take that counts should be measured again."""
        return self._counted.keys()

    @property
    def is_in_vain(self) -> bool:
        """Whether the last ones that were measured again say that the machine is as busy as it was before."""
        return self._in_vain >= _IN_VAIN

    def is_due(self, case_id: CaseId) -> bool:
        """Whether a case is to be measured again now: the one that is begun is always ended."""
        if case_id not in self._counted or self.is_in_vain:
            return False
        has_time = self._seconds[True] < self.share * self._seconds[False]
        return case_id in self._left or (has_time and case_id not in self._known)

    def add(self, result: Result) -> bool:
        """Whether this take of its case counts; it is marked as `remeasured` where it replaces another one."""
        before = self._counted.get(result.case_id)
        self._seconds[before is not None and result.case_id not in self._known] += sum(result.phases.values())
        self._left.discard(result.case_id)
        if before is not None:
            self._in_vain = self._in_vain + 1 if _is_as_disturbed(result, before) else 0
            if not is_better(result, before):
                return False
            first = "; ".join(map(str, retaken(self._first[result.case_id].warnings)))
            result.warnings.append(Warning(REMEASURED, f"the first take was {first}"))
        self._count(result)
        return True

    def _count(self, result: Result) -> None:
        if result.status in RETAKEN and retaken(result.warnings):
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
    return not retaken(second.warnings) or before == math.inf or _disturbance(second) < before


def _is_as_disturbed(second: Result, first: Result) -> bool:
    """Whether other work took more than half as much as before: by chance it takes a little less or more."""
    share = _disturbance(second)
    return any(w.kind == DISTURBED for w in second.warnings) and _disturbance(first) / 2 < share < math.inf


def _disturbance(result: Result) -> float:
    """How much disturbed a take, where that is known."""
    share = result.figures.get("disturbance")
    return math.inf if share is None else share
