"""What enters: the tables of a run. What leaves: what a person reads on the terminal, at most 120 columns wide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.results import lines as table
from profiler.results.columns import kind_of_warning
from profiler.results.warning_kinds import meaning
from profiler.run.summary_kinds import is_swept, print_findings, print_layers, print_sweeps
from profiler.tables.grid import Row, fitting, number, text

_WITHIN_PROCESS = "Intervals are within one process a side; between processes figures differ more: see replicates."
_NO_INTERVAL = (
    "Speed-ups without an interval stand on too few independent samples (under 30); a larger budget gives more."
)
_VERDICTS = (
    "Verdict: against the base, on device time (CPU: latency), between processes; tie: indistinguishable within the"
    " interval and a margin of 1 % (CPU: 3 %)."
)


def print_results(
    console: Console, results: pl.DataFrame, lines: pl.DataFrame, elsewhere: Callable[[Row], bool] = lambda key: False
) -> None:
    """Every group's table and sentence, then what could not be measured and why; `lines` are table.summary's.

    A group of which `elsewhere` says so has its table elsewhere, and its sentence here. Single layers have a table for
    all of a layer's passes, and the batch sizes of a sweep one for all of them.
    """
    layers = set(results.filter(model_kind="layer")["model"])
    groups = [(key, group) for key, group in table.groups(lines) if key["model"] not in layers]
    compared = [(key, group) for key, group in groups if not is_swept(key)]
    for key, group in compared:
        if not elsewhere(key):
            columns = _TRAINING if key["pass"] == "training" else _INFERENCE
            console.print()
            console.print(fitting(console, table.title(key), columns, group))
    if layers and not all(elsewhere({"model": name, "pass": "training", "extra": None}) for name in layers):
        print_layers(console, results)
    if not all(elsewhere(key) for key, _ in groups if is_swept(key)):
        print_sweeps(console, results)
    console.print()
    for sentence in filter(None, (table.sentence(key, group) for key, group in compared)):
        console.print(Text(sentence))
    print_findings(console, results)
    _print_notes(console, [line for _, group in compared for line in group])
    _print_problems(console, table.problems(results))
    _print_warnings(console, results)


def _print_notes(console: Console, lines: Sequence[Row]) -> None:
    """What the intervals, and the lack of them, mean; nothing where no speed-up was shown."""
    if any(line["speedup_low"] is not None and line["interval"] == "within process" for line in lines):
        console.print(Text(_WITHIN_PROCESS, style="dim"))
    others = (line for line in lines if line["base"] and line["base"] != f"{line['precision']} {line['variant']}")
    if any(line["speedup_low"] is None for line in others):
        console.print(Text(_NO_INTERVAL, style="dim"))
    if any(line["verdict"] for line in lines):
        console.print(Text(_VERDICTS, style="dim"))


def _spread(rows: Sequence[Row]) -> list[str]:
    """Half the width of the median's 95 % interval, in percent of the median."""
    found = []
    for row in rows:
        low, high = row["latency_ci_low_ms"], row["latency_ci_high_ms"]
        found.append("" if low is None or not row["latency_ms"] else f"{50 * (high - low) / row['latency_ms']:.1f}")
    return found


def _ratio(rows: Sequence[Row]) -> list[str]:
    """The speed-up where no row has an interval; blank otherwise."""
    if any(row["speedup_low"] is not None for row in rows):
        return [""] * len(rows)
    return ["" if row["speedup"] is None else f"{row['speedup']:.2f}" for row in rows]


def _ratio_and_interval(rows: Sequence[Row]) -> list[str]:
    """The speed-up where a row has an interval; blank otherwise."""
    ends = [(row["speedup_low"], row["speedup_high"]) for row in rows]
    intervals = ["" if low is None else f" ({low:.2f}–{high:.2f})" for low, high in ends]
    if not any(intervals):
        return intervals
    width = max(map(len, intervals))
    return [
        "" if row["speedup"] is None else f"{row['speedup']:.2f}{interval:>{width}}"
        for row, interval in zip(rows, intervals, strict=True)
    ]


def _of_peak(rows: Sequence[Row]) -> list[str]:
    return ["" if (share := row["fraction_of_peak"]) is None else f"{100 * share:.1f}" for row in rows]


def _verdict(rows: Sequence[Row]) -> list[str]:
    """One short word; pollsters call figures whose margins overlap a statistical tie."""
    words = {"faster": "faster", "slower": "slower", "indistinguishable": "tie", None: ""}
    return [words[row["verdict"]] for row in rows]


def _error(rows: Sequence[Row]) -> list[str]:
    return ["" if row["rel_l2_error"] is None else f"{row['rel_l2_error']:.1e}" for row in rows]


_COMMON = [
    ("Engine", text("variant")),
    ("Precision", text("precision")),
    ("Latency ms", number("latency_ms")),
    ("± %", _spread),
]
_END = [
    ("Of peak %", _of_peak),
    ("Speed-up", _ratio),
    ("Speed-up (95 %)", _ratio_and_interval),
    ("Verdict", _verdict),
    ("Items/s", number("throughput")),
    ("USD/1M items", number("usd_per_million_items")),
    ("Memory MiB", number("peak_memory_mib")),
]
_INFERENCE = [
    *_COMMON,
    ("Device ms", number("gpu_ms")),
    *_END,
    ("Rel. error", _error),
]
_TRAINING = [
    *_COMMON,
    ("Forward ms", number("forward_ms")),
    ("Backward ms", number("backward_ms")),
    ("Step ms", number("step_ms")),
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
    kinds = table.without_probes(results).filter(status="ok").explode("warnings").drop_nulls("warnings")
    kinds = kinds.with_columns(kind=kind_of_warning(pl.col("warnings")))
    if kinds.is_empty():
        return
    console.print(Text("\nWarnings (column warnings says more)", style="bold"))
    for (kind,), group in kinds.group_by("kind", maintain_order=True):
        ids = group["case_id"].unique(maintain_order=True).to_list()
        rows = ids[0] if len(ids) == 1 else f"{len(ids)} rows"
        console.print(Text(f"  {kind} ({rows}): {meaning(str(kind), otherwise=group['warnings'][0])}"))
