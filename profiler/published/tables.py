"""Make the tables of a study with the rows of runs among its figures, ours marked.

The published rows and ours are ranked together by time. A row of ours that was measured at another batch size than the
published is ranked by its time per image, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from profiler.published import references, setups
from profiler.published.layers import layer_tables
from profiler.published.machines import Environment, cost_table, hardware_table, host_table
from profiler.published.printed import (
    NOTES,
    OWN,
    SAME_BATCH,
    Printed,
    joined_kinds,
    joined_notes,
    label,
    measure,
    measures,
    milliseconds,
    per_image,
)
from profiler.published.studies import STUDIES, Study
from profiler.tables.numbers import spread, whole, words
from profiler.tables.table import figure
from profiler.tables.writers import MARK, escape_markdown

_PICTURES = "The source printed its figures as pictures: only those in its text are here."
_DEVICE_TIME = "Own times are the device's own where it is known; a call takes longer where the host sets it (h)."
_BOLD = "**Bold** is the lowest time of a column, among the published rows and among the own ones."
_SECTIONS = {"inference": "forward", "training": "forward + backward"}
_OVERVIEW = [
    *(label("published_network", "Network"), figure("Year", "year", words), figure("Layers", "depth", words)),
    figure("Top-1 error (%)", "top1_error_percent", words),
    figure("Top-5 error (%)", "top5_error_percent", words),
    figure("Speed (ms)", "milliseconds", measures),
]
_MARKS = pl.format("{}: marks", "column")


def published_tables(name: str, results: pl.DataFrame, environments: Sequence[Environment] = ()) -> list[Printed]:
    """Every table of the study to which the results have something to say; `environments` are the runs' own.

    Without an own row among the figures there are none, of the machines neither.

    Raises ConfigError where references/ is missing.
    """
    own = setups.network_cells(results)
    tables = [table for form in STUDIES[name].tables for table in TABLES[form](name, own, results)]
    if not any(table.frame["ours"].any() for table in tables):
        return []
    tables += [table(name, own, environments) for table in (hardware_table, host_table, cost_table)]
    return [table for table in tables if table.frame["ours"].any()]


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
    fields = [*_OVERVIEW, *speeds, label("citation", "Citation")]
    return [Printed("overview", "The networks", frame, fields, note=note, marked=None)]


def network_table(name: str, own: pl.DataFrame, _: pl.DataFrame) -> list[Printed]:
    """A section a network, a row a setup: the times of its passes."""
    study = STUDIES[name]
    rows = setups.network_times(name, own).filter(pl.col("pass") == "training", ~pl.col("swept"))
    inner = ["pass", "swept", "software", "ending", "judged_ms", "host_set"]
    frame = setups.ranked(rows.drop(inner), "total_ms", "network")
    frame = frame.sort(references.place(name, "network"), maintain_order=True)
    links = {"implementation": "url"}
    fields = [
        milliseconds(column, heading) if column.endswith("_ms") else label(column, heading, links.get(column, ""))
        for column, heading in study.columns.items()
    ]
    fields.append(figure("± %", ("low_ms", "high_ms", "total_ms"), spread, expendable=1))
    fields.append(replace(milliseconds("gpu_ms", "Device (ms)"), expendable=2))
    note = ""
    if (frame.group_by("network").agg(pl.col("batch_size").n_unique())["batch_size"] > 1).any():
        fields += per_image("Per image (ms)")
        note = "Batch sizes differ: ranked by the time per image."
    title = f"{study.title}: forward and backward pass"
    return [Printed("networks", title, frame, fields, "published_network", note, contest=SAME_BATCH)]


def framework_table(name: str, own: pl.DataFrame, _: pl.DataFrame) -> list[Printed]:
    """A section a pass, a row a setup, a column a network, blank where that ran out of memory."""
    rows = _of_both_passes(name, own).filter(~pl.col("swept"))
    keys = ["section", "machine", "library", "batch_size", "ours"]
    ranked = rows.with_columns(
        *(pl.format("{}: {}", "published_network", note).alias(note) for note in NOTES),
        place=pl.col("per_item_ms").rank().over("section", "network"),
    )
    about = ranked.group_by(keys, maintain_order=True).agg(pl.col("place").mean(), joined_kinds(), *joined_notes())
    wide = rows.pivot("published_network", index=keys, values="ms", maintain_order=True, aggregate_function="first")
    frame = wide.join(about, on=keys).sort("section", "place", nulls_last=True)
    fields = [label(column, heading) for column, heading in STUDIES[name].columns.items()]
    title = "GPU vs Framework vs Network: milliseconds"
    if frame["batch_size"].n_unique() > 1:
        fields.append(figure("Batch", "batch_size", whole))
    else:
        title += f", {STUDIES[name].batch_size} samples per minibatch"
    fields += [milliseconds(network, network) for network in rows["published_network"].unique(maintain_order=True)]
    return [Printed("frameworks", title, frame, fields, "section", _PICTURES, data=rows, contest=SAME_BATCH)]


def minibatch_table(name: str, own: pl.DataFrame, _: pl.DataFrame) -> list[Printed]:
    """A section a network, a row a setup and pass, a column a batch size: milliseconds per sample."""
    # As the sentences have it: small batches leave the device waiting for the host.
    on_device = pl.col("judged_ms") / pl.col("batch_size")
    swept = _of_both_passes(name, own).filter("swept").with_columns(per_item_ms=on_device)
    keys = ["published_network", "machine", "library", "section", "ours"]
    noted = swept.drop_nulls("note").sort("batch_size", maintain_order=True)
    size, listed = pl.col("batch_size"), pl.col("batch_size").cast(pl.String).str.join(", ")
    # What failed at a size is not repeated for larger ones.
    sizes = pl.when(pl.col("per_item_ms").is_null().all()).then(size.min().cast(pl.String)).otherwise(listed)
    notes = (
        noted.group_by(*keys, *NOTES, maintain_order=True)
        .agg(joined_kinds(), at=sizes)
        .with_columns(pl.format("{} at {}", note, "at").alias(note) for note in NOTES)
        .group_by(keys)
        .agg(joined_kinds(), *joined_notes())
    )
    by_size = swept.sort("batch_size", maintain_order=True).with_columns(pl.col("batch_size").cast(pl.String))
    # Of runs that differ only in the machine's price, the faster.
    wide = by_size.pivot("batch_size", index=keys, values="per_item_ms", maintain_order=True, aggregate_function="min")
    order = swept.select("published_network").unique(maintain_order=True)
    frame = order.join(wide, on="published_network", maintain_order="left_right").join(
        notes, on=keys, how="left", maintain_order="left"
    )
    fields = [label(column, heading) for column, heading in STUDIES[name].columns.items()]
    fields.append(label("section", "Pass"))
    fields += [milliseconds(size, size) for size in by_size["batch_size"].unique(maintain_order=True)]
    title = "Minibatch efficiency: milliseconds per sample, by samples per minibatch"
    same_pass = pl.format("{} {}", "ours", "section")
    note = f"{_PICTURES} {_DEVICE_TIME}" if swept["gpu_ms"].count() else _PICTURES
    return [Printed("minibatch", title, frame, fields, "published_network", note, data=swept, contest=same_pass)]


TABLES: Mapping[str, Callable[[str, pl.DataFrame, pl.DataFrame], list[Printed]]] = {
    "overview": overview_table,
    "networks": network_table,
    "layers": layer_tables,
    "frameworks": framework_table,
    "minibatch": minibatch_table,
}
"""What makes them, given a study's name, the runs' times (`setups.times`) and their results."""


def link(study: Study) -> str:
    """Its title in Markdown, which leads to its address if it has one."""
    title = escape_markdown(study.title)
    return f"[{title}]({study.address})" if study.address else title


def markdown(name: str, tables: Sequence[Printed], pictures: Mapping[str, Sequence[str]]) -> str:
    """The tables as one page, each below its pictures, which are paragraphs by the name of the table."""
    study = STUDIES[name]
    source = link(study) if study.address else f'"{link(study)}"'
    title = f"# {escape_markdown(study.title)}: published and own figures"
    lead = f"{title}\n\nOwn rows are marked {MARK}; the others are {source}'s. {_BOLD}\n"
    return "\n".join([lead, *(table.markdown(pictures.get(table.name, ())) for table in tables)])


def _of_both_passes(name: str, own: pl.DataFrame) -> pl.DataFrame:
    """The rows of the study's networks, with the heading of their pass in `section`."""
    return setups.network_times(name, own).select(
        *("machine", "library", "setup", "batch_size", "network", "pass"),
        pl.col("total_ms").alias("ms"),
        *("swept", "counterpart", "device", "note", "ours", "per_item_ms", "published_network"),
        *("gpu_ms", "judged_ms", "low_ms", "high_ms", "samples", "kinds"),
        pl.col("pass").replace(_SECTIONS).alias("section"),
        "brief",
    )
