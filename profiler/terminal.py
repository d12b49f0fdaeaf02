"""What enters: the tables of a run. What leaves: what a person reads on the terminal, at most 120 columns wide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler import table

Row = Mapping[str, Any]
Column = Callable[[Sequence[Row]], list[str]]
"""Makes a column's cells from the rows."""

_EXPENDABLE = ("± %", "Device ms", "Items/s", "Rel. error", "Memory MiB")
"""Columns that a narrow terminal does without, in this order; the run's folder has them all."""
_LABEL_WIDTH = 13
_REPLICATES_FOR_A_VERDICT = 3
_WITHIN_PROCESS = "Intervals are within one process a side; between processes figures differ more: see replicates."

_MEANINGS = {
    "host-bound": "the host, not the device, sets the latency or is close to it; a CUDA graph would help",
    "gate-overrun": "one call's launches outlast any gate, so Device ms is blank",
    "outliers": "more than one sample in twenty lies outside Tukey's fences; trust the median",
    "inaccurate": "the error is larger than usual for the precision",
    "unproven": "the types in which convolutions and products ran could not be seen",
    "unsteady": "the warm-up ended before two windows agreed within 2 %",
    "host-peak": "the kernel does not count anew, so the host's memory includes the set-up",
    "short-calls": "calls under 50 µs, timed in blocks",
    "cpu-nodes": "ONNX Runtime ran nodes on the CPU",
    "graph-breaks": "torch.compile left the graph",
    "no-cuda-graph": "torch.compile recorded no CUDA graph; the log says why",
    "throttled": "the GPU slowed down for heat or a hardware reason",
}


def print_results(console: Console, results: pl.DataFrame, samples: pl.DataFrame) -> None:
    """Every group's table and sentence, then what could not be measured and why."""
    lines = table.summary(results, samples)
    said = []
    for key, group in table.groups(lines):
        title = f"{key['model']}, {key['pass']}, batch {key['batch_size']}"
        columns = _TRAINING if key["pass"] == "training" else _INFERENCE
        console.print()
        console.print(_table(console, title, columns, group))
        said.append(table.sentence(key, group))
    console.print()
    for text in filter(None, said):
        console.print(Text(text))
    if any(said) and results["replicate"].n_unique() < _REPLICATES_FOR_A_VERDICT:
        console.print(Text(_WITHIN_PROCESS, style="dim"))
    _print_problems(console, table.problems(results))
    _print_warnings(console, results)


def _table(console: Console, title: str, columns: Sequence[tuple[str, Column]], rows: Sequence[Row]) -> Table:
    """The table, without the least important columns where the terminal is too narrow: a figure is never cut."""
    made = [(head, make(rows)) for head, make in columns]
    filled = [(head, cells) for head, cells in made if any(cells)]
    for expendable in ("", *_EXPENDABLE):
        filled = [(head, cells) for head, cells in filled if head != expendable]
        # Three blanks between columns and one at either edge.
        if sum(_width(head, cells) + 3 for head, cells in filled) - 1 <= console.width:
            break
    return _grid(title, filled)


def _width(head: str, cells: list[str]) -> int:
    """What a column needs: heads break at their first blank, and a long engine label folds."""
    widest = max(map(len, cells))
    return max(min(widest, _LABEL_WIDTH) if head == "Engine" else widest, *map(len, head.split(" ", 1)))


