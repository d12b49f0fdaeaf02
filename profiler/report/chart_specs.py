"""Specify each chart in Vega-Lite, without its data.

A specification holds no text of the user's but as a value in a scale's domain, which no renderer interprets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from profiler.results.columns import parts

Spec = dict[str, Any]

MEMORY = [*parts("peak_memory_mib"), "undivided_mib"]
"""The last is the rest of the peak: all of it on a CPU."""

_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 2, 1, 2], [1, 3], [10, 2]]
"""Of precisions; colours tell engines apart."""
_INK, _MUTED = alt.value("var(--ink)"), alt.value("var(--muted)")
_LINES = alt.NamedData("lines")
_HEIGHT = 380
ROUND = [digit * 10**power for power in range(-6, 10) for digit in (1, 2, 5)]
"""Ticks of logarithmic axes."""
Tip = tuple[str, str]
"""A field and its title."""


@dataclass(frozen=True)
class Domains:
    """What the scales must hold, so that a configuration looks the same whatever else is chosen.

    Variants and precisions in the order of steps, batch sizes of sweeps, parts of memory that occur, the sizes of
    dimensions that have several, and the base of all speed-ups.
    """

    variants: Sequence[str]
    precisions: Sequence[str]
    batches: Sequence[int]
    parts: Sequence[str]
    dimensions: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    base: str = "the base"


def speedups(domains: Domains) -> Spec:
    """Draw each configuration's factor with its interval."""
    lines = alt.Chart(_LINES).encode(y=_names("configuration", "step", grid=True), yOffset=alt.YOffset("batch_size:N"))
    title, ends = f"Speed-up over {domains.base}, ×", ("factor", "factor_low", "factor_high")
    x = alt.X(**_log("factor", title, "[1, 1]", *map(_range, ends)))
    bar = lines.mark_rule(strokeWidth=2).encode(x=alt.X("factor_low:Q"), x2="factor_high:Q", color=_INK)
    dot = lines.mark_point().encode(
        x=x,
        color=alt.Color("batch_size:N", title="Batch size"),
        shape=alt.Shape("batch_size:N", title="Batch size"),
        tooltip=_tips(("factor", "Speed-up, ×"), ("factor_low", "95 % from"), ("factor_high", "to")),
    )
    unity = alt.Chart(alt.InlineData([{}])).mark_rule(strokeDash=[4, 3]).encode(x=alt.datum(1))
    return finished(alt.layer(unity, bar, dot))


