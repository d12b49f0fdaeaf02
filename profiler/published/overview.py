"""Make a study's list of its networks, with depth, errors and speed as printed and the own speeds next to them."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from profiler.published import references, setups
from profiler.published.printed import OWN, Printed, joined_kinds, label, measure, measures
from profiler.published.studies import STUDIES
from profiler.tables.numbers import words
from profiler.tables.table import figure

_FIELDS = [
    *(label("published_network", "Network"), figure("Year", "year", words), figure("Layers", "depth", words)),
    figure("Top-1 error (%)", "top1_error_percent", words),
    figure("Top-5 error (%)", "top5_error_percent", words),
    figure("Speed (ms)", "milliseconds", measures),
]
_MARKS = pl.format("{}: marks", "column")


def overview_table(name: str, own: pl.DataFrame, _: pl.DataFrame) -> list[Printed]:
    """A row a network that the source lists, a column a machine of ours: its time with what stands for the library.

    No table where none of ours has a time.
    """
    published, study = references.overview(name), STUDIES[name]
    rows = setups.network_times(name, own).filter("ours", "counterpart", ~pl.col("swept"))
    rows = rows.filter(pl.col("pass") == "training").drop_nulls("total_ms")
    if rows.is_empty():
        return []
    usual = study.batch_size or references.networks(name)["batch_size"][0]
    several = (pl.len().over("machine", "network", "batch_size") > 1).any().over("machine")
    at = pl.when(pl.col("batch_size") != usual).then(pl.format(", {} images", "batch_size")).otherwise(pl.lit(""))
    called = pl.concat_str(pl.when(several).then("setup").otherwise("machine"), at)
    rows = rows.with_columns(column=pl.format("{} (ms)", called))
    wide = rows.pivot("column", index="network", values="total_ms", maintain_order=True, aggregate_function="min")
    columns = rows["column"].unique(maintain_order=True)
    of_marks = rows.with_columns(column=_MARKS, marks=setups.marks(pl.col("kinds")))
    marks = of_marks.pivot("column", index="network", values="marks", maintain_order=True, aggregate_function="first")
    kinds = rows.group_by("network").agg(joined_kinds())
    frame = published
    for more in (wide, marks, kinds):
        frame = frame.join(more, on="network", how="left", maintain_order="left")
    frame = frame.with_columns(ours=pl.any_horizontal(pl.col(columns.to_list()).is_not_null()))

    def marked(times: Iterable[float | None], marks: Iterable[str | None]) -> list[str]:
        cells = (() if time is None else (measure(time), mark) for time, mark in zip(times, marks, strict=True))
        return [" ".join(filter(None, parts)) for parts in cells]

    speeds = [figure(OWN.format(column), (column, f"{column}: marks"), marked) for column in columns]
    found = rows["setup"].unique(maintain_order=True)
    note = f"Times are of a forward and a backward pass of {usual} images; ours: {'; '.join(found)}."
    if study.speed_of:
        note += f" Speed is that of {study.speed_of}."
    fields = [*_FIELDS, *speeds, label("citation", "Citation")]
    return [Printed("overview", "The networks", frame, fields, note=note, marked=None)]
