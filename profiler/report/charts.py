"""Declare the charts of a report, and make the rows that they draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import polars as pl

from engines.catalog import PRECISIONS
from profiler.job.case import settings
from profiler.report import chart_specs as specs
from profiler.report import tables
from profiler.report.chart_specs import MEMORY, Domains, Spec
from profiler.report.data import CONFIGURATION_KEY, SWEEP, Data
from profiler.results.columns import place
from profiler.tables.numbers import natural

Row = Mapping[str, Any]

MARGIN = 16
"""Pixels above the first row and below the last."""
_MODEL = {"run": 1, "pass": 1, "model": 1}
_ONE = {**_MODEL, "setting": 1}
_CONFIGURATION = ("configuration", "batch_size")
_MOST_LAYERS = 14
"""In the chart of layers: the longest."""
_NAMES = ["run", "model", "pass", "batch_size", "variant", "precision", "configuration", "step"]
_LATENCY = ["latency_ms", "latency_low_ms", "latency_high_ms", "throughput"]
_DRAWN = [
    *(*_NAMES, "setting", *_LATENCY, "factor", "factor_low", "factor_high"),
    *("tflops", "intensity", "fraction_of_peak", "peak_memory_mib", *MEMORY),
]
_SPEEDUPS = (
    "The base's latency over the configuration's own, with its 95 % interval. The rows go from the base through "
    "narrower precisions to tuned, compiled and exported runtimes."
)
_LATENCIES = "Median latency of one call, with its 95 % interval. Both scales are logarithmic."
_THROUGHPUT = "No other point beats one on the dashed front in both latency and throughput."
_MEMORY = "Peak memory of the largest batch, and its parts as far as they are known."
_ROOFLINE = (
    "No call is faster than its FLOPs at the measured peak, nor than its bytes at the memory's bandwidth. A point far "
    "below its roof waits for something else, often for launches."
)
_LAYERS = "Each row holds the exported nodes that some runtime runs as one. Timed in calls of their own."


@dataclass(frozen=True)
class Chart:
    """One chart, drawn from the rows of its data set that have one of the fields `needs`.

    `keep`: of how many values of a key its rows may be; of more those are kept that spread over them, or the last ones
    where it is negative. `data` names the set that it draws, and sets that it draws with it; none where its data are in
    the specification. `row_height` are the pixels that each row of it takes, and the fields that tell these apart; None
    where the height is fixed. `height` are its pixels, and `panel` the least width of a panel, with the pixels of its
    axis, where it is made of panels. `legend` are the pixels of a column of a legend.
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
        """Return the specification, drawn once: most of a small report's time goes into them."""
        return self.draw()


def make(domains: Domains) -> dict[str, Chart]:
    """Return every chart, by name; a name begins with its section's."""
    spread = {**_ONE, "batch_size": 3}
    largest = {**_ONE, "batch_size": -1}
    node = {**largest, "precision": 1}
    speedups, throughput = partial(specs.speedups, domains), partial(specs.throughput, domains)
    memory, roofline, layers = (partial(draw, domains) for draw in (specs.memory, specs.roofline, specs.layers))
    rows, bars, nodes = (13, _CONFIGURATION), (20, _CONFIGURATION), (9, ("nodes", "variant"))
    roofs = ("lines", "roofs")
    charts = [
        Chart("speedups", "Speed-up by configuration", speedups, ["factor"], spread, rows, caption=_SPEEDUPS),
        *_latencies(domains),
        Chart("throughput", "Throughput against latency", throughput, ["throughput"], _ONE, caption=_THROUGHPUT),
        Chart("memory", "Parts of the peak", memory, ["peak_memory_mib"], largest, bars, caption=_MEMORY),
        Chart("roofline", "Roofline", roofline, ["intensity"], _ONE, data=roofs, caption=_ROOFLINE),
        Chart("layers", "The longest layers", layers, ["ms"], node, nodes, ("layers",), _LAYERS),
    ]
    return {chart.name: chart for chart in charts}


