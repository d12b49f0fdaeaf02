"""Print the layers of a run that was made with --profile, variants side by side."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from profiler.errors import PROGRAM, ConfigError, resuming
from profiler.job.case import Filter, parse_only
from profiler.options import Layers as Options
from profiler.report.tables import layers_table
from profiler.results.layers import Profiled, profiled, together
from profiler.results.reading import check_only, chosen, read_runs
from profiler.tables.writers import print_table

_GROUP = ("model", "pass", "precision", "batch_size", "setting")
"""Columns that variants must share to be shown side by side."""
_METHOD = (
    "Milliseconds. Layers are timed in some calls of their own, with a profiler on: on CUDA by the device, without the "
    "gaps between kernels, on the CPU by the host. A row holds the nodes that some runtime runs as one."
)


def execute(options: Options, console: Console) -> int:
    """Print the layers of every chosen model, variants side by side, the first of replicates.

    Raises ConfigError for a run that is none or has no layers, and for a choice that is empty.
    """
    for cell in together(read(options.run, parse_only(options.only)), _GROUP):
        console.print()
        print_table(console, layers_table(0, cell, options.top))
    console.print(Text(f"\n{_METHOD}", style="dim"))
    return 0


def read(run: Path, only: Filter | None = None) -> list[Profiled]:
    """Return the run's profiled cases in the plan's order, of replicates the first.

    Raises ConfigError if there are none.
    """
    runs = read_runs([run])
    rows = runs.results.collect()
    if runs.layers.limit(1).collect().is_empty():
        warnings = rows["warnings"].explode().drop_nulls()
        reasons = warnings.filter(warnings.str.starts_with("no-layers"))
        why = f" ({reasons[0]})" if len(reasons) else ""
        commands = f"{PROGRAM} bench.yaml --profile, or {resuming(run)} --profile"
        raise ConfigError(f"layers {run}: this run has no layers{why}; measure them by {commands}")
    if only is not None:
        check_only(only, runs.results)
        rows = rows.filter(chosen(only))
    found = profiled(rows, runs.layers, [*_GROUP, "variant"])
    if not found:
        raise ConfigError(f"--only {only}: no case with layers has all of these")
    return found
