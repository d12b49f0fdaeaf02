"""Print the layers of a run with --profile, variants side by side."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from profiler.errors import PROGRAM, ConfigError, on_threads
from profiler.job.case import Filter, parse_only, setting_words
from profiler.options import Layers as Options
from profiler.results.layers import Layer, Profiled, match_layers, profiled, together
from profiler.results.reading import check_only, chosen, read_runs
from profiler.results.result import ends_of
from profiler.tables import numbers
from profiler.tables.numbers import BUSY, each, is_busy
from profiler.tables.table import Table, figure, words
from profiler.tables.writers import print_table

_GROUP = ("model", "pass", "precision", "batch_size", "setting")
"""Columns that variants must share to be shown side by side."""
_EXCERPT = each(lambda text: text if len(text) <= 48 else f"{text[:47]}…")
_TIME = each(lambda ms: ms if ms == BUSY else numbers.decimals(ms))
_NODES, _OPERATORS = "ONNX nodes, fused where they share a row", "Operators"
_METHOD = (
    "Milliseconds. Layers are timed in some calls of their own, with a profiler on: on CUDA by the device, without the "
    "gaps between kernels, on the CPU by the host. A row holds the nodes that some runtime runs as one."
)


def execute(options: Options, console: Console) -> int:
    """Print the first replicates' layers of every chosen model, variants side by side. Raises ConfigError."""
    for cell in together(read(options.run, parse_only(options.only)), _GROUP):
        console.print()
        print_table(console, layers_table(cell, options.top))
    console.print(Text(f"\n{_METHOD}", style="dim"))
    return 0


def layers_table(cell: Sequence[Profiled], top: int | None = None) -> Table:
    """Show the exported nodes, or the `top` longest, with the variants' times side by side, and their sums."""
    row, variants, rows = cell[0].row, [str(case.row["variant"]) for case in cell], match_layers(cell)
    longest = sorted(rows, key=lambda layer: -max(layer.ms.values()))[:top]
    shown = [layer for layer in rows if layer in longest]
    totals = {"all layers": {case.row["variant"]: sum(layer["ms"] for layer in case.layers) for case in cell}}
    for name, column in (("latency", "latency_ms"), ("on the device", "gpu_ms")):
        of = (case.row for case in cell if case.row[column] is not None)
        totals[name] = {row["variant"]: BUSY if is_busy(*map(row.get, ends_of(column))) else row[column] for row in of}
    shown += [Layer(name, ms) for name, ms in totals.items() if ms]
    frame: dict[str, Sequence[Any]] = {
        "modules": [layer.modules for layer in shown],
        "nodes": [layer.nodes for layer in shown],
        **{f"ms_{variant}": [layer.ms.get(variant) for layer in shown] for variant in variants},
    }
    has_nodes = any(layer["nodes"] for case in cell for layer in case.layers)
    columns = [
        words("PyTorch modules", "modules", _EXCERPT),
        words(_NODES if has_nodes else _OPERATORS, "nodes", _EXCERPT),
        *(figure(variant, f"ms_{variant}", _TIME, unit="ms") for variant in variants),
    ]
    title = [row["model"], row["pass"], row["precision"], f"batch {row['batch_size']}", *setting_words(row["setting"])]
    return Table("layers", ", ".join(title), frame, columns, totals=sum(map(bool, totals.values())))


def read(run: Path, only: Filter | None = None) -> list[Profiled]:
    """Return the first replicates of profiled cases, in the plan's order. Raises ConfigError without any."""
    runs = read_runs([run])
    if len(runs.runs) > 1:
        names = ", ".join(part.name for part in runs.runs)
        raise ConfigError(f"{run}: it has a run for each kind of device; give one: {names}")
    rows = runs.results.collect()
    if runs.layers.limit(1).collect().is_empty():
        warnings = rows["warnings"].explode().drop_nulls()
        reason = next((f" ({warning})" for warning in warnings if warning.startswith("no-layers")), "")
        command = f"{PROGRAM} {shlex.quote(str(run / 'bench.yaml'))} --profile{on_threads(run)}"
        raise ConfigError(f"layers {run}: this run has no layers{reason}; measure them by {command}")
    if only is not None:
        check_only(only, runs.results)
        rows = rows.filter(chosen(only))
    cases = profiled(rows, runs.layers, [*_GROUP, "variant"])
    if not cases:
        raise ConfigError(f"--only {only}: no case with layers has all of these")
    return cases
