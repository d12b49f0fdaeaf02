"""List what went wrong in runs: the cases without figures by reason, and the others' warnings by kind."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from profiler.results.columns import kind_of_warning
from profiler.results.reading import Frame
from profiler.results.replicates import OK, measured, without_probes

CELL = ("status", "model", "variant", "pass", "precision", "reason")


def not_measured(results: Frame, by: Sequence[str] = CELL, *more: pl.Expr) -> Frame:
    """One row for all cases without figures that agree in `by`: their batch sizes, sorted, and `more`."""
    cases = without_probes(results).filter(~OK).group_by(by, maintain_order=True)
    return cases.agg(pl.col("batch_size").unique().sort(), *more)


def warned(results: pl.DataFrame) -> pl.DataFrame:
    """One row a kind of warning, in the order of the first: how many `cases` carry it, and the first `case_id`.

    `example` is the whole warning there, for a kind that only another version of the profiler knows.
    """
    given = measured(results).select("run_id", "case_id", example="warnings").explode("example").drop_nulls("example")
    return given.group_by(kind=kind_of_warning(pl.col("example")), maintain_order=True).agg(
        pl.struct("run_id", "case_id").n_unique().alias("cases"), pl.first("case_id", "example")
    )
