"""Judge whether other work had the processors, or the card, while a case was measured.

The rule and its reasons are in docs/method.md. Whether the machine is quiet before anything is measured is the same
question: `reasons(read().since(before))` is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engines.base import Warning
from profiler.processor import TICK_S, Load
from profiler.tables.numbers import percent

_OTHERS, _STEAL, _DELAYED = 0.05, 0.02, 0.05
_EVIDENCE_S = 5 * TICK_S
"""What others had must be longer than this: the kernel counts in ticks, and a few of them are no evidence."""
_HELD_UP_BY_THE_HOST = {"host-bound", "queue-bound", "gate-overrun"}
"""Kinds of a GPU's row whose latency is the host's too, or cannot be told from it."""


def counts(device: str, clocks: Collection[str], kinds: Collection[str]) -> bool:
    """Whether a busy processor makes a row doubtful: always on the CPU.

    On a GPU not where calls take as long behind each other as alone, queued before they start ("gpu"): then the queue
    never ran dry, and no figure that is compared is the host's.
    """
    return device == "cpu" or "gpu" not in clocks or not _HELD_UP_BY_THE_HOST.isdisjoint(kinds)


def share(loads: Sequence[Load]) -> float | None:
    """The column `disturbance`: the largest of the shares that others, the hypervisor and waiting for them had."""
    found = [value for load in loads for value in _shares(load) if value is not None]
    return min(max(found), 1.0) if found else None


def disturbed(loads: Sequence[Load]) -> list[Warning]:
    """The warning that other work had the processors; `loads` are of the headline clock and of the others."""
    for load, when in zip(loads, ("", " while the other clocks were sampled"), strict=False):
        if found := reasons(load):
            return [Warning("disturbed", f"{' and '.join(found)}{when}")]
    return []


def reasons(load: Load) -> list[str]:
    """What other work did to the processors in that time; empty where they were as good as left alone."""
    found = []
    others, steal, delay = (value or 0.0 for value in _shares(load))
    if others >= _OTHERS:
        which = f"{load.processors} processors" if load.processors > 1 else "the one processor"
        found.append(f"other processes took {percent(others)} % of {which}")
    elif delay >= _DELAYED:
        found.append(f"threads waited {percent(delay)} % of the time for other processes")
    if steal >= _STEAL:
        found.append(f"the hypervisor took {percent(steal)} % of the processors' time")
    return found


def _shares(load: Load) -> tuple[float | None, float | None, float | None]:
    """What others and the hypervisor had, and how long our threads waited for others; 0 for what is no evidence.

    The last one in seconds per second, as far as others ran: what our threads waited for each other is no disturbance.
    """
    others, steal, delay = load.others, load.steal, None
    if others is not None:
        if others * load.processors * load.seconds <= _EVIDENCE_S:
            others = 0.0
        delay = None if load.delayed is None else min(load.delayed, others * load.processors)
    if (load.stolen_s or 0.0) <= _EVIDENCE_S:
        steal = None if steal is None else 0.0
    return others, steal, delay
