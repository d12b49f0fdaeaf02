"""Search the largest batch that fits: double it, then halve the gap.

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

    def add(self, batch: int, status: Status, memory_mib: float | None) -> None:
        """Take a try into account."""
        self.tried[batch] = status, memory_mib

    def next_batch(self) -> int | None:
        """Return the next batch to try; None once the largest is known, or if no case fitted or ran out of memory."""
        fitting = [batch for batch, status in self.measured.items() if status == "ok"]
        if not fitting and "oom" not in self.measured.values():
            return None
        tried = {batch: status for batch, (status, _) in self.tried.items()}
        return next_batch(tried, self.limits.limit, self.limits.resolution, max(fitting, default=1))

    def refuse(self, batch: int, specs: Sequence[TensorSpec], available_mib: float) -> Result | None:
        """Return an `oom` result for a batch that would exceed the main memory; None if it may run."""
        needed = sum(math.prod(spec.at(batch)) * numpy_dtype(spec.dtype).itemsize for spec in specs) / 2**20
        fitting = sorted((size, mib) for size, (status, mib) in self.tried.items() if status == "ok" and mib)
        if self.case.device == "cpu" and len(fitting) > 1:
            (small, small_mib), (large, large_mib) = fitting[-2:]
            needed = max(needed, large_mib + (large_mib - small_mib) / (large - small) * (batch - large))
        if needed <= _MEMORY_SHARE * available_mib:
            return None
        limit = f"{percent(_MEMORY_SHARE)} % of the {count(available_mib)} MiB of available main memory"
        reason = f"not tried: it would take about {count(needed)} MiB, more than {limit}"
        return Result(replace(self.case, batch_size=batch).id, "oom", [reason])


def next_batch(tried: Mapping[int, Status], limit: int, resolution: float, start: int = 1) -> int | None:
    """Return twice the largest batch that fitted, or the middle between it and the smallest that did not.

    Returns None once the two are at most max(1, `resolution` * batch) apart, once `limit` fits, and after a failure
    that no smaller batch avoids, such as a timeout.
    """
    good = max((batch for batch, status in tried.items() if status == "ok"), default=0)
    bad = min((batch for batch, status in tried.items() if status != "ok" and batch > good), default=None)
    if bad is None:
        return None if good >= limit else min(limit, 2 * good or start)
    if tried[bad] not in _CURED_BY_SIZE or bad - good <= max(1, int(resolution * good)):
        return None
    return (good + bad) // 2
