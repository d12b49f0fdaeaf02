"""Specify each chart in Vega-Lite, without its data.

A specification holds no text of the user's but as a value in a scale's domain, which no renderer interprets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

from profiler.results.columns import parts

Spec = dict[str, Any]

MEMORY = [*parts("peak_memory_mib"), "undivided_mib"]
"""The last is what of the peak is in none of the parts: all of it on a CPU."""
SETUP = parts("set_up_s")
TRAINING = parts("latency_ms")

_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2], [1, 3], [10, 2]]
"""Of precisions; colours tell engines apart."""
_INK, _MUTED = {"value": "var(--ink)"}, {"value": "var(--muted)"}
_HEIGHT = 380
_UNITY = {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"x": {"datum": 1}}}
_AMOUNTS = {"format": ",~f", "tickCount": 6, "grid": True}
"""An axis of sums."""


@dataclass(frozen=True)
class Domains:
    """What the scales must hold, so that a configuration looks the same whatever else is chosen.

    Variants and precisions in the order of steps, batch sizes, parts of memory and time that occur, items until the
    last configuration has paid off, and how far samples are from their median, as a share of it.
    """

    variants: Sequence[str]
    precisions: Sequence[str]
    batches: Sequence[int]
    parts: Sequence[str]
    items: float
    away: tuple[float, float]


def overview(domains: Domains) -> Spec:
    """The speed-up of the fastest configuration of each model and batch size."""
    fastest = {"op": "min", "field": "latency_ms", "as": "fastest"}
    transform: list[Spec] = [
        {"joinaggregate": [fastest], "groupby": ["model", "batch_size"]},
        {"filter": "datum.latency_ms === datum.fastest"},
        _calculated("cell", "datum.model + ', batch ' + datum.batch_size"),
        _calculated("one", "1"),
    ]
    shared = {
        "x": _log("speedup", "Speed-up over the base, ×"),
        "y": _rows("cell", "place"),
        "color": _engine(domains),
    }
    stem = _layer({"type": "rule", "strokeWidth": 2}, {**shared, "x2": {"field": "one"}}, transform)
    own = {"shape": _precision(domains), "tooltip": _tips()}
    dot = _layer({"type": "point", "size": 110}, {**shared, **own}, transform)
    return _chart(layer=[_UNITY, stem, dot])


def speedups() -> Spec:
    """Speed-ups with their intervals, step by step."""
    ends = [
        _calculated(end, f"isValid(datum.speedup_{end}) ? datum.speedup_{end} : datum.speedup")
        for end in ("low", "high")
    ]
    place = {"y": _rows("configuration", "step", grid=True), "yOffset": _name("batch_size")}
    size = _name("batch_size", title="Batch size")
    tips = _tips(("speedup", "Speed-up, ×"), ("speedup_low", "95 % from"), ("speedup_high", "to"))
    span = {"x": _number("low"), "x2": {"field": "high"}, "color": _INK}
    dot = {"x": _log("speedup", "Speed-up over the base, ×"), "color": size, "shape": size, "tooltip": tips}
    rule = _layer({"type": "rule", "strokeWidth": 2}, {**place, **span}, ends)
    return _chart(layer=[_UNITY, rule, _layer({"type": "point"}, {**place, **dot})])


def over_batches(domains: Domains, field: str, title: str) -> Spec:
    """A field against the batch size, a line for each configuration."""
    values = list(domains.batches)
    if len(values) > 10:
        values = [size for size in values if size & (size - 1) == 0] or values[:: len(values) // 10]
    ends = [values[0], values[-1]] if values else [1, 1]
    scale = {"type": "log", "base": 2, "nice": False, "padding": 18, "domain": ends}
    axis = {"values": values, "format": ",", "grid": False}
    shared = {
        "x": _number("batch_size", title="Batch size", scale=scale, axis=axis),
        "y": _log(field, title),
        "color": _engine(domains),
        "detail": _name("extra"),
    }
    # A field of its own, lest it change the legend of the shapes, which say the same.
    dash = _name("dash", scale=_looks(domains, _DASHES), legend=None)
    same = [_calculated("dash", "datum.precision")]
    lines = _layer({"type": "line", "strokeWidth": 1.75}, {**shared, "strokeDash": dash}, same)
    tips = _tips(("latency_ms", "Latency, ms"), ("item_ms", "Per item, ms"), ("throughput", "Items/s"))
    dots = _layer({"type": "point", "size": 60}, {**shared, "shape": _precision(domains), "tooltip": tips})
    # Independent, since Vega-Lite gives up merging the layers' legends at the first that is none.
    return _chart(layer=[lines, dots], resolve={"legend": {"strokeDash": "independent"}}, height=_HEIGHT)


def throughput(domains: Domains) -> Spec:
    """Throughput against latency, a point each, the Pareto front marked."""
    rate = _calculated("rate", "1 / datum.item_s")
    best = {"window": [{"op": "max", "field": "rate", "as": "best"}], "sort": [{"field": "latency_ms"}]}
    on_front: list[Spec] = [rate, best, {"filter": "datum.rate >= datum.best"}]
    shared = {"x": _log("latency_ms", "Latency of one call, ms"), "y": _log("rate", "Items per second")}
    step = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5, "strokeDash": [4, 3]}
    path = _layer(step, {**shared, "color": _MUTED}, on_front)
    circle = {"type": "point", "size": 260, "filled": False, "strokeWidth": 1.5, "shape": "circle"}
    ring = _layer(circle, {**shared, "color": _MUTED}, on_front)
    own = {"color": _engine(domains), "shape": _precision(domains), "tooltip": _tips()}
    dots = _layer({"type": "point", "size": 80}, {**shared, **own}, [rate])
    return _chart(layer=[path, ring, dots], height=_HEIGHT)


def stacked(domains: Domains, every: Sequence[str], unit: str, title: str, total: str) -> Spec:
    """The fields `every` of each configuration as one bar, the least `total` first."""
    known = [part for part in every if part in domains.parts] or list(every)
    several = {"op": "distinct", "field": "batch_size", "as": "batches"}
    named = "datum.batches > 1 ? datum.configuration + ', batch ' + datum.batch_size : datum.configuration"
    transform: list[Spec] = [
        {"joinaggregate": [several]},
        {"fold": known, "as": ["part", "value"]},
        {"filter": "isValid(datum.value)"},
        _calculated("order", f"indexof({known!r}, datum.part)"),
        _calculated("row", named),
        _calculated("sorted", f"datum.batch_size * 1e9 + datum.{total}"),
    ]
    legend = {"labelExpr": f"replace(replace(datum.label, '{unit}', ''), '_', ' ')"} if len(known) > 1 else None
    of = title.rpartition(", ")[2]
    encoding = {
        "x": _number("value", title=title, stack="zero", axis=_AMOUNTS),
        "y": _rows("row", "sorted"),
        "color": _name("part", title=None, scale={"domain": known}, legend=legend),
        "order": _number("order"),
        "tooltip": [*_what(), _name("part", title="Part"), _tip("value", of), _tip(total, "Total")],
    }
    return _chart(**_layer({"type": "bar", "height": {"band": 0.75}}, encoding, transform))


def roofline(domains: Domains) -> Spec:
    """The rate of each configuration against its FLOPs per byte, below the roofs."""
    shared = {"x": _log("intensity", "FLOPs per byte moved", 3), "y": _log("tflops", "TFLOP/s", 3)}
    roof = {"type": "line", "strokeWidth": 1.5}
    text = {"type": "text", "align": "right", "baseline": "bottom", "dy": -3}
    tips = _tips(("tflops", "TFLOP/s"), ("intensity", "FLOPs a byte"), ("fraction_of_peak", "Of the roof"))
    own = {"color": _engine(domains), "shape": _precision(domains), "tooltip": tips}
    layers = [
        _layer(roof, {**shared, "detail": _name("precision"), "color": _MUTED}, data="roofs"),
        _layer(text, {**shared, "text": _name("label")}, [{"filter": "datum.label"}], data="roofs"),
        _layer({"type": "point"}, {**shared, **own}),
    ]
    return _chart(layer=layers, height=_HEIGHT)


def layers(domains: Domains) -> Spec:
    """The longest groups of nodes, each with a bar a variant."""
    tips = [_name(field, title=field.capitalize()) for field in ("modules", "nodes", "variant")]
    encoding = {
        "x": _number("ms", title="Time, ms", axis=_AMOUNTS),
        "y": _rows("nodes", "ms", op="max", order="descending"),
        "yOffset": _name("variant", sort=list(domains.variants)),
        "color": _engine(domains),
        "tooltip": [*tips, _tip("ms", "ms")],
    }
    return _chart(**_layer({"type": "bar", "height": {"band": 0.9}}, encoding, data="layers"))


def samples(domains: Domains) -> Spec:
    """A tick a sample, by how far it is from its configuration's median."""
    percents = {"format": "+.1~%", "labelExpr": "datum.value ? datum.label : '0'"}
    axis = {**percents, "tickCount": 8, "labelOverlap": "greedy", "grid": True}
    scale = {"domain": list(domains.away), "clamp": True, "nice": False, "padding": 6}
    encoding = {
        "x": _number("away", title="Deviation from the median", scale=scale, axis=axis),
        "y": _rows("configuration", "step", grid=True),
        "color": _engine(domains),
        "tooltip": _tips(("ticks", "Sample, ms"), ("latency_ms", "Median, ms")),
    }
    away = [{"flatten": ["ticks"]}, _calculated("away", "datum.ticks / datum.latency_ms - 1")]
    return _chart(**_layer({"type": "tick", "opacity": 0.8, "height": 13}, encoding, away))


