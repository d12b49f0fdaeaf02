"""Add up what a run's wall time went into, in seconds and in a sentence."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from engines.base import Phase
from profiler.tables.numbers import duration, percent

WAIT = "wait"
"""For a machine to be quiet."""
_NAMED = {"measuring": (Phase.MEASURE, Phase.ENERGY), "building": (Phase.BUILD,), "waiting": (WAIT,)}
"""What a run is for, and what its user asked it to wait for; the rest is the price of measuring."""


class WallTime:
    """Seconds by phase, summed over a run."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._started = time.monotonic()

    @contextlib.contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Count what lies inside as `phase`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - start

    def add(self, phases: Mapping[str, float]) -> None:
        """Add a case's seconds by phase."""
        for phase, seconds in phases.items():
            self.seconds[phase] += seconds

    @property
    def total(self) -> float:
        """Seconds since the start, whatever was counted."""
        return time.monotonic() - self._started

    def split(self) -> dict[str, float]:
        """Seconds by phase, largest first; `rest` is what nothing counted."""
        parts = {**self.seconds, "rest": max(0.0, self.total - sum(self.seconds.values()))}
        return dict(sorted(parts.items(), key=lambda part: -part[1]))


def describe(split: Mapping[str, float]) -> str:
    """Like "Took 78 s (measuring 33 %, building 39 %, other 28 %)"."""
    total = sum(split.values())
    shares = {what: sum(split.get(phase, 0.0) for phase in phases) for what, phases in _NAMED.items()}
    shares["other"] = total - sum(shares.values())
    parts = [
        f"{what} {percent(seconds / (total or 1.0))} %"
        for what, seconds in shares.items()
        if seconds or what == "other"
    ]
    return f"Took {duration(total)} ({', '.join(parts)})"
