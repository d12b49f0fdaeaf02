"""Specify each chart in Vega-Lite, without its data.

A specification holds no text of the user's but as a value in a scale's domain, which no renderer interprets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

from profiler.results.columns import parts

Row = Mapping[str, Any]
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
_TYPES = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}
STATES = ("undisturbed", "disturbed")
"""What a row's `measured` says of its warnings."""
Tip = tuple[str, str]
"""A field and its title."""


@dataclass(frozen=True)
class Domains:
    """What the scales must hold, so that a configuration looks the same whatever else is chosen.

    Models, variants and precisions in the order of steps, batch sizes, parts of memory and time that occur, items until
    the last configuration has paid off, and how far samples are from their median, as a share of it.
    """

    models: Sequence[str]
    variants: Sequence[str]
    precisions: Sequence[str]
    batches: Sequence[int]
    parts: Sequence[str]
    items: float
    away: tuple[float, float]
    disturbed: bool = False
    """Whether any row was."""
    subjects: Sequence[str] = ()
    """Models, each at each of its shapes."""
    dimensions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """By name those of several sizes."""


def overview(domains: Domains) -> Spec:
    """The speed-up of the fastest of each model, shape and batch size, of those with a rank if any has one."""
    fastest = [
        calculate(ms="datum.latency_ms + (isValid(datum.rank) ? 0 : 1e9)"),
        _joined("min", "ms", "fastest", "subject", "batch_size"),
        {"filter": "datum.ms === datum.fastest && isValid(datum.speedup)"},
        calculate(cell="datum.subject + ', batch ' + datum.batch_size"),
        calculate(one="1"),
    ]
    x = logarithmic("speedup", "Speed-up over the base, ×")
    encoding = {"y": _names("cell", "place"), "x": x, "color": _engine(domains)}
    stem = view("rule", {**encoding, "x2": {"field": "one"}}, *fastest, strokeWidth=2)
    dot = view("point", {**encoding, "shape": _precision(domains), "tooltip": _tips()}, *fastest, size=110)
    return layered(_unity(), stem, dot)


def speedups(domains: Domains) -> Spec:
    """Speed-ups with their intervals, step by step."""
    ends = [
        calculate(**{end: f"isValid(datum.speedup_{end}) ? datum.speedup_{end} : datum.speedup"})
        for end in ("low", "high")
    ]
    rows = {"y": _names("configuration", "step", grid=True), "yOffset": field("batch_size:N")}
    span = {**rows, "x": field("low:Q"), "x2": {"field": "high"}, "color": _INK}
    batch = field("batch_size:N", title="Batch size")
    dot = {
        **rows,
        "x": logarithmic("speedup", "Speed-up over the base, ×"),
        "color": batch,
        "shape": batch,
        "tooltip": _tips(("speedup", "Speed-up, ×"), ("speedup_low", "95 % from"), ("speedup_high", "to")),
    }
    return layered(_unity(), view("rule", span, *ends, strokeWidth=2), view("point", dot))


def models(domains: Domains) -> Spec:
    """Speed-ups of several models step by step, a bar each with its figure, and of several runs one of each run."""
    sides = [
        _joined("distinct", "run", "runs", "subject"),
        calculate(side="datum.runs > 1 ? datum.subject + ', ' + datum.run : datum.subject"),
    ]
    by_place = {"field": "place", "op": "min"}
    rows = {"y": _names("configuration", "step"), "yOffset": field("side:N", sort=by_place)}
    drawn = {**rows, "x": field("speedup:Q", title="Speed-up over the base, ×", axis={"tickCount": 6, "grid": True})}
    tips = _tips(("speedup", "Speed-up, ×"), ("latency_ms", "Latency, ms"))
    bars = {**drawn, "color": field("side:N", title="Model", sort=by_place), "tooltip": tips}
    figures = {**drawn, "text": field("speedup:Q", format=".1f")}
    # Nothing to see: the figure behind the longest bar needs its room.
    room = [*sides, calculate(end="1.06 * datum.speedup")]
    return layered(
        view("bar", bars, *sides),
        view("text", figures, *sides, align="left", dx=3, fontSize=9, aria=False),
        view("point", {**rows, "x": field("end:Q")}, *room, opacity=0, aria=False),
    )


