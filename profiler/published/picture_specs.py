"""Specify the pictures of a published benchmark in Vega-Lite; their data come by the names "rows" and "names"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from profiler.report.chart_specs import ROUND, Spec, finished, logarithmic
from profiler.report.palette import variables

ERRORS_HEIGHT = 420
_COLOURS = variables()
_ROWS = alt.NamedData("rows")
_FINE = [digit * value for value in ROUND[::3] for digit in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
_NARROW = 5
"""Up to this factor a scale needs finer ticks than 1, 2 and 5."""
_ERRORS = [2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30]
_SHAPES = ["diamond", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left"]
"""Of published machines; own ones are circles."""
_LEGEND = alt.Legend(labelLimit=300)
_SMALL = 10
_LETTER = 5.4
"""Pixels of the text on bars, and of one of its letters on average."""


def groups(networks: Sequence[str], own: Sequence[str], others: Sequence[str], far_apart: bool) -> Spec:
    """A group of bars a network, each from zero to its time as a share (`share`) of the longest of the group.

    A bar's name and figure (`text`) stand in it, or behind it where it is short. The bars of `own` have the data's
    colours, `others` are muted. The set "names" has the networks, at place 0. Times that are too `far_apart` for bars
    are points on one logarithmic scale.
    """
    rows, colour, ink = len(own) + len(others), _colour(own, others, None), alt.value(_COLOURS.ink)
    if far_apart:
        drawn = _groups(_ROWS, networks, rows).encode(x=alt.X(**logarithmic("figure", "Milliseconds")))
        mark = drawn.mark_point(size=55).encode(color=colour, shape=_shape(own, others, None, _SHAPES[:1]))
        ends = f"datum.share * width + {_LETTER} * length(datum.text) + 10 > width"
        texts = _texts(drawn, ends, 8, ink)
    else:
        x = alt.X("share:Q", title=None, axis=None, scale=alt.Scale(domain=[0, 1], nice=False))
        drawn = _groups(_ROWS, networks, rows, padding=0.12).encode(x=x)
        mark = drawn.mark_bar().encode(color=colour)
        fits = f"datum.share * width > {_LETTER} * length(datum.text) + 12"
        texts = _texts(drawn, fits, 5, alt.value(_COLOURS.paper))
    headings = _groups(alt.NamedData("names"), networks, rows).mark_text(align="left", fontWeight="bold", aria=False)
    headings = headings.encode(x=alt.value(0), text="network:N", color=ink)
    return finished(alt.layer(mark.encode(tooltip=_tips()), *texts, headings))


def over_batches(
    networks: Sequence[str], own: Sequence[str], others: Sequence[str], sizes: Sequence[int], apart: float
) -> Spec:
    """A panel a network: milliseconds per sample against the minibatch, a line each of `own` and `others`.

    `apart` is the greatest factor between two times of a panel.
    """
    powers = [size for size in sizes if size & (size - 1) == 0]
    axis = alt.Axis(values=powers[:: 2 if len(powers) > 6 else 1], format=",", grid=False)
    chart = alt.Chart(_ROWS).encode(
        x=alt.X("batch_size:Q", title=None, scale=alt.Scale(type="log", base=2, nice=False, padding=8), axis=axis),
        y=alt.Y(**logarithmic("ms", "", values=ROUND if apart > _NARROW else _FINE)),
    )
    colour, shape = _colour(own, others, _LEGEND), _shape(own, others, _LEGEND)
    line = chart.mark_line(strokeWidth=1.75).encode(color=colour)
    point = chart.mark_point(size=50).encode(color=colour, shape=shape, tooltip=_tips(("batch_size", "Minibatch")))
    header = alt.Header(labelAnchor="start", labelFontSize=12, labelColor=_COLOURS.ink, labelPadding=4)
    panels = alt.layer(line, point).properties(height=170)
    panels = panels.facet(alt.Facet("network:N", title=None, sort=list(networks), header=header), spacing=16)
    return finished(panels.resolve_scale(y="independent").resolve_axis(x="independent"), width=None)


def errors(own: Sequence[str], others: Sequence[str], times: tuple[float, float]) -> Spec:
    """The error of each network against its time on every machine: a line a network, whose name is at its left.

    `times` are the ends of the axis in milliseconds. The set "names" has the networks with their `error`, their least
    and greatest time, `low` and `high`, the error at which the name is written, `place`, and the time at which it ends,
    `start`.
    """
    values = [tick for tick in ROUND if times[0] * (times[1] / times[0]) ** 0.2 < tick <= times[1]]
    scale = {"scale": alt.Scale(type="log", nice=False, domain=list(times))}
    time = logarithmic("ms", "Milliseconds per image", values=values) | scale
    error = logarithmic("error", "Top-5 error, %", values=_ERRORS)
    error["axis"].grid = error["axis"].ticks = False
    names = alt.Chart(alt.NamedData("names"))
    text = names.mark_text(align="left", fontSize=11, aria=False).encode(
        x=alt.value(6), y=alt.Y("place:Q"), text="network:N"
    )
    rule = names.mark_rule(strokeWidth=0.75, color=_COLOURS.rule, aria=False)
    leader = rule.encode(x=alt.X("start:Q"), x2="low:Q", y=alt.Y("place:Q"), y2="error:Q")
    line = rule.encode(x=alt.X("low:Q"), x2="high:Q", y=alt.Y("error:Q"))
    points = alt.Chart(_ROWS).mark_point(size=75)
    points = points.encode(
        x=alt.X(**time),
        y=alt.Y(**error),
        color=_colour(own, others, _LEGEND),
        shape=_shape(own, others, _LEGEND),
        tooltip=_tips(("error", "Top-5 error, %")),
    )
    return finished(alt.layer(leader, line, points, text).properties(height=ERRORS_HEIGHT))


def _groups(data: alt.NamedData, networks: Sequence[str], rows: int, padding: float | None = None) -> alt.Chart:
    """A group a network: the row of its name, and `rows` more."""
    bands = alt.Scale(domain=list(networks), paddingInner=0.1, paddingOuter=0)
    places = alt.Scale(domain=list(range(rows + 1)), paddingInner=alt.Undefined if padding is None else padding)
    chart: alt.Chart = alt.Chart(data).encode(
        y=alt.Y("network:N", title=None, scale=bands, axis=None), yOffset=alt.YOffset("place:O", scale=places)
    )
    return chart


def _texts(drawn: alt.Chart, before: str, away: int, colour: Any) -> list[alt.Chart]:
    """The text of each mark, `away` pixels behind its end; before it in that colour where the expression holds."""
    left = drawn.transform_filter(before).mark_text(align="right", dx=-away, fontSize=_SMALL, aria=False)
    right = drawn.transform_filter(f"!({before})").mark_text(align="left", dx=away, fontSize=_SMALL, aria=False)
    return [left.encode(text="text:N", color=colour), right.encode(text="text:N", color=alt.value(_COLOURS.ink))]


def _tips(*more: tuple[str, str]) -> list[alt.Tooltip]:
    fields = [("network", "Network"), ("name", "Measured in"), *more, ("figure", "ms")]
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in fields]


def _colour(own: Sequence[str], others: Sequence[str], legend: alt.Legend | None) -> alt.Color:
    """A colour of the data's for each of `own`; the others are muted."""
    series = [_COLOURS.series[i % len(_COLOURS.series)] for i in range(len(own))]
    scale = alt.Scale(domain=[*own, *others], range=[*series, *[_COLOURS.muted] * len(others)])
    return alt.Color("name:N", title=None, scale=scale, legend=legend)


def _shape(
    own: Sequence[str], others: Sequence[str], legend: alt.Legend | None, among: Sequence[str] = _SHAPES
) -> alt.Shape:
    shapes = ["circle"] * len(own) + [among[i % len(among)] for i in range(len(others))]
    return alt.Shape("name:N", title=None, scale=alt.Scale(domain=[*own, *others], range=shapes), legend=legend)
