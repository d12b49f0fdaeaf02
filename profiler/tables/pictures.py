"""Draw rows as an SVG: panels of dots, or of lines over the batch size, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl
import vl_convert

COLORS = {"fp32": "#3b6fb6", "tf32": "#2a9d8f", "fp16": "#d1495b", "amp-fp16": "#e39b2d"}
PUBLISHED = ("#222831", "#8d6e63", "#7e57c2", "#9e9d24", "#5f7d8c", "#b0718f")
"""Colours of the published machines, in the order of the rows."""
SHAPES = {"forward + backward": "circle", "forward": "triangle-up"}
WIDTH = 800
"""Width of a page on GitHub, in pixels; GitHub shrinks wider pictures."""
_LETTER = 6
"""Greatest width of a label's letter, in pixels."""
_AXIS = alt.Axis(format="~r", values=[10.0**power for power in range(-6, 9)], labelOverlap="parity")


def dots(rows: pl.DataFrame, columns: Sequence[str], heading: str) -> Any:
    """Draw `value` and its interval: one panel per `network`, one row per `side`, the fastest on top.

    Two sides are ranked by the networks and passes that both ran, since most ran only some.
    """
    both = rows.join(rows, on=["network", "pass"], suffix="_other")
    slower = (pl.col("value") / pl.col("value_other")).log().mean().sign()
    signs = both.group_by("side", "side_other").agg(slower=slower).group_by("side").agg(pl.col("slower").mean())
    order = signs.sort("slower", "side")["side"].to_list()
    machines = [kind for kind in rows["kind"].unique(maintain_order=True) if kind not in COLORS]
    colors = COLORS | dict(zip(machines, PUBLISHED * len(machines), strict=False))
    labels = _LETTER * max(map(len, order))
    base = alt.Chart().encode(
        x=alt.X("value:Q", title=None, scale=alt.Scale(type="log", nice=False, padding=10), axis=_AXIS),
        y=alt.Y("side:N", title=None, sort=order, axis=alt.Axis(labelLimit=labels, ticks=False)),
        color=_scale(alt.Color, "kind", rows, list(colors), list(colors.values())),
    )
    whiskers = base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    layers = alt.layer(whiskers, _points(base, rows), data=_data(rows))
    panels = rows["network"].n_unique()
    across = panels if panels <= 5 else min(5, (panels + 1) // 2)
    width = (WIDTH - labels) // across - 10
    return _panels(layers.properties(width=width, height=alt.Step(15)), rows, columns, heading, across)


def sweep(rows: pl.DataFrame, columns: Sequence[str], heading: str) -> Any:
    """Draw `value` over `batch_size`: one panel per `network`, a line per `side` and pass. `hollow` dots are empty."""
    labels = rows["side"].unique(maintain_order=True).to_list()
    sizes = alt.Axis(values=[2.0**power for power in range(0, 21, 2)])
    base = alt.Chart().encode(
        x=alt.X("batch_size:Q", title="images per minibatch", scale=alt.Scale(type="log", base=2), axis=sizes),
        y=alt.Y("value:Q", title="ms per image", scale=alt.Scale(type="log", nice=False, padding=8), axis=_AXIS),
        color=_scale(alt.Color, "side", rows, labels, ["#3b6fb6", "#e39b2d", "#2a9d8f", "#d1495b"]),
    )
    lines = base.mark_line(strokeWidth=1.5).encode(detail="pass:N")
    hollow = _points(base, rows, fill="white", strokeWidth=1.5).transform_filter("datum.hollow")
    layers = alt.layer(lines, _points(base, rows).transform_filter("!datum.hollow"), hollow, data=_data(rows))
    heading += "; hollow: host-bound, or the device's time is unknown" if rows["hollow"].any() else ""
    return _panels(layers.properties(width=205, height=170), rows, columns, heading, 3)


def svg(charts: Sequence[Any], title: str) -> str:
    """Draw charts below one another as an SVG."""
    config = alt.Config(background="white", font="Arial, sans-serif", aria=False, axis=alt.AxisConfig(labelFontSize=11))
    whole = alt.vconcat(*charts, title=alt.TitleParams(title, anchor="start"), spacing=24).properties(config=config)
    return str(vl_convert.vegalite_to_svg(whole.resolve_scale(color="independent", shape="independent").to_dict()))


def _points(base: alt.Chart, rows: pl.DataFrame, **mark: Any) -> Any:
    shape = _scale(alt.Shape, "pass", rows, list(SHAPES), list(SHAPES.values()))
    return base.mark_point(size=45, opacity=1, **(mark or {"filled": True})).encode(shape=shape)


def _scale(channel: Any, field: str, rows: pl.DataFrame, domain: list[str], values: list[str]) -> Any:
    """Map a field's values to colours or shapes, with a legend for several values."""
    present = [value for value in domain if value in rows[field].unique()]
    legend = alt.Legend(values=present, orient="top", labelLimit=400, columns=4) if len(present) > 1 else None
    return channel(f"{field}:N", title=None, scale=alt.Scale(domain=domain, range=values), legend=legend)


def _data(rows: pl.DataFrame) -> alt.InlineData:
    # Round, since processors differ in the last digit of a logarithm.
    return alt.InlineData(rows.with_columns(pl.col(pl.Float64).round_sig_figs(5)).to_dicts())


def _panels(chart: Any, rows: pl.DataFrame, columns: Sequence[str], heading: str, across: int) -> Any:
    present = [name for name in columns if name in rows["network"].unique()]
    facet = alt.Facet("network:N", title=None, sort=present, header=alt.Header(labelFontWeight="bold"))
    text = alt.TitleParams(heading, anchor="start", frame="group", fontWeight="normal")
    return chart.facet(facet, columns=across, title=text, spacing=10)
