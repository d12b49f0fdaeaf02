"""Print a run's plan, and its results: a table for each group, and why each other case was not measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from engines.base import Warning
from exporters.dataset import labels_in, scored_count
from exporters.inputs import file_specs, input_specs
from exporters.packages import spec_of
from exporters.source import ModelError
from profiler.errors import WHEN_IDLE
from profiler.job.case import Case, setting_words
from profiler.job.config import Config
from profiler.job.plan import estimate_seconds
from profiler.results.cells import GROUP, OK, Row, largest, not_measured
from profiler.results.choice import ENOUGH, Choice, cell_name, choices, choose
from profiler.results.columns import Group, Shown, factor, field, fields
from profiler.results.layers import layer_rows
from profiler.results.warning_kinds import footnotes, is_rough
from profiler.tables import numbers
from profiler.tables.numbers import counted, duration, grouped, listed, times
from profiler.tables.table import Table, figure, name, of_rows, prose, words
from profiler.tables.writers import print_table, say

_shown = partial(fields, shown=Shown.TERMINAL)
_VARIANT = [field("variant"), field("precision")]
_RANGES = (
    "In parentheses: 95 % intervals; other work and clocks that contradict each other widen them (docs/method.md)."
)
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
_STYLES = {"unsupported": "yellow", "skipped": "dim", "waiting": "dim"}
_NOTES = {"no-accuracy": "No accuracy of {}: {}.", "unlabelled": "{}: {}."}
"""Map a kind of warning to the note of a model and the warning's text."""
_WIDE = 2.0
"""A range is called wide if its ends differ by more than this ratio."""


def print_plan(console: Console, machine: str, cases: Sequence[Case], config: Config) -> int:
    """Print a row for each model, variant and pass, and mistakes in inputs; return 2 for any, or if no case can run."""
    seconds = {case.id: estimate_seconds(case, config.budget) for case in cases}
    groups = grouped(((case.model, case.variant, case.pass_, case.unsupported), seconds[case.id]) for case in cases)
    rows = [
        (*key, len(times), f"unsupported: {why}" if why else duration(sum(times)))
        for (*key, why), times in groups.items()
    ]
    columns = [name("Model", "model"), name("Variant", "variant"), name("Pass", "pass")]
    print_table(console, of_rows("", [*columns, figure("Cases", "cases", numbers.whole), words("Time", "time")], rows))
    mistakes = _mistakes(cases, config.path)
    for why in dict.fromkeys(mistakes.values()):
        say(console, f"\n{why}", "red")
    runnable = [case.id for case in cases if case.unsupported is None and case.subject not in mistakes]
    text = f"\n{machine}: {len(runnable)} of {counted(len(cases), 'case')} to try"
    if runnable:
        text += f", in about {duration(sum(seconds[id_] for id_ in runnable))}, guessed, besides preparing the models"
        text += ", searching the largest batch" * bool(config.largest_batch) + " and confirming winners"
    unloaded = "No module was loaded: inputs that only code knows are unchecked."
    say(console, ". ".join([text, unloaded] if any(case.source.factory for case in cases) else [text]))
    for line in _scoring([case for case in cases if case.id in runnable]):
        say(console, line)
    return 2 if mistakes or not runnable else 0


def _scoring(cases: Sequence[Case]) -> Iterator[str]:
    """Say how many calls scoring the users' data adds."""
    scored = grouped((c.source.data, c) for c in cases if c.source.data and c.pass_ == "inference" and not c.replicate)
    for data, parts in scored.items():
        items, sizes = labels_in(str(data)), sorted({case.batch_size for case in parts})
        if items == 0:
            yield f"{data} has no labels: it gives inputs, errors and int8's ranges, but no accuracy."
            continue
        counts = [f"{math.ceil(scored_count(items or 0) / size):,} calls a case at batch {size}" for size in sizes]
        calls = "a call for each batch of its items" if items is None else listed(counts)
        yield f"Scoring {data} adds {calls}."


