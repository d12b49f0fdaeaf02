"""Declare the report's colours on light and on dark paper, and configure Vega-Lite with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Palette:
    """`ink` writes, `muted` writes what matters less, `rule` draws lines between, `series` are the data's."""

    paper: str
    panel: str
    ink: str
    muted: str
    rule: str
    accent: str
    series: tuple[str, ...]


LIGHT = Palette(
    paper="#ffffff",
    panel="#f5f7f9",
    ink="#1b1f24",
    muted="#57606a",
    rule="#d8dee4",
    accent="#0062a3",
    series=("#0257d2", "#d45e00", "#00a071", "#a14b90", "#8a3c1e", "#2c9bda", "#424643", "#6950ae"),
)
DARK = Palette(
    paper="#14181d",
    panel="#1c2229",
    ink="#e8ebee",
    muted="#a3adb8",
    rule="#39424c",
    accent="#7cc4f5",
    series=("#57b8f6", "#d55e00", "#00a36b", "#b75399", "#f1e642", "#5376e1", "#e8e8e6", "#e89d00"),
)
"""The series are Okabe and Ito's (https://jfly.uni-koeln.de/color/), moved until each has a contrast of 3 to 1 with its
paper, and no two look alike to those who lack a kind of cones. Shapes and dashes say the same once more."""


def css(palette: Palette) -> str:
    """As custom properties: --ink, …, --series-1, …"""
    named = {name: value for name, value in asdict(palette).items() if isinstance(value, str)}
    named |= {f"series-{place}": colour for place, colour in enumerate(palette.series, 1)}
    return "".join(f"--{name}:{value};" for name, value in named.items())


def variables() -> Palette:
    """Every colour as a reference to its custom property: what is drawn with it follows the page's colour scheme."""
    series = tuple(f"var(--series-{place})" for place in range(1, len(LIGHT.series) + 1))
    return Palette("var(--paper)", "var(--panel)", "var(--ink)", "var(--muted)", "var(--rule)", "var(--accent)", series)


def resolved(spec: dict[str, Any], palette: Palette) -> dict[str, Any]:
    """The specification with these colours in place of `variables()`, for an image of its own."""
    named = {value: getattr(palette, name) for name, value in asdict(variables()).items() if isinstance(value, str)}
    named |= dict(zip(variables().series, palette.series, strict=True))
    text = json.dumps(spec)
    for variable, colour in named.items():
        text = text.replace(variable, colour)
    found: dict[str, Any] = json.loads(text)
    return found


def on_paper(
    spec: dict[str, Any], sets: Mapping[str, Any], title: str, subtitle: str, offset: int, **legend: Any
) -> dict[str, Any]:
    """The specification as an image of its own: with its data by name, a title and colours, on white paper."""
    made, own = resolved(spec, LIGHT), config(LIGHT)
    return made | {
        "datasets": {**made.get("datasets", {}), **sets},
        "title": {"text": title, "subtitle": subtitle, "anchor": "start", "offset": offset},
        "config": {**own, "legend": {**own["legend"], **legend}, "background": LIGHT.paper, "padding": 16},
    }


def config(palette: Palette) -> dict[str, Any]:
    """Vega-Lite's configuration in these colours."""
    text = {"labelColor": palette.ink, "titleColor": palette.muted, "labelFontSize": 12, "titleFontSize": 12}
    lines = {"gridColor": palette.rule, "domainColor": palette.rule, "tickColor": palette.rule}
    sizes = {"titleFontWeight": "normal", "titlePadding": 10, "labelPadding": 6, "labelLimit": 190, "tickSize": 4}
    # The title of a vertical axis lies above it, which saves a phone's width.
    above = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": -46, "titleY": -14}
    places = {"orient": "bottom", "direction": "horizontal", "titleOrient": "left", "titleFontWeight": "normal"}
    symbols = {"symbolBaseFillColor": palette.ink, "symbolBaseStrokeColor": palette.ink, "symbolStrokeWidth": 2}
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
        "rule": {"color": palette.muted},
        "tick": {"thickness": 1.5},
        "text": {"color": palette.ink, "fontSize": 12},
        "range": {"category": list(palette.series)},
    }
