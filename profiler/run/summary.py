"""Print a run's results on the terminal: a table a group, and what was not measured and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from profiler.job.case import setting_words
from profiler.results.cells import FAMILY, GROUP, LEAST_BATCHES, OK, efficiency, largest, not_measured
from profiler.results.choice import Choice, cell_name, choose
from profiler.results.columns import Group, Shown, factor, field, fields
from profiler.results.layers import layer_rows
from profiler.tables import numbers
from profiler.tables.numbers import products
from profiler.tables.table import Table, figure, prose
from profiler.tables.writers import print_pairs, print_table

Row = Mapping[str, Any]

_shown = partial(fields, shown=Shown.TERMINAL)
_VARIANT = [field("variant", repeated=True), field("precision", repeated=True)]
_WORK = ("model", "pass", "setting")
_RANGES = "In parentheses: 95 % intervals, of all that is known of a figure (docs/method.md)."
_LAYER = [
    *_VARIANT,
    field("forward_ms"),
    field("grad_input_ms", "gradInput"),
    field("grad_weight_ms", "gradWeight"),
    figure("Total", "total_ms", unit="ms"),
    figure("TFLOP/s forward", "forward_tflops"),
    figure("TFLOP/s total", "total_tflops"),
    field("peak_memory_mib", expendable=2),
]


_LARGEST = [
    *map(field, ("model", "pass", "setting", "variant", "precision")),
    *(figure("Largest batch", "largest", numbers.whole), field("peak_memory_mib")),
    *(figure("Too large", "refused", numbers.whole), prose("Why", "why")),
]
_SWEEP = [
    figure("Batch", "batch_size", numbers.each(str)),
    figure("Latency", ("latency_ms", "latency_low_ms", "latency_high_ms"), numbers.ranges, unit="ms"),
    figure("Per item", "ms_per_item", unit="ms"),
    field("throughput", expendable=4),
    field("peak_memory_mib", expendable=5),
    figure("Of best", "efficiency", numbers.each(numbers.percent), unit="%"),
    prose("Note", "note"),
]
_WIDE = 2.0
"""A range is uselessly wide from this ratio of its ends on."""


def print_results(
    console: Console,
    results: pl.DataFrame,
    cells: pl.DataFrame,
    elsewhere: Callable[[Row], bool] = lambda key: False,
    print_more: Callable[[], None] = lambda: None,
    tries: pl.DataFrame | None = None,
) -> None:
    """Print a table for every group of cells, then what could not be measured, and what ranges hold.

    A group of which `elsewhere` says so has its table elsewhere, which `print_more` prints below the others. Single
    layers have a table for all of a layer's passes, a single configuration one for all of its batch sizes. `tries` are
    those of the search for the largest batch.
    """
    layers = set(results.filter(model_kind="layer")["model"])
    swept = _alone(cells)
    over_batches = set(swept.select(_WORK).iter_rows())
    printed: list[Choice] = []
    for key, group in cells.filter(~pl.col("model").is_in(layers)).group_by(GROUP, maintain_order=True):
        named = dict(zip(GROUP, key, strict=True))
        hidden = elsewhere({**named, "network": group["network"][0]})
        if group.filter(OK).is_empty() or hidden or tuple(named[name] for name in _WORK) in over_batches:
            continue
        console.print()
        print_table(console, _table(named, group.filter(OK).sort("latency_ms")))
        printed.append(choose(group))
    if layers and not all(elsewhere({"model": name, "pass": "training", "setting": ""}) for name in layers):
        _print_layers(console, results)
    if not swept.is_empty() and not all(elsewhere(row) for row in swept.select(*_WORK, "network").to_dicts()):
        _print_sweeps(console, swept)
    if tries is not None and not tries.is_empty():
        console.print()
        print_table(console, Table("", "The largest batch that fits", largest(tries), _LARGEST))
    print_more()
    _print_problems(console, results)
    _print_notes(console, printed)


def group_title(key: Row) -> str:
    """Return a group's title, like "resnet50, training, batch 16, optimizer sgd"."""
    return ", ".join([key["model"], key["pass"], f"batch {key['batch_size']}", *setting_words(key["setting"] or "")])


def _table(key: Row, group: pl.DataFrame) -> Table:
    bases = group["base"].drop_nulls().unique()
    title = group_title(key)
    networks = group["network"].drop_nulls().unique().to_list()
    if networks and networks != [key["model"]]:
        title = title.replace(key["model"], f"{key['model']} ({networks[0]})", 1)
    made = [
        *_VARIANT,
        figure("Latency", ("latency_ms", "latency_low_ms", "latency_high_ms"), numbers.ranges, unit="ms"),
        *_shown(Group.PARTS if key["pass"] == "training" else Group.CLOCKS),
        factor(f"× {bases[0]}" if len(bases) == 1 else "× base"),
        *_shown(*(group for group in Group if group not in (Group.PARTS, Group.CLOCKS))),
    ]
    return Table("", title, group, made)


def _print_layers(console: Console, results: pl.DataFrame) -> None:
    """Print a table for each layer and batch size: every variant's passes, fastest first."""
    rows = layer_rows(results)
    ranked = rows.sort("total_ms", "forward_ms", nulls_last=True)
    for layer, batch in rows.select("layer", "batch_size").unique(maintain_order=True).iter_rows():
        found = ranked.filter(pl.col("forward_ms").is_not_null(), layer=layer, batch_size=batch)
        if not found.is_empty():
            console.print()
            print_table(console, Table("", f"{layer}, batch {batch}", found, _LAYER))


def _alone(cells: pl.DataFrame) -> pl.DataFrame:
    """Keep the cells of models in one configuration over several batches, which only compare among themselves."""
    configurations = pl.struct("variant", "precision").n_unique().over(_WORK)
    several = pl.col("batch_size").n_unique().over(_WORK) >= LEAST_BATCHES
    return cells.filter(pl.col("model_kind").ne_missing("layer")).filter(configurations == 1, several)


def _print_sweeps(console: Console, swept: pl.DataFrame) -> None:
    """Print a table a configuration: what every batch takes, for an item and of the best throughput."""
    for _, rows in efficiency(swept).group_by(FAMILY, maintain_order=True):
        family = rows.row(0, named=True)
        words = [family["model"], family["pass"], cell_name(family), *setting_words(family["setting"] or "")]
        console.print()
        print_table(console, Table("", ", ".join(words), rows, _SWEEP))


def _print_problems(console: Console, results: pl.DataFrame) -> None:
    """Print each reason once, then what it holds for."""
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


def _print_notes(console: Console, printed: Sequence[Choice]) -> None:
    """Say what ranges hold, and what narrows those that tell little."""
    factors = [choice.winner for choice in printed if choice.winner and choice.winner["factor"]]
    lines = [_RANGES]
    if any(cell["factor_high"] > _WIDE * cell["factor_low"] for cell in factors):
        lines.append("Some span a factor of two: --replicates 5 narrows them, on a busy machine --wait-for-idle 10.")
    if printed:
        console.print(Text("\n" + "\n".join(lines), style="dim"))
