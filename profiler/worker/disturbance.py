"""Judge whether other work used the processors or the card while a case was measured.

docs/method.md has the rule and its reasons. A machine is quiet if `disturbances(read().since(before))` is empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from engines.base import Warning
from profiler.machine.nvml import UTILIZATION_SECONDS, Nvml
from profiler.machine.processor import TICK_S, Load
from profiler.tables.numbers import percent

_LIMITS = {
    "other processes took {} % of the processors' time": 0.05,
    "threads waited {} % of the time for other processes": 0.05,
    "the hypervisor took {} % of the processors' time": 0.02,
}
"""Smallest shares that count as a disturbance, in the order of `_shares`."""
CARD = 0.05
"""A GPU is disturbed if other processes use at least this share of its time."""
_EVIDENCE_S = 5 * TICK_S
"""Shortest time of others that counts: the kernel counts in ticks, and a few are no evidence."""
_HELD_UP_BY_THE_HOST = {"host-bound", "queue-bound", "gate-overrun"}
"""Warnings of a GPU's row that say that the host may set its latency."""
_POLL_S = 0.1


def settled_utilization(nvml: Nvml, sleep: Callable[[float], None] = time.sleep) -> float | None:
    """Return the GPU's utilization; while it is busy wait for up to a second, since it may include earlier work."""
    busy, waited = nvml.utilization(), 0.0
    while (busy or 0.0) >= CARD and waited < UTILIZATION_SECONDS + _POLL_S:
        sleep(_POLL_S)
        waited += _POLL_S
        busy = nvml.utilization()
    return busy


class Card:
    """Sees other processes on a GPU; create it before this process uses the GPU. Without a GPU it sees nothing."""

    def __init__(self, nvml: Nvml, sleep: Callable[[float], None] = time.sleep) -> None:
        self._nvml, self._sleep = nvml, sleep
        self._others = nvml.pids() or frozenset()
        self._ours: frozenset[int] = frozenset()
        self._busy = nvml.utilization()

    def opened(self) -> None:
        """Call this as soon as this process has a context: the new process is ours, whatever number NVML gives it.

        A context runs no kernel, so creating it is a part of the wait for the end of earlier work.
        """
        self._ours = (self._nvml.pids() or frozenset()) - self._others
        if (self._busy or 0.0) >= CARD:
            self._busy = settled_utilization(self._nvml, self._sleep)

    def share(self, since: float) -> float:
        """Return the share of the GPU's time that others used since `since` (time.time()). Never call it while timing.

        If NVML shows no processes, returns the GPU's utilization right before the case.
        """
        strangers, used = self._others | (self._nvml.pids() or frozenset()) - self._ours, self._nvml.used_by(since)
        if not strangers or used is None:
            return self._busy or 0.0
        return sum(share for pid, share in used.items() if pid in strangers)


def counts(device: str, clocks: Collection[str], kinds: Collection[str]) -> bool:
    """Return whether a busy processor makes a row doubtful: always on the CPU.

    On a GPU only if the row is host-bound or queue-bound, or has no device time ("gpu"): else the queue never ran dry,
    and the host set no compared figure.
    """
    return device == "cpu" or "gpu" not in clocks or not _HELD_UP_BY_THE_HOST.isdisjoint(kinds)


def share(loads: Sequence[Load], card: float = 0.0) -> float | None:
    """Return the column `disturbance`: the largest share of others, of the hypervisor, or of waiting for them."""
    shares = [value for load in loads for value in _shares(load) if value is not None] + [card] * (card > 0)
    return min(max(shares), 1.0) if shares else None


def warnings_of(loads: Sequence[Load], card: float = 0.0) -> list[Warning]:
    """Warn of other work on the GPU or the processors."""
    if card >= CARD:
        return [Warning("disturbed", f"other processes took {percent(card)} % of the GPU's time")]
    texts = next(filter(None, map(disturbances, loads)), [])
    return [Warning("disturbed", " and ".join(texts))] if texts else []


def disturbances(load: Load) -> list[str]:
    """Say how other work disturbed the processors; empty if it hardly did."""
    shares = zip(_LIMITS.items(), _shares(load), strict=True)
    return [text.format(percent(min(value, 1.0))) for (text, limit), value in shares if value and value >= limit]


def _shares(load: Load) -> tuple[float | None, float | None, float | None]:
    """Return the shares of others, of waiting for them, and of the hypervisor; 0 without evidence.

    Waiting is in seconds per second, at most the others' time: threads also wait for each other.
    """
    others, steal, delay = load.others, load.steal, None
    if others is not None:
        if others * load.processors * load.seconds <= _EVIDENCE_S:
            others = 0.0
        delay = None if load.delayed is None else min(load.delayed, others * load.processors)
    if (load.stolen_s or 0.0) <= _EVIDENCE_S:
        steal = None if steal is None else 0.0
    return others, delay, steal
