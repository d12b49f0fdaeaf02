"""What enters: rows of results of one model. What leaves: its `Candidate`s for deployment, replicates put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import polars as pl

from engines.base import Warning
from profiler.job.case import Role
from profiler.results.columns import COLUMNS, DERIVED, Group, columns, names
from profiler.results.set_up import set_up

_KEY = ["machine", *names(Group.VERSIONS), "device", "engine", "variant", "precision", "batch_size", "extra", "options"]
"""Rows that agree in all of these are replicates of one another, be it in several runs."""
FIGURES = {
    **{c.name: c for c in columns(Group.LATENCY, Group.CLOCKS, Group.SET_UP) if c.type.is_numeric()},
    **{c.name: c for c in COLUMNS.values() if c.objective},
    **DERIVED,
}
"""What a candidate is compared by and what is printed of it."""


@dataclass(frozen=True)
class Candidate:
    """A variant at a precision and a batch size on one machine: what may be deployed, or why it was not measured.

    `each` holds a figure's values by its column, one for each measured replicate that has it. To the results' columns
    come those derived of them; `usd_per_million_items` is at the price that is asked for.
    """

    name: str
    variant: str
    precision: str
    batch_size: int
    machine: str
    row: Mapping[str, Any]
    """Its first measured row, or its first one."""
    run_ids: tuple[str, ...]
    cases: tuple[tuple[str, str], ...]
    """Of every measured replicate the run and the case."""
    each: Mapping[str, tuple[float, ...]]
    unmeasured: tuple[str, ...]
    """Status and reason of every replicate that gave no figures."""
    warnings: frozenset[str]
    """Kinds that its measured replicates carry."""

    @property
    def replicates(self) -> int:
        return len(self.cases)

    @property
    def clock(self) -> str:
        """Its headline clock."""
        return str(self.row["clock"])

    @cached_property
    def figures(self) -> dict[str, float]:
        """The median over the replicates of every figure that it has."""
        return {name: median(values) for name, values in self.each.items() if values}

    @property
    def seconds_per_item(self) -> float | None:
        """At full load where that was measured, else in single calls."""
        if throughput := self.figures.get("throughput"):
            return 1 / throughput
        latency = self.figures.get("latency_ms")
        return None if latency is None else latency / 1000 / self.batch_size


def candidates(results: pl.DataFrame, prices: Mapping[str, float]) -> list[Candidate]:
    """Every candidate in the order of the rows, which are of one model, pass and work.

    `prices` are in dollars an hour, by machine; where it names none the rows' own price counts.
    """
    groups = results.with_columns(set_up_s=set_up()).partition_by(_KEY, maintain_order=True)
    return _named([_candidate(group.to_dicts(), prices) for group in groups])


def machine_of(row: Mapping[str, Any]) -> str:
    """What a row's machine is called."""
    return str(row["machine"] or ("an unnamed CPU" if row["device"] == "cpu" else "an unnamed machine"))


def _candidate(rows: Sequence[Mapping[str, Any]], prices: Mapping[str, float]) -> Candidate:
    measured = [row for row in rows if _is_measured(row)]
    first = (measured or rows)[0]
    machine = machine_of(first)
    values = [_values(row, prices.get(machine, row["usd_per_hour"])) for row in measured]
    kinds = {Warning.parse(warning).kind for row in measured for warning in row["warnings"] or ()}
    if any(row["throttled"] for row in measured):
        kinds.add("throttled")
    return Candidate(
        name=f"{first['variant']} {first['precision']}, batch {first['batch_size']}",
        variant=first["variant"],
        precision=first["precision"],
        batch_size=first["batch_size"],
        machine=machine,
        row=first,
        run_ids=tuple(dict.fromkeys(row["run_id"] for row in measured or rows)),
        cases=tuple((row["run_id"], row["case_id"]) for row in measured),
        each=_gathered(values),
        unmeasured=tuple(_why_not(row) for row in rows if not _is_measured(row)),
        warnings=frozenset(kinds),
    )


def _is_measured(row: Mapping[str, Any]) -> bool:
    return row["status"] == "ok" and row["latency_ms"] is not None


def _gathered(values: Sequence[Mapping[str, float | None]]) -> dict[str, tuple[float, ...]]:
    """By figure those of the replicates that have it."""
    return {name: tuple(v for value in values if (v := value[name]) is not None) for name in FIGURES}


def _values(row: Mapping[str, Any], usd_per_hour: float | None) -> dict[str, float | None]:
    """One replicate's figures."""
    throughput = row["throughput"]
    cost = 1e6 * usd_per_hour / (3600 * throughput) if throughput and usd_per_hour is not None else None
    return {
        **{name: row[name] for name in FIGURES if name not in DERIVED},
        "error": row["gradient_error" if row["pass"] == "training" else "rel_l2_error"],
        "set_up_s": row["set_up_s"],
        "usd_per_million_items": cost,
    }


def _why_not(row: Mapping[str, Any]) -> str:
    if row["status"] == "ok":
        return "no latency was recorded"
    return f"{row['status']}: {row['reason']}" if row["reason"] else str(row["status"])


def _named(found: list[Candidate]) -> list[Candidate]:
    """The candidates with names that tell them apart: by machine, by kind of row, by run, as far as they need it."""
    if len({candidate.machine for candidate in found}) > 1:
        found = [replace(c, name=f"{c.name} on {c.machine}") for c in found]
    for more in ("sweep", "run"):
        count = Counter(c.name for c in found)
        found = [_longer(c, more) if count[c.name] > 1 else c for c in found]
    count, seen = Counter(c.name for c in found), Counter[str]()
    for place, candidate in enumerate(found):
        if count[candidate.name] > 1:
            seen[candidate.name] += 1
            found[place] = replace(candidate, name=f"{candidate.name}, no. {seen[candidate.name]}")
    return found


def _longer(candidate: Candidate, by: str) -> Candidate:
    if by == "run":
        return replace(candidate, name=f"{candidate.name} (run {candidate.run_ids[0]})")
    is_swept = candidate.row["role"] == Role.SWEEP
    return replace(candidate, name=f"{candidate.name}, in a sweep") if is_swept else candidate