def _mistakes(cases: Sequence[Case], path: Sequence[str]) -> dict[str, str]:
    """Map models to the error that shows without running their code, found in `path`."""
    errors = {}
    for source in {case.subject: case.source for case in cases}.values():
        try:
            if not source.asks_code:
                (file_specs if source.onnx else input_specs)(source)
            top, folders = (source.factory or "").partition(":")[0].partition(".")[0], [*path, str(Path.cwd())]
            if top and not (source.library or spec_of(top) or PathFinder.find_spec(top, folders)):
                raise source.without_module(top)
        except ModelError as error:
            errors[source.subject] = str(error)
    return errors


def print_results(
    console: Console,
    results: pl.DataFrame,
    cells: pl.DataFrame,
    print_more: Callable[[], None] = lambda: None,
    tries: pl.DataFrame | None = None,
    planned: Collection[str] | None = None,
) -> None:
    """Print a table for each group of cells and each layer, then the `tries` of the search for the largest batch.

    Variants that are not `planned` are trials, which have their own tables. Unmeasured cases and notes come last, after
    `print_more`.
    """
    printed: list[Choice] = []
    for key, group in cells.filter(pl.col("model_kind").ne_missing("layer")).group_by(GROUP, maintain_order=True):
        measured = group.filter(OK).sort("latency_ms")
        is_planned = pl.lit(value=True) if planned is None else pl.col("variant").is_in(list(planned))
        for kind, rows in (("", measured.filter(is_planned)), ("trials of the search", measured.filter(~is_planned))):
            if not rows.is_empty():
                console.print()
                print_table(console, _table(dict(zip(GROUP, key, strict=True)), rows, kind))
        if not measured.is_empty():
            printed.append(choose(group))
    _print_layers(console, results)
    if tries is not None and not tries.is_empty():
        console.print()
        print_table(console, Table("", "The largest batch that fits", largest(tries), _LARGEST))
    print_more()
    _print_problems(console, results)
    _print_notes(console, results, cells, printed)


def so_far(cells: pl.DataFrame) -> tuple[list[str], str]:
    """Return the configurations that are fastest in each group so far, and a line that says so."""
    best = [(key, choice.best) for key, choice in choices(cells) if choice.best and choice.best["factor"]]
    parts, many = [], len({key["pass"] for key, _ in best})
    for key, cell in best:
        where = [key["pass"]] * (many > 1) + [f"batch {key['batch_size']}", *setting_words(key["setting"] or "")]
        before = f"{', '.join(where)}: " if len(best) > 1 else ""
        factor = times(cell["factor"], cell["factor_low"], cell["factor_high"], sign=f"× {cell['base']}")
        factor = "the base" if cell["is_base"] else factor
        parts.append(f"{before}{cell_name(cell)}, {factor}")
    return [cell_name(cell) for _, cell in best], f"so far: {'; '.join(parts)}" if parts else ""


def _table(key: Row, group: pl.DataFrame, kind: str = "") -> Table:
    bases = group["base"].drop_nulls().unique()
    named = {*group["network"].drop_nulls()} - {key["model"]}
    model = " ".join([key["model"], *(f"({network})" for network in named)])
    where = [model, key["pass"], f"batch {key['batch_size']}", *setting_words(key["setting"] or ""), kind]
    title = ", ".join(filter(None, where))
    shown = [
        *([field("machine")] if group["machine"].n_unique() > 1 else []),
        *_VARIANT,
        figure("Latency", ("latency_ms", "latency_low_ms", "latency_high_ms"), numbers.ranges, unit="ms"),
        *_shown(Group.PARTS if key["pass"] == "training" else Group.CLOCKS),
        factor(f"× {bases[0]}" if len(bases) == 1 else "× base"),
        *_shown(*(group for group in Group if group not in (Group.PARTS, Group.CLOCKS))),
    ]
    return Table("", title, group, shown)


