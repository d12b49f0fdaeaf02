"""List the candidates for deployment in the results of one model: one for all replicates of a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any

import polars as pl

from engines.catalog import EIGHT_BITS
from profiler.job.case import Role
from profiler.results.columns import COLUMNS, DERIVED, Group, columns, kind_of_warning, names
from profiler.results.replicates import OK, by_throughput_ms, disturbed, merge, of_half, ranked, why_not
from profiler.results.set_up import set_up
from profiler.results.warning_kinds import without_factor

_KEY = [
    *("machine", *names(Group.VERSIONS), "device"),
    *("engine", "variant", "precision", "calibrated", "batch_size", "extra", "shape", "options"),
]
"""Rows that agree in all of these are replicates of one another, be it in several runs."""
FIGURES = {
    **{c.name: c for c in columns(Group.LATENCY, Group.CLOCKS, Group.SET_UP) if c.type.is_numeric()},
    **{c.name: c for c in COLUMNS.values() if c.objective},
    **DERIVED,
}
"""What a candidate is compared by and what is printed of it."""


@dataclass(frozen=True)
class Candidate:
    """A variant at a precision and a batch size on one machine: what may be deployed, or why it was not measured."""

    name: str
    row: Mapping[str, Any]
    """Its replicates as one row of the results (profiler.results.replicates)."""
    each: Mapping[str, tuple[float, ...]]
    """By a figure's name its values, one for each measured replicate that has it.

    `usd_per_million_items` is at the requested price."""
    run_ids: tuple[str, ...]
    cases: tuple[tuple[str, str], ...]
    """Of every measured replicate the run and the case."""
    unmeasured: tuple[str, ...]
    """Status and reason of every replicate that gave no figures."""
    left_out: tuple[str, ...]
    """The runs in which it was disturbed, unlike in those that its figures are of."""

    @property
    def machine(self) -> str:
        return str(self.row["machine"])

    @property
    def replicates(self) -> int:
        return len(self.cases)

    @property
    def warnings(self) -> frozenset[str]:
        """Kinds that its measured replicates carry."""
        return frozenset([*self.row["warnings"], *(["throttled"] if self.row["throttled"] else [])])

    @property
    def is_uncalibrated(self) -> bool:
        """Whether its ranges in 8 bits are of no data of the user's, so that its error on those is unknown."""
        return self.row["precision"] in EIGHT_BITS and not self.row["calibrated"]

    @property
    def is_disturbed(self) -> bool:
        """Whether nothing is to be said of it by a factor."""
        return bool(without_factor(self.warnings))

    @cached_property
    def figures(self) -> dict[str, float]:
        """The median over the replicates of every figure that it has; of a percentile only where all have it."""
        known = {name: values for name, values in self.each.items() if values}
        partly = {name for name in known if FIGURES[name].percentile and len(known[name]) < self.replicates}
        return {name: median(values) for name, values in known.items() if name not in partly}

    @cached_property
    def ranked(self) -> Mapping[str, float]:
        """The figures that it is ranked by and that limits are held against: where latency and throughput contradict
        each other the worse of them."""
        if not self.row["by_throughput_ms"]:
            return self.figures
        return {name: self.row.get(f"ranked {name}", value) for name, value in self.figures.items()}

    @property
    def seconds_per_item(self) -> float | None:
        """At full load where that was measured, else in single calls."""
        if throughput := self.figures.get("throughput"):
            return 1 / throughput
        latency = self.figures.get("latency_ms")
        return None if latency is None else latency / 1000 / self.row["batch_size"]


