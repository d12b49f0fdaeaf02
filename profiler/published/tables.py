"""Make the tables of a study, of networks and of layers, with the rows of runs among its figures, ours marked.

The published rows and ours are ranked together by time. A row of ours that was measured at another batch size than the
published is ranked by its time per image, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from exporters.single_layers import LAYERS as SHAPES
from profiler.published import references, setups
from profiler.published.machines import Environment, cost_table, hardware_table, host_table
from profiler.published.printed import (
    NOTES,
    OWN,
    SAME_BATCH,
    Printed,
    interval,
    joined_kinds,
    joined_notes,
    label,
    marks,
    measure,
    measures,
    milliseconds,
    per_image,
)
from profiler.published.studies import STUDIES, Study
from profiler.results.columns import place
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows
from profiler.tables.numbers import whole, words
from profiler.tables.table import Field, figure
from profiler.tables.writers import MARK, escape_markdown

LAYERS = list(SHAPES)
COUNTERPART = ("eager-benchmark", "eager")
"""As Study.counterpart: each library was printed at its best."""
_LAYER_SECTIONS = {
    "forward": "forward",
    "backward": "backward (gradInput + gradWeight)",
    "gradInput": "gradInput",
    "gradWeight": "gradWeights",
}
_TABLES = {
    "forward_ms": "forward",
    "backward_ms": "backward",
    "grad_input_ms": "gradInput",
    "grad_weight_ms": "gradWeight",
}
"""The published table that has a pass."""
_SHAPES = [
    *(label("layer", "Layer"), figure("Input", "input", words), figure("Batch-size", "batch_size", whole)),
    *(figure("Feature maps", "maps", words), figure("Kernel Size", "kernel", words), figure("Stride", "stride", words)),
    figure(OWN.format("Batch-size"), "own_batch_sizes", words),
]
_SUMS = {"total_ms": "Total (ms)", "forward_ms": "forward (ms)", "backward_ms": "backward (ms)"}
_SETUP = ["setup", "machine", "library", "implementation", "batch_size"]
_LABELS = [label("machine", "GPU"), label("library", "Library"), label("implementation", "Class/Function", "url")]
_ONE_LIBRARY = pl.when(pl.col("implementation").ne_missing("best per layer")).then(SAME_BATCH)
"""The rows of which one can be the best; "best per layer" is put together of several."""
_MARKED = pl.format("{}: {}", "layer", marks(pl.col("kinds")))
"""A row's note with the marks of its warnings; null without any."""
_CLOCK = (
    "Own times are the device's, without gaps between launches, where those could be kept out; engines that run"
    ' only inference have a forward time. "best of ours" takes the fastest variant for each layer and pass, at one'
    " precision."
)
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


def layer_tables(_: str, __: pl.DataFrame, results: pl.DataFrame) -> list[Printed]:
    """The layers' shapes, the sums over all five, the breakdown by pass and the peak memory; only of L1 to L5.

    None where no such layer was measured.
    """
    mine = _own(results)
    return [] if mine.is_empty() else [_shapes(mine), _sums(mine), _breakdown(mine), _memory(mine)]


def layer_times(results: pl.DataFrame) -> pl.DataFrame:
    """Forward, gradInput and gradWeight together: published and own rows, as conclusions.compare takes them."""
    columns = ["setup", "machine", "software", "ending", "called", "implementation", "device"]
    columns += ["network", "published_network", "library", "precision", "batch_size", "total_ms", "clock"]
    keys = ["machine", "library", "implementation", "batch_size"]
    of_both = pl.col("table").is_in(["forward", "backward"])
    passes = references.layers().filter(of_both, pl.col("library") != "cherry-picking")
    long = passes.unpivot(LAYERS, index=["table", *keys], variable_name="layer")
    total = pl.when(pl.col("value").count() == 2).then(pl.col("value").sum()).first()
    called = pl.format("{} ({})", "library", "implementation")
    published = long.group_by(*keys, "layer", maintain_order=True).agg(total_ms=total)
    published = published.with_columns(
        called=called, setup=pl.format("{} with {}", "machine", called), device=pl.lit("cuda"), ours=pl.lit(False)
    )
    per_image = pl.col("total_ms") / pl.col("batch_size")
    rows = pl.concat([published, _own(results)], how="diagonal_relaxed").with_columns(
        pl.coalesce("software", "called"),
        pl.col("ending").fill_null(""),
        pl.col("counterpart").fill_null(value=False),
        network="layer",
        published_network="layer",
    )
    ends = {end: pl.col(end) / pl.col("batch_size") for end in ("low_ms", "high_ms")}
    return rows.select(*columns, "ours", "counterpart", ms=per_image, **ends)


