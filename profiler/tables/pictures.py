"""Draw rows as an SVG: panels of dots, or of lines over the batch size, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl
import vl_convert

COLORS = {"published": "#8a8f98", "fp32": "#3b6fb6", "tf32": "#2a9d8f", "fp16": "#d1495b", "amp-fp16": "#e39b2d"}
"""A precision has one colour in every picture."""
SHAPES = {"forward + backward": "circle", "forward": "triangle-up"}
_AXIS = alt.Axis(format="~r", values=[10.0**power for power in range(-6, 9)], labelOverlap="parity")


def dots(rows: pl.DataFrame, columns: Sequence[str], title: str, unit: str) -> str:
    """Draw `value` and its interval: a column a `network`, a row a `side`, the fastest on top. Returns an SVG.

    A side is compared with each other one over what both have, since most ran only some networks and passes.
    """
    both = rows.join(rows, on=["network", "pass"], suffix="_other")
    slower = (pl.col("value") / pl.col("value_other")).log().mean().sign()
    signs = both.group_by("side", "side_other").agg(slower=slower).group_by("side").agg(pl.col("slower").mean())
    order = signs.sort("slower", "side")["side"].to_list()
    base = alt.Chart().encode(
        x=alt.X("value:Q", title=None, scale=alt.Scale(type="log"), axis=_AXIS),
        y=alt.Y("side:N", title=None, sort=order, axis=alt.Axis(labelLimit=420)),
        color=_scale(alt.Color, "kind", rows, list(COLORS), list(COLORS.values())),
    )
    whiskers = base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    layers = alt.layer(whiskers, _points(base, rows), data=_data(rows))
    return _svg(layers.properties(width=max(76, 620 // len(columns)), height=alt.Step(14)), columns, title, unit)


def sweep(rows: pl.DataFrame, columns: Sequence[str], title: str, unit: str) -> str:
    """Draw `value` over `batch_size`: a column a `network`, a line a `side` and pass. Returns an SVG."""
    labels = rows["side"].unique(maintain_order=True).to_list()
    base = alt.Chart().encode(
        x=alt.X("batch_size:Q", title=None, scale=alt.Scale(type="log", base=2), axis=alt.Axis(tickCount=4)),
        y=alt.Y("value:Q", title=None, scale=alt.Scale(type="log"), axis=_AXIS),
        color=_scale(alt.Color, "side", rows, labels, ["#3b6fb6", "#e39b2d", "#2a9d8f", "#d1495b"]),
    )
    lines = base.mark_line(strokeWidth=1.5).encode(detail="pass:N")
    layers = alt.layer(lines, _points(base, rows), data=_data(rows))
    return _svg(layers.properties(width=130, height=280), columns, title, unit)


def _points(base: alt.Chart, rows: pl.DataFrame) -> Any:
    shape = _scale(alt.Shape, "pass", rows, list(SHAPES), list(SHAPES.values()))
    return base.mark_point(filled=True, size=40, opacity=1).encode(shape=shape)


def _scale(channel: Any, field: str, rows: pl.DataFrame, domain: list[str], values: list[str]) -> Any:
    """Give each of a field's values its colour or shape, and a legend where there are several."""
    there = [value for value in domain if value in rows[field].unique()]
    legend = alt.Legend(values=there, orient="top", labelLimit=400) if len(there) > 1 else None
    return channel(f"{field}:N", title=None, scale=alt.Scale(domain=domain, range=values), legend=legend)


def _data(rows: pl.DataFrame) -> alt.InlineData:
    # Processors differ in the last digit of a logarithm.
    return alt.InlineData(rows.with_columns(pl.col(pl.Float64).round_sig_figs(5)).to_dicts())


def _svg(chart: Any, columns: Sequence[str], title: str, unit: str) -> str:
    heading = alt.TitleParams(title, subtitle=unit, anchor="start", frame="group")
    column = alt.Column("network:N", title=None, sort=list(columns), header=alt.Header(labelFontWeight="bold"))
    config = alt.Config(background="white", font="Arial, sans-serif", aria=False, axis=alt.AxisConfig(labelFontSize=11))
    made = chart.facet(column=column, title=heading, spacing=10).properties(config=config)
    return str(vl_convert.vegalite_to_svg(made.to_dict()))