def break_even(domains: Domains) -> Spec:
    """The seconds until so many items are done, set-up included."""
    decades = ceil(log10(max(domains.items, 100))) + 1
    items = [round(10 ** (step / 4), 3) for step in range(4 * decades + 1)]
    seconds = _calculated("seconds", "datum.set_up_s + datum.items * datum.item_s")
    axis = {"format": "~s", "tickCount": decades, "labelOverlap": "greedy"}
    encoding = {
        "x": _number("items", title="Items done", scale={"type": "log", "nice": False}, axis=axis),
        "y": _log("seconds", "Seconds, set-up included", 4),
        "color": _engine(domains),
        "strokeDash": _of_precisions(domains, _DASHES),
        "detail": _name("configuration"),
        "tooltip": _tips(("items", "Items"), ("seconds", "Seconds")),
    }
    transform = [_calculated("items", str(items)), {"flatten": ["items"]}, seconds]
    return _chart(**_layer({"type": "line"}, encoding, transform), height=_HEIGHT)


def _chart(**spec: Any) -> Spec:
    """As wide as its place on the page."""
    return {**spec, "width": "container"}


def _layer(mark: Spec, encoding: Mapping[str, Any], transform: Sequence[Spec] = (), data: str = "lines") -> Spec:
    return {"data": {"name": data}, "transform": list(transform), "mark": mark, "encoding": encoding}


