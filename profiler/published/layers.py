"""Make convnet-benchmarks' tables of the layers L1 to L5, with the rows of runs among its figures, ours marked."""

from __future__ import annotations

import polars as pl

from exporters.single_layers import LAYERS as SHAPES
from profiler.published import references, setups
from profiler.published.printed import (
    NOTES,
    OWN,
    SAME_BATCH,
    Printed,
    joined_kinds,
    joined_notes,
    label,
    milliseconds,
    per_image,
)
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows
from profiler.results.warning_kinds import HOST_BOUND
from profiler.tables.numbers import whole, words
from profiler.tables.table import Field, figure

LAYERS = list(SHAPES)
COUNTERPART = ("eager-benchmark", "eager")
"""As Study.counterpart: each library was printed at its best."""
_SECTIONS = {
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
_MARKED = pl.format("{}: {}", "layer", setups.marks(pl.col("kinds")))
"""A row's note with the marks of its warnings; null without any."""
_CLOCK = (
    "Own times are the device's, without gaps between launches, where those could be kept out; engines that run"
    ' only inference have a forward time. "best of ours" takes the fastest variant for each layer and pass, at one'
    " precision."
)


def layer_tables(_: str, __: pl.DataFrame, results: pl.DataFrame) -> list[Printed]:
    """The layers' shapes, the sums over all five, the breakdown by pass and the peak memory; only of L1 to L5.

    None where no such layer was measured.
    """
    mine = _own(results)
    return [] if mine.is_empty() else [_shapes(mine), _sums(mine), _breakdown(mine), _memory(mine)]


def layer_times(results: pl.DataFrame) -> pl.DataFrame:
    """Forward, gradInput and gradWeight together: published and own rows, as conclusions.compare takes them."""
    columns = ["setup", "machine", "software", "ending", "called", "implementation", "device"]
    columns += ["network", "published_network", "library", "precision", "batch_size", "total_ms"]
    keys = ["machine", "library", "implementation", "batch_size"]
    passes = references.layers().filter(
        pl.col("table").is_in(["forward", "backward"]), pl.col("library") != "cherry-picking"
    )
    both = passes.unpivot(LAYERS, index=["table", *keys], variable_name="layer").group_by(
        *keys, "layer", maintain_order=True
    )
    called = pl.format("{} ({})", "library", "implementation")
    published = both.agg(
        pl.when(pl.col("value").count() == 2).then(pl.col("value").sum()).first().alias("total_ms")
    ).with_columns(
        setup=pl.format("{} with {}", "machine", called),
        software=called,
        ending=pl.lit(""),
        called=called,
        device=pl.lit("cuda"),
        ours=pl.lit(False),
        counterpart=pl.lit(False),
    )
    rows = pl.concat([published, _own(results)], how="diagonal_relaxed")
    rows = rows.with_columns(network="layer", published_network="layer", ms=pl.col("total_ms") / pl.col("batch_size"))
    rows = rows.with_columns(wall_ms="ms")
    host_set = pl.col("kinds").list.contains(HOST_BOUND).fill_null(value=False)
    return rows.select(*columns, "ms", "wall_ms", "ours", "counterpart", "disturbed", host_set=host_set)


def _own(results: pl.DataFrame) -> pl.DataFrame:
    """`layer_rows` with setup and library by name, then the best of each machine, precision and batch size."""
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
        software=called,
        ending=pl.lit(""),
        setup=pl.format("{}, {}", "machine", called),
        variant=pl.lit("best per layer"),
        counterpart=pl.lit(False),
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
    long = mine.rename(_TABLES).unpivot(list(_SECTIONS), index=about, variable_name="table", value_name="ms")
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
    order = {table: number for number, table in enumerate(_SECTIONS)}
    frame = ranked.sort(pl.col("table").replace_strict(order), maintain_order=True)
    frame = frame.with_columns(section=pl.col("table").replace_strict(_SECTIONS))
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
