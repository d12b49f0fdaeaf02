"""Write the tables of a run's folder: figures of every case, of every configuration, of layers and batch sizes."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from exporters.whole_file import write_whole
from profiler.results import batch_sweeps
from profiler.results.cells import CONFIGURATION, OK
from profiler.results.columns import Group, names
from profiler.results.largest_batches import largest
from profiler.results.layer_passes import best_per_layer, layer_rows
from profiler.results.problems import CELL, not_measured
from profiler.tables.table import of_frame
from profiler.tables.writers import TEXTS

_TIMES = (Group.LATENCY, Group.CLOCKS, Group.PARTS, Group.THROUGHPUT, Group.COST, Group.ACCURACY)
_FACTORS = [*CONFIGURATION, "processes", "latency_ms", "latency_low_ms", "latency_high_ms", "base"]
_FACTORS += ["factor", "factor_low", "factor_high", "verdict", "error", "error_high", "footnotes"]


def latency(results: pl.DataFrame) -> pl.DataFrame:
    return results.filter(OK).select([*CONFIGURATION, "replicate", *names(*_TIMES), "warnings"])


def memory(results: pl.DataFrame) -> pl.DataFrame:
    return results.filter(OK).select([*CONFIGURATION, "replicate", *names(Group.MEMORY)])


def write_tables(folder: Path, results: pl.DataFrame, cells: pl.DataFrame, tries: pl.DataFrame | None = None) -> None:
    """Write each table as CSV (all digits) and as Markdown; `tries` are those of the search for the largest batch."""
    folder.mkdir(exist_ok=True)
    tables = {
        "latency": latency(results),
        "memory": memory(results),
        "speedup": cells.filter(OK).select(_FACTORS),
        "not-measured": not_measured(results, CELL, pl.first("log")),
    }
    if "layer" in results["model_kind"]:
        tables["layer-passes"] = layer_rows(results)
        tables["best-per-layer"] = best_per_layer(tables["layer-passes"])
    if not (efficiency := batch_sweeps.efficiency(results)).is_empty():
        tables["minibatch"] = efficiency
        tables["minibatch-knees"] = batch_sweeps.knees(results)
        tables["minibatch-curvature"] = batch_sweeps.curvature(results)
    if tries is not None and not tries.is_empty():
        tables["largest-batch"] = largest(tries)
    for name, frame in tables.items():
        for ending in ("csv", "md"):
            text = TEXTS[ending](of_frame(name, name, frame))
            write_whole(folder / f"{name}.{ending}", text)