def _print_layers(console: Console, results: pl.DataFrame) -> None:
    """Print a table for each layer and batch size: every variant's passes, fastest first."""
    rows = layer_rows(results)
    ranked = rows.sort("total_ms", "forward_ms", nulls_last=True)
    for layer, batch in rows.select("layer", "batch_size").unique(maintain_order=True).iter_rows():
        passes = ranked.filter(pl.col("forward_ms").is_not_null(), layer=layer, batch_size=batch)
        if not passes.is_empty():
            console.print()
            print_table(console, Table("", f"{layer}, batch {batch}", passes, _LAYER))


def _print_problems(console: Console, results: pl.DataFrame) -> None:
    """Print each reason once, with its cases."""
    axes = ("variant", "precision", "pass", "model")
    columns = pl.len(), pl.col(axes).unique(maintain_order=True), pl.col("log").drop_nulls().first()
    reasons = not_measured(results, ["status", "reason"], *columns)
    if reasons.is_empty():
        return
    console.print(Text("\nNot measured", style="bold"))
    for row in reasons.iter_rows(named=True):
        sizes = f"batch {', '.join(map(str, row['batch_size']))}"
        where = [*(", ".join(row[axis]) for axis in axes), sizes, counted(row["len"], "case")]
        where += [f"log: {row['log']}"] if row["log"] else []
        label = Text(f"  {row['status']}", style=_STYLES.get(row["status"], "red"))
        grid = Grid.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1))
        grid.add_row(label, Text(str(row["reason"])))
        grid.add_row(Text(), Text(" · ".join(where), style="dim"))
        console.print(grid)


def _print_notes(console: Console, results: pl.DataFrame, cells: pl.DataFrame, printed: Sequence[Choice]) -> None:
    """Explain the ranges, count rough figures, and say how to narrow wide ranges."""
    factors = [choice.best for choice in printed if choice.best and choice.best["factor"]]
    lines = [_RANGES]
    if cells.filter(pl.col("latency_high_ms") > numbers.WIDEST * pl.col("latency_low_ms")).height:
        lines.append(f"{numbers.BUSY}: an interval of over {numbers.WIDEST:g}×; docs/first-run.md says what helps.")
    if scored := cells["accuracy_items"].drop_nulls().unique().sort().to_list():
        items = "–".join(f"{number:,}" for number in dict.fromkeys((scored[0], scored[-1])))
        lines.append(f"Accuracy: of {items} scored items of the data; others calibrate int8.")
    rows = results.filter(OK).select("model", "warnings").iter_rows()
    warnings = ((model, Warning.parse(text)) for model, texts in rows for text in texts or ())
    lines += dict.fromkeys(_NOTES[w.kind].format(model, w.text) for model, w in warnings if w.kind in _NOTES)
    measured = cells.filter(OK).to_dicts()
    if rough := sum(any(map(is_rough, cell["footnotes"])) for cell in measured):
        lines.append(f"Rough: {rough} of {counted(len(measured), 'figure')}; other work ran, or clocks contradict.")
    lines += footnotes(((cell_name(cell), cell["footnotes"]) for cell in measured), only_caveats=True)
    without_ends = cells.filter(OK, pl.col("latency_low_ms").is_null(), pl.col("latency_ms") > 0)
    if processes := without_ends["measured"].to_list():
        several = f", or one quiet of {max(processes)}" * (max(processes) > 1)
        advice = f"--replicates {ENOUGH if several else 3} measures it"
        lines.append(f"{numbers.ASSUMED}: one process{several}; spread not measured on this machine. {advice}.")
    with_ends = [c for c in factors if c["factor_low"] and not numbers.is_busy(c["factor_low"], c["factor_high"])]
    if wide := [cell["measured"] for cell in with_ends if cell["factor_high"] > _WIDE * cell["factor_low"]]:
        again = f"; --resume RUN --replicates {ENOUGH} narrows them" * (min(wide) < ENOUGH)
        lines.append(f"Some span a factor of two{f'; {WHEN_IDLE} narrows them' if rough else again}.")
    if printed:
        console.print(Text("\n" + "\n".join(lines), style="dim"))
