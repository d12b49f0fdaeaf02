"""Specify each chart in Vega-Lite, without its data; colours are report.css's.

The user's text occurs only as a value in a scale's domain, which no renderer interprets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from profiler.results.columns import parts

Spec = dict[str, Any]

MEMORY = [*parts("peak_memory_mib"), "undivided_mib"]
"""Parts of the peak; the last is its rest, which is all of it on a CPU."""

_INK, _MUTED = "var(--ink)", "var(--muted)"
_LINES = alt.NamedData("lines")
_HEIGHT = 380
_ONE = {"run": 1, "pass": 1, "model": 1, "setting": 1}
_BESIDE = 0.15
"""Share of the batch sizes' axis over which configurations of one size are spread."""
_CONFIGURATION = ("configuration", "batch_size")
_SPEEDUPS = (
    "The base's latency over the configuration's own, with its 95 % interval. The rows go from the base through "
    "narrower precisions to tuned, compiled and exported runtimes."
)
_LATENCIES = "Median latency of one call, with its 95 % interval. Both scales are logarithmic."
_FRONT = "The dashed front joins the points that no other point beats in both latency and throughput."
_PEAK = "Peak memory of the largest batch, and its known parts."
_ROOFLINE = (
    "No call is faster than its FLOPs at the measured peak, nor than its bytes at the memory's bandwidth. A point far "
    "below its roof waits for something else, often for launches."
)
_LAYERS = "Each row holds the exported nodes that some runtime runs as one. Timed in calls of their own."


@dataclass(frozen=True)
class Domains:
    """The values of all scales. With fixed values a configuration looks the same under every filter.

    Variants and precisions stand in the order of steps; `parts` are the occurring parts of memory.
    """

    variants: Sequence[str]
    precisions: Sequence[str]
    batches: Sequence[int]
    parts: Sequence[str]
    base: str = "the base"


@dataclass(frozen=True)
class Chart:
    """A chart of the rows of its data set that have a value of the field `needs`.

    `keep` limits the number of a key's values: evenly spread ones, or the last ones if negative. `data` names its set,
    then further ones. `row_height` has the pixels of a row and the fields that identify a row.
    """

    name: str
    caption: str
    draw: Callable[[], Spec]
    needs: str
    keep: Mapping[str, int]
    row_height: tuple[int, Sequence[str]] | None = None
    data: Sequence[str] = ("lines",)


def charts(domains: Domains) -> list[Chart]:
    """Return every chart, named like its section."""
    spread, largest = {**_ONE, "batch_size": 3}, {**_ONE, "batch_size": -1}
    rows, bars, nodes, node = (13, _CONFIGURATION), (20, _CONFIGURATION), (9, ("nodes", "variant")), {"precision": 1}
    return [
        Chart("speedups", _SPEEDUPS, partial(speedups, domains), "factor", spread, rows),
        *[Chart("latency", _LATENCIES, partial(latency, domains), "latency_ms", _ONE)][: len(domains.batches) > 1],
        Chart("throughput", _FRONT, partial(throughput, domains), "throughput", _ONE),
        Chart("memory", _PEAK, partial(memory, domains), "peak_memory_mib", largest, bars),
        Chart("roofline", _ROOFLINE, partial(roofline, domains), "intensity", _ONE, data=("lines", "roofs")),
        Chart("layers", _LAYERS, partial(layers, domains), "ms", largest | node, nodes, ("layers",)),
    ]


def config() -> dict[str, Any]:
    """Return Vega-Lite's configuration in the page's colours."""
    text = {"labelColor": _INK, "titleColor": _MUTED, "labelFontSize": 12, "titleFontSize": 12}
    lines = dict.fromkeys(("gridColor", "domainColor", "tickColor"), "var(--rule)")
    sizes = {"titleFontWeight": "normal", "titlePadding": 10, "labelPadding": 6, "labelLimit": 190, "tickSize": 4}
    # The title of a vertical axis lies above it, which saves a phone's width.
    above = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": -46, "titleY": -14}
    places = {"orient": "bottom", "direction": "horizontal", "titleOrient": "left", "titleFontWeight": "normal"}
    symbols = {"symbolBaseFillColor": _INK, "symbolBaseStrokeColor": _INK, "symbolStrokeWidth": 2}
    gaps = {"symbolSize": 90, "labelLimit": 160, "rowPadding": 4, "columnPadding": 16, "titlePadding": 6, "offset": 14}
    stacked = {"bottom": {"anchor": "start", "direction": "vertical", "margin": 8}}
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
        "view": {"stroke": None},
        "axis": {**text, **lines, **sizes, "gridWidth": 0.75},
        "axisQuantitative": {"domain": False},
        "axisYQuantitative": above,
        "legend": {**text, **places, **symbols, **gaps, "columns": 8, "layout": stacked},
        "point": {"filled": True, "size": 75, "opacity": 1},
        "line": {"strokeWidth": 2},
        "rule": {"color": _MUTED},
        "tick": {"thickness": 1.5},
        "text": {"color": _INK, "fontSize": 12},
        "range": {"category": [f"var(--series-{number})" for number in range(1, 9)]},
    }


