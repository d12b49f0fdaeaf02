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
_WORDS = {
    "start": "importing libraries and looking at the models",
    "prepare": "weights, references and exports",
    "roofs": "the machine's peak rates",
    Phase.WARM_UP: "warming up",
    Phase.LOAD: "loading",
    Phase.CHECK: "checking outputs",
    Phase.PROFILE: "timing layers",
    Phase.FORK: "starting processes",
    Phase.END: "closing sessions",
}
"""By phase what it is called where it takes much of the rest; the others go by their own names."""
_MUCH = 0.05
"""Of the whole time."""


class WallTime:
    """Seconds by phase, summed over a run."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._started = time.monotonic()

    def count_from(self, started: float) -> None:
        """Count what came before, since that moment of time.monotonic(), as "start"."""
        self.seconds["start"] += self._started - started
        self._started = started

    @contextlib.contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Count what lies inside as `phase`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - start

    def add(self, phases: Mapping[str, float]) -> None:
        for phase, seconds in phases.items():
            self.seconds[phase] += seconds

    def split(self) -> dict[str, float]:
        """Seconds by phase, largest first; `rest` is what nothing counted."""
        total = time.monotonic() - self._started
        parts = {**self.seconds, "rest": max(0.0, total - sum(self.seconds.values()))}
        return dict(sorted(parts.items(), key=lambda part: -part[1]))


def describe(split: Mapping[str, float]) -> str:
    """Like "Took 78 s (measuring 33 %, building 39 %, other 28 %: loading 16 %, warming up 9 %)"."""
    total = sum(split.values())
    shares = {what: sum(split.get(phase, 0.0) for phase in phases) for what, phases in _NAMED.items()}
    shares["other"] = total - sum(shares.values())
    known = {what: seconds for what, seconds in shares.items() if seconds or what == "other"}
    parts = [f"{what} {percent(seconds / (total or 1.0))} %" for what, seconds in known.items()]
    named = {phase for phases in _NAMED.values() for phase in phases} | {"rest"}
    largest = sorted((phase for phase in split if phase not in named), key=lambda phase: -split[phase])
    most = [f"{_WORDS.get(p, p)} {percent(split[p] / total)} %" for p in largest if split[p] >= _MUCH * total]
    return f"Took {duration(total)} ({', '.join(parts)}{': ' * bool(most)}{', '.join(most)})"
