"""Print the layers of a run that was made with --profile, case by case and variants side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from profiler.errors import PROGRAM, ConfigError, resuming
from profiler.job.case import setting_words
from profiler.options import Layers as Options
from profiler.results.layers import Profiled, groups, names, profiled, together
from profiler.results.reading import read_runs
from profiler.results.result import LAYERS_AT_MOST
from profiler.tables.numbers import decimals, each, percent, shares, whole
from profiler.tables.table import Table, excerpt, figure, name, of_rows
from profiler.tables.writers import print_table

_KEYS = ("model", "variant", "pass", "precision", "batch_size")
_GROUP = ("model", "pass", "precision", "batch_size", "setting")
"""What variants must have in common to be shown side by side."""
_WRITTEN = {"batch_size": "batch"}
_BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
_METHOD = (
    "Layers are timed in some calls of their own, with a profiler on. On CUDA their time is the device's, without the"
    " gaps between kernels; on the CPU it is the host's."
)
_READING = "×3 is three layers together. A row holds the nodes that some runtime runs as one; they cannot be separated."


def execute(options: Options, console: Console) -> int:
    """Print every chosen case's layers, then the variants side by side; of replicates the first.

    Raises ConfigError for a run that is none or has no layers, and for a choice that is empty.
    """
    chosen = (options.model, options.variant, options.pass_, options.precision, options.batch)
    top, cases = options.top, select(read(options.run), dict(zip(_KEYS, chosen, strict=True)))
    for case in cases:
        console.print()
        print_table(console, _case_table(case, top))
        console.print(Text(_summary(case)), soft_wrap=True)
    for alike in together(cases, _GROUP):  # Those that differ only by the variant.
        if len(alike) > 1 and any(layer["nodes"] for case in alike for layer in case.layers):
            console.print()
            print_table(console, _side_by_side(alike, top))
            console.print(Text(_READING, style="dim"))
    console.print(Text(f"\n{_METHOD}", style="dim"))
    return 0


def read(run: Path) -> list[Profiled]:
    """The run's profiled cases in the plan's order, of replicates the first. Raises ConfigError if there are none."""
    runs = read_runs([run])
    rows = runs.results.collect()
    if runs.layers is None:
        warnings = rows["warnings"].explode().drop_nulls()
        reasons = warnings.filter(warnings.str.starts_with("no-layers"))
        why = f" ({reasons[0]})" if len(reasons) else ""
        raise ConfigError(
            f"layers {run}: this run has no layers{why}; a run gets them by --profile, for "
            f"example {PROGRAM} bench.yaml --profile; one that is not complete, for what it lacks, by "
            f"{resuming(run)} --profile"
        )
    return profiled(rows, runs.layers, [*_KEYS, "setting"])


def select(cases: Sequence[Profiled], chosen: Mapping[str, str | None]) -> list[Profiled]:
    """The cases that have one of the values, parted by commas, under each key.

    Raises ConfigError, with what there is, if none has.
    """
    requested = {key: text.split(",") for key, text in chosen.items() if text}
    found = [c for c in cases if all(str(c.row[key]) in values for key, values in requested.items())]
    if not found:
        values = {key: ", ".join(dict.fromkeys(str(c.row[key]) for c in cases)) for key in _KEYS}
        there = "; ".join(f"{_WRITTEN.get(key, key)} {listed}" for key, listed in values.items())
        asked = " and ".join(f"{_WRITTEN.get(key, key)} {' or '.join(values)}" for key, values in requested.items())
        raise ConfigError(f"no profiled case has {asked}; there is: {there}")
    return found


def _case_table(case: Profiled, top: int | None) -> Table:
    longest = max((layer["share"] for layer in case.layers), default=0.0)
    shown = _longest([layer["ms"] for layer in case.layers], top)
    rows = []
    for number in shown:
        layer = case.layers[number]
        bar = _bar(layer["share"] / longest if longest else 0.0)
        figures = [layer["order"] + 1, layer["ms"], layer["share"], bar]
        rows.append([*figures, layer["kind"], layer["layer"], names(layer["nodes"])])
    if len(shown) < len(case.layers):
        rest = [layer["ms"] for number, layer in enumerate(case.layers) if number not in shown]
        rows.append([None, sum(rest), sum(rest) / (case.ms or 1), "", "", f"{len(rest)} more", ""])
    fields = [
        figure("#", "order", whole),
        figure("ms", "ms", each(decimals)),
        figure("%", "share", shares),
        name("", "bar"),
        excerpt("Kind", "kind"),
        excerpt("Layer", "layer"),
        excerpt("ONNX nodes", "nodes"),
    ]
    return of_rows(case.row["case_id"], fields, rows)


def _summary(case: Profiled) -> str:
    """Like "175 layers, 1.066 ms together: 44 % of the latency of 2.400 ms, 96 % of the 1.110 ms on the device".

    Layers that took far longer than the case have no share of it.
    """
    text = f"{len(case.layers)} layers, {decimals(case.ms)} ms together"
    figures = (("latency_ms", "the latency of {} ms"), ("gpu_ms", "the {} ms on the device"))
    known = [(case.row[column], words) for column, words in figures if case.row[column]]
    if known and case.ms > LAYERS_AT_MOST * known[-1][0]:
        return f"{text}: far more than the case's {decimals(known[-1][0])} ms, so no shares of it"
    parts = [f"{percent(case.ms / ms)} % of {words.format(decimals(ms))}" for ms, words in known]
    return text + (f": {', '.join(parts)}" if parts else "")


def _side_by_side(cases: Sequence[Profiled], top: int | None) -> Table:
    row, variants = cases[0].row, [case.row["variant"] for case in cases]
    every = groups(cases)
    shown = _longest([max(group.ms(variant) for variant in variants) for group in every], top)
    rows = [[every[n].modules, every[n].name, *_cells(every[n].layers, variants)] for n in shown]
    hidden = [group for number, group in enumerate(every) if number not in shown]
    if hidden:
        layers = {v: [layer for group in hidden for layer in group.layers.get(v, [])] for v in variants}
        rows.append(["", f"{len(hidden)} more rows", *_cells(layers, variants)])
    strangers = {case.row["variant"]: case.without_nodes for case in cases}
    if any(strangers.values()):
        rows.append(["", "no exported node", *_cells(strangers, variants)])
    body = len(rows)
    rows.append(["", "all layers", *_cells({c.row["variant"]: c.layers for c in cases}, variants)])
    for head, column in (("latency", "latency_ms"), ("on the device", "gpu_ms")):
        figures = [case.row[column] for case in cases]
        if any(figures):
            rows.append(["", head, *("" if ms is None else f"{decimals(ms)}     " for ms in figures)])
    what = [row["model"], row["pass"], row["precision"], f"batch {row['batch_size']}", *setting_words(row["setting"])]
    fields = [
        excerpt("PyTorch modules", "modules"),
        excerpt("ONNX nodes", "nodes"),
        *(figure(variant, f"ms_{variant}", list) for variant in variants),
    ]
    return of_rows(f"{', '.join(what)}: node by node, ms", fields, rows, totals=len(rows) - body)


def _longest(times: Sequence[float], top: int | None) -> list[int]:
    """Which rows to show, in order."""
    ranked = sorted(range(len(times)), key=lambda number: -times[number])
    return sorted(ranked[:top])


def _cells(layers: Mapping[str, Sequence[Mapping[str, Any]]], variants: Iterable[str]) -> list[str]:
    """For each variant its sum, and of how many layers if it is not one, like "1.011 ×3  "."""
    return [_cell(layers.get(variant, [])) for variant in variants]


def _cell(layers: Sequence[Mapping[str, Any]]) -> str:
    count = f" ×{len(layers)}" if len(layers) > 1 else ""
    return f"{decimals(sum(layer['ms'] for layer in layers))}{count:<5}" if layers else ""


def _bar(part: float) -> str:
    eighths = round(8 * _BAR * part)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