def speedups(domains: Domains) -> Spec:
    """Draw each configuration's factor with its interval."""
    lines = alt.Chart(_LINES).encode(y=_names("configuration", "step", grid=True), yOffset=alt.YOffset("batch_size:N"))
    x = alt.X(**_log("factor", f"Speed-up over {domains.base}, ×"))
    bar = lines.mark_rule(strokeWidth=2).encode(x=alt.X("factor_low:Q"), x2="factor_high:Q", color=alt.value(_INK))
    dot = lines.mark_point().encode(
        x=x,
        color=alt.Color("batch_size:N", title="Batch size"),
        shape=alt.Shape("batch_size:N", title="Batch size"),
        tooltip=_tips(("factor", "Speed-up, ×"), ("factor_low", "95 % from"), ("factor_high", "to")),
    )
    unity = alt.Chart(alt.InlineData([{}])).mark_rule(strokeDash=[4, 3]).encode(x=alt.datum(1))
    return _finished(alt.layer(unity, bar, dot))


def latency(domains: Domains) -> Spec:
    """Draw latency with its interval against the batch size, a line for each configuration."""
    values = list(domains.batches)
    if len(values) > 10:
        values = [size for size in values if size & (size - 1) == 0] or values[:: len(values) // 10]
    # Configurations stand side by side around their batch size, so that no bar hides another.
    share = _BESIDE * math.log2(max(2.0, values[-1] / values[0]))
    scale = alt.Scale(type="log", base=2, nice=False, padding=24, domain=[values[0], values[-1]])
    axis = alt.Axis(values=values, format=",", grid=False, labelOverlap="greedy", labelSeparation=6)
    x = alt.X("x:Q", title="Batch size", scale=scale, axis=axis)
    placed = alt.Chart(_LINES).transform_window(place="dense_rank()", sort=[alt.SortField("step")], frame=[None, None])
    placed = placed.transform_joinaggregate(last="max(place)")
    shift = f"{share} * ((datum.place - 0.5) / datum.last - 0.5)"
    lines = placed.transform_calculate(x=f"datum.batch_size * pow(2, {shift})").encode(x=x, color=_engine(domains))
    y = alt.Y(**_log("latency_ms", "Latency, ms"))
    # A separate field leaves the legend of the shapes unchanged.
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=list(domains.precisions)), legend=None)
    line = lines.transform_calculate(dash="datum.precision").mark_line(strokeWidth=1.75).encode(y=y, strokeDash=dash)
    bar = lines.mark_rule(strokeWidth=1.5).encode(y=alt.Y("latency_low_ms:Q"), y2="latency_high_ms:Q")
    tips = _tips(("latency_ms", "Latency, ms"), ("latency_low_ms", "95 % from"), ("latency_high_ms", "to"))
    dot = lines.mark_point(size=60).encode(y=y, shape=_precision(domains), tooltip=tips)
    # Independent: Vega-Lite stops merging the layers' legends at the first layer without one.
    return _finished(alt.layer(line, bar, dot).resolve_legend(strokeDash="independent").properties(height=_HEIGHT))


def throughput(domains: Domains) -> Spec:
    """Draw throughput against latency, and mark the Pareto front."""
    lines = alt.Chart(_LINES).encode(
        x=alt.X(**_log("latency_ms", "Latency of one call, ms")),
        y=alt.Y(**_log("throughput", "Items per second")),
    )
    front = lines.transform_window(best="max(throughput)", sort=[alt.SortField("latency_ms")])
    front = front.transform_filter("datum.throughput >= datum.best").encode(color=alt.value(_MUTED))
    path = front.mark_line(interpolate="step-after", strokeWidth=1.5, strokeDash=[4, 3])
    ring = front.mark_point(size=260, filled=False, strokeWidth=1.5, shape="circle")
    dots = lines.mark_point(size=80).encode(color=_engine(domains), shape=_precision(domains), tooltip=_tips())
    return _finished(alt.layer(path, ring, dots).properties(height=_HEIGHT))


