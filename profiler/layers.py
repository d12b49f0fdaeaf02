"""Print the layers of a run that was made with --profile, case by case and variants side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.errors import ConfigError
from profiler.job.case import setting_words
from profiler.results.layer_profiles import Profiled, groups, modules, names, profiled, together
from profiler.results.reading import read_runs

_KEYS = ("model", "variant", "pass", "precision", "batch_size")
_GROUP = ("model", "pass", "precision", "batch_size", "setting")
"""What the variants that stand side by side have in common."""
_WRITTEN = {"batch_size": "batch"}
_BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEAST = 10
"""Characters that a name keeps on the narrowest terminal."""
_METHOD = (
    "Layers are timed in some calls of their own, with a profiler on. On CUDA their time is the device's, without the"
    " gaps between kernels; on the CPU it is the host's."
)
_READING = (
    "×3 is three layers together. A row holds the nodes that some runtime runs as one; they cannot be told apart."
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command's options; see `python -m profiler layers --help`. What chooses cases holds words with commas."""

    run: Path
    model: str | None = None
    variant: str | None = None
    pass_: str | None = None
    precision: str | None = None
    batch: str | None = None
    top: int | None = None


def execute(options: Options, console: Console) -> int:
    """Print every chosen case's layers, then the variants side by side; of replicates the first.

    Raises ConfigError for a run that is none or has no layers, and for a choice that is empty.
    """
    chosen = (options.model, options.variant, options.pass_, options.precision, options.batch)
    top, cases = options.top, select(read(options.run), dict(zip(_KEYS, chosen, strict=True)))
    for case in cases:
        console.print()
        console.print(_case_table(case, console.width, top))
        console.print(Text(_summary(case)), soft_wrap=True)
    for alike in _comparable(cases):
        console.print()
        console.print(_side_by_side(alike, console.width, top))
        console.print(Text(_READING, style="dim"))
    console.print(Text(f"\n{_METHOD}", style="dim"))
    return 0


def read(run: Path) -> list[Profiled]:
    """The run's profiled cases in the plan's order, of replicates the first. Raises ConfigError if there are none."""
    runs = read_runs([run])
    rows = runs.results.collect()
    if runs.layers is None:
        told = rows["warnings"].explode().drop_nulls()
        told = told.filter(told.str.starts_with("no-layers"))
        why = f" ({told[0]})" if len(told) else ""
        raise ConfigError(
            f"layers {run}: this run has no layers{why}; a run gets them by --profile, for "
            f"example python -m profiler bench.yaml --profile; one that is not complete, for what it lacks, by "
            f"python -m profiler --resume {run} --profile"
        )
    return profiled(rows, runs.layers, [*_KEYS, "setting"])


def select(cases: Sequence[Profiled], chosen: Mapping[str, str | None]) -> list[Profiled]:
    """The cases that have one of the values, parted by commas, under each key.

    Raises ConfigError, with what there is, if none has.
    """
    wanted = {key: text.split(",") for key, text in chosen.items() if text}
    found = [c for c in cases if all(str(c.row[key]) in values for key, values in wanted.items())]
    if not found:
        there = "; ".join(
            f"{_WRITTEN.get(key, key)} {', '.join(dict.fromkeys(str(c.row[key]) for c in cases))}" for key in _KEYS
        )
        asked = " and ".join(f"{_WRITTEN.get(key, key)} {' or '.join(values)}" for key, values in wanted.items())
        raise ConfigError(f"no profiled case has {asked}; there is: {there}")
    return found


def _comparable(cases: Sequence[Profiled]) -> list[list[Profiled]]:
    """Cases that differ only by the variant, where more than one is there and one knows the exported nodes."""
    return [
        alike
        for alike in together(cases, _GROUP)
        if len(alike) > 1 and any(layer["nodes"] for case in alike for layer in case.layers)
    ]


def _case_table(case: Profiled, width: int, top: int | None) -> Table:
    nodes = any(layer["nodes"] for layer in case.layers)
    longest = max((layer["share"] for layer in case.layers), default=0.0)
    shown = _longest([layer["ms"] for layer in case.layers], top)
    rows = []
    for number in shown:
        layer = case.layers[number]
        bar = _bar(layer["share"] / longest if longest else 0.0)
        figures = [str(layer["order"] + 1), f"{layer['ms']:,.3f}", f"{100 * layer['share']:.1f}", bar]
        rows.append([*figures, layer["kind"], layer["layer"], names(layer["nodes"])])
    if len(shown) < len(case.layers):
        rest = [layer["ms"] for number, layer in enumerate(case.layers) if number not in shown]
        share = 100 * sum(rest) / (case.ms or 1)
        rows.append(["", f"{sum(rest):,.3f}", f"{share:.1f}", "", "", f"{len(rest)} more", ""])
    heads = ["#", "ms", "%", "", "Kind", "Layer", "ONNX nodes"]
    columns = range(7 if nodes else 6)
    return _grid(case.row["case_id"], width, heads, rows, columns, right={0, 1, 2}, text={4, 5, 6})


