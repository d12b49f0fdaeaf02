"""What enters: a sweep's cases and a journal. What leaves: probes for the largest batch, as Cases and as a history."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from exporters.inputs import BATCH, TensorSpec
from profiler.job.case import Budget, Case, CaseId, Role
from profiler.job.config import LargestBatch
from profiler.nvml import Gpu
from profiler.results.result import Result
from profiler.run.largest_batch import Probe, next_batch, predicted_mib

_SHARE = 0.8
"""Of the main memory that is available, what a probe may take: a machine that swaps is of no use to its user."""
_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}


def searched(plan: Iterable[Case]) -> list[Case]:
    """One case, any of its batches, for each family in which the largest batch is searched: the first replicate's."""
    found: dict[str, Case] = {}
    for case in plan:
        if case.role is Role.SWEEP and case.unsupported is None and case.replicate == 0:
            found.setdefault(case.id.family, case)
    return list(found.values())


def probe_of(case: Case, batch_size: int) -> Case:
    """The probe of this batch in the family of `case`."""
    return replace(case, batch_size=batch_size, role=Role.PROBE)


def probes_among(plan: Iterable[Case], case_ids: Iterable[CaseId]) -> list[Case]:
    """The probes that `case_ids` name, family by family, smaller batches first."""
    batches: dict[str, list[int]] = {}
    for case_id in case_ids:
        if case_id.role is Role.PROBE:
            batches.setdefault(case_id.family, []).append(case_id.batch_size)
    return [probe_of(case, batch) for case in searched(plan) for batch in sorted(batches.get(case.id.family, []))]


def short(budget: Budget) -> Budget:
    """A probe's: whether it fits is known by then."""
    return Budget(min(budget.seconds, 0.3), 3, 3, budget.timeout, budget.build_timeout)


class Search:
    """The search for the largest batch in the family of `case`, with what the journal has of it.

    It starts at the sweep's largest batch that ran. Results whose ids are in `again` are left out of account.
    """

    def __init__(
        self,
        case: Case,
        limits: LargestBatch,
        gpu: Gpu | None,
        results: Mapping[CaseId, Result],
        again: Collection[CaseId] = (),
    ) -> None:
        self.case, self.limits, self.gpu = case, limits, gpu
        own = {id_: found for id_, found in results.items() if id_.family == case.id.family and id_ not in again}
        self._swept = {id_.batch_size: found.status for id_, found in own.items() if id_.role is not Role.PROBE}
        self.tried: list[Probe] = []
        self._occupied_mib = 0.0
        for result in (found for id_, found in own.items() if id_.role is Role.PROBE):
            self.add(result)

    def next_batch(self, available_mib: float | None) -> int | None:
        """The next batch to try; None once the largest is known, or where there is nothing to search: no batch of the
        sweep ran, and not for want of memory. `available_mib` is the main memory that could be had."""
        fitting = [batch for batch, status in self._swept.items() if status == "ok"]
        if not fitting and "oom" not in self._swept.values():
            return None
        capacity = None if available_mib is None else _SHARE * available_mib
        if self.case.device == "cuda":
            capacity = self.gpu.memory_mib - self._occupied_mib if self.gpu else None
        return next_batch(self.tried, self.limits.limit, self.limits.resolution, capacity, max(fitting, default=1))

    def probe(self, batch: int) -> Case:
        return probe_of(self.case, batch)

    def refuse(self, batch: int, specs: Sequence[TensorSpec], available_mib: float | None) -> Result | None:
        """The row of a batch for which the main memory is too small to try it; None where it may run."""
        if available_mib is None:
            return None
        needed, what = inputs_mib(specs, batch), "its inputs"
        if self.case.device == "cpu" and (predicted := predicted_mib(self.tried, batch)) is not None:
            needed, what = max(needed, predicted), "it"
        if needed <= _SHARE * available_mib:
            return None
        reason = (
            f"not tried: {what} would take about {needed:,.0f} MiB, more than {100 * _SHARE:.0f} % of the "
            f"{available_mib:,.0f} MiB of main memory that are available"
        )
        return Result(self.probe(batch).id, "oom", [reason])

    def add(self, result: Result) -> None:
        """Take a probe's row into account."""
        figures = [result.memory.peak_memory_mib]
        if self.case.device == "cpu":
            figures.append(result.memory.set_up_peak_mib)
        memory = max((figure for figure in figures if figure is not None), default=None)
        self.tried.append(Probe(result.case_id.batch_size, result.status, memory))
        self._occupied_mib = result.memory.baseline_mib or self._occupied_mib


def inputs_mib(specs: Sequence[TensorSpec], batch_size: int) -> float:
    """What the inputs of a batch take on the host."""
    return sum(
        math.prod(batch_size if size == BATCH else int(size) for size in spec.shape) * _BYTES.get(spec.dtype, 4)
        for spec in specs
    ) / 2**20  # fmt: skip
