"""Write the tables of a run's folder: figures of every case, of every configuration, of layers and batch sweeps."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from exporters.whole_file import write_whole
from profiler.job.case import Role
from profiler.results import batch_sweeps
from profiler.results.columns import Group, names
from profiler.results.layer_passes import best_per_layer, layer_rows
from profiler.results.replicates import CELL, measured, not_measured
from profiler.results.speedups import CONFIGURATION, IDENTITY, OF_BASE, TIMES
from profiler.tables.table import of_frame
from profiler.tables.writers import TEXTS


def latency(results: pl.DataFrame) -> pl.DataFrame:
    return measured(results).select([*CONFIGURATION, "replicate", *names(*TIMES), "warnings"])


def memory(results: pl.DataFrame) -> pl.DataFrame:
    return measured(results).select([*CONFIGURATION, "replicate", *names(Group.MEMORY)])


def write_tables(folder: Path, results: pl.DataFrame, lines: pl.DataFrame) -> None:
    """Each table as CSV (all digits) and as Markdown; `lines` are speedups.summary's."""
    folder.mkdir(exist_ok=True)
    tables = {
        "latency": latency(results),
        "memory": memory(results),
        "speedup": lines.drop(IDENTITY, OF_BASE),
        "not-measured": not_measured(results, CELL, pl.first("log")),
    }
    if "layer" in results["model_kind"]:
        tables["layer-passes"] = layer_rows(results)
        tables["best-per-layer"] = best_per_layer(tables["layer-passes"])
    if (results["role"] != Role.CELL).any():
        tables["minibatch"] = batch_sweeps.efficiency(results)
        tables["minibatch-knees"] = batch_sweeps.knees(results)
        tables["minibatch-curvature"] = batch_sweeps.curvature(results)
        tables["largest-batch"] = batch_sweeps.largest(results)
    for name, frame in tables.items():
        for ending in ("csv", "md"):
            text = TEXTS[ending](of_frame(name, name, frame))
            write_whole(folder / f"{name}.{ending}", text)
