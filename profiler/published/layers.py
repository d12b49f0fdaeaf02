"""What enters: results of single layers. What leaves: convnet-benchmarks' tables of L1 to L5, ours marked."""

from __future__ import annotations

import polars as pl

from profiler.published import references, setups
from profiler.published.printed import Printed
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows

LAYERS = ["L1", "L2", "L3", "L4", "L5"]
_SECTIONS = {
    "forward": "forward",
    "backward": "backward (gradInput + gradWeight)",
    "gradInput": "gradInput",
    "gradWeight": "gradWeights",
}
_COLUMNS = {
    "forward_ms": "forward",
    "backward_ms": "backward",
    "grad_input_ms": "gradInput",
    "grad_weight_ms": "gradWeight",
}
_NAMES = {"machine": "GPU", "library": "Library", "implementation": "Class/Function"}
_SETUP = ["setup", "machine", "library", "implementation", "batch_size"]
_CLOCK = (
    "Own times are the device's, without gaps between launches, where those could be kept out; engines that run"
    ' inference alone have a forward time. "best of ours" takes the fastest variant for each layer and pass, at one'
    " precision."
)


def layer_tables(results: pl.DataFrame) -> list[Printed]:
    """The sums over the five layers, the breakdown by pass, and the peak memory; none where there are no such layers.

    L1 to L5 alone stand in them: no other layer was published.
    """
    rows = layer_rows(results.filter(model_kind="layer").filter(pl.col("model").is_in(LAYERS)))
    if rows.is_empty():
        return []
    mine = _named(rows, results)
    return [_sums(mine), _breakdown(mine), _memory(mine)]


def layer_times(results: pl.DataFrame) -> pl.DataFrame:
    """Forward, gradInput and gradWeight together: published and own rows, as conclusions.compare takes them."""
    rows = layer_rows(results.filter(model_kind="layer").filter(pl.col("model").is_in(LAYERS)))
    mine = _named(rows, results).filter(pl.col("layer").is_in(LAYERS)).select(
        "setup", "machine", "library", "called", "device", network="layer", published_network="layer",
        ms=pl.col("total_ms") / pl.col("batch_size"), ours=pl.lit(True),
        plain=pl.col("plain").fill_null(value=False),
    )  # fmt: skip
    printed = references.layers().filter(
        pl.col("table").is_in(["forward", "backward"]), pl.col("library") != "cherry-picking"
    )
    keys = ["machine", "library", "implementation", "batch_size"]
    called = pl.format("{} ({})", "library", "implementation")
    published = (
        printed.unpivot(LAYERS, index=["table", *keys], variable_name="network")
        .group_by(*keys, "network", maintain_order=True)
        .agg(pl.when(pl.col("value").count() == 2).then(pl.col("value").sum()).first().alias("ms"))
        .select(
            "machine", "network", setup=pl.format("{} with {}", "machine", called), library=called, called=called,
            device=pl.lit("cuda"), published_network="network", ms=pl.col("ms") / pl.col("batch_size"),
            ours=pl.lit(False), plain=pl.lit(False),
        )
    )  # fmt: skip
    return pl.concat([published, mine.select(published.columns)], how="vertical_relaxed")


def _named(rows: pl.DataFrame, results: pl.DataFrame) -> pl.DataFrame:
    """`layer_rows` with setup and library by name, then the best of each machine, precision and batch size."""
    keys = ["machine", "device", "variant", "precision", "batch_size"]
    names = setups.times(results.filter(model_kind="layer")).unique(keys, keep="first", maintain_order=True)
    names = names.select(*keys, "setup", "plain", called="library", library="runtime")
    named = rows.join(names, on=keys, how="left", maintain_order="left")
    best = best_per_layer(rows).filter(pl.col("layer") != ALL_LAYERS).with_columns(
        library=pl.format("best of ours, {}", "precision"),
        called=pl.format("best of ours, {}", "precision"),
        variant=pl.lit("best per layer"),
        setup=pl.format("{}, best of ours, {}", "machine", "precision"),
    )  # fmt: skip
    group = ["machine", "precision", "batch_size"]
    several = rows.group_by(group).agg(pl.col("variant").n_unique()).filter(pl.col("variant") > 1)
    best = best.join(several, on=group, how="semi")
    return pl.concat([named, best], how="diagonal").with_columns(implementation=pl.col("variant"))


