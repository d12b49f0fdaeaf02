"""Name the cases with which the largest batch of a family is searched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from profiler.job.case import Case, CaseId, Role


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
