"""The charts' specifications, their colours, and which rows stand in a chart together."""

from __future__ import annotations

import json
import math
from itertools import combinations
from typing import Any

import altair as alt
import numpy as np
import pytest
import vl_convert

from profiler.report import charts, palette
from profiler.report.chart_specs import MEMORY, SETUP, Domains
from profiler.report.charts import Chart
from profiler.report.images import _specs
from profiler.report.palette import DARK, LIGHT, Palette
from profiler.report.sections import Report

DOMAINS = Domains(["eager", "ort"], ["fp32", "fp16"], [1, 16], ["weights_mib", "load_s"], 1e5, (-0.1, 0.2))
LINEAR = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""From linear sRGB to XYZ (IEC 61966-2-1)."""
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
"""How those see who lack a kind of cones: Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), severity 1."""


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio"""
    dark, light = sorted(float(LINEAR[1] @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    ratio = LINEAR @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_their_paper(colours: Palette) -> None:
    for paper in (colours.paper, colours.panel):
        assert contrast(colours.ink, paper) >= 7
        assert contrast(colours.muted, paper) >= 4.5
        assert contrast(colours.accent, paper) >= 4.5
    assert min(contrast(colour, colours.paper) for colour in colours.series) >= 3


@pytest.mark.parametrize("sight", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colour_blind_tell_colours_apart(colours: Palette, sight: np.ndarray) -> None:
    """By a distance in CIELAB of 15, and of the first five, which are the usual job, by 25."""
    seen = [lab(sight @ linear(colour)) for colour in colours.series]
    for one, other in combinations(range(len(seen)), 2):
        least = 25 if max(one, other) < 5 else 15
        assert math.dist(seen[one], seen[other]) > least, (colours.series[one], colours.series[other])


@pytest.mark.parametrize("name", charts.make(DOMAINS))
def test_specification_is_vega_lites(name: str) -> None:
    spec = charts.make(DOMAINS)[name].spec
    assert spec["width"] == "container"
    alt.Chart.from_dict(spec, validate=True)


def test_configuration_is_vega_lites() -> None:
    config = palette.config(LIGHT)
    del config["legend"]["layout"]  # Vega's, which Vega-Lite hands on and its schema does not know.
    alt.Config.from_dict(config, validate=True)


def test_one_batch_size_has_no_curves() -> None:
    one = Domains(["eager"], ["fp32"], [4], [], 0.0, (-0.1, 0.1))
    assert set(charts.make(DOMAINS)) - set(charts.make(one)) == {"latency", "efficiency"}


def test_every_row_is_drawn_and_nothing_else(h200_report: Report) -> None:
    """As many points, bars and ticks in the drawing as there are rows and parts."""
    marks = {"speedups": "symbol", "throughput": "symbol", "memory": "rect", "samples": "rect", "setup": "rect"}
    for chart in h200_report.charts:
        if chart.name not in marks:
            continue
        about, spec = next(_specs(h200_report, chart))
        rows = spec["datasets"]["lines"]
        fields = MEMORY if chart.name == "memory" else SETUP
        expected = {
            "speedups": len(rows),
            "throughput": len(rows),
            "samples": sum(len(row["ticks"]) for row in rows),
        }.get(chart.name) or sum(row[field] is not None for row in rows for field in fields)
        drawn = [len(group["items"]) for group in groups(vl_convert.vegalite_to_scenegraph(spec), marks[chart.name])]
        assert drawn[-1] == expected, (chart.name, about)


def groups(scene: Any, kind: str) -> list[dict[str, Any]]:
    """The marks of a kind in drawing order, without axes and legends."""
    found = []
    if isinstance(scene, dict):
        if scene.get("marktype") == kind and scene.get("role") == "mark":
            found.append(scene)
        for value in scene.values():
            found += groups(value, kind)
    elif isinstance(scene, list):
        for value in scene:
            found += groups(value, kind)
    return found


def rows(*batches: int, models: tuple[str, ...] = ("a", "b")) -> list[dict[str, Any]]:
    return [{"model": model, "batch_size": batch, "speedup": 1.0} for model in models for batch in batches]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ({}, {("a", size) for size in (1, 2, 4, 8)} | {("b", size) for size in (1, 2, 4, 8)}),
        ({"model": 1}, {("a", 1), ("a", 2), ("a", 4), ("a", 8)}),
        ({"model": 1, "batch_size": 1}, {("a", 1)}),
        ({"model": 1, "batch_size": -1}, {("a", 8)}),
        ({"model": 1, "batch_size": 2}, {("a", 1), ("a", 8)}),
        ({"model": 1, "batch_size": 3}, {("a", 1), ("a", 2), ("a", 8)}),
        ({"model": 1, "batch_size": 5}, {("a", 1), ("a", 2), ("a", 4), ("a", 8)}),
    ],
)
def test_of_more_than_a_chart_holds_some_are_kept(keep: dict[str, int], expected: set[tuple[str, int]]) -> None:
    chart = Chart("it", "It", {}, ["speedup"], keep)
    left = charts.select(chart, rows(8, 1, 4, 2))
    assert {(row["model"], row["batch_size"]) for row in left} == expected


def test_rows_without_the_field_are_not_there_to_choose_from() -> None:
    chart = Chart("it", "It", {}, ["forward_ms", "step_ms"], {"model": 1})
    given = [
        {"model": "a", "forward_ms": None, "step_ms": None},
        {"model": "b", "forward_ms": None, "step_ms": 1.0},
    ]
    assert charts.select(chart, given) == given[1:]


def test_height_follows_the_rows() -> None:
    chart = Chart("it", "It", {}, ["speedup"], {}, (20, ("model",)))
    assert charts.height(chart, rows(1, 2, 4)) == 2 * 20 + charts.MARGIN
    assert charts.height(Chart("it", "It", {}, ["speedup"], {}), rows(1)) is None


def test_names_are_only_in_the_data_and_in_domains(hostile_report: Report) -> None:
    label = next(row["variant"] for row in hostile_report.rows["lines"] if "onload" in row["variant"])
    for chart in hostile_report.charts:
        text = json.dumps(chart.spec, ensure_ascii=False)
        assert "hacked" not in text.replace(json.dumps(label, ensure_ascii=False), ""), chart.name
        for domain in domains(chart.spec):
            assert all(isinstance(value, str | int | float) for value in domain)


def domains(spec: Any) -> list[list[Any]]:
    if isinstance(spec, dict):
        own = [spec["domain"]] if isinstance(spec.get("domain"), list) else []
        return own + [found for value in spec.values() for found in domains(value)]
    return [found for value in spec for found in domains(value)] if isinstance(spec, list) else []