def _sums(mine: pl.DataFrame) -> Printed:
    """Total, forward and backward of the five layers together."""
    columns = {"total_ms": "Total (ms)", "forward_ms": "forward (ms)", "backward_ms": "backward (ms)"}
    whole = [pl.when(pl.col(c).count() == len(LAYERS)).then(pl.col(c).sum()).alias(c) for c in columns]
    sums = mine.group_by(_SETUP, maintain_order=True).agg(whole).with_columns(ours=pl.lit(True))
    sums = sums.filter(pl.any_horizontal(pl.col(list(columns)).is_not_null()))
    published = references.layer_summary().with_columns(ours=pl.lit(False))
    frame = _ranked(pl.concat([published, sums], how="diagonal_relaxed"), "total_ms")
    heads = _NAMES | columns | _per_image(frame)
    return Printed("layers", "L1 to L5: forward + backprop", frame, heads, note=_CLOCK, whole=True)


def _breakdown(mine: pl.DataFrame) -> Printed:
    """Every pass with a column a layer; what failed is blank, and the note says why."""
    long = mine.rename(_COLUMNS).unpivot(
        list(_SECTIONS), index=[*_SETUP, "layer", "reason"], variable_name="table", value_name="ms"
    )
    long = long.with_columns(why=pl.when(pl.col("ms").is_null()).then(pl.format("{}: {}", "layer", "reason")))
    keys = ["table", *_SETUP]
    wide = long.pivot("layer", index=keys, values="ms", maintain_order=True, aggregate_function="first")
    wide = wide.with_columns(pl.lit(None, pl.Float64).alias(layer) for layer in LAYERS if layer not in wide.columns)
    measured = pl.col("ms").is_not_null().any().alias("measured")
    notes = long.group_by(keys).agg(measured, pl.col("why").drop_nulls().str.join("; "))
    wide = wide.join(notes, on=keys, how="left", maintain_order="left").with_columns(
        total=pl.sum_horizontal(LAYERS, ignore_nulls=False),
        ours=pl.lit(True),
        note=pl.when(pl.col("why") != "").then("why"),
    )
    # What an engine cannot do at all is no row of the pass; the forward table tells why.
    wide = wide.filter(pl.col("measured") | (pl.col("table") == "forward"))
    published = references.layers().with_columns(ours=pl.lit(False))
    both = pl.concat([published, wide.drop("measured", "why")], how="diagonal_relaxed")
    sections = {head: _ranked(both.filter(table=table), "total") for table, head in _SECTIONS.items()}
    frame = pl.concat(rows.with_columns(section=pl.lit(head)) for head, rows in sections.items())
    heads = _NAMES | {layer: layer for layer in LAYERS} | {"total": "Total"} | _per_image(frame) | {"note": "Note"}
    return Printed("layers-by-pass", "L1 to L5, by pass (ms)", frame, heads, "section", whole=True)


def _memory(mine: pl.DataFrame) -> Printed:
    """Peak memory of a layer's training pass, or of inference where that alone was measured; nothing was published."""
    rows = mine.drop_nulls("peak_memory_mib").with_columns(pl.col("peak_memory_mib").round(0).cast(pl.Int64))
    wide = rows.pivot("layer", index=_SETUP, values="peak_memory_mib", maintain_order=True, aggregate_function="first")
    frame = wide.with_columns(ours=pl.lit(True))
    heads = {**_NAMES, "batch_size": "Batch"} | {layer: layer for layer in LAYERS if layer in frame.columns}
    return Printed("layer-memory", "L1 to L5: peak memory (MiB)", frame, heads)


def _per_image(frame: pl.DataFrame) -> dict[str, str]:
    """The columns that tell batch sizes apart, where there is more than one."""
    return {"batch_size": "Batch", "per_item_ms": "Per image"} if frame["batch_size"].n_unique() > 1 else {}


def _ranked(frame: pl.DataFrame, total: str) -> pl.DataFrame:
    """Sorted by the time per image; rows without a total last."""
    ranked = frame.with_columns(per_item_ms=pl.col(total) / pl.col("batch_size")).with_columns(
        rank=pl.col("per_item_ms").rank("ordinal").cast(pl.Int64)
    )
    return ranked.sort("rank", nulls_last=True, maintain_order=True)
