"""List what was not measured and why, and the warnings of what was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import polars as pl

from profiler.results.cells import OK
from profiler.results.columns import kind_of_warning

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)
OUT_OF_MEMORY = "out of memory"
CELL = ("status", "model", "variant", "pass", "precision", "reason")


def not_measured(results: Frame, by: Sequence[str] = CELL, *more: pl.Expr) -> Frame:
    """Return one row for all cases without figures that agree in `by`: their batch sizes, sorted, and `more`."""
    cases = results.filter(~OK).group_by(by, maintain_order=True)
    return cases.agg(pl.col("batch_size").unique().sort(), *more)


def warned(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row a kind of warning: how many `cases` carry it, their `case_ids`, and the first one as `example`."""
    given = results.filter(OK).select("run_id", "case_id", example="warnings").explode("example").drop_nulls("example")
    return given.group_by(kind=kind_of_warning(pl.col("example")), maintain_order=True).agg(
        pl.struct("run_id", "case_id").n_unique().alias("cases"),
        pl.col("case_id").unique(maintain_order=True).alias("case_ids"),
        pl.first("example"),
    )


def why_not() -> pl.Expr:
    """Return why a row has no figures; null where it has."""
    why = pl.format("{}: {}", "status", pl.col("reason").fill_null("no reason was given"))
    return pl.when(status="oom").then(pl.lit(OUT_OF_MEMORY)).when(~OK).then(why)