def _latencies(domains: Domains) -> Iterator[Chart]:
    """Draw latency over batch sizes, and over each dimension of several sizes at one size of any other."""
    if len(domains.batches) > 1:
        draw = partial(specs.latency, domains, domains.batches, ("batch_size", "Batch size"), "lines")
        yield Chart("latency", "Latency against batch size", draw, ["latency_ms"], _ONE, caption=_LATENCIES)
    for number, (name, sizes) in enumerate(domains.dimensions.items()):
        data, keep = f"sizes-{number}", {**_MODEL, "rest": 1, "batch_size": 1}
        draw = partial(specs.latency, domains, sizes, ("size", name), data)
        title = f"Latency against {name}"
        yield Chart(f"latency-{number}", title, draw, ["latency_ms"], keep, data=(data,), caption=_LATENCIES)


def rows(data: Data) -> dict[str, list[Row]]:
    """Return a row a cell in `lines`, a point of a roof in `roofs`, a variant's time for some nodes in `layers`."""
    sizes = {f"sizes-{number}": rows for number, rows in enumerate(by_size(data.cells).values())}
    lines: list[Row] = list(data.cells.select(_DRAWN).iter_rows(named=True))
    return {"lines": lines, "roofs": _roofs(data), "layers": _layers(data), **sizes}


def by_size(cells: pl.DataFrame) -> dict[str, list[Row]]:
    """Return the cells by dimension of several sizes, with their `size` and the `rest` of their setting.

    They have no setting: whichever a reader chooses, the curve goes over all sizes.
    """
    found: dict[str, list[Row]] = {name: [] for name in dimensions(cells)}
    for row in cells.select(*_NAMES, *_LATENCY, "setting", "shape").iter_rows(named=True):
        setting, shape = settings(row.pop("setting")), settings(row.pop("shape") or "")
        for name in found.keys() & shape:
            rest = "/".join(f"{key}={value}" for key, value in setting.items() if key != name)
            found[name].append({**row, "size": int(shape[name]), "rest": rest})
    return {name: sorted(rows, key=lambda row: natural(row["rest"])) for name, rows in found.items()}


def dimensions(cells: pl.DataFrame) -> dict[str, list[int]]:
    """Return the sizes of each dimension that was measured at several, in rising order."""
    sizes: dict[str, set[int]] = {}
    for shape in cells["shape"].drop_nulls().unique():
        for name, size in settings(shape).items():
            sizes.setdefault(name, set()).add(int(size))
    return {name: sorted(sizes[name]) for name in sorted(sizes) if len(sizes[name]) > 1}


def domains(cells: pl.DataFrame) -> Domains:
    """Return what the scales must hold, whatever is chosen."""
    cells = cells.sort("step", nulls_last=True)
    precisions = cells.select("precision").unique().sort(place("precision", PRECISIONS), "precision")
    bases = cells["base"].drop_nulls().unique()
    return Domains(
        cells["variant"].unique(maintain_order=True).to_list(),
        precisions["precision"].to_list(),
        sorted(cells.filter(pl.col("batch_size").n_unique().over(SWEEP) > 1)["batch_size"].unique()),
        [part for part in MEMORY if cells[part].count()],
        dimensions(cells),
        bases[0] if len(bases) == 1 else "the base",
    )


def _roofs(data: Data) -> list[Row]:
    """Return the attainable rate of each precision that occurs, over the range of intensities that occur."""
    known = data.cells.filter(pl.col("intensity").is_not_null(), pl.col("tflops").is_not_null())
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
    """Return the layers of each profiled cell that take longest in some variant, a row a variant."""
    drawn: list[Row] = []
    for cell in data.layers:
        longest = sorted(tables.layers(cell), key=lambda layer: max(layer.ms.values()), reverse=True)[:_MOST_LAYERS]
        for layer in longest:
            for case in cell:
                ms = layer.ms.get(case.row["variant"])
                if ms is not None:
                    key = {name: case.row[name] for name in CONFIGURATION_KEY}
                    drawn.append({**key, "nodes": layer.nodes, "modules": layer.modules, "ms": ms})
    return drawn