def _own(results: pl.DataFrame) -> pl.DataFrame:
    """Return `layer_rows` with setup and library by name, then the best of each machine, precision and batch size."""
    rows = layer_rows(results.filter(pl.col("model_kind") == "layer", pl.col("model").is_in(LAYERS)))
    keys = ["machine", "device", "variant", "precision", "batch_size"]
    times = setups.times(results.filter(model_kind="layer"))
    times = times.with_columns(counterpart=setups.counterpart(COUNTERPART))
    names = times.unique(keys, keep="first", maintain_order=True)
    names = names.select(*keys, "setup", "counterpart", "software", "ending", called="library", library="runtime")
    named = rows.join(names, on=keys, how="left", maintain_order="left")
    # Where several variants ran.
    group = ["machine", "precision", "batch_size"]
    several = rows.group_by(group).agg(pl.col("variant").n_unique()).filter(pl.col("variant") > 1)
    called = pl.format("best of ours, {}", "precision")
    best = best_per_layer(rows).filter(pl.col("layer") != ALL_LAYERS).join(several, on=group, how="semi")
    best = best.with_columns(
        library=called,
        called=called,
        setup=pl.format("{}, {}", "machine", called),
        variant=pl.lit("best per layer"),
    )
    both = pl.concat([named, best], how="diagonal")
    return both.with_columns(implementation=pl.col("variant"), ours=pl.lit(True))


def _shapes(mine: pl.DataFrame) -> Printed:
    """What is computed in each layer, as printed, and at which batch sizes here."""
    sizes = mine.group_by("layer").agg(own_batch_sizes=pl.col("batch_size").unique().sort())
    frame = references.layer_shapes().join(sizes, on="layer", how="left", maintain_order="left")
    frame = frame.with_columns(ours=pl.col("own_batch_sizes").is_not_null())
    return Printed("layer-shapes", "L1 to L5: shapes", frame, _SHAPES, marked=None)


def _sums(mine: pl.DataFrame) -> Printed:
    """Total, forward and backward of the five layers together."""
    sums_of_all = [pl.when(pl.col(c).count() == len(LAYERS)).then(pl.col(c).sum()).alias(c) for c in _SUMS]
    noted = mine.with_columns(_MARKED.alias(note) for note in NOTES)
    sums = noted.group_by(*_SETUP, "ours", maintain_order=True).agg(*sums_of_all, joined_kinds(), *joined_notes())
    sums = sums.filter(pl.any_horizontal(pl.col(list(_SUMS)).is_not_null()))
    published = references.layer_summary().with_columns(ours=pl.lit(False))
    frame = setups.ranked(pl.concat([published, sums], how="diagonal_relaxed"), "total_ms")
    texts = {"total_ms": "total_printed"}
    times = [milliseconds(column, heading, texts.get(column, "")) for column, heading in _SUMS.items()]
    return Printed(
        "layers", "L1 to L5: forward + backprop", frame, _fields(frame, times), note=_CLOCK, contest=_ONE_LIBRARY
    )