def latency(domains: Domains, every: Sequence[int], axis: Tip, data: str) -> Spec:
    """Draw latency with its interval against sizes, a line for each configuration; `axis` names the sizes' field."""
    values, (name, named) = list(every), axis
    if len(values) > 10:
        values = [size for size in values if size & (size - 1) == 0] or values[:: len(values) // 10]
    scale = alt.Scale(type="log", base=2, nice=False, padding=18, domain=[values[0], values[-1]])
    x = alt.X(f"{name}:Q", title=named, scale=scale, axis=alt.Axis(values=values, format=",", grid=False))
    ends = [_range(field, data) for field in ("latency_ms", "latency_low_ms", "latency_high_ms")]
    lines = alt.Chart(alt.NamedData(data)).encode(x=x, color=_engine(domains))
    y = alt.Y(**_log("latency_ms", "Latency, ms", *ends))
    # A field of its own, so that it does not change the legend of the shapes, which tells the same apart.
    dash = alt.StrokeDash("dash:N", scale=_dashes(domains), legend=None)
    line = lines.transform_calculate(dash="datum.precision").mark_line(strokeWidth=1.75).encode(y=y, strokeDash=dash)
    bar = lines.mark_rule(strokeWidth=1.5).encode(y=alt.Y("latency_low_ms:Q"), y2="latency_high_ms:Q")
    tips = _tips(("latency_ms", "Latency, ms"), ("latency_low_ms", "95 % from"), ("latency_high_ms", "to"))
    tips += [alt.Tooltip(f"{name}:Q", title=named)] if name != "batch_size" else []
    dot = lines.mark_point(size=60).encode(y=y, shape=_precision(domains), tooltip=tips)
    # Independent, since Vega-Lite gives up merging the layers' legends at the first that is none.
    return finished(alt.layer(line, bar, dot).resolve_legend(strokeDash="independent").properties(height=_HEIGHT))


def throughput(domains: Domains) -> Spec:
    """Draw throughput against latency, and mark the Pareto front."""
    lines = alt.Chart(_LINES).encode(
        x=alt.X(**_log("latency_ms", "Latency of one call, ms")),
        y=alt.Y(**_log("throughput", "Items per second")),
    )
    front = lines.transform_window(best="max(throughput)", sort=[alt.SortField("latency_ms")])
    front = front.transform_filter("datum.throughput >= datum.best").encode(color=_MUTED)
    path = front.mark_line(interpolate="step-after", strokeWidth=1.5, strokeDash=[4, 3])
    ring = front.mark_point(size=260, filled=False, strokeWidth=1.5, shape="circle")
    dots = lines.mark_point(size=80).encode(color=_engine(domains), shape=_precision(domains), tooltip=_tips())
    return finished(alt.layer(path, ring, dots).properties(height=_HEIGHT))


def memory(domains: Domains) -> Spec:
    """Draw each configuration's peak as a bar of its parts, the least first."""
    known = list(domains.parts) or MEMORY
    bars = alt.Chart(_LINES).transform_fold([*known], as_=["part", "value"]).transform_filter("isValid(datum.value)")
    bars = bars.transform_calculate(order=f"indexof({known!r}, datum.part)")
    labels = "replace(replace(datum.label, '_mib', ''), '_', ' ')"
    legend = alt.Legend(labelExpr=labels) if len(known) > 1 else None
    axis = alt.Axis(format=",~f", tickCount=6, grid=True)
    chart = bars.mark_bar(height={"band": 0.75}).encode(
        y=_names("configuration", "peak_memory_mib"),
        x=alt.X("value:Q", title="Peak memory, MiB", stack="zero", axis=axis),
        color=alt.Color("part:N", title=None, scale=alt.Scale(domain=known), legend=legend),
        order="order:Q",
        tooltip=_tips(("part", "Part"), ("value", "MiB"), ("peak_memory_mib", "Total")),
    )
    return finished(chart)


def roofline(domains: Domains) -> Spec:
    """Draw the rate of each configuration against its FLOPs per byte, below the roofs."""
    x, y = alt.X(**_roofed("intensity", "FLOPs per byte moved")), alt.Y(**_roofed("tflops", "TFLOP/s"))
    roofs = alt.Chart(alt.NamedData("roofs")).encode(x=x, y=y)
    roof = roofs.mark_line(strokeWidth=1.5).encode(detail="precision:N", color=_MUTED)
    name = (
        roofs.transform_filter("datum.label").mark_text(align="right", baseline="bottom", dy=-3).encode(text="label:N")
    )
    tips = _tips(("tflops", "TFLOP/s"), ("intensity", "FLOPs a byte"), ("fraction_of_peak", "Of the roof"))
    dots = alt.Chart(_LINES).mark_point()
    dots = dots.encode(x=x, y=y, color=_engine(domains), shape=_precision(domains), tooltip=tips)
    return finished(alt.layer(roof, name, dots).properties(height=_HEIGHT))


def layers(domains: Domains) -> Spec:
    """Draw the longest groups of nodes, each with a bar a variant."""
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
    """Return a logarithmic axis with plain numbers, whose ticks are those of `values` in its range."""
    axis = alt.Axis(title=title, format=",", labelOverlap="greedy", grid=True, values=values)
    return {"shorthand": f"{field}:Q", "scale": alt.Scale(type="log", nice=False, padding=14), "axis": axis}


def _log(field: str, title: str, *ranges: str) -> dict[str, Any]:
    """Return a logarithmic axis over `ranges` (else that of the field), whose ends are of `ROUND` and have a label.

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


def _roofed(field: str, title: str) -> dict[str, Any]:
    return _log(field, title, _range(field), _range(field, "roofs"))


def _names(field: str, by: str, op: Any = "min", order: Any = "ascending", grid: bool = False) -> alt.Y:
    """Return an axis of named rows, in the order of another field."""
    axis = alt.Axis(domain=False, ticks=False, grid=grid)
    return alt.Y(f"{field}:N", title=None, sort=alt.EncodingSortField(by, op=op, order=order), axis=axis)


def _tips(*figures: Tip) -> list[alt.Tooltip]:
    known = [alt.Tooltip("model:N", title="Model"), alt.Tooltip("configuration:N", title="Engine")]
    known.append(alt.Tooltip("batch_size:Q", title="Batch"))
    for field, title in figures or (
        ("latency_ms", "Latency, ms"),
        ("throughput", "Items/s"),
        ("factor", "Speed-up, ×"),
    ):
        words = field == "part"
        known.append(
            alt.Tooltip(f"{field}:{'N' if words else 'Q'}", title=title, format=alt.Undefined if words else ",.4r")
        )
    return known


def finished(chart: Any, width: str | None = "container") -> Spec:
    """Return the specification, as wide as its place; panels (None) get their width where they are drawn."""
    # Altair would check each against Vega-Lite's schema, which takes longer than all else; the tests do.
    spec: Spec = (chart.properties(width=width) if width else chart).to_dict(validate=False)
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
