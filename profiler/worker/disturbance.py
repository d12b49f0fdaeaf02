"""Judge whether other work had the processors, or the card, while a case was measured.

The rule and its reasons are in docs/method.md. The machine is quiet before anything is measured where
`reasons(read().since(before))` is empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engines.base import Warning
from profiler.nvml import UTILIZATION_SECONDS, Nvml
from profiler.processor import TICK_S, Load
from profiler.tables.numbers import percent

_OTHERS, _STEAL, _DELAYED = 0.05, 0.02, 0.05
CARD = 0.05
"""A GPU is disturbed from this share of its time on that others have."""
_EVIDENCE_S = 5 * TICK_S
"""Least time of others that counts: the kernel counts in ticks, and a few of them are no evidence."""
_HELD_UP_BY_THE_HOST = {"host-bound", "queue-bound", "gate-overrun"}
"""Warnings of a GPU's row whose latency is the host's too, or cannot be told from it."""
_POLL_S = 0.1


@dataclass(frozen=True)
class CardLoad:
    """Work of other processes on the GPU; None is what NVML does not tell."""

    before: float | None = None
    """Share of the time in which the GPU was busy right before this case's process used it."""
    others: float | None = None
    """GPU share of other processes while the case was measured; None if unknown or none was seen."""

    @property
    def share(self) -> float:
        """Return the share of others while the case was measured, or before where no more is known."""
        return (self.before if self.others is None else self.others) or 0.0

    def reasons(self) -> list[str]:
        """Say what other work did to the GPU; empty where it was as good as left alone."""
        if self.share >= CARD:
            used = f"{percent(self.share)} % of the GPU's time"
            return [f"other processes took {used}" if self.others is not None else f"others had {used} before the case"]
        return []


class Card:
    """Sees other processes on a GPU. Make it before this process uses the GPU; without one it sees nothing."""

    def __init__(self, nvml: Nvml, sleep: Callable[[float], None] = time.sleep) -> None:
        self._nvml = nvml
        self._there = nvml.pids() or frozenset()
        self._ours: frozenset[int] = frozenset()
        self._busy = nvml.utilization()
        waited = 0.0
        while (self._busy or 0.0) >= CARD and waited < UTILIZATION_SECONDS + _POLL_S:
            sleep(_POLL_S)
            waited += _POLL_S
            self._busy = nvml.utilization()

    def opened(self) -> None:
        """Call once this process uses the GPU: what has appeared is ours, by whatever number NVML knows it."""
        self._ours = (self._nvml.pids() or frozenset()) - self._there

    def load(self, since: float) -> CardLoad:
        """Return what others did since then (time.time()); not while something is timed."""
        strangers, used = self._there | (self._nvml.pids() or frozenset()) - self._ours, self._nvml.used_by(since)
        if not strangers or used is None:
            return CardLoad(self._busy)
        return CardLoad(self._busy, sum(share for pid, share in used.items() if pid in strangers))


def counts(device: str, clocks: Collection[str], kinds: Collection[str]) -> bool:
    """Tell whether a busy processor makes a row doubtful: always on the CPU.

    On a GPU it does not where calls take as long behind each other as alone, queued before they start ("gpu"): then
    the queue never ran dry, and no figure that is compared is the host's.
    """
    return device == "cpu" or "gpu" not in clocks or not _HELD_UP_BY_THE_HOST.isdisjoint(kinds)


def share(loads: Sequence[Load], card: CardLoad | None = None) -> float | None:
    """Return the column `disturbance`: the largest share that others, the hypervisor and waiting for them had."""
    found = [value for load in loads for value in _shares(load) if value is not None]
    found += [card.share] if card is not None and card.share else []
    return min(max(found), 1.0) if found else None


def disturbed(loads: Sequence[Load], card: CardLoad | None = None) -> list[Warning]:
    """Warn that other work had the GPU or the processors; `loads` are of the headline clock and the others."""
    if card is not None and (found := card.reasons()):
        return [Warning("disturbed", " and ".join(found))]
    for load, when in zip(loads, ("", " while the other clocks were sampled"), strict=False):
        if found := reasons(load):
            return [Warning("disturbed", f"{' and '.join(found)}{when}")]
    return []


def reasons(load: Load) -> list[str]:
    """Say what other work did to the processors in that time; empty where they were as good as left alone."""
    found = []
    others, steal, delay = (value or 0.0 for value in _shares(load))
    if others >= _OTHERS:
        which = f"{load.processors} processors" if load.processors > 1 else "the one processor"
        found.append(f"other processes took {percent(others)} % of {which}")
    if delay >= _DELAYED and delay > others:  # The column has the larger one.
        found.append(f"threads waited {percent(min(delay, 1.0))} % of the time for other processes")
    if steal >= _STEAL:
        found.append(f"the hypervisor took {percent(steal)} % of the processors' time")
    return found


def _shares(load: Load) -> tuple[float | None, float | None, float | None]:
    """Return what others and the hypervisor had, and how long our threads waited for others; 0 for no evidence.

    The last one is in seconds per second, as far as others ran: threads that wait for each other are no disturbance.
    """
    others, steal, delay = load.others, load.steal, None
    if others is not None:
        if others * load.processors * load.seconds <= _EVIDENCE_S:
            others = 0.0
        delay = None if load.delayed is None else min(load.delayed, others * load.processors)
    if (load.stolen_s or 0.0) <= _EVIDENCE_S:
        steal = None if steal is None else 0.0
    return others, steal, delay
