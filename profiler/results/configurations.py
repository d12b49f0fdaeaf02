"""Make one row of each configuration that a run measured, and compare it with its group's base.

A configuration is an engine's variant at a precision; a group is a model, a pass, a batch size and what else
distinguishes a case, such as an optimizer: what a deployment chooses within.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from profiler.results.columns import COLUMNS, MEASURE, Group, Shown
from profiler.results.replicates import as_one, disturbed, measured
from profiler.results.speedups import (
    CONFIGURATION,
    FACTORS,
    GROUP,
    sides,
    speedups,
    spreads,
    with_device_intervals,
    with_intervals,
)

IDENTITY = ["setting", "role", "is_base", "network", "reference_model"]
"""What else is the same in all replicates of a configuration."""
TIMES = (Group.LATENCY, Group.CLOCKS, Group.PARTS, Group.THROUGHPUT, Group.COST, Group.ACCURACY)
"""What tables/latency.csv has of a case."""


def summary(results: pl.DataFrame, samples: pl.DataFrame, common: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row a configuration: medians over replicates, and how it compares with its base.

    `speedup` and its ends are on the headline clock; `device_speedup`, its ends and `verdict` on the verdict's clock,
    which is `gpu` on CUDA and `host` on the CPU. `indistinguishable_from` is in a group's fastest row only: the
    runner-up, where three replicates a side do not tell them apart; `runner_up_verdict` is the verdict on the two.
    Of several replicates `latency_ci_low_ms` and `latency_ci_high_ms` are between them (`ratios.interval_of`).
    `warnings` are the kinds that its replicates carry, `disturbed` those of its own or its base's with which no factor
    counts (null without any). `common` are the `spreads` of the whole run, where `results` are a part of it.
    """
    every = (*TIMES, Group.ROOFLINE)
    known = [column for column in COLUMNS.values() if column.group in every or column.shown == Shown.TERMINAL]
    measures = [column.name for column in known if column.type == MEASURE]
    rows = with_device_intervals(measured(results), samples)
    own = [*measures, "disturbance", "clock", *IDENTITY, "warnings"]
    common = spreads(results) if common is None else common
    lines = with_intervals(sides(rows, CONFIGURATION, common, *as_one(rows.select(own).schema)))
    compared = lines.select(*CONFIGURATION, *own[:-1], "replicates", "warnings").hstack(speedups(lines))
    kinds = [disturbed(pl.col(name)) for name in ("warnings", "base_warnings")]
    return compared.with_columns(disturbed=pl.coalesce(kinds))


def certain(lines: pl.DataFrame) -> pl.DataFrame:
    """The configurations without the factors that rest on a disturbed row, and with a `note` of what was disturbed."""
    known, own = pl.col("disturbed").is_null(), disturbed(pl.col("warnings"))
    return lines.with_columns(
        *(pl.when(known).then(name).alias(name) for name in FACTORS),
        note=pl.coalesce(own, "base: " + pl.col("disturbed")),
    )


def groups(lines: pl.DataFrame) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each group's key and its configurations, fastest first."""
    same = [name for name in IDENTITY if name != "is_base"]
    for key, group in lines.group_by(GROUP, maintain_order=True):
        rows = group.sort("latency_ms").to_dicts()
        yield {**dict(zip(GROUP, key, strict=True)), **{name: rows[0][name] for name in same}}, rows
