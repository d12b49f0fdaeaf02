"""What enters: a run that was made with --profile. What leaves: its cases layer by layer, and variants side by side."""

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
from profiler.results.reading import load, load_layers

_KEYS = ("model", "variant", "pass", "precision", "batch_size")
_GROUP = ("model", "pass", "precision", "batch_size")
"""What the variants that stand side by side have in common."""
_WRITTEN = {"batch_size": "batch"}
_BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEAST = 10
"""Characters that a name keeps on the narrowest terminal."""
_PREFIX = "node_"
"""Which torch.onnx puts before the names of the nodes that it exports."""
_METHOD = (
    "Layers are timed in some calls of their own, with a profiler on. On CUDA their time is the device's, without the"
    " gaps between kernels; on the CPU it is the host's."
)
_READING = (
    "×3 is three layers together. A row holds the nodes that some runtime runs as one; they cannot be told apart."
)


@dataclass(frozen=True)
class Profiled:
    """A case's row of the results, and its layers in running order."""

    row: Mapping[str, Any]
    layers: Sequence[Mapping[str, Any]]

    @property
    def ms(self) -> float:
        return float(sum(layer["ms"] for layer in self.layers))


@dataclass
class Group:
    """Exported nodes that cannot be told apart, since some variant runs them as one; each variant's layers for them."""

    nodes: list[str]
    layers: dict[str, list[Mapping[str, Any]]]

    def ms(self, variant: str) -> float:
        return float(sum(layer["ms"] for layer in self.layers.get(variant, [])))


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
    for together in _together(cases):
        console.print()
        console.print(_side_by_side(together, console.width, top))
        console.print(Text(_READING, style="dim"))
    console.print(Text(f"\n{_METHOD}", style="dim"))
    return 0


def read(run: Path) -> list[Profiled]:
    """The run's profiled cases in the plan's order, of replicates the first. Raises ConfigError if there are none."""
    if not (run / "results.parquet").is_file():
        raise ConfigError(
            f"layers {run}: no run stands there (no results.parquet); give a folder such as results/2026…"
        )
    rows = load(run)[0].collect().to_dicts()
    if not (run / "layers.parquet").is_file():
        said = next((w for row in rows for w in row["warnings"] or [] if w.startswith("no-layers")), None)
        raise ConfigError(
            f"layers {run}: this run has no layers{f' ({said})' if said else ''}; a run gets them by --profile, for "
            f"example python -m profiler bench.yaml --profile; one that is not complete, for what it lacks, by "
            f"python -m profiler --resume {run} --profile"
        )
    layers: dict[str, list[dict[str, Any]]] = {}
    for layer in load_layers(run).collect().to_dicts():
        layers.setdefault(layer["case_id"], []).append(layer)
    first: dict[tuple[Any, ...], Profiled] = {}
    for row in sorted(rows, key=lambda row: row["replicate"]):
        if row["case_id"] in layers:
            key = *(row[name] for name in _KEYS), row["case_id"].rpartition("/r")[0]
            first.setdefault(key, Profiled(row, layers[row["case_id"]]))
    order = {row["case_id"]: number for number, row in enumerate(rows)}
    return sorted(first.values(), key=lambda case: order[case.row["case_id"]])


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


def groups(cases: Sequence[Profiled]) -> list[Group]:
    """The exported nodes in the graph's order, as finely as every variant tells them apart, with each one's layers."""
    root: dict[str, str] = {}

    def find(node: str) -> str:
        while root.setdefault(node, node) != node:
            node = root[node]
        return node

    for case in cases:
        for layer in case.layers:
            for node in layer["nodes"]:
                root[find(node)] = find(layer["nodes"][0])
    found: dict[str, Group] = {}
    for node in _order(cases):
        found.setdefault(find(node), Group([], {})).nodes.append(node)
    for case in cases:
        for layer in case.layers:
            if layer["nodes"]:
                group = found[find(layer["nodes"][0])]
                group.layers.setdefault(case.row["variant"], []).append(layer)
    return list(found.values())


def _order(cases: Sequence[Profiled]) -> list[str]:
    """Every node that some layer covers: the order of the case that knows most, the others' own nodes put between."""
    runs = [list(dict.fromkeys(node for layer in case.layers for node in layer["nodes"])) for case in cases]
    runs.sort(key=len, reverse=True)
    order = list(runs[0]) if runs else []
    for nodes in runs[1:]:
        place = 0
        for node in nodes:
            if node in order:
                place = order.index(node) + 1
            else:
                order.insert(place, node)
                place += 1
    return order


def _together(cases: Sequence[Profiled]) -> list[list[Profiled]]:
    """Cases that differ by the variant alone, where more than one is there and one knows the exported nodes."""
    found: dict[tuple[Any, ...], list[Profiled]] = {}
    for case in cases:
        found.setdefault(tuple(case.row[key] for key in _GROUP), []).append(case)
    return [
        together
        for together in found.values()
        if len({c.row["variant"] for c in together}) > 1 and any(layer["nodes"] for c in together for layer in c.layers)
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
    title = f"{row['model']}, {row['pass']}, {row['precision']}, batch {row['batch_size']}: node by node, ms"
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


def names(nodes: Iterable[str]) -> str:
    """The exported nodes without what torch.onnx puts before them, like "Conv_754 + relu"."""
    return " + ".join(node.removeprefix(_PREFIX) for node in nodes)


def modules(layers: Sequence[Mapping[str, Any]]) -> str:
    """Like "layer1.0: conv3, bn3, add, relu"; a module's own operator goes by its kind."""
    paths = [layer["layer"].split(".") for layer in layers]
    if not paths:
        return ""
    common = paths[0]
    for path in paths[1:]:
        length = next((n for n, (a, b) in enumerate(zip(common, path, strict=False)) if a != b), None)
        common = common[: min(len(common), len(path)) if length is None else length]
    if all(path == common for path in paths):
        return ".".join(common)
    own = [
        ".".join(path[len(common) :]) or str(layer["kind"]).strip("_")
        for path, layer in zip(paths, layers, strict=True)
    ]
    head = ".".join(common)
    return f"{head + ': ' if head else ''}{', '.join(dict.fromkeys(own))}"


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
