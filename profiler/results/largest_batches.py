"""Find the largest batch that fits in the tries of its search."""

from __future__ import annotations

import polars as pl

from profiler.results.cells import OK
from profiler.results.columns import field
from profiler.results.problems import why_not
from profiler.tables.numbers import whole
from profiler.tables.table import Table, figure, prose

SEARCH = ["run_id", "model", "pass", "setting", "variant", "precision"]
"""Identify a search: a configuration at any batch size."""


def largest(tries: pl.DataFrame) -> pl.DataFrame:
    """Give one row a configuration: the largest batch that fits, null if none does, and the smallest that does not."""
    size = pl.col("batch_size")
    most = size.filter(OK).max()
    refused = ~OK & (size > most.fill_null(0))
    first = refused & (size == size.filter(refused).min())
    why = pl.when(pl.col("reason").str.starts_with("not tried")).then("reason").otherwise(why_not())
    return tries.group_by(SEARCH, maintain_order=True).agg(
        largest=most,
        peak_memory_mib=pl.col("peak_memory_mib").filter(OK & (size == most)).first(),
        refused=size.filter(first).first(),
        why=why.filter(first).first(),
    )


def table(tries: pl.DataFrame) -> Table:
    """Make the table of `largest`."""
    frame = largest(tries)
    fields = [
        *map(field, ("model", "pass")),
        *([field("setting")] if (frame["setting"] != "").any() else []),
        *(field("variant", "Engine"), field("precision")),
        *(figure("Largest batch", "largest", whole), field("peak_memory_mib")),
        *(figure("Too large", "refused", whole), prose("Why", "why")),
    ]
    return Table("largest-batch", "The largest batch that fits", frame, fields, keys=SEARCH)
