"""Judge whether other work had the processors while a case was measured."""

from __future__ import annotations

from engines.base import Warning
from profiler.processor import TICK_S, Load
from profiler.tables.numbers import percent

_OTHERS, _STEAL, _DELAYED = 0.05, 0.02, 0.05
_EVIDENCE_S = 5 * TICK_S
"""What others had must be longer than this: the kernel counts in ticks, and a few of them are no evidence."""


def disturbance(load: Load) -> float | None:
    """The column of that name: the largest of the shares that others, the hypervisor and waiting for them had."""
    shares = [share for share in (load.others, load.steal, _delay(load)) if share is not None]
    return min(max(shares), 1.0) if shares else None


def disturbed(load: Load) -> list[Warning]:
    """The warning that other work had the processors in that time; docs/method.md has the rule and its reasons."""
    reasons = []
    others_s = (load.others or 0.0) * load.seconds * load.processors
    if others_s > _EVIDENCE_S and (load.others or 0.0) >= _OTHERS:
        what = f"{load.processors} processors" if load.processors > 1 else "the one processor"
        reasons.append(f"other processes took {percent(load.others or 0.0)} % of {what}")
    elif others_s > _EVIDENCE_S and (delay := _delay(load) or 0.0) >= _DELAYED:
        reasons.append(f"its threads waited {percent(delay)} % of the time for other processes")
    if (load.stolen_s or 0.0) > _EVIDENCE_S and (load.steal or 0.0) >= _STEAL:
        reasons.append(f"the hypervisor took {percent(load.steal or 0.0)} % of the processors' time")
    return [Warning("disturbed", "; ".join(reasons))] if reasons else []


def _delay(load: Load) -> float | None:
    """Seconds per second that our threads waited and others ran: what they waited for each other is no disturbance."""
    if load.delayed is None or load.others is None:
        return None
    return min(load.delayed, load.others * load.processors)