def memory(domains: Domains) -> Spec:
    """Draw each configuration's peak as a bar of its parts, the smallest first."""
    names = list(domains.parts) or MEMORY
    bars = alt.Chart(_LINES).transform_fold([*names], as_=["part", "value"]).transform_filter("isValid(datum.value)")
    bars = bars.transform_calculate(order=f"indexof({names!r}, datum.part)")
    labels = "replace(replace(datum.label, '_mib', ''), '_', ' ')"
    legend = alt.Legend(labelExpr=labels) if len(names) > 1 else None
    chart = bars.mark_bar(height={"band": 0.75}).encode(
        y=_names("configuration", "peak_memory_mib"),
        x=alt.X("value:Q", title="Peak memory, MiB", stack="zero", axis=_plain()),
        color=alt.Color("part:N", title=None, scale=alt.Scale(domain=names), legend=legend),
        order="order:Q",
        tooltip=[alt.Tooltip("part:N", title="Part"), *_tips(("value", "MiB"), ("peak_memory_mib", "Total"))],
    )
    return _finished(chart)


def roofline(domains: Domains) -> Spec:
    """Draw the rate of each configuration against its FLOPs per byte, below the roofs."""
    x, y = alt.X(**_log("intensity", "FLOPs per byte moved")), alt.Y(**_log("tflops", "TFLOP/s"))
    roofs = alt.Chart(alt.NamedData("roofs")).encode(x=x, y=y)
    roof = roofs.mark_line(strokeWidth=1.5).encode(detail="precision:N", color=alt.value(_MUTED))
    name = roofs.transform_filter("datum.label").mark_text(align="right", baseline="bottom", dy=-3)
    name = name.encode(text="label:N")
    tips = _tips(("tflops", "TFLOP/s"), ("intensity", "FLOPs a byte"), ("fraction_of_peak", "Of the roof"))
    dots = alt.Chart(_LINES).mark_point()
    dots = dots.encode(x=x, y=y, color=_engine(domains), shape=_precision(domains), tooltip=tips)
    return _finished(alt.layer(roof, name, dots).properties(height=_HEIGHT))


def layers(domains: Domains) -> Spec:
    """Draw the longest groups of nodes, with one bar per variant."""
    tips = [alt.Tooltip(f"{field}:N", title=field.capitalize()) for field in ("modules", "nodes", "variant")]
    chart = alt.Chart(alt.NamedData("layers")).mark_bar(height={"band": 0.9})
    chart = chart.encode(
        y=_names("nodes", "ms", op="max", order="descending"),
        yOffset=alt.YOffset("variant:N", sort=list(domains.variants)),
        x=alt.X("ms:Q", title="Time, ms", axis=_plain()),
        color=_engine(domains),
        tooltip=[*tips, alt.Tooltip("ms:Q", title="ms", format=",.4r")],
    )
    return _finished(chart)


def _engine(domains: Domains) -> alt.Color:
    return alt.Color("variant:N", title="Engine", scale=alt.Scale(domain=list(domains.variants)))


def _precision(domains: Domains) -> alt.Shape:
    legend = alt.Undefined if len(domains.precisions) > 1 else None
    return alt.Shape("precision:N", title="Precision", scale=alt.Scale(domain=list(domains.precisions)), legend=legend)


def _log(field: str, title: str) -> dict[str, Any]:
    axis = alt.Axis(title=title, format=",~r", labelOverlap="greedy", labelSeparation=6, grid=True)
    return {"shorthand": f"{field}:Q", "scale": alt.Scale(type="log", nice=False, padding=14), "axis": axis}


def _names(field: str, by: str, op: Any = "min", order: Any = "ascending", grid: bool = False) -> alt.Y:
    """Return an axis of named rows, in the order of another field."""
    axis = alt.Axis(domain=False, ticks=False, grid=grid)
    return alt.Y(f"{field}:N", title=None, sort=alt.EncodingSortField(by, op=op, order=order), axis=axis)


def _plain() -> alt.Axis:
    return alt.Axis(format=",~f", tickCount=6, labelOverlap="greedy", labelSeparation=6, grid=True)


def _tips(*figures: tuple[str, str]) -> list[alt.Tooltip]:
    names = [alt.Tooltip("model:N", title="Model"), alt.Tooltip("configuration:N", title="Engine")]
    names.append(alt.Tooltip("batch_size:Q", title="Batch"))
    figures = figures or (("latency_ms", "Latency, ms"), ("throughput", "Items/s"), ("factor", "Speed-up, ×"))
    return names + [alt.Tooltip(f"{field}:Q", title=title, format=",.4r") for field, title in figures]


def _finished(chart: Any) -> Spec:
    # Validating takes longer than all else; the tests check the spec against Vega-Lite's schema.
    spec: Spec = chart.properties(width="container").to_dict(validate=False)
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
