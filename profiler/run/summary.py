"""Print a run's results on the terminal: tables, sentences, what was not measured and why, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from profiler.job.case import Role, setting_words
from profiler.results import batch_sweeps
from profiler.results.columns import Group, Shown, field, fields, latency_spread, verdict
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows
from profiler.results.replicates import measured, not_measured, warned
from profiler.results.sentences import (
    FIRST_CALL,
    NOT_REPEATED,
    RANKED,
    WITHIN_PROCESS,
    Repeated,
    disturbance_sentence,
    doubtful_roofs,
    group_sentence,
    rough,
    sweep_sentences,
    title,
)
from profiler.results.speedups import certain, groups
from profiler.results.warning_kinds import carried_by_all, meaning
from profiler.stats.ratios import legend
from profiler.tables import numbers
from profiler.tables.numbers import each, listed, percent, products
from profiler.tables.table import Field, Table, figure, prose
from profiler.tables.writers import print_pairs, print_table

Row = Mapping[str, Any]

_MOST_NAMED = 3
"""Of so many rows a warning gives the names."""
_shown = partial(fields, shown=Shown.TERMINAL)
_NO_INTERVAL = "No interval: fewer than 30 independent samples. Raise `budget.seconds`."
_VERDICTS = f"Verdict: against the base, on device time (CPU: latency); {legend()}."
_VARIANT = [field("variant", repeated=True), field("precision", repeated=True)]
_LAYER = [
    *_VARIANT,
    field("forward_ms"),
    field("grad_input_ms", "gradInput"),
    field("grad_weight_ms", "gradWeight"),
    figure("Total", "total_ms", unit="ms"),
    figure("TFLOP/s forward", "forward_tflops"),
    figure("TFLOP/s total", "total_tflops"),
    field("peak_memory_mib", expendable=2),
    prose("Note", "disturbed"),
]
_SWEEP = [
    figure("Batch", "batch_size", each(str)),
    field("latency_ms"),
    figure("Per item", "ms_per_item", unit="ms"),
    field("throughput", expendable=4),
    figure("Of best", "efficiency", each(percent), unit="%"),
    prose("Note", "note"),
]


def print_results(
    console: Console,
    results: pl.DataFrame,
    lines: pl.DataFrame,
    elsewhere: Callable[[Row], bool] = lambda key: False,
    sampling_seconds: float | None = None,
    repeated: Repeated = NOT_REPEATED,
    print_more: Callable[[], None] = lambda: None,
    roofs_disturbance: str | None = None,
) -> None:
    """Every group's table and sentence, then what could not be measured and why, and last how sure the figures are.

    `lines` are speedups.summary's. A group of which `elsewhere` says so has its table elsewhere, which
    `print_more` prints below the others, and its sentence here. Single layers have a table for all of a layer's passes,
    and the batch sizes of a sweep one for all of them. After few `sampling_seconds` a case the figures are called
    rough, in place of the notes on intervals. `repeated` goes to the sentence on disturbed cases; `roofs_disturbance`
    is why no shares of the peak are given.
    """
    layers = set(results.filter(model_kind="layer")["model"])
    networks = [(key, group) for key, group in groups(lines) if key["model"] not in layers]
    compared = [(key, group) for key, group in networks if key["role"] != Role.SWEEP]
    judged = [_print_group(console, key, group, elsewhere(key)) for key, group in compared]
    if layers and not all(elsewhere({"model": name, "pass": "training", "setting": ""}) for name in layers):
        _print_layers(console, results)
    if not all(elsewhere(key) for key, _ in networks if key["role"] == Role.SWEEP):
        _print_sweeps(console, results)
    print_more()
    everywhere = carried_by_all(line["warnings"] for _, group in compared for line in group)
    found = [group_sentence(key, group, everywhere) for key, group in compared]
    if sentences := list(filter(None, [*found, *sweep_sentences(results)])):
        console.print(Text("\n".join(["", *sentences])))
    _print_problems(console, results)
    _print_warnings(console, results)
    if text := disturbance_sentence(results, repeated):
        console.print(Text(f"\n{text}"))
    every = [line for _, group in compared for line in group]
    doubt = rough([sampling_seconds]) if "ok" in results["status"] else None
    if notes := _notes(every, doubt, any(judged), roofs_disturbance):
        console.print(Text("\n" + "\n".join(notes), style="dim"))


def _print_group(console: Console, key: Row, lines: Sequence[Row], elsewhere: bool) -> bool:
    """Print a group's table, if it is not elsewhere; returns whether it has verdicts that need an explanation."""
    lost: list[Field] = []
    if not elsewhere:
        console.print()
        lost = print_table(console, _table(key, lines))
    shown = any(line["verdict"] and not line["disturbed"] for line in lines)
    return shown and not any("verdict" in each.columns for each in lost)


