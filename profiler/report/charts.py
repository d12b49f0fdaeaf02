"""Declare the charts of a report, make the rows that they draw, and choose which of these a chart shows together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import polars as pl

from engines.catalog import PRECISIONS
from profiler.job.case import settings
from profiler.report import chart_specs as specs
from profiler.report import tables
from profiler.report.chart_specs import MEMORY, SETUP, TRAINING, Domains, Spec
from profiler.report.data import CONFIGURATION_KEY, SWEEP, Data
from profiler.results.columns import place
from profiler.results.speedups import certain
from profiler.tables.numbers import natural

Row = Mapping[str, Any]

MARGIN = 16
"""Pixels above the first row and below the last."""
_MODEL = {"run": 1, "pass": 1, "model": 1}
_ONE = {**_MODEL, "extra": 1}
_SUBJECTS = {"pass": 1, "manner": 1}
_LARGEST = {**_MODEL, "batch_size": -1}
_BAR = (20, ("configuration", "batch_size"))
_ROW = (20, ("cell",))
_DOT = (13, ("configuration", "batch_size"))
_NODE = (9, ("nodes", "variant"))
_MOST_LAYERS = 14
"""In the chart of layers: the longest."""
_DRAWN = [
    *("run", "model", "pass", "batch_size", "extra", "shape", "cell", "manner"),
    *("variant", "precision", "configuration", "step", "place"),
    *("rank", "latency_ms", "gpu_ms", "speedup", "speedup_low", "speedup_high", "throughput", "item_ms", "item_s"),
    *("tflops", "intensity", "fraction_of_peak", "peak_memory_mib", *MEMORY),
    *("set_up_s", *SETUP, *TRAINING, "ticks", "measured", "answer", "why"),
]
_DRAWN_OVER_SIZES = [
    *("run", "model", "pass", "batch_size", "variant", "precision", "configuration", "step", "place"),
    *("latency_ms", "ranked_ms", "item_ms", "throughput", "warnings", "own_disturbed", "measured"),
]


@dataclass(frozen=True)
class Chart:
    """One chart, drawn from the rows of its data set that have one of the fields `needs`.

    `keep`: of how many values of a key its rows may be; of more those are kept that spread over them, or the last ones
    where it is negative. `data` names the set that it draws, and sets that it draws with it; none where its data are in
    the specification. `row_height` are the pixels that each row of it takes, and the fields that tell these apart; None
    where the height is fixed. `caption` is what it says of itself, `height` its pixels, and `panel` the least width of
    a panel, with the pixels of its axis, where it is made of panels.
    `legend` are the pixels of a column of a legend.
    """

    name: str
    title: str
    draw: Callable[[], Spec]
    needs: Sequence[str]
    keep: Mapping[str, int]
    row_height: tuple[int, Sequence[str]] | None = None
    data: Sequence[str] = ("lines",)
    caption: str = ""
    height: int | None = None
    panel: tuple[int, int] | None = None
    legend: int = 120

    @cached_property
    def spec(self) -> Spec:
        """The specification; most of a small report's time would go into those of charts that it does not show."""
        return self.draw()


def make(domains: Domains) -> dict[str, Chart]:
    """Every chart, by name."""
    memory = partial(specs.stacked, domains, MEMORY, "_mib", "Peak memory, MiB", "peak_memory_mib")
    training = partial(specs.stacked, domains, TRAINING, "_ms", "One iteration, ms", "latency_ms", timed=True)
    setup = partial(specs.stacked, domains, SETUP, "_s", "Until the second call, s", "set_up_s")
    sizes = {**_MODEL, "batch_size": 3}
    steps = {**sizes, "extra": 1}
    node = {**_ONE, "precision": 1, "batch_size": -1}
    over_batches = partial(specs.over, domains, domains.batches, ("batch_size", "Batch size"), "lines")
    latency = partial(over_batches, "latency_ms", "Latency, ms")
    item = partial(over_batches, "item_ms", "Time per item, ms")
    each = f"Speed-up of each model{', shape' * bool(domains.dimensions)} and batch size"
    charts = [
        Chart("overview", each, partial(specs.overview, domains), ["speedup", "why"], _SUBJECTS, _ROW),
        Chart("speedups", "Speed-up by configuration", partial(specs.speedups, domains), ["speedup"], steps, _DOT),
        Chart("latency", "Latency against batch size", latency, ["latency_ms"], _ONE),
        Chart("throughput", "Throughput against latency", partial(specs.throughput, domains), ["item_s"], _ONE),
        Chart("memory", "Parts of the peak", memory, ["peak_memory_mib"], _LARGEST, _BAR),
        Chart("roofline", "Roofline", partial(specs.roofline, domains), ["intensity"], _ONE, data=("lines", "roofs")),
        Chart("efficiency", "Time per item", item, ["item_ms"], _ONE),
        Chart("training", "Parts of an iteration", training, TRAINING, sizes, _BAR),
        Chart("layers", "The longest layers", partial(specs.layers, domains), ["ms"], node, _NODE, ("layers",)),
        Chart("samples", "Samples", partial(specs.samples, domains), ["ticks"], _LARGEST, _BAR),
        Chart("setup", "Seconds until the second call", setup, ["set_up_s"], _LARGEST, _BAR),
        Chart("break-even", "When the set-up pays off", partial(specs.break_even, domains), ["set_up_s"], _LARGEST),
        *_over_shapes(domains),
    ]
    needless = ("latency", "efficiency") if len(domains.batches) < 2 else ()
    return {chart.name: chart for chart in charts if chart.name not in needless}


