"""What enters: times by setup. What leaves: gpu-study's tables: GPU × framework × network, and time per sample."""

from __future__ import annotations

import polars as pl

from profiler.published import references, setups
from profiler.published.printed import Printed

USUAL_BATCH = 64
_NAMES = {"machine": "GPU", "library": "Framework"}
_PICTURES = "The source printed its figures as pictures: of them only those in its text stand here."
_SECTIONS = {"inference": "forward", "training": "forward + backward"}
_CELLS = {"machine": pl.String, "library": pl.String, "setup": pl.String, "batch_size": pl.Int64}


def study_tables(own: pl.DataFrame) -> list[Printed]:
    """The two studies of the document: `frameworks` without, `minibatch` from the rows of a batch sweep."""
    rows = study_times(own)
    return [_frameworks(rows.filter(~pl.col("swept"))), _minibatch(rows)]


def study_times(own: pl.DataFrame) -> pl.DataFrame:
    """Published and own rows, long: `network`, `pass`, `ms`, `per_item_ms`, `swept`, `note`, `ours`.

    The pass inference is the forward pass, training is forward and backward together.
    """
    names = references.network_names("gpu-study")
    published = references.minibatch().with_columns(
        pl.lit("training").alias("pass"), setup=pl.format("{} with {}", "machine", "library"), ms="total_ms",
        ours=pl.lit(False), swept=pl.lit(True), plain=pl.lit(False),
    )  # fmt: skip
    # At the first study's batch size a figure of the second is one of the first, too.
    at_usual = published.filter(batch_size=USUAL_BATCH).with_columns(swept=pl.lit(False))
    mine = (
        own.filter(pl.col("model").is_in(list(names)), ~pl.col("updates"))
        .rename({"model": "network", "latency_ms": "ms"})
        .with_columns(usual=pl.lit(USUAL_BATCH), ours=pl.lit(True))
        .filter(pl.col("swept") | setups.nearest_batch("setup", "network", "pass", "swept"))
    )
    columns = [*_CELLS, "network", "pass", "ms", "swept", "plain", "device", "note", "ours"]
    both = pl.concat([published, at_usual, mine.select(columns)], how="diagonal_relaxed").select(columns)
    return both.with_columns(
        per_item_ms=pl.col("ms") / pl.col("batch_size"),
        published_network=pl.col("network").replace(names),
        section=pl.col("pass").replace(_SECTIONS),
    ).sort(references.place("gpu-study", "network"), maintain_order=True)


def _frameworks(rows: pl.DataFrame) -> Printed:
    """One row a setup, one column a network; a network that ran out of memory is blank, and the note says so."""
    keys = ["section", "machine", "library", "batch_size", "ours"]
    ranked = rows.with_columns(place=pl.col("per_item_ms").rank().over("section", "network"))
    about = ranked.group_by(keys, maintain_order=True).agg(
        pl.col("place").mean(),
        note=pl.format("{}: {}", "published_network", "note").drop_nulls().str.join("; "),
    )
    wide = rows.pivot("published_network", index=keys, values="ms", maintain_order=True, aggregate_function="first")
    frame = wide.join(about, on=keys).sort("section", "place", nulls_last=True)
    frame = frame.with_columns(note=pl.when(pl.col("note") != "").then("note"))
    batch = {"batch_size": "Batch"} if frame["batch_size"].n_unique() > 1 else {}
    networks = rows["published_network"].unique(maintain_order=True).to_list()
    heads = _NAMES | batch | {name: name for name in networks} | {"note": "Note"}
    size = "" if batch else f", {USUAL_BATCH} samples per minibatch"
    title = f"GPU vs Framework vs Network: milliseconds{size}"
    return Printed("frameworks", title, frame, heads, "section", _PICTURES, data=rows)


def _minibatch(rows: pl.DataFrame) -> Printed:
    """One row a setup and pass, one column a batch size: milliseconds per sample."""
    swept = rows.filter(pl.col("swept"))
    batches = [str(size) for size in swept["batch_size"].unique().sort()]
    keys = ["published_network", "machine", "library", "section", "ours"]
    by_size = swept.sort("batch_size", maintain_order=True).with_columns(pl.col("batch_size").cast(pl.String))
    notes = swept.filter(pl.col("note").is_not_null()).group_by(keys).agg(
        note=pl.format("{} at {}", pl.col("note").first(), pl.col("batch_size").min())
    )  # fmt: skip
    # Of runs that differ in the machine's price alone, the faster.
    wide = by_size.pivot("batch_size", index=keys, values="per_item_ms", maintain_order=True, aggregate_function="min")
    order = swept.select("published_network").unique(maintain_order=True)
    frame = order.join(wide, on="published_network", maintain_order="left_right").join(notes, on=keys, how="left")
    heads = _NAMES | {"section": "Pass"} | {size: size for size in batches} | {"note": "Note"}
    title = "Minibatch efficiency: milliseconds per sample, by samples per minibatch"
    return Printed("minibatch", title, frame, heads, "published_network", _PICTURES, data=swept)