def _notes(lines: Sequence[Row], doubt: str | None, judged: bool, roofs_disturbance: str | None) -> list[str]:
    """What ranks, and what intervals, first calls, shares of the peak and, where `judged`, verdicts mean.

    A `doubt` takes the place of the notes on intervals.
    """
    notes = [RANKED] if any(line["by_throughput_ms"] for line in lines) else []
    notes += [doubt] if doubt else []
    if not doubt and any(line["speedup_low"] is not None and line["interval"] == "within process" for line in lines):
        notes.append(WITHIN_PROCESS)
    # A disturbed line has no factor at all, as its note says, and more samples would bring none.
    others = (line for line in lines if line["base"] and not line["is_base"] and not line["disturbed"])
    if not doubt and any(line["speedup_low"] is None for line in others):
        notes.append(_NO_INTERVAL)
    if judged:
        notes.append(_VERDICTS)
    if any(line["first_call_ms"] is not None for line in lines):
        notes.append(FIRST_CALL)
    if any(line["tflops"] is not None for line in lines):
        notes += filter(None, [doubtful_roofs({"": roofs_disturbance})])
    return notes


def _table(key: Row, lines: Sequence[Row]) -> Table:
    """A group's lines; without factors where a line or its base was disturbed, which the note says."""
    types = {"warnings": pl.List(pl.String), "disturbed": pl.String()}
    frame = certain(pl.DataFrame(lines, schema_overrides=types, infer_schema_length=None))
    has_intervals = frame["speedup_low"].count() > 0
    speedup = ("speedup", "speedup_low", "speedup_high")
    made = [
        *_VARIANT,
        *_shown(Group.LATENCY),
        latency_spread(expendable=7),
        *_shown(Group.PARTS if key["pass"] == "training" else Group.CLOCKS),
        *_shown(Group.ROOFLINE, Group.ENERGY, Group.SET_UP),
        figure("Speed-up (95 %)" if has_intervals else "Speed-up", speedup, numbers.speedup),
        verdict(expendable=1),
        *_shown(Group.THROUGHPUT, Group.COST, Group.MEMORY, Group.ACCURACY),
        prose("Note", "note"),
    ]
    return Table("", title(dict(key)), frame, made)


def _print_layers(console: Console, results: pl.DataFrame) -> None:
    """A table for each layer and batch size: every variant's passes, fastest first, and the best of each pass."""
    rows = layer_rows(results)
    best = best_per_layer(rows).filter(pl.col("layer") != ALL_LAYERS).with_columns(variant=pl.lit("best of each"))
    several = pl.col("variant").n_unique().over("layer", "batch_size", "precision") > 1
    kept = best.join(rows.filter(several), on=["layer", "batch_size", "precision"], how="semi")
    both = pl.concat([rows, kept], how="diagonal").sort("total_ms", "forward_ms", nulls_last=True)
    for layer, batch in rows.select("layer", "batch_size").unique(maintain_order=True).iter_rows():
        found = both.filter(pl.col("forward_ms").is_not_null(), layer=layer, batch_size=batch)
        if not found.is_empty():
            console.print()
            print_table(console, Table("", f"{layer}, batch {batch}", found, _LAYER))


def _print_sweeps(console: Console, results: pl.DataFrame) -> None:
    """A table for each family of a sweep: what every batch takes, for an item and of the best throughput."""
    points = batch_sweeps.efficiency(results).with_columns(note=pl.coalesce("note", "disturbed"))
    for key, rows in points.group_by(batch_sweeps.FAMILY, maintain_order=True):
        family = dict(zip(batch_sweeps.FAMILY, map(str, key), strict=True))
        words = family["model"], family["pass"], f"{family['variant']} {family['precision']}"
        console.print()
        print_table(console, Table("", ", ".join([*words, *setting_words(family["settings"])]), rows, _SWEEP))


def _print_problems(console: Console, results: pl.DataFrame) -> None:
    """Each reason once, then what it holds for."""
    cells = pl.struct("variant", "precision", "pass", "model", pl.col("batch_size").cast(pl.String))
    more = cells.unique(maintain_order=True).alias("cells"), pl.col("log").drop_nulls().first()
    reasons = not_measured(results, ["status", "reason"], *more)
    if reasons.is_empty():
        return
    console.print(Text("\nNot measured", style="bold"))
    for row in reasons.iter_rows(named=True):
        found = ([", ".join(values) for values in each] for each in products(tuple(c.values()) for c in row["cells"]))
        where = [" · ".join([*names, f"batch {sizes}"]) for *names, sizes in found]
        where[-1] += f" · log: {row['log']}" if row["log"] else ""
        label = Text(f"  {row['status']}", style="yellow" if row["status"] == "unsupported" else "red")
        pairs = [(label, Text(str(row["reason"]))), *((Text(), Text(text, style="dim")) for text in where)]
        print_pairs(console, pairs, gap=1)
    if set(reasons["status"]) - {"unsupported"}:
        console.print(Text("  What the libraries printed is in the run's folder, under logs.", style="dim"))


def _print_warnings(console: Console, results: pl.DataFrame) -> None:
    """Each kind of warning once, with what it means and which rows carry it, or how many."""
    kinds = warned(results)
    if kinds.is_empty():
        return
    console.print(Text("\nWarnings (details: column `warnings` of results.parquet)", style="bold"))
    every = measured(results).height
    for kind, cases, case_ids, example in kinds.iter_rows():
        few = cases == 1 or (cases <= _MOST_NAMED and cases < every)
        rows = listed(case_ids) if few else "every row" if cases == every else f"{cases} rows"
        text = f"{kind} ({rows}): {meaning(kind, otherwise=example)}"
        console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