def _over_shapes(domains: Domains) -> Iterator[Chart]:
    """Latency and throughput against each dimension of several sizes, at one size of any other."""
    for number, (name, sizes) in enumerate(domains.dimensions.items()):
        for field, title, what, batch in (
            ("latency_ms", "Latency, ms", "Latency", 1),
            ("throughput", "Items per second", "Throughput", -1),
        ):
            draw = partial(specs.over, domains, sizes, ("size", "Size"), f"sizes-{number}", field, title)
            keep = {**_MODEL, "rest": 1, "batch_size": batch}
            where = f"shapes-{number}-{what.lower()}"
            yield Chart(where, f"{what} against {name}", draw, [field], keep, data=(f"sizes-{number}",))


def select(chart: Chart, rows: Iterable[Row]) -> list[Row]:
    """The rows that the chart shows together, just as the page's script chooses them."""
    left = [row for row in rows if any(row[field] is not None for field in chart.needs)]
    for key, most in chart.keep.items():
        values = list(dict.fromkeys(row[key] for row in left))
        if key == "batch_size":
            values.sort()
        if len(values) > abs(most):
            places = [i * (len(values) - 1) // max(most - 1, 1) for i in range(most)]
            kept = values[most:] if most < 0 else [values[place] for place in places]
            left = [row for row in left if row[key] in kept]
    return left


def legends(spec: Spec, rows: Sequence[Row]) -> Spec:
    """The specification with legends of what the rows have, in the colours that stand for it whatever is chosen.

    The page's script does the same.
    """

    def shown(part: Row, name: Any) -> bool:
        # In a bar of parts each of them is a field.
        return any(row.get(part["field"]) == name or row.get(name) is not None for row in rows)

    def fitted(part: dict[str, Any]) -> dict[str, Any]:
        names = part.get("scale", {}).get("domain") if part.get("type") in ("nominal", "ordinal") else None
        if not names or part.get("legend", {}) is None:
            return part
        return part | {"legend": {**part.get("legend", {}), "values": [name for name in names if shown(part, name)]}}

    fit: Spec = json.loads(json.dumps(spec), object_hook=fitted)
    return fit


def height(chart: Chart, rows: Iterable[Row]) -> int | None:
    """In pixels, where the rows make it."""
    if chart.row_height is None:
        return None
    pixels, fields = chart.row_height
    return pixels * len({tuple(row[field] for field in fields) for row in rows}) + MARGIN


def rows(data: Data) -> dict[str, list[Row]]:
    """One row a configuration in `lines`, a point of a roof in `roofs`, a variant's time for some nodes in `layers`."""
    calm, doubted = map(pl.lit, specs.STATES)
    measured = pl.when(pl.col("own_disturbed").is_null()).then(calm).otherwise(doubted)
    # No chart draws a factor that no sentence and no table states.
    marked = certain(data.configurations).with_columns(measured=measured).with_row_index("place")
    sizes = {f"sizes-{number}": rows for number, rows in enumerate(by_size(marked).values())}
    drawn = pl.concat([marked.with_columns(why="note"), data.failed], how="diagonal_relaxed")
    first, others = map(pl.lit, specs.PLACES)
    several = pl.col("run").n_unique().over("subject", "batch_size") > 1
    run = pl.when(several).then(", " + pl.col("run")).fill_null("")
    drawn = drawn.with_columns(
        answer=pl.when(rank=1).then(first).otherwise(others),
        cell=pl.format("{}, batch {}{}", "subject", "batch_size", run),
        step=pl.col("step").fill_null(len(PRECISIONS)),
        place=pl.int_range(pl.len()),
    )
    return {
        "lines": list(drawn.select(_DRAWN).iter_rows(named=True)),
        "roofs": _roofs(data),
        "layers": _layers(data),
        **sizes,
    }


def dimensions(configurations: pl.DataFrame) -> dict[str, list[int]]:
    """By name the sizes of each dimension that was measured at several, in rising order."""
    sizes: dict[str, set[int]] = {}
    for shape in configurations["shape"].drop_nulls().unique():
        for name, size in settings(shape).items():
            sizes.setdefault(name, set()).add(int(size))
    return {name: sorted(sizes[name]) for name in sorted(sizes) if len(sizes[name]) > 1}


def by_size(configurations: pl.DataFrame) -> dict[str, list[Row]]:
    """By dimension of several sizes the rows that have it, with its `size`, and the `rest` of what tells them apart.

    They have no shape: whichever a reader chooses, the curve goes over all of them.
    """
    found: dict[str, list[Row]] = {name: [] for name in dimensions(configurations)}
    columns = [name for name in _DRAWN_OVER_SIZES if name in configurations.columns]
    for row in configurations.select(*columns, "extra").iter_rows(named=True):
        sizes = settings(row.pop("extra") or "")
        for name in found.keys() & sizes:
            rest = "/".join(f"{key}={value}" for key, value in sizes.items() if key != name)
            found[name].append({**row, "size": int(sizes[name]), "rest": rest})
    return {name: sorted(rows, key=lambda row: natural(row["rest"])) for name, rows in found.items()}


def domains(configurations: pl.DataFrame) -> Domains:
    """What the scales must hold, whatever is chosen."""
    configurations = configurations.sort("step", nulls_last=True)
    ticks = configurations.select("latency_ms", "ticks").explode("ticks").drop_nulls()
    away = sorted(ticks["ticks"] / ticks["latency_ms"] - 1)
    measured = configurations.drop_nulls("latency_ms")
    bases = configurations["base"].drop_nulls().unique()
    low, high = (away[len(away) // 100], away[-1 - len(away) // 100]) if away else (0.0, 0.0)
    return Domains(
        configurations["variant"].unique(maintain_order=True).to_list(),
        configurations.select("precision")
        .unique()
        .sort(place("precision", PRECISIONS), "precision")["precision"]
        .to_list(),
        sorted(measured.filter(pl.col("batch_size").n_unique().over(SWEEP) > 1)["batch_size"].unique()),
        [part for part in (*MEMORY, *TRAINING, *SETUP) if configurations[part].count()],
        max((items for items in configurations["best_from_items"] if items), default=0.0),
        (max(-0.5, min(-0.05, low)), min(2.0, max(0.05, high))),
        configurations["own_disturbed"].count() > 0,
        dimensions(configurations),
        bases[0] if len(bases) == 1 else "the base",
    )


def _roofs(data: Data) -> list[Row]:
    """The attainable rate of each precision that occurs, over the range of intensities that occur."""
    known = data.configurations.filter(pl.col("intensity").is_not_null(), pl.col("tflops").is_not_null())
    if known.is_empty():
        return []
    intensities = known["intensity"].to_list()
    low, high = min(intensities) / 2, max(intensities) * 2
    points: list[Row] = []
    for run, environment in data.environments.items():
        roofs = environment.get("roofs") or {}
        slope = roofs.get("copy_gb_s")
        precisions = known.filter(run=run).sort("step")["precision"].unique(maintain_order=True)
        peaks = {p: peak for p in precisions if (peak := roofs.get(f"{p.removeprefix('amp-')}_tflops"))}
        for precision, peak in peaks.items() if slope else ():
            # Roofs at nearly one height share a label, which the first of them has.
            near = [other for other, height in peaks.items() if 0.8 < height / peak < 1.25]
            ridge = min(max(1000 * peak / slope, low), high)
            for intensity in sorted({low, ridge, high}):
                attainable = min(peak, slope * intensity / 1000)
                label = ", ".join(near) if intensity == high and near[0] == precision else None
                row = {"run": run, "precision": precision, "intensity": intensity, "tflops": attainable, "label": label}
                points.append(row)
    return points


def _layers(data: Data) -> list[Row]:
    """Of each profiled cell the layers that take longest in some variant, a row a variant."""
    drawn: list[Row] = []
    for cell in data.layers:
        longest = sorted(tables.layers(cell), key=lambda layer: max(layer.ms.values()), reverse=True)[:_MOST_LAYERS]
        for layer in longest:
            for case in cell:
                ms = layer.ms.get(case.row["variant"])
                if ms is not None:
                    key = {name: case.row[name] for name in (*CONFIGURATION_KEY, "shape")}
                    drawn.append({**key, "nodes": layer.nodes, "modules": layer.modules, "ms": ms})
    return drawn
