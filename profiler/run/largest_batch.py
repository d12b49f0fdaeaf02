"""Search for the largest batch that fits: double until one does not, then halve the gap. Each try has its own process.

The next batch follows from the tries alone, so a resumed search goes on where it was interrupted.
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

_SHARE = 0.8
"""Share of the available main memory that a try may take: a machine that swaps is of no use to its user."""
_CURED_BY_SIZE = ("oom", "failed", "crashed")
"""How a try ends that a smaller batch may mend."""


def short(budget: Budget) -> Budget:
    """Cut the budget to what shows whether a batch fits."""
    return replace(budget, seconds=min(budget.seconds, 0.3), min_samples=3, max_samples=3)


@dataclass
class Search:
    """The search for the configuration of `case`; its `measured` batches ran as cases."""

    case: Case
    limits: LargestBatch
    measured: Mapping[int, Status]
    tried: dict[int, tuple[Status, float | None]] = field(default_factory=dict)
    """By batch the status and the peak of memory in MiB."""

    def add(self, batch: int, status: Status, memory_mib: float | None) -> None:
        """Take a try into account."""
        self.tried[batch] = status, memory_mib

    def next_batch(self) -> int | None:
        """Return the next batch to try; None once the largest is known, or if nothing but other failures ran."""
        fitting = [batch for batch, status in self.measured.items() if status == "ok"]
        if not fitting and "oom" not in self.measured.values():
            return None
        tried = {batch: status for batch, (status, _) in self.tried.items()}
        return next_batch(tried, self.limits.limit, self.limits.resolution, max(fitting, default=1))

    def refuse(self, batch: int, specs: Sequence[TensorSpec], available_mib: float | None) -> Result | None:
        """Refuse a batch that the main memory is too small to try; None if it may run."""
        needed = sum(math.prod(spec.at(batch)) * numpy_dtype(spec.dtype).itemsize for spec in specs) / 2**20
        known = sorted((size, mib) for size, (status, mib) in self.tried.items() if status == "ok" and mib)
        if self.case.device == "cpu" and len(known) > 1:
            (small, less), (large, more) = known[-2:]
            needed = max(needed, more + (more - less) / (large - small) * (batch - large))
        if available_mib is None or needed <= _SHARE * available_mib:
            return None
        most = f"{percent(_SHARE)} % of the {count(available_mib)} MiB of main memory that are available"
        reason = f"not tried: it would take about {count(needed)} MiB, more than {most}"
        return Result(replace(self.case, batch_size=batch).id, "oom", [reason])


def next_batch(tried: Mapping[int, Status], limit: int, resolution: float, start: int = 1) -> int | None:
    """Return the next batch: twice the largest that fitted, or the middle between that and the first that did not.

    None once those are at most max(1, `resolution` of the batch) apart, at `limit`, and after a failure of another kind
    than memory, such as a timeout.
    """
    good = max((batch for batch, status in tried.items() if status == "ok"), default=0)
    bad = min((batch for batch, status in tried.items() if status != "ok" and batch > good), default=None)
    if bad is None:
        return None if good >= limit else min(limit, 2 * good or start)
    if tried[bad] not in _CURED_BY_SIZE or bad - good <= max(1, int(resolution * good)):
        return None
    return (good + bad) // 2