def _summary(case: Profiled) -> str:
    """Like "175 layers, 1.066 ms together: 44 % of the latency of 2.400 ms, 96 % of the 1.110 ms on the device"."""
    said = f"{len(case.layers)} layers, {case.ms:,.3f} ms together"
    figures = (("latency_ms", "the latency of {} ms"), ("gpu_ms", "the {} ms on the device"))
    parts = [
        f"{100 * case.ms / case.row[column]:.0f} % of {words.format(f'{case.row[column]:,.3f}')}"
        for column, words in figures
        if case.row[column]
    ]
    return said + (f": {', '.join(parts)}" if parts else "")


def _side_by_side(cases: Sequence[Profiled], width: int, top: int | None) -> Table:
    row, variants = cases[0].row, [case.row["variant"] for case in cases]
    eager = next((c.row["variant"] for c in cases if c.row["engine"] == "eager"), "")
    every = groups(cases)
    shown = _longest([max(group.ms(variant) for variant in variants) for group in every], top)
    rows = [
        [modules(every[n].layers.get(eager, [])), names(every[n].nodes), *_cells(every[n].layers, variants)]
        for n in shown
    ]
    hidden = [group for number, group in enumerate(every) if number not in shown]
    if hidden:
        layers = {v: [layer for group in hidden for layer in group.layers.get(v, [])] for v in variants}
        rows.append(["", f"{len(hidden)} more rows", *_cells(layers, variants)])
    strangers = {c.row["variant"]: [layer for layer in c.layers if not layer["nodes"]] for c in cases}
    if any(strangers.values()):
        rows.append(["", "no exported node", *_cells(strangers, variants)])
    body = len(rows)
    rows.append(["", "all layers", *_cells({c.row["variant"]: c.layers for c in cases}, variants)])
    for head, column in (("latency", "latency_ms"), ("on the device", "gpu_ms")):
        figures = [case.row[column] for case in cases]
        if any(figures):
            rows.append(["", head, *("" if ms is None else f"{ms:,.3f}     " for ms in figures)])
    what = [row["model"], row["pass"], row["precision"], f"batch {row['batch_size']}", *setting_words(row["setting"])]
    title = f"{', '.join(what)}: node by node, ms"
    heads = ["PyTorch modules", "ONNX nodes", *variants]
    columns = range(0 if eager else 1, len(heads))
    return _grid(title, width, heads, rows, columns, right=set(range(2, len(heads))), text={0, 1}, body=body)


def _grid(
    title: str,
    width: int,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: Sequence[int],
    right: set[int],
    text: set[int],
    body: int | None = None,
) -> Table:
    """The `columns` of the rows, of which only those of `text` are cut to fit `width`; a line follows row `body`."""
    needs = {c: max(len(heads[c]), *(len(row[c]) for row in rows)) for c in columns}
    # Three blanks between columns, one at either edge.
    room = width - sum(needs[c] for c in columns if c not in text) - 3 * (len(columns) - 1) - 2
    flexible = sorted((c for c in columns if c in text), key=lambda c: needs[c])
    for place, c in enumerate(flexible):
        # What a short column leaves, the longer ones may use.
        needs[c] = min(needs[c], max(room // (len(flexible) - place), _LEAST))
        room -= needs[c]
    # Text, not str: a name may look like markup.
    table = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for c in columns:
        head = Text(_clip(heads[c], needs[c]))
        table.add_column(head, justify="right" if c in right else "left", no_wrap=True, min_width=needs[c])
    for number, row in enumerate(rows):
        if number == body:
            table.add_section()
        table.add_row(*(Text(_clip(row[c], needs[c])) for c in columns))
    return table


def _longest(times: Sequence[float], top: int | None) -> list[int]:
    """Which rows to show, in order."""
    ranked = sorted(range(len(times)), key=lambda number: -times[number])
    return sorted(ranked[:top])


def _cells(layers: Mapping[str, Sequence[Mapping[str, Any]]], variants: Iterable[str]) -> list[str]:
    """For each variant its sum, and of how many layers if it is not one, like "1.011 ×3  "."""
    return [_cell(layers.get(variant, [])) for variant in variants]


def _cell(layers: Sequence[Mapping[str, Any]]) -> str:
    count = f" ×{len(layers)}" if len(layers) > 1 else ""
    return f"{sum(layer['ms'] for layer in layers):,.3f}{count:<5}" if layers else ""


def _bar(part: float) -> str:
    eighths = round(8 * _BAR * part)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