def _calculated(name: str, expression: str) -> Spec:
    return {"calculate": expression, "as": name}


def _number(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", **more}


def _name(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", **more}


def _engine(domains: Domains) -> Spec:
    return _name("variant", title="Engine", scale={"domain": list(domains.variants)})


def _precision(domains: Domains) -> Spec:
    return _of_precisions(domains, _SHAPES)


def _of_precisions(domains: Domains, looks: Sequence[Any]) -> Spec:
    """Shapes or dashes that tell precisions apart, with a legend where there are several."""
    legend = {} if len(domains.precisions) > 1 else {"legend": None}
    return _name("precision", title="Precision", scale=_looks(domains, looks), **legend)


def _looks(domains: Domains, looks: Sequence[Any]) -> Spec:
    known = list(domains.precisions)
    return {"domain": known, "range": [looks[place % len(looks)] for place in range(len(known))]}


def _log(field: str, title: str, ticks: int = 9) -> Spec:
    """A logarithmic axis with plain numbers; over as many decades as `ticks` or more, only powers of ten are named."""
    axis = {"title": title, "format": ",", "tickCount": ticks, "labelOverlap": "greedy", "grid": True}
    return _number(field, scale={"type": "log", "nice": False, "padding": 14}, axis=axis)


def _rows(field: str, by: str, op: str = "min", order: str = "ascending", grid: bool = False) -> Spec:
    """Rows with a name each, in the order of another field."""
    axis = {"domain": False, "ticks": False, "grid": grid}
    return _name(field, title=None, sort={"field": by, "op": op, "order": order}, axis=axis)


def _tips(*figures: tuple[str, str]) -> list[Spec]:
    """What a point says: what it is, then these fields, each with its title."""
    usual = (("latency_ms", "Latency, ms"), ("throughput", "Items/s"), ("speedup", "Speed-up, ×"))
    return _what() + [_tip(*figure) for figure in figures or usual]


def _what() -> list[Spec]:
    return [_name("model", title="Model"), _name("configuration", title="Engine"), _number("batch_size", title="Batch")]


def _tip(field: str, title: str) -> Spec:
    return _number(field, title=title, format=",.4r")
