"""What enters: how long a run's parts took. What leaves: what its wall time went into, in seconds and in a sentence."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from engines.base import Phase

_PRODUCTIVE = (Phase.MEASURE, Phase.ENERGY, Phase.BUILD)
"""What a run is for; the rest is the price of measuring."""


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
    """`62 % of 480 s went into measuring or building: measure 55 %, warm-up 11 %, …`, without parts below 0.5 %."""
    total = sum(split.values()) or 1.0
    productive = sum(split.get(phase, 0.0) for phase in _PRODUCTIVE)
    parts = [f"{phase} {100 * seconds / total:.0f} %" for phase, seconds in split.items() if seconds / total >= 0.005]
    return f"{100 * productive / total:.0f} % of {total:.0f} s went into measuring or building: {', '.join(parts)}"
