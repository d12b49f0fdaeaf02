"""Search for the largest batch that fits, by tries that each have a process of their own.

The next batch follows from the history alone, so a search goes on as if it had never been interrupted.

Memory grows with the batch nearly in a line, so two batches that fitted say where the boundary is: one probe just
below it and one just above it mostly finish. Where the line is wrong (an algorithm with less workspace is taken as
memory gets scarce, an allocator's holes, a library's 32-bit index), doubling and bisection find the boundary all the
same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from exporters.inputs import TensorSpec
from profiler.job.case import Budget, Case, CaseId
from profiler.job.config import LargestBatch
from profiler.nvml import Gpu
from profiler.processes.messages import Status
from profiler.results.result import Result
from profiler.tables.numbers import count, percent

_SHARE = 0.8
"""Of the main memory that is available, what a probe may take: a machine that swaps is of no use to its user."""
_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}
_FARTHEST = {"cuda": 16, "cpu": 4}
"""By how much a probe may exceed the largest batch that fitted: memory at small batches says little of large ones.

A process on the CPU may take some 12 MiB more than the next one, which turns a line through small batches.
"""
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


def short(budget: Budget) -> Budget:
    """Cut the budget to what shows whether a batch fits."""
    return replace(budget, seconds=min(budget.seconds, 0.3), min_samples=3, max_samples=3)


class Search:
    """The search for the largest batch of the configuration of `case`, with the `tries` so far.

    It starts at the largest batch that ran as a case of the journal's `results`.
    """

    def __init__(
        self,
        case: Case,
        limits: LargestBatch,
        gpu: Gpu | None,
        results: Mapping[CaseId, Result],
        tries: Iterable[Result] = (),
    ) -> None:
        self.case, self.limits, self.gpu = case, limits, gpu
        family = case.id.family
        self._measured = {id_.batch_size: found.status for id_, found in results.items() if id_.family == family}
        self.tried: list[Probe] = []
        self._occupied_mib = 0.0
        for result in tries:
            if result.case_id.family == family:
                self.add(result)

    def next_batch(self, available_mib: float | None) -> int | None:
        """The next batch to try; None once the largest is known.

        None, too, where there is nothing to search: no case ran, for another reason than memory.
        `available_mib` is the main memory that could be had.
        """
        fitting = [batch for batch, status in self._measured.items() if status == "ok"]
        if not fitting and "oom" not in self._measured.values():
            return None
        capacity = None if available_mib is None else _SHARE * available_mib
        if self.case.device == "cuda":
            capacity = self.gpu.memory_mib - self._occupied_mib if self.gpu else None
        first, farthest = max(fitting, default=1), _FARTHEST[self.case.device]
        return next_batch(self.tried, self.limits.limit, self.limits.resolution, capacity, first, farthest)

    def refuse(self, batch: int, specs: Sequence[TensorSpec], available_mib: float | None) -> Result | None:
        """Refuse a batch for which the main memory is too small to try it; None where it may run."""
        if available_mib is None:
            return None
        sizes = (math.prod(spec.at(batch)) * _BYTES.get(spec.dtype, 4) for spec in specs)
        needed, what = sum(sizes) / 2**20, "its inputs"
        if self.case.device == "cpu" and (predicted := predicted_mib(self.tried, batch)) is not None:
            needed, what = max(needed, predicted), "it"
        if needed <= _SHARE * available_mib:
            return None
        reason = (
            f"not tried: {what} would take about {count(needed)} MiB, more than {percent(_SHARE)} % of the "
            f"{count(available_mib)} MiB of main memory that are available"
        )
        return Result(replace(self.case, batch_size=batch).id, "oom", [reason])

    def add(self, result: Result) -> None:
        """Take a try into account."""
        peaks = ["peak_memory_mib", *(["set_up_peak_mib"] if self.case.device == "cpu" else [])]
        memory = max((peak for name in peaks if (peak := result.figures.get(name)) is not None), default=None)
        self.tried.append(Probe(result.case_id.batch_size, result.status, memory))
        self._occupied_mib = result.figures.get("baseline_mib") or self._occupied_mib


def next_batch(
    probes: Sequence[Probe],
    limit: int,
    resolution: float,
    capacity_mib: float | None = None,
    start: int = 1,
    farthest: int = _FARTHEST["cuda"],
) -> int | None:
    """The next batch to try, at first `start`; None once it is known where memory ends.

    That is where the largest batch that fits is `limit`, or a batch failed that exceeds it by at most max(1, resolution
    of it). A failure that a smaller batch does not cure by its size (a timeout, a fixed batch) ends the search, too.
    `capacity_mib` is the memory that a batch may take, where it is known; no batch is more than `farthest` times the
    largest that fitted.
    """
    if not probes:
        return min(start, limit)
    good, bad = bounds(probes)
    step = max(1, int(resolution * good))
    if good >= limit or (bad is not None and (bad.status in ("timeout", "unsupported") or bad.batch - good <= step)):
        return None
    target, refuted = None, _refuted(probes, capacity_mib)
    boundary = _boundary(probes, capacity_mib)
    if boundary is not None:
        aim = int(boundary / (1 + resolution / 2))
        target = aim if aim > good else good + step
    if bad is None:
        return min(limit, farthest * good, _beyond(probes, good, target, refuted))
    ran_out = sum(probe.status == "oom" for probe in probes)
    if bad.status != "oom" or ran_out >= _AIMED or refuted:
        target = None
    # What failed first where it should have fitted is probably not far above the boundary.
    closest = min(bad.batch - 1, math.ceil(bad.batch / (1 + resolution))) if ran_out == 1 else None
    return _between(good, bad.batch, target, closest)


def bounds(probes: Sequence[Probe]) -> tuple[int, Probe | None]:
    """The largest batch that fitted (0 if none did), and the smallest above it that did not."""
    good = max((probe.batch for probe in probes if probe.fits), default=0)
    failed = [probe for probe in probes if not probe.fits and probe.batch > good]
    return good, min(failed, key=lambda probe: probe.batch, default=None)


def predicted_mib(probes: Sequence[Probe], batch: int) -> float | None:
    """The memory that `batch` is expected to take; None before anything is known."""
    line = _line(probes)
    return None if line is None else line[0] + line[1] * batch


def _beyond(probes: Sequence[Probe], good: int, target: int | None, refuted: bool) -> int:
    """The next batch while none has failed: the line's `target`, or twice the largest where nothing is known."""
    if target is None:
        return 2 * good
    if refuted:
        # The line says nothing any more: steps from an eighth on, each twice the last.
        before = max(probe.batch for probe in probes if probe.batch < good)
        target = max(target, min(good + max(good // 8, 2 * (good - before)), 2 * good))
    return target


def _between(good: int, bad: int, target: int | None, closest: int | None) -> int:
    """The next batch between one that fitted and one that did not: the line's `target`, or the middle."""
    if target is not None and target < bad:
        return target
    if target is not None and closest is not None:
        return max(good + 1, closest)
    return (good + bad) // 2 if bad <= 2 * good else max(good + 1, math.isqrt(good * bad))


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
    """Whether the largest batch took far less memory than those below it predict.

    It fitted where it should not have, or of what it should have taken beyond the next smaller one it took not even
    half.
    """
    good, _ = bounds(probes)
    below = [probe for probe in probes if probe.fits and probe.batch < good]
    line, boundary = _line(below), _boundary(below, capacity_mib)
    if line is None or boundary is None:
        return False
    before = max((probe for probe in below if probe.memory_mib), key=lambda probe: probe.batch)
    taken = next(probe.memory_mib for probe in probes if probe.fits and probe.batch == good)
    expected = line[0] + line[1] * good - (before.memory_mib or 0.0)
    return boundary < good or (taken is not None and taken - (before.memory_mib or 0.0) < expected / 2)
