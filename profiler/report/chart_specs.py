"""Specify each chart in Vega-Lite, without its data.

A specification holds no text of the user's but as a value in a scale's domain, which no renderer interprets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

import altair as alt

from profiler.results.columns import parts

Row = Mapping[str, Any]
Spec = dict[str, Any]

MEMORY = [*parts("peak_memory_mib"), "undivided_mib"]
"""The last is what of the peak is in none of the parts: all of it on a CPU."""
SETUP = parts("set_up_s")
TRAINING = parts("latency_ms")

_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
_CROSS = "M-1,-1L1,1M-1,1L1,-1"
_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2], [1, 3], [10, 2]]
"""Of precisions; colours tell engines apart."""
_INK, _MUTED = alt.value("var(--ink)"), alt.value("var(--muted)")
_LINES = alt.NamedData("lines")
_BY_PLACE = alt.EncodingSortField("place", op="min")
_HEIGHT = 380
STATES = ("undisturbed", "disturbed, so no factors")
"""What a row's `measured` says of its warnings."""
PLACES = ("fastest", "others")
"""What a row's `answer` says of it among its model, shape and batch size."""
ROUND = [digit * 10**power for power in range(-6, 10) for digit in (1, 2, 5)]
"""Ticks of logarithmic axes."""
Tip = tuple[str, str]
"""A field and its title."""


@dataclass(frozen=True)
class Domains:
    """What the scales must hold, so that a configuration looks the same whatever else is chosen.

    Variants and precisions in the order of steps, batch sizes of sweeps, parts of memory and time that occur, items
    until the last configuration has paid off, and how far samples are from their median, as a share of it.
    """

    variants: Sequence[str]
    precisions: Sequence[str]
    batches: Sequence[int]
    parts: Sequence[str]
    items: float
    away: tuple[float, float]
    disturbed: bool = False
    """Whether any row was."""
    dimensions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """By name those of several sizes."""
    base: str = "the base"
    """What speed-ups are relative to, where all have the same base."""


def overview(domains: Domains) -> Spec:
    """The speed-ups of every configuration, a row for each model, shape and batch size, with its fastest larger.

    Crosses at the left have no factor; their tips say why.
    """
    size = alt.Scale(domain=list(PLACES), range=[150, 45])
    dots = alt.Chart(_LINES).mark_point(opacity=0.85)
    dots = dots.encode(
        y=_names("cell", "place", grid=True),
        x=_speedup(domains),
        color=_engine(domains),
        shape=_precision(domains),
        size=alt.Size("answer:O", title="Latency", scale=size),
        tooltip=_tips(("latency_ms", "Latency, ms"), ("peak_memory_mib", "Memory, MiB"), ("speedup", "Speed-up, ×")),
    )
    crosses = alt.Chart(_LINES).transform_filter("!isValid(datum.speedup)")
    crosses = crosses.transform_window(nth="row_number()", groupby=["cell"])
    crosses = crosses.mark_point(shape=_CROSS, filled=False, xOffset=alt.ExprRef("9 * datum.nth - 4"), size=45).encode(
        y=_names("cell", "place", grid=True),
        x=alt.value(0),
        color=_engine(domains),
        tooltip=[*_tips(("latency_ms", "Latency, ms")), alt.Tooltip("why:N", title="No factor")],
    )
    return finished(alt.layer(_unity(), crosses, dots))


def speedups(domains: Domains) -> Spec:
    """Speed-ups with their intervals, step by step."""
    ends = {end: f"isValid(datum.speedup_{end}) ? datum.speedup_{end} : datum.speedup" for end in ("low", "high")}
    lines = alt.Chart(_LINES).encode(y=_names("configuration", "step", grid=True), yOffset=alt.YOffset("batch_size:N"))
    span = lines.transform_calculate(**ends).mark_rule(strokeWidth=2)
    tips = _tips(("speedup", "Speed-up, ×"), ("speedup_low", "95 % from"), ("speedup_high", "to"))
    dot = lines.mark_point().encode(
        x=_speedup(domains, "speedup_low", "speedup_high"),
        color=alt.Color("batch_size:N", title="Batch size"),
        shape=alt.Shape("batch_size:N", title="Batch size"),
        tooltip=tips,
    )
    return finished(alt.layer(_unity(), span.encode(x=alt.X("low:Q"), x2="high:Q", color=_INK), dot))