def candidates(results: pl.DataFrame, prices: Mapping[str, float]) -> list[Candidate]:
    """Every candidate in the order of the rows, which are of one model, pass and work.

    `prices` are in dollars an hour, by machine; where it names none the rows' own price counts.
    """
    # A replicate that failed in an older run does not tell; a run has one set of calibration data.
    calibrated = pl.coalesce("calibrated", pl.col("calibrated").max().over("run_id", "precision"))
    rows = results.with_columns(machine=machine_name(), calibrated=calibrated).with_columns(**_derived(prices))
    lists = {f"each {name}": pl.col(name).filter(OK).drop_nulls() for name in FIGURES}
    lists["run_ids"] = pl.col("run_id").filter(OK | ~OK.any()).unique(maintain_order=True)
    lists["cases"] = pl.struct("run_id", "case_id").filter(OK)
    lists["unmeasured"] = why_not().drop_nulls()
    rows = _without_disturbed_runs(rows)
    merged = merge(rows, _KEY, [name for name in rows.columns if name not in _KEY], **lists)
    worse = {f"ranked {figure}": value for figure, value in ranked().items()}
    merged = merged.with_columns(by_throughput_ms=by_throughput_ms(), **worse)
    return _with_unique_names([_candidate(row) for row in merged.to_dicts()])


def _without_disturbed_runs(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows without those of runs in which a candidate was disturbed, if in others it was not; `left_out` has which.

    A run counts with all of its replicates or none, so that a single run's figures are those of its own table.
    """
    kinds = pl.col("warnings").list.eval(kind_of_warning(pl.element()))
    noisy = of_half(OK & disturbed(kinds).is_not_null()).over([*_KEY, "run_id"])
    rows = rows.with_columns(noisy=noisy)
    rows = rows.with_columns(dropped=OK & pl.col("noisy") & (OK & ~pl.col("noisy")).any().over(_KEY))
    left_out = pl.col("run_id").filter("dropped").unique(maintain_order=True)
    rows = rows.with_columns(left_out=left_out.over(_KEY, mapping_strategy="join"))
    return rows.filter(~pl.col("dropped")).drop("noisy", "dropped")


def machine_name() -> pl.Expr:
    """What a row's machine is called."""
    unnamed = pl.when(device="cpu").then(pl.lit("an unnamed CPU")).otherwise(pl.lit("an unnamed machine"))
    return pl.coalesce("machine", unnamed)


def _derived(prices: Mapping[str, float]) -> dict[str, pl.Expr]:
    """The figures that a row's columns do not hold as they are."""
    usd_per_hour = pl.col("machine").replace_strict(prices, default=pl.col("usd_per_hour"), return_dtype=pl.Float64)
    items_per_hour = 3600 * pl.when(pl.col("throughput") > 0).then("throughput")
    return {
        "error": pl.when(pl.col("pass") == "training").then("gradient_error").otherwise("rel_l2_error"),
        **set_up(),
        "usd_per_million_items": 1e6 * usd_per_hour / items_per_hour,
    }


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(
        name=f"{row['variant']} {row['precision']}, batch {row['batch_size']}",
        row=row,
        each={name: tuple(row[f"each {name}"]) for name in FIGURES},
        run_ids=tuple(row["run_ids"]),
        cases=tuple((case["run_id"], case["case_id"]) for case in row["cases"]),
        unmeasured=tuple(row["unmeasured"]),
        left_out=tuple(row["left_out"]),
    )


def _with_unique_names(every: list[Candidate]) -> list[Candidate]:
    """The candidates with unique names, which have machine, kind of row, run and a number as far as they need them."""
    if len({candidate.machine for candidate in every}) > 1:
        every = [replace(c, name=f"{c.name} on {c.machine}") for c in every]
    endings: list[Callable[[Candidate], str]] = [
        lambda candidate: ", in a sweep" if candidate.row["role"] == Role.SWEEP else "",
        lambda candidate: f" (run {candidate.run_ids[0]})",
    ]
    for ending in endings:
        count = Counter(c.name for c in every)
        every = [replace(c, name=c.name + ending(c)) if count[c.name] > 1 else c for c in every]
    count, seen = Counter(c.name for c in every), Counter[str]()
    for place, candidate in enumerate(every):
        if count[candidate.name] > 1:
            seen[candidate.name] += 1
            every[place] = replace(candidate, name=f"{candidate.name}, no. {seen[candidate.name]}")
    return every