def over_batches(domains: Domains, drawn: str, title: str) -> Spec:
    """A field against the batch size, a line for each configuration."""
    return over(domains, domains.batches, ("batch_size", "Batch size"), "lines", drawn, title)


def over(domains: Domains, every: Sequence[int], axis: Tip, data: str, drawn: str, title: str) -> Spec:
    """The field `drawn` against sizes, a line for each configuration.

    `data` names its rows, `axis` has the sizes' field.
    """
    values, (name, named) = list(every), axis
    if len(values) > 10:
        values = [size for size in values if size & (size - 1) == 0] or values[:: len(values) // 10]
    ends = [values[0], values[-1]] if values else [1, 1]
    scale = {"type": "log", "base": 2, "nice": False, "padding": 18, "domain": ends}
    lines = {
        "x": field(f"{name}:Q", title=named, scale=scale, axis={"values": values, "format": ",", "grid": False}),
        "y": logarithmic(drawn, title),
        "color": _engine(domains),
        "detail": field("extra:N"),
    }
    # A field of its own, so that it does not change the legend of the shapes, which tells the same apart.
    dash = {**lines, "strokeDash": field("dash:N", scale=_dashes(domains), legend=None)}
    tips = _tips(("latency_ms", "Latency, ms"), ("item_ms", "Per item, ms"), ("throughput", "Items/s"))
    tips += [field(f"{name}:Q", title=named)] if name != "batch_size" else []
    dots = _doubted({**lines, "shape": _precision(domains), "tooltip": tips}, domains)
    return layered(
        view("line", dash, calculate(dash="datum.precision"), data=data, strokeWidth=1.75),
        view("point", dots, data=data, size=60),
        # Independent, since Vega-Lite gives up merging the layers' legends at the first that is none.
        resolve={"legend": {"strokeDash": "independent"}},
        height=_HEIGHT,
    )


def throughput(domains: Domains) -> Spec:
    """Throughput against latency, a point each, the Pareto front marked."""
    rate = calculate(rate="1 / datum.item_s")
    lines = {"x": logarithmic("latency_ms", "Latency of one call, ms"), "y": logarithmic("rate", "Items per second")}
    best = {"window": [{"op": "max", "field": "rate", "as": "best"}], "sort": [{"field": "latency_ms"}]}
    front, muted = [rate, best, {"filter": "datum.rate >= datum.best"}], {**lines, "color": _MUTED}
    dots = {**lines, "color": _engine(domains), "shape": _precision(domains), "tooltip": _tips()}
    return layered(
        view("line", muted, *front, interpolate="step-after", strokeWidth=1.5, strokeDash=[4, 3]),
        view("point", muted, *front, size=260, filled=False, strokeWidth=1.5, shape="circle"),
        view("point", _doubted(dots, domains), rate, size=80),
        height=_HEIGHT,
    )


def stacked(domains: Domains, every: Sequence[str], unit: str, title: str, total: str, timed: bool = False) -> Spec:
    """The fields `every` of each configuration as one bar, the least `total` first; `timed`: by the case's clock."""
    parts = [part for part in every if part in domains.parts] or list(every)
    transforms = [
        _joined("distinct", "batch_size", "batches"),
        {"fold": parts, "as": ["part", "value"]},
        {"filter": "isValid(datum.value)"},
        calculate(order=f"indexof({parts!r}, datum.part)"),
        calculate(row="datum.batches > 1 ? datum.configuration + ', batch ' + datum.batch_size : datum.configuration"),
        calculate(sorted=f"datum.batch_size * 1e9 + datum.{total}"),
    ]
    label = f"replace(replace(datum.label, '{unit}', ''), '_', ' ')"
    legend = {"labelExpr": label} if len(parts) > 1 else None
    encoding = {
        "y": _names("row", "sorted"),
        "x": field("value:Q", title=title, stack="zero", axis={"format": ",~f", "tickCount": 6, "grid": True}),
        "color": field("part:N", title=None, scale={"domain": parts}, legend=legend),
        "order": field("order:Q"),
        "tooltip": _tips(("part", "Part"), ("value", title.rpartition(", ")[2]), (total, "Total")),
    }
    bars = _doubted(encoding, domains) if timed else encoding
    return wide(view("bar", bars, *transforms, height={"band": 0.75}))


def roofline(domains: Domains) -> Spec:
    """The rate of each configuration against its FLOPs per byte, below the roofs."""
    rates = {"x": logarithmic("intensity", "FLOPs per byte moved", 3), "y": logarithmic("tflops", "TFLOP/s", 3)}
    roof, name = {**rates, "detail": field("precision:N"), "color": _MUTED}, {**rates, "text": field("label:N")}
    tips = _tips(("tflops", "TFLOP/s"), ("intensity", "FLOPs a byte"), ("fraction_of_peak", "Of the roof"))
    dots = {**rates, "color": _engine(domains), "shape": _precision(domains), "tooltip": tips}
    labelled = {"filter": "datum.label"}
    return layered(
        view("line", roof, data="roofs", strokeWidth=1.5),
        view("text", name, labelled, data="roofs", align="right", baseline="bottom", dy=-3),
        view("point", _doubted(dots, domains)),
        height=_HEIGHT,
    )


def layers(domains: Domains) -> Spec:
    """The longest groups of nodes, each with a bar a variant."""
    tips = [field(f"{name}:N", title=name.capitalize()) for name in ("modules", "nodes", "variant")]
    encoding = {
        "y": _names("nodes", "ms", op="max", order="descending"),
        "yOffset": field("variant:N", sort=list(domains.variants)),
        "x": field("ms:Q", title="Time, ms", axis={"format": ",~f", "tickCount": 6, "grid": True}),
        "color": _engine(domains),
        "tooltip": [*tips, field("ms:Q", title="ms", format=",.4r")],
    }
    return wide(view("bar", encoding, data="layers", height={"band": 0.9}))


def samples(domains: Domains) -> Spec:
    """A tick a sample, by how far it is from its configuration's median."""
    ticks = [{"flatten": ["ticks"]}, calculate(away="datum.ticks / datum.latency_ms - 1")]
    axis = {"format": "+.1~%", "labelExpr": "datum.value ? datum.label : '0'", "tickCount": 8}
    axis |= {"labelOverlap": "greedy", "grid": True}
    scale = {"domain": list(domains.away), "clamp": True, "nice": False, "padding": 6}
    marks = {
        "y": _names("configuration", "step", grid=True),
        "x": field("away:Q", title="Deviation from the median", scale=scale, axis=axis),
        "color": _engine(domains),
        "tooltip": _tips(("ticks", "Sample, ms"), ("latency_ms", "Median, ms")),
    }
    return wide(view("tick", _doubted(marks, domains), *ticks, opacity=0.8, height=13))


def break_even(domains: Domains) -> Spec:
    """The seconds until so many items are done, set-up included."""
    decades = ceil(log10(max(domains.items, 100))) + 1
    items = [round(10 ** (step / 4), 3) for step in range(4 * decades + 1)]
    done = [calculate(items=str(items)), {"flatten": ["items"]}]
    done.append(calculate(seconds="datum.set_up_s + datum.items * datum.item_s"))
    axis = {"format": "~s", "tickCount": decades, "labelOverlap": "greedy"}
    drawn = {
        "x": field("items:Q", title="Items done", scale={"type": "log", "nice": False}, axis=axis),
        "y": logarithmic("seconds", "Seconds, set-up included", 4),
        "color": _engine(domains),
        "strokeDash": field("precision:N", title="Precision", scale=_dashes(domains), **_no_legend_of_one(domains)),
        "detail": field("configuration:N"),
        "tooltip": _tips(("items", "Items"), ("seconds", "Seconds")),
    }
    return wide(view("line", _doubted(drawn, domains), *done)) | {"height": _HEIGHT}


def _doubted(encoding: Spec, domains: Domains) -> Spec:
    """Lighter where a row was disturbed, with a legend and a line in the tip; as it is where none was."""
    return lighter(encoding, STATES, 0.3, field("measured:N", title="Measured")) if domains.disturbed else encoding


def lighter(encoding: Spec, states: Sequence[str], opacity: float, *tips: Spec, title: str | None = "Measured") -> Spec:
    """Rows whose `measured` is the second of the states at that opacity, with a legend of it."""
    measured = field("measured:O", title=title, scale={"domain": list(states), "range": [1, opacity]})
    return {**encoding, "opacity": measured, "tooltip": [*encoding["tooltip"], *tips]}


def _engine(domains: Domains) -> Spec:
    return field("variant:N", title="Engine", scale={"domain": list(domains.variants)})


def _precision(domains: Domains) -> Spec:
    known = list(domains.precisions)
    scale = {"domain": known, "range": [_SHAPES[i % len(_SHAPES)] for i in range(len(known))]}
    return field("precision:N", title="Precision", scale=scale, **_no_legend_of_one(domains))


def _no_legend_of_one(domains: Domains) -> Spec:
    return {} if len(domains.precisions) > 1 else {"legend": None}


def _dashes(domains: Domains) -> Spec:
    known = list(domains.precisions)
    return {"domain": known, "range": [_DASHES[i % len(_DASHES)] for i in range(len(known))]}


def logarithmic(name: str, title: str, ticks: int = 9, values: Sequence[float] = ()) -> Spec:
    """A logarithmic axis with plain numbers; over as many decades as `ticks` or more, only powers of ten are named.

    With `values` those of them are named that are in its range.
    """
    marks = {"values": list(values)} if values else {"tickCount": ticks}
    axis = {"title": title, "format": ",", "labelOverlap": "greedy", "grid": True, **marks}
    return field(f"{name}:Q", scale={"type": "log", "nice": False, "padding": 14}, axis=axis)


def _names(name: str, by: str, op: str = "min", order: str = "ascending", grid: bool = False) -> Spec:
    """Rows with a name each, in the order of another field."""
    axis = {"domain": False, "ticks": False, "grid": grid}
    return field(f"{name}:N", title=None, sort={"field": by, "op": op, "order": order}, axis=axis)


def _tips(*figures: Tip) -> list[Spec]:
    """What a point says: what it is, then these figures."""
    known = [field("model:N", title="Model"), field("configuration:N", title="Engine")]
    known.append(field("batch_size:Q", title="Batch"))
    usual = (("latency_ms", "Latency, ms"), ("throughput", "Items/s"), ("speedup", "Speed-up, ×"))
    for name, title in figures or usual:
        words = name == "part"
        known.append(field(f"{name}:N", title=title) if words else field(f"{name}:Q", title=title, format=",.4r"))
    return known


def _unity() -> Spec:
    mark = {"type": "rule", "strokeDash": [4, 3]}
    return {"data": {"values": [{}]}, "mark": mark, "encoding": {"x": {"datum": 1}}}


def _joined(op: str, of: str, into: str, *groupby: str) -> Spec:
    """Give each row a figure of its group."""
    grouped = {"groupby": list(groupby)} if groupby else {}
    return {"joinaggregate": [{"op": op, "field": of, "as": into}], **grouped}


def calculate(**named: str) -> Spec:
    """Give each row a field by an expression."""
    ((name, expression),) = named.items()
    return {"calculate": expression, "as": name}


def field(typed: str, **more: Any) -> Spec:
    """A field with its type, "latency_ms:Q", and how it is drawn."""
    name, _, kind = typed.rpartition(":")
    return {"field": name, "type": _TYPES[kind], **more}


def view(mark: str, encoding: Spec, *transforms: Spec, data: str = "lines", **style: Any) -> Spec:
    """Marks of one kind, one for each row of the data of that name."""
    transformed = {"transform": list(transforms)} if transforms else {}
    return {"data": {"name": data}, **transformed, "mark": {"type": mark, **style}, "encoding": encoding}


def layered(*views: Spec, **more: Any) -> Spec:
    """Views one upon another."""
    return wide({"layer": list(views), **more})


def wide(spec: Spec) -> Spec:
    """As wide as its place on the page."""
    return {**spec, "width": "container"}