def over(domains: Domains, every: Sequence[int], axis: Tip, data: str, field: str, title: str) -> Spec:
    """A field against sizes, a line for each configuration; `data` names its rows, `axis` has the sizes' field."""
    values, (name, named) = list(every), axis
    if len(values) > 10:
        values = [size for size in values if size & (size - 1) == 0] or values[:: len(values) // 10]
    ends = [values[0], values[-1]] if values else [1, 1]
    scale = alt.Scale(type="log", base=2, nice=False, padding=18, domain=ends)
    x = alt.X(f"{name}:Q", title=named, scale=scale, axis=alt.Axis(values=values, format=",", grid=False))
    lines = alt.Chart(alt.NamedData(data)).encode(
        x=x, y=alt.Y(**_log(field, title, _range(field, data))), color=_engine(domains), detail="extra:N"
    )
    # A field of its own, so that it does not change the legend of the shapes, which tells the same apart.
    dash = alt.StrokeDash("dash:N", scale=_dashes(domains), legend=None)
    drawn = lines.transform_calculate(dash="datum.precision").mark_line(strokeWidth=1.75).encode(strokeDash=dash)
    tips = _tips(("latency_ms", "Latency, ms"), ("item_ms", "Per item, ms"), ("throughput", "Items/s"))
    tips += [alt.Tooltip(f"{name}:Q", title=named)] if name != "batch_size" else []
    dots = _doubted(lines.mark_point(size=60).encode(shape=_precision(domains), tooltip=tips), domains)
    # Independent, since Vega-Lite gives up merging the layers' legends at the first that is none.
    return finished(alt.layer(drawn, dots).resolve_legend(strokeDash="independent").properties(height=_HEIGHT))


def throughput(domains: Domains) -> Spec:
    """Throughput against latency, a point each, the Pareto front marked."""
    lines = alt.Chart(_LINES).transform_calculate(rate="1 / datum.item_s")
    lines = lines.encode(
        x=alt.X(**_log("latency_ms", "Latency of one call, ms")),
        y=alt.Y(**_log("rate", "Items per second", f"[1 / {_range('item_s')}[1], 1 / {_range('item_s')}[0]]")),
    )
    front = lines.transform_window(best="max(rate)", sort=[alt.SortField("latency_ms")])
    front = front.transform_filter("datum.rate >= datum.best").encode(color=_MUTED)
    path = front.mark_line(interpolate="step-after", strokeWidth=1.5, strokeDash=[4, 3])
    ring = front.mark_point(size=260, filled=False, strokeWidth=1.5, shape="circle")
    dots = lines.mark_point(size=80).encode(color=_engine(domains), shape=_precision(domains), tooltip=_tips())
    return finished(alt.layer(path, ring, _doubted(dots, domains)).properties(height=_HEIGHT))


def stacked(domains: Domains, every: Sequence[str], unit: str, title: str, total: str, timed: bool = False) -> Spec:
    """The fields `every` of each configuration as one bar, the least `total` first; `timed`: by the case's clock."""
    parts = [part for part in every if part in domains.parts] or list(every)
    bars = (
        alt.Chart(_LINES)
        .transform_joinaggregate(batches="distinct(batch_size)")
        .transform_fold(list(parts), as_=["part", "value"])
        .transform_filter("isValid(datum.value)")
        .transform_calculate(
            order=f"indexof({list(parts)!r}, datum.part)",
            row="datum.batches > 1 ? datum.configuration + ', batch ' + datum.batch_size : datum.configuration",
            sorted=f"datum.batch_size * 1e9 + datum.{total}",
        )
    )
    legend = alt.Legend(labelExpr=f"replace(replace(datum.label, '{unit}', ''), '_', ' ')") if len(parts) > 1 else None
    chart = bars.mark_bar(height={"band": 0.75}).encode(
        y=_names("row", "sorted"),
        x=alt.X("value:Q", title=title, stack="zero", axis=alt.Axis(format=",~f", tickCount=6, grid=True)),
        color=alt.Color("part:N", title=None, scale=alt.Scale(domain=parts), legend=legend),
        order="order:Q",
        tooltip=_tips(("part", "Part"), ("value", title.rpartition(", ")[2]), (total, "Total")),
    )
    return finished(_doubted(chart, domains) if timed else chart)


def roofline(domains: Domains) -> Spec:
    """The rate of each configuration against its FLOPs per byte, below the roofs."""
    x, y = alt.X(**_roofed("intensity", "FLOPs per byte moved")), alt.Y(**_roofed("tflops", "TFLOP/s"))
    roofs = alt.Chart(alt.NamedData("roofs")).encode(x=x, y=y)
    roof = roofs.mark_line(strokeWidth=1.5).encode(detail="precision:N", color=_MUTED)
    name = (
        roofs.transform_filter("datum.label").mark_text(align="right", baseline="bottom", dy=-3).encode(text="label:N")
    )
    tips = _tips(("tflops", "TFLOP/s"), ("intensity", "FLOPs a byte"), ("fraction_of_peak", "Of the roof"))
    dots = alt.Chart(_LINES).mark_point()
    dots = dots.encode(x=x, y=y, color=_engine(domains), shape=_precision(domains), tooltip=tips)
    return finished(alt.layer(roof, name, _doubted(dots, domains)).properties(height=_HEIGHT))


def layers(domains: Domains) -> Spec:
    """The longest groups of nodes, each with a bar a variant."""
    tips = [alt.Tooltip(f"{field}:N", title=field.capitalize()) for field in ("modules", "nodes", "variant")]
    bars = (
        alt.Chart(alt.NamedData("layers"))
        .mark_bar(height={"band": 0.9})
        .encode(
            y=_names("nodes", "ms", op="max", order="descending"),
            yOffset=alt.YOffset("variant:N", sort=list(domains.variants)),
            x=alt.X("ms:Q", title="Time, ms", axis=alt.Axis(format=",~f", tickCount=6, grid=True)),
            color=_engine(domains),
            tooltip=[*tips, alt.Tooltip("ms:Q", title="ms", format=",.4r")],
        )
    )
    return finished(bars)


def samples(domains: Domains) -> Spec:
    """A tick a sample, by how far it is from its configuration's median."""
    ticks = alt.Chart(_LINES).transform_flatten(["ticks"])
    ticks = ticks.transform_calculate(away="datum.ticks / datum.latency_ms - 1")
    label = "datum.value ? datum.label : '0'"
    axis = alt.Axis(format="+.1~%", labelExpr=label, tickCount=8, labelOverlap="greedy", grid=True)
    scale = alt.Scale(domain=list(domains.away), clamp=True, nice=False, padding=6)
    marks = ticks.mark_tick(opacity=0.8, height=13).encode(
        y=_names("configuration", "step", grid=True),
        x=alt.X("away:Q", title="Deviation from the median", scale=scale, axis=axis),
        color=_engine(domains),
        tooltip=_tips(("ticks", "Sample, ms"), ("latency_ms", "Median, ms")),
    )
    return finished(_doubted(marks, domains))


def break_even(domains: Domains) -> Spec:
    """The seconds until so many items are done, set-up included."""
    decades = ceil(log10(max(domains.items, 100))) + 1
    items = [round(10 ** (step / 4), 3) for step in range(4 * decades + 1)]
    lines = alt.Chart(_LINES).transform_calculate(items=str(items)).transform_flatten(["items"])
    lines = lines.transform_calculate(seconds="datum.set_up_s + datum.items * datum.item_s")
    once, each = _range("set_up_s"), _range("item_s")
    ends = f"[{once}[0] + {each}[0], {once}[1] + {items[-1]} * {each}[1]]"
    axis = alt.Axis(format="~s", tickCount=decades, labelOverlap="greedy")
    legend = alt.Undefined if len(domains.precisions) > 1 else None
    drawn = lines.mark_line().encode(
        x=alt.X("items:Q", title="Items done", scale=alt.Scale(type="log", nice=False), axis=axis),
        y=alt.Y(**_log("seconds", "Seconds, set-up included", ends)),
        color=_engine(domains),
        strokeDash=alt.StrokeDash("precision:N", title="Precision", scale=_dashes(domains), legend=legend),
        detail="configuration:N",
        tooltip=_tips(("items", "Items"), ("seconds", "Seconds")),
    )
    return finished(_doubted(drawn, domains).properties(height=_HEIGHT))


def _doubted(chart: alt.Chart, domains: Domains) -> alt.Chart:
    """Lighter where a row was disturbed, with a legend and a line in the tip; as it is where none was."""
    if not domains.disturbed:
        return chart
    scale = alt.Scale(domain=list(STATES), range=[1, 0.3])
    tips = [*chart.encoding.tooltip, alt.Tooltip("measured:N", title="Measured")]
    return chart.encode(opacity=alt.Opacity("measured:O", title="Measured", scale=scale), tooltip=tips)


def _engine(domains: Domains) -> alt.Color:
    return alt.Color("variant:N", title="Engine", scale=alt.Scale(domain=list(domains.variants)))


def _precision(domains: Domains) -> alt.Shape:
    known = list(domains.precisions)
    scale = alt.Scale(domain=known, range=[_SHAPES[i % len(_SHAPES)] for i in range(len(known))])
    return alt.Shape("precision:N", title="Precision", scale=scale, legend=alt.Undefined if len(known) > 1 else None)


def _dashes(domains: Domains) -> alt.Scale:
    known = list(domains.precisions)
    return alt.Scale(domain=known, range=[_DASHES[i % len(_DASHES)] for i in range(len(known))])


def logarithmic(field: str, title: str, values: Any = ROUND) -> dict[str, Any]:
    """A logarithmic axis with plain numbers; those of `values` are named that are in its range."""
    axis = alt.Axis(title=title, format=",", labelOverlap="greedy", grid=True, values=values)
    return {"shorthand": f"{field}:Q", "scale": alt.Scale(type="log", nice=False, padding=14), "axis": axis}


def _log(field: str, title: str, *ranges: str) -> dict[str, Any]:
    """A logarithmic axis over `ranges` (else that of the field), whose ends are of `ROUND` and so have their label.

    Less than 1 to 5 has the renderer's finer ticks.
    """
    every = ", ".join(f"{one}[0], {one}[1]" for one in ranges or [_range(field)])
    low, high = (f"extent([{every}])[{end}]" for end in (0, 1))

    def rounded(value: str, digits: str) -> str:
        power = f"pow(10, floor(log({value}) / LN10 + 1e-9))"
        return f"{power} * " + digits.replace("digit", f"({value}) / {power}")

    below = rounded(low, "(digit < 2 ? 1 : digit < 5 ? 2 : 5)")
    # A single value needs a range, too.
    above = rounded(f"max({high}, 1.01 * {low})", "(digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10)")
    named = logarithmic(field, title, alt.ExprRef(f"{high} > 5 * {low} ? {ROUND} : null"))
    return named | {"scale": alt.Scale(type="log", nice=False, padding=14, domain=alt.ExprRef(f"[{below}, {above}]"))}


def _range(field: str, data: str = "lines") -> str:
    return f"extent(pluck(data('{data}'), '{field}'))"


def _speedup(domains: Domains, *more: str) -> alt.X:
    """The axis of speed-ups, whose range has the base's own, 1, in it."""
    title = f"Speed-up over {domains.base}, ×"
    return alt.X(**_log("speedup", title, "[1, 1]", *map(_range, ("speedup", *more))))


def _roofed(field: str, title: str) -> dict[str, Any]:
    return _log(field, title, _range(field), _range(field, "roofs"))


def _names(field: str, by: str, op: Any = "min", order: Any = "ascending", grid: bool = False) -> alt.Y:
    """Rows with a name each, in the order of another field."""
    axis = alt.Axis(domain=False, ticks=False, grid=grid)
    return alt.Y(f"{field}:N", title=None, sort=alt.EncodingSortField(by, op=op, order=order), axis=axis)


def _tips(*figures: Tip) -> list[alt.Tooltip]:
    """What a point says: what it is, then these figures."""
    known = [alt.Tooltip("model:N", title="Model"), alt.Tooltip("configuration:N", title="Engine")]
    known.append(alt.Tooltip("batch_size:Q", title="Batch"))
    for field, title in figures or (
        ("latency_ms", "Latency, ms"),
        ("throughput", "Items/s"),
        ("speedup", "Speed-up, ×"),
    ):
        words = field == "part"
        known.append(
            alt.Tooltip(f"{field}:{'N' if words else 'Q'}", title=title, format=alt.Undefined if words else ",.4r")
        )
    return known


def _unity() -> alt.Chart:
    rule: alt.Chart = alt.Chart(alt.InlineData([{}])).mark_rule(strokeDash=[4, 3]).encode(x=alt.datum(1))
    return rule


def finished(chart: Any, width: str | None = "container") -> Spec:
    """As wide as its place on the page; panels (None) get their width where they are drawn."""
    # Altair would check each against Vega-Lite's schema, which takes longer than all else; the tests do.
    spec: Spec = (chart.properties(width=width) if width else chart).to_dict(validate=False)
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
