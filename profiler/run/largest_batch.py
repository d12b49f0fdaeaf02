"""Search the largest batch that fits: double it, or go where the memory should be full, then halve the gap.

The next batch follows from the tries alone, so a resumed search continues where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporters.inputs import TensorSpec, numpy_dtype
from profiler.job.case import Budget, Case
from profiler.job.config import LargestBatch
from profiler.processes.messages import Status
from profiler.results.result import Result
from profiler.tables.numbers import count, percent

_MEMORY_SHARE = 0.8
"""Share of the available main memory that a try may take: swapping makes a machine unusable."""
_FULL_SHARE = 0.97
"""Share of a GPU's memory that is expected to fit: the driver and fragments take some."""
_FARTHEST = 16
"""Largest step, as a factor: small batches tell little of memory, and inputs for a huge one take minutes to make."""
_CURED_BY_SIZE = ("oom", "failed", "crashed")
"""Failures that a smaller batch may avoid."""


def short(budget: Budget) -> Budget:
    """Cut the budget to the few calls that show whether a batch fits."""
    return replace(budget, seconds=min(budget.seconds, 0.3), min_samples=3, max_samples=3)


@dataclass
class Search:
    """The search for the configuration of `case`; its `measured` batches ran as cases."""

    case: Case
    limits: LargestBatch
    measured: Mapping[int, Status]
    tried: dict[int, tuple[Status, float | None]] = field(default_factory=dict)
    """Status and peak of memory in MiB, by batch."""
    gpu_mib: float | None = None
    """Memory of the GPU in MiB."""

    def next_batch(self) -> int | None:
        """Return twice the largest batch that fitted, or the middle between it and the smallest that did not.

        On a GPU, return instead the batch that should fill its memory, or a few percent more than one that did.
        Returns None if no case fitted or ran out of memory, once the two are at most max(1, `resolution` * batch)
        apart, once `limit` fits, and after a failure that no smaller batch avoids, such as a timeout.
        """
        fitting = [batch for batch, status in self.measured.items() if status == "ok"]
        if not fitting and "oom" not in self.measured.values():
            return None
        statuses = {batch: status for batch, (status, _) in self.tried.items()}
        good = max((batch for batch, status in statuses.items() if status == "ok"), default=0)
        bad = min((batch for batch, status in statuses.items() if status != "ok" and batch > good), default=None)
        limit, distance = self.limits.limit, max(1, int(self.limits.resolution * good))
        if good >= limit or (bad and (statuses[bad] not in _CURED_BY_SIZE or bad - good <= distance)):
            return None
        end = bad - 1 if bad else limit
        if (full := self._full_at()) and (not bad or full < bad):
            return min(max(min(full, _FARTHEST * good), good + max(distance, good // 32)), end)
        return (good + bad) // 2 if bad else min(end, 2 * good or max(fitting, default=1))

    def refuse(self, batch: int, specs: Sequence[TensorSpec], available_mib: float) -> Result | None:
        """Return an `oom` result for a batch that would exceed the main memory; None if it may run."""
        needed = sum(math.prod(spec.at(batch)) * numpy_dtype(spec.dtype).itemsize for spec in specs) / 2**20
        if self.case.device == "cpu" and (line := self._line()):
            large, large_mib, slope = line
            needed = max(needed, large_mib + slope * (batch - large))
        if needed <= _MEMORY_SHARE * available_mib:
            return None
        limit = f"{percent(_MEMORY_SHARE)} % of the {count(available_mib)} MiB of available main memory"
        reason = f"not tried: it would take about {count(needed)} MiB, more than {limit}"
        return Result(replace(self.case, batch_size=batch).id, "oom", [reason])

    def _line(self) -> tuple[int, float, float] | None:
        """Return the largest batch that fitted, its MiB, and the MiB per item between it and the one before."""
        fitting = sorted((size, mib) for size, (status, mib) in self.tried.items() if status == "ok" and mib)
        if len(fitting) < 2:
            return None
        (small, small_mib), (large, large_mib) = fitting[-2:]
        return large, large_mib, (large_mib - small_mib) / (large - small)

    def _full_at(self) -> int:
        """Return the batch that should fill the GPU's memory; 0 if unknown."""
        line = self._line()
        if line is None or line[2] <= 0 or self.gpu_mib is None:
            return 0
        large, large_mib, slope = line
        return large + int((_FULL_SHARE * self.gpu_mib - large_mib) / slope)