def _breakdown(mine: pl.DataFrame) -> Printed:
    """Every pass with a column a layer; what failed is blank, and the note says why."""
    about = [*_SETUP, "ours", "layer", "status", "reason", "kinds"]
    long = mine.rename(_TABLES).unpivot(list(_LAYER_SECTIONS), index=about, variable_name="table", value_name="ms")
    failed, why = pl.when(pl.col("ms").is_null()), pl.format("{}: {}", "layer", "reason")
    texts = zip(NOTES, (why, pl.when(status="oom").then(why).otherwise("layer")), strict=True)
    long = long.with_columns(failed.then(text).otherwise(_MARKED).alias(note) for note, text in texts)
    keys = ["table", *_SETUP, "ours"]
    wide = long.pivot("layer", index=keys, values="ms", maintain_order=True, aggregate_function="first")
    wide = wide.with_columns(pl.lit(None, pl.Float64).alias(layer) for layer in LAYERS if layer not in wide.columns)
    notes = long.group_by(keys).agg(pl.col("ms").is_not_null().any().alias("measured"), joined_kinds(), *joined_notes())
    wide = wide.join(notes, on=keys, how="left", maintain_order="left")
    wide = wide.with_columns(total=pl.sum_horizontal(LAYERS, ignore_nulls=False))
    # What an engine cannot do at all is no row of the pass; the forward table says why.
    wide = wide.filter(pl.col("measured") | (pl.col("table") == "forward")).drop("measured")
    published = references.layers().with_columns(ours=pl.lit(False))
    both = pl.concat([published, wide], how="diagonal_relaxed")
    ranked = setups.ranked(both, "total", "table")
    frame = ranked.sort(place("table", _LAYER_SECTIONS), maintain_order=True)
    frame = frame.with_columns(section=pl.col("table").replace_strict(_LAYER_SECTIONS))
    times = [*(milliseconds(layer, layer) for layer in LAYERS), milliseconds("total", "Total")]
    title = "L1 to L5, by pass (ms)"
    return Printed("layers-by-pass", title, frame, _fields(frame, times), "section", contest=_ONE_LIBRARY)


def _memory(mine: pl.DataFrame) -> Printed:
    """Peak memory of a layer's training pass, or of inference where only that was measured; nothing was published."""
    rows = mine.drop_nulls("peak_memory_mib").with_columns(pl.col("peak_memory_mib").round(0).cast(pl.Int64))
    wide = rows.pivot("layer", index=_SETUP, values="peak_memory_mib", maintain_order=True, aggregate_function="first")
    frame = wide.with_columns(ours=pl.lit(True))
    layers = [figure(layer, layer, whole) for layer in LAYERS if layer in frame.columns]
    fields = [*_LABELS[:2], label("implementation", "Class/Function"), figure("Batch", "batch_size", whole), *layers]
    return Printed("layer-memory", "L1 to L5: peak memory (MiB)", frame, fields)


def _fields(frame: pl.DataFrame, times: list[Field]) -> list[Field]:
    return [*_LABELS, *times, *(per_image("Per image") if frame["batch_size"].n_unique() > 1 else [])]


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
    of_marks = rows.with_columns(column=_MARKS, marks=marks(pl.col("kinds")))
    signs = of_marks.pivot("column", index="network", values="marks", maintain_order=True, aggregate_function="first")
    kinds = rows.group_by("network").agg(joined_kinds())
    frame = published
    for more in (wide, signs, kinds):
        frame = frame.join(more, on="network", how="left", maintain_order="left")
    frame = frame.with_columns(ours=pl.any_horizontal(pl.col(columns.to_list()).is_not_null()))

    def marked(times: Iterable[float | None], signs: Iterable[str | None]) -> list[str]:
        cells = (() if time is None else (measure(time), sign) for time, sign in zip(times, signs, strict=True))
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
    inner = ["pass", "swept", "software", "ending", "device_ms", "clock"]
    frame = setups.ranked(rows.drop(inner), "total_ms", "network")
    frame = frame.sort(place("network", references.network_names(name)), maintain_order=True)
    links = {"implementation": "url"}
    fields = [
        milliseconds(column, heading) if column.endswith("_ms") else label(column, heading, links.get(column, ""))
        for column, heading in study.columns.items()
    ]
    fields.append(interval("low_ms", "high_ms"))
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
    # Small batches leave the device waiting for the host.
    on_device = pl.col("device_ms") / pl.col("batch_size")
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
        *("gpu_ms", "device_ms", "low_ms", "high_ms", "samples", "kinds"),
        pl.col("pass").replace(_SECTIONS).alias("section"),
        "brief",
    )
