"""What enters: the batch sizes tried so far. What leaves: the next one to try for the largest that fits, or None.

The next batch follows from the history alone, so a search goes on from a journal as if it had never been interrupted.

Memory grows with the batch nearly in a line, so two batches that fitted say where the boundary lies: one probe just
below it and one just above it mostly finish. Where the line is wrong (an algorithm with less workspace is taken as
memory gets scarce, an allocator's holes, a library's 32-bit index), doubling and bisection find the boundary all the
same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from profiler.processes.messages import Status

_FARTHEST = 16
"""By how much a probe may exceed the largest batch that fitted: memory at small batches says little of large ones."""
_AIMED = 3
"""After so many failures the line is wrong, and the rest is bisected."""


@dataclass(frozen=True)
class Probe:
    """A batch that was tried. `memory_mib` is its peak, None where it is not known."""

    batch: int
    status: Status
    memory_mib: float | None = None

    @property
    def fits(self) -> bool:
        return self.status == "ok"


def next_batch(
    probes: Sequence[Probe], limit: int, resolution: float, capacity_mib: float | None = None, start: int = 1
) -> int | None:
    """The next batch to try, at first `start`; None once it is known where memory ends.

    That is where the largest batch that fits is `limit`, or a batch failed that exceeds it by at most max(1, resolution
    of it). A failure that a smaller batch does not cure by its size (a timeout, a fixed batch) ends the search, too.
    `capacity_mib` is the memory that a batch may take, where it is known.
    """
    if not probes:
        return min(start, limit)
    good, bad = bounds(probes)
    step = max(1, int(resolution * good))
    if good >= limit or (bad is not None and (bad.status in ("timeout", "unsupported") or bad.batch - good <= step)):
        return None
    if bad is None:
        return min(limit, _beyond(probes, good, step, resolution, capacity_mib))
    return _between(probes, good, bad, step, resolution, capacity_mib)


def bounds(probes: Sequence[Probe]) -> tuple[int, Probe | None]:
    """The largest batch that fitted (0 if none did), and the smallest above it that did not."""
    good = max((probe.batch for probe in probes if probe.fits), default=0)
    failed = [probe for probe in probes if not probe.fits and probe.batch > good]
    return good, min(failed, key=lambda probe: probe.batch, default=None)


def predicted_mib(probes: Sequence[Probe], batch: int) -> float | None:
    """The memory that `batch` is expected to take; None before anything is known."""
    line = _line(probes)
    return None if line is None else line[0] + line[1] * batch


def _beyond(probes: Sequence[Probe], good: int, step: int, resolution: float, capacity_mib: float | None) -> int:
    """The next batch while none has failed."""
    boundary = _boundary(probes, capacity_mib)
    if boundary is None:
        return 2 * good
    aim = int(boundary / (1 + resolution / 2))
    candidate = aim if aim > good else good + step
    if _refuted(probes, capacity_mib):
        # The line says nothing any more: steps from an eighth on, each twice the last.
        before = max(probe.batch for probe in probes if probe.batch < good)
        candidate = max(candidate, min(good + max(good // 8, 2 * (good - before)), 2 * good))
    return min(candidate, _FARTHEST * good)


def _between(
    probes: Sequence[Probe], good: int, bad: Probe, step: int, resolution: float, capacity_mib: float | None
) -> int:
    """The next batch between one that fitted and one that did not."""
    middle = (good + bad.batch) // 2 if bad.batch <= 2 * good else max(good + 1, math.isqrt(good * bad.batch))
    boundary = _boundary(probes, capacity_mib)
    of_memory = [probe for probe in probes if probe.status == "oom"]
    if boundary is None or bad.status != "oom" or len(of_memory) >= _AIMED or _refuted(probes, capacity_mib):
        return middle
    aim = int(boundary / (1 + resolution / 2))
    if aim >= bad.batch:
        # It failed where it should have fitted, so the boundary is probably not far below.
        closest = min(bad.batch - 1, math.ceil(bad.batch / (1 + resolution)))
        return max(good + 1, closest) if len(of_memory) == 1 else middle
    candidate = aim if aim > good else good + step
    return candidate if candidate < bad.batch else middle


def _line(probes: Sequence[Probe]) -> tuple[float, float] | None:
    """Memory against batch: MiB at batch 0 and MiB an item.

    Through the largest batch that fitted and the largest of at most half its size, so that noise does not turn it; with
    a single batch through 0, which overestimates larger ones.
    """
    known = sorted((probe.batch, probe.memory_mib) for probe in probes if probe.fits and probe.memory_mib)
    if not known:
        return None
    batch, memory = known[-1]
    smaller = [point for point in known[:-1] if 2 * point[0] <= batch] or known[:1]
    slope = (memory - smaller[-1][1]) / (batch - smaller[-1][0]) if smaller[-1][0] < batch else 0.0
    return (memory - slope * batch, slope) if slope > 0 else (0.0, memory / batch)


def _boundary(probes: Sequence[Probe], capacity_mib: float | None) -> float | None:
    """The batch at which the line reaches the capacity."""
    line = _line(probes)
    return None if line is None or capacity_mib is None else (capacity_mib - line[0]) / line[1]


def _refuted(probes: Sequence[Probe], capacity_mib: float | None) -> bool:
    """Whether the largest batch took far less than those below it said: it fitted where it should not have, or of the
    memory that it should have taken beyond the next smaller one it took not even half."""
    good, _ = bounds(probes)
    below = [probe for probe in probes if probe.fits and probe.batch < good]
    line, boundary = _line(below), _boundary(below, capacity_mib)
    if line is None or boundary is None:
        return False
    before = max((probe for probe in below if probe.memory_mib), key=lambda probe: probe.batch)
    taken = next(probe.memory_mib for probe in probes if probe.fits and probe.batch == good)
    expected = line[0] + line[1] * good - (before.memory_mib or 0.0)
    return boundary < good or (taken is not None and taken - (before.memory_mib or 0.0) < expected / 2)