def _grid(title: str, columns: Sequence[tuple[str, list[str]]]) -> Table:
    # Text, not str: a name may look like markup.
    grid = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head, cells in columns:
        grid.add_column(
            Text(head.replace(" ", "\n", 1)),
            justify="left" if head in ("Engine", "Precision") else "right",
            no_wrap=head != "Engine",
            min_width=_width(head, cells),
            overflow="fold",
            vertical="top",
        )
    for row in zip(*(cells for _, cells in columns), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def _text(column: str) -> Column:
    return lambda rows: [str(row[column]) for row in rows]


def _number(column: str) -> Column:
    """A column of figures with as many decimals as its smallest needs for three significant digits."""

    def make(rows: Sequence[Row]) -> list[str]:
        values = [row[column] for row in rows]
        known = [abs(v) for v in values if v]
        places = next((p for p, bound in ((3, 1), (2, 10), (1, 100)) if known and min(known) < bound), 0)
        return ["" if v is None else f"{v:,.{places}f}" for v in values]

    return make


def _spread(rows: Sequence[Row]) -> list[str]:
    """Half the width of the median's 95 % interval, in percent of the median."""
    found = []
    for row in rows:
        low, high = row["latency_ci_low_ms"], row["latency_ci_high_ms"]
        found.append("" if low is None or not row["latency_ms"] else f"{50 * (high - low) / row['latency_ms']:.1f}")
    return found


def _speedup(rows: Sequence[Row]) -> list[str]:
    found = []
    for row in rows:
        ratio, low, high = row["speedup"], row["speedup_low"], row["speedup_high"]
        if ratio is None:
            found.append("")
        elif low is None:
            found.append(f"{ratio:.2f}" + " " * 14)
        else:
            found.append(f"{ratio:.2f} {f'({low:.2f}–{high:.2f})':>13}")
    return found


def _error(rows: Sequence[Row]) -> list[str]:
    return ["" if row["rel_l2_error"] is None else f"{row['rel_l2_error']:.1e}" for row in rows]


_COMMON = [
    ("Engine", _text("variant")),
    ("Precision", _text("precision")),
    ("Latency ms", _number("latency_ms")),
    ("± %", _spread),
]
_END = [("Memory MiB", _number("peak_memory_mib"))]
_INFERENCE = [
    *_COMMON,
    ("Device ms", _number("gpu_ms")),
    ("Speed-up (95 %)", _speedup),
    ("Items/s", _number("throughput")),
    *_END,
    ("Rel. error", _error),
]
_TRAINING = [
    *_COMMON,
    ("Forward ms", _number("forward_ms")),
    ("Backward ms", _number("backward_ms")),
    ("Speed-up (95 %)", _speedup),
    ("Items/s", _number("throughput")),
    *_END,
]


def _print_problems(console: Console, problems: pl.DataFrame) -> None:
    """Each reason once, then what it holds for."""
    if problems.is_empty():
        return
    console.print(Text("\nNot measured", style="bold"))
    for (status, reason), group in problems.group_by(["status", "reason"], maintain_order=True):
        what = [
            ", ".join(group[column].unique(maintain_order=True).to_list())
            for column in ("variant", "precision", "pass", "model")
        ]
        what.append("batch " + ", ".join(map(str, group["batch_size"].explode().unique().sort())))
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(f"  {status}", style="yellow" if status == "unsupported" else "red"), Text(str(reason)))
        grid.add_row("", Text(" · ".join(what), style="dim"))
        console.print(grid)
    if set(problems["status"]) - {"unsupported"}:
        console.print(Text("  What the libraries printed stands in the run's folder, under logs.", style="dim"))


def _print_warnings(console: Console, results: pl.DataFrame) -> None:
    """Each kind of warning once, with what it means and how many rows carry it."""
    kinds = results.filter(status="ok").explode("warnings").drop_nulls("warnings")
    kinds = kinds.with_columns(pl.col("warnings").str.split(":").list.first().alias("kind"))
    if kinds.is_empty():
        return
    console.print(Text("\nWarnings (column warnings says more)", style="bold"))
    for (kind,), group in kinds.group_by("kind", maintain_order=True):
        ids = group["case_id"].unique(maintain_order=True).to_list()
        rows = ids[0] if len(ids) == 1 else f"{len(ids)} rows"
        console.print(Text(f"  {kind} ({rows}): {_MEANINGS.get(str(kind), group['warnings'][0])}"))
