"""What enters: results of single layers, or of batch sweeps. What leaves: what a person reads of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from profiler.results import batch_sweeps
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows
from profiler.tables.grid import Row, fitting, number, text

_LAYER = [
    ("Engine", text("variant")),
    ("Precision", text("precision")),
    ("Forward ms", number("forward_ms")),
    ("gradInput ms", number("grad_input_ms")),
    ("gradWeight ms", number("grad_weight_ms")),
    ("Total ms", number("total_ms")),
    ("TFLOP/s forward", number("forward_tflops")),
    ("TFLOP/s total", number("total_tflops")),
    ("Memory MiB", number("peak_memory_mib")),
]


def is_swept(key: Row) -> bool:
    """Whether a group of results is one batch size of a sweep."""
    return "sweep=" in (key["extra"] or "")


def swept(results: pl.DataFrame) -> pl.DataFrame:
    """The rows of batch sweeps, and of the searches for the largest batch beside them."""
    return results.filter(pl.col("extra").fill_null("").str.contains("(sweep|probe)="))


def print_layers(console: Console, results: pl.DataFrame) -> None:
    """A table for each layer and batch size: every variant's passes, fastest first, and the best of each pass."""
    rows = layer_rows(results)
    best = best_per_layer(rows).filter(pl.col("layer") != ALL_LAYERS).with_columns(variant=pl.lit("best of each"))
    several = pl.col("variant").n_unique().over("layer", "batch_size", "precision") > 1
    kept = best.join(rows.filter(several), on=["layer", "batch_size", "precision"], how="semi")
    both = pl.concat([rows, kept], how="diagonal").sort("total_ms", "forward_ms", nulls_last=True)
    for layer, batch in rows.select("layer", "batch_size").unique(maintain_order=True).iter_rows():
        found = both.filter(pl.col("forward_ms").is_not_null(), layer=layer, batch_size=batch).to_dicts()
        if found:
            console.print()
            console.print(fitting(console, f"{layer}, batch {batch}", _LAYER, found))


def print_sweeps(console: Console, results: pl.DataFrame) -> None:
    """A table for each family of a sweep: what every batch takes, for an item and of the best throughput."""
    points = batch_sweeps.efficiency(swept(results))
    for key, rows in points.group_by(batch_sweeps.FAMILY, maintain_order=True):
        family = dict(zip(batch_sweeps.FAMILY, key, strict=True))
        console.print()
        console.print(fitting(console, _title(family), _SWEEP, rows.to_dicts()))


def print_findings(console: Console, results: pl.DataFrame) -> None:
    """Where a sweep's curve bends, and the largest batch that fits, in sentences."""
    for sentence in batch_sweeps.sentences(swept(results)):
        console.print(Text(sentence))


def _title(family: Mapping[str, Any]) -> str:
    words = [family["model"], family["pass"], f"{family['variant']} {family['precision']}"]
    return ", ".join([*words, *(part.replace("=", " ") for part in family["settings"].split("/") if part)])


def _share(rows: list[Row]) -> list[str]:
    return ["" if row["efficiency"] is None else f"{100 * row['efficiency']:.0f}" for row in rows]


_SWEEP = [
    ("Batch", text("batch_size")),
    ("Latency ms", number("latency_ms")),
    ("Per item ms", number("ms_per_item")),
    ("Items/s", number("throughput")),
    ("Of best %", _share),
    ("Note", lambda rows: [row["note"] or "" for row in rows]),
]
