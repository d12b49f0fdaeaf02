"""Specify the pictures of a published benchmark in Vega-Lite; their data come by the names "rows" and "names"."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.report.chart_specs import Spec, field, layered, lighter, logarithmic, view
from profiler.report.palette import variables

STATES = ("undisturbed", "host-bound or disturbed")
"""What a row's `measured` says; rows of the second are drawn lighter."""
ERRORS_HEIGHT = 420
_COLOURS = variables()
_ROUND = [digit * 10**power for power in range(-4, 6) for digit in (1, 2, 5)]
"""Ticks of logarithmic axes."""
_FINE = [digit * value for value in _ROUND[::3] for digit in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
_NARROW = 5
"""Up to this factor a scale needs finer ticks than 1, 2 and 5."""
_ERRORS = [2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30]
_SHAPES = ["diamond", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left"]
"""Of published machines; own ones are circles."""
_LEGEND = {"labelLimit": 300}
_SMALL = 10
_LETTER = 5.4
"""Pixels of the text on bars, and of one of its letters on average."""


def groups(networks: Sequence[str], own: Sequence[str], others: Sequence[str], light: bool, far_apart: bool) -> Spec:
    """A group of bars a network, each from zero to its time as a share (`share`) of the longest of the group.

    A bar's name and figure (`text`) stand in it, or behind it where it is short. The bars of `own` have the data's
    colours, `others` are muted; `light` says whether any is lighter. The set "names" has the networks, at place 0.
    Times that are too `far_apart` for bars are points on one logarithmic scale.
    """
    rows, colour, ink = len(own) + len(others), _colour(own, others, None), {"value": _COLOURS.ink}
    if far_apart:
        drawn = {**_groups(networks, rows), "x": logarithmic("figure", "Milliseconds", values=_ROUND)}
        encoding = {**drawn, "color": colour, "shape": _shape(own, others, None, _SHAPES[:1]), "tooltip": _tips()}
        mark = view("point", _lighter(encoding, light), data="rows", size=55)
        ends = f"datum.share * width + {_LETTER} * length(datum.text) + 10 > width"
        texts = _texts(drawn, ends, 8, ink)
    else:
        x = field("share:Q", title=None, axis=None, scale={"domain": [0, 1], "nice": False})
        drawn = {**_groups(networks, rows, paddingInner=0.12), "x": x}
        mark = view("bar", _lighter({**drawn, "color": colour, "tooltip": _tips()}, light), data="rows")
        fits = f"datum.share * width > {_LETTER} * length(datum.text) + 12"
        doubted = {"test": f"datum.measured === '{STATES[1]}'", **ink}
        texts = _texts(drawn, fits, 5, {"condition": doubted, "value": _COLOURS.paper})
    named = {**_groups(networks, rows), "x": {"value": 0}, "text": field("network:N"), "color": ink}
    return layered(mark, *texts, view("text", named, data="names", align="left", fontWeight="bold", aria=False))


def over_batches(
    networks: Sequence[str], own: Sequence[str], others: Sequence[str], sizes: Sequence[int], light: bool, apart: float
) -> Spec:
    """A panel a network: milliseconds per sample against the minibatch, a line each of `own` and `others`.

    `apart` is the greatest factor between two times of a panel. Panels get their width where they are drawn.
    """
    powers = [size for size in sizes if size & (size - 1) == 0]
    axis = {"values": powers[:: 2 if len(powers) > 6 else 1], "format": ",", "grid": False}
    scale = {"type": "log", "base": 2, "nice": False, "padding": 8}
    places = {
        "x": field("batch_size:Q", title=None, scale=scale, axis=axis),
        "y": logarithmic("ms", "", values=_ROUND if apart > _NARROW else _FINE),
    }
    line = {**places, "color": _colour(own, others, _LEGEND)}
    point = {**line, "shape": _shape(own, others, _LEGEND), "tooltip": _tips(("batch_size", "Minibatch"))}
    views = [
        view("line", line, data="rows", strokeWidth=1.75),
        # Without it the line shows through a lighter point.
        view("point", {**places, "color": {"value": _COLOURS.paper}}, data="rows", size=60, aria=False),
        view("point", _lighter(point, light), data="rows", size=50),
    ]
    header = {"labelAnchor": "start", "labelFontSize": 12, "labelColor": _COLOURS.ink, "labelPadding": 4}
    return {
        "data": views[0]["data"],
        "facet": field("network:N", title=None, sort=list(networks), header=header),
        "spacing": 16,
        # A panel's views draw its part of the data.
        "spec": {"layer": [{k: v for k, v in view.items() if k != "data"} for view in views], "height": 170},
        "resolve": {"scale": {"y": "independent"}, "axis": {"x": "independent"}},
    }


def errors(own: Sequence[str], others: Sequence[str], times: tuple[float, float], light: bool) -> Spec:
    """The error of each network against its time on every machine: a line a network, whose name is at its left.

    `times` are the ends of the axis in milliseconds. The set "names" has the networks with their `error`, their least
    and greatest time, `low` and `high`, the error at which the name is written, `place`, and the time at which it ends,
    `start`.
    """
    values = [tick for tick in _ROUND if times[0] * (times[1] / times[0]) ** 0.2 < tick <= times[1]]
    time = logarithmic("ms", "Milliseconds per image", values=values)
    error = logarithmic("error", "Top-5 error, %", values=_ERRORS)
    error["axis"] |= {"grid": False, "ticks": False}
    text = {"x": {"value": 6}, "y": field("place:Q"), "text": field("network:N")}
    leader = {"x": field("start:Q"), "x2": {"field": "low"}, "y": field("place:Q"), "y2": {"field": "error"}}
    line = {"x": field("low:Q"), "x2": {"field": "high"}, "y": field("error:Q")}
    rule: Spec = {"data": "names", "strokeWidth": 0.75, "color": _COLOURS.rule, "aria": False}
    points = {
        "x": {**time, "scale": {"type": "log", "nice": False, "domain": list(times)}},
        "y": error,
        "color": _colour(own, others, _LEGEND),
        "shape": _shape(own, others, _LEGEND),
        "tooltip": _tips(("error", "Top-5 error, %")),
    }
    return layered(
        view("rule", leader, **rule),
        view("rule", line, **rule),
        view("point", _lighter(points, light), data="rows", size=75),
        view("text", text, data="names", align="left", fontSize=11, aria=False),
        height=ERRORS_HEIGHT,
    )


def _groups(networks: Sequence[str], rows: int, **padding: float) -> Spec:
    """A group a network: the row of its name, and `rows` more."""
    bands = {"domain": list(networks), "paddingInner": 0.1, "paddingOuter": 0}
    places = {"domain": list(range(rows + 1)), **padding}
    return {
        "y": field("network:N", title=None, scale=bands, axis=None),
        "yOffset": field("place:O", scale=places),
    }


def _texts(drawn: Spec, before: str, away: int, colour: Spec) -> list[Spec]:
    """The text of each mark, `away` pixels behind its end; before it in that colour where the expression holds."""
    text, style = {**drawn, "text": field("text:N")}, Spec(data="rows", fontSize=_SMALL, aria=False)
    behind = {**text, "color": {"value": _COLOURS.ink}}
    return [
        view("text", {**text, "color": colour}, {"filter": before}, align="right", dx=-away, **style),
        view("text", behind, {"filter": f"!({before})"}, align="left", dx=away, **style),
    ]


def _tips(*more: tuple[str, str]) -> list[Spec]:
    fields = [("network", "Network"), ("name", "Measured in"), *more, ("figure", "ms"), ("measured", "Measured")]
    return [field(f"{name}:N", title=title) for name, title in fields]


def _colour(own: Sequence[str], others: Sequence[str], legend: Spec | None) -> Spec:
    """A colour of the data's for each of `own`; the others are muted."""
    series = [_COLOURS.series[i % len(_COLOURS.series)] for i in range(len(own))]
    scale = {"domain": [*own, *others], "range": [*series, *[_COLOURS.muted] * len(others)]}
    return field("name:N", title=None, scale=scale, legend=legend)


def _shape(own: Sequence[str], others: Sequence[str], legend: Spec | None, among: Sequence[str] = _SHAPES) -> Spec:
    shapes = ["circle"] * len(own) + [among[i % len(among)] for i in range(len(others))]
    return field("name:N", title=None, scale={"domain": [*own, *others], "range": shapes}, legend=legend)


def _lighter(encoding: Spec, light: bool) -> Spec:
    """With the lighter rows lighter and a legend of it; as it is where there are none."""
    return lighter(encoding, STATES, 0.35, title=None) if light else encoding
