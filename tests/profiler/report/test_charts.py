"""The charts' specifications, their colours, and what they draw."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import altair as alt
import numpy as np
import pytest
import vl_convert
from report_rows import row

from profiler.report import charts, page, palette
from profiler.report.chart_specs import MEMORY, Domains
from profiler.report.data import Data
from profiler.report.palette import DARK, LIGHT, Palette
from profiler.report.sections import Report, compose

Gather = Callable[..., Data]
DOMAINS = Domains(["eager", "ort"], ["fp32", "fp16"], [1, 16], ["weights_mib"], {"sequence": [16, 64]})
LINEAR = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""From linear sRGB to XYZ (IEC 61966-2-1)."""
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
"""Sight without a kind of cones: Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), severity 1."""


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
def test_colours_stand_out_and_the_colour_blind_tell_them_apart(colours: Palette) -> None:
    """By a distance in CIELAB of 15, and of the first five, which are the usual job, by 25."""
    for paper in (colours.paper, colours.panel):
        assert contrast(colours.ink, paper) >= 7
        assert contrast(colours.muted, paper) >= 4.5
        assert contrast(colours.accent, paper) >= 4.5
    assert min(contrast(colour, colours.paper) for colour in colours.series) >= 3
    for sight in (np.eye(3), DEUTERANOPIA, PROTANOPIA):
        seen = [lab(sight @ linear(colour)) for colour in colours.series]
        for one, other in combinations(range(len(seen)), 2):
            least = 25 if max(one, other) < 5 else 15
            assert math.dist(seen[one], seen[other]) > least, (colours.series[one], colours.series[other])


def test_specifications_are_vega_lites() -> None:
    made = charts.make(DOMAINS)
    assert list(made) == ["speedups", "latency", "latency-0", "throughput", "memory", "roofline", "layers"]
    for name, chart in made.items():
        assert chart.spec["width"] == "container", name
        alt.Chart.from_dict(chart.spec, validate=True)
    assert set(made) - set(charts.make(replace(DOMAINS, batches=[]))) == {"latency"}
    config = palette.config(LIGHT)
    del config["legend"]["layout"]  # Vega's, which Vega-Lite hands on and its schema does not know.
    alt.Config.from_dict(config, validate=True)


def drawing(report: Report, name: str, **picks: Any) -> tuple[Any, list[Any]]:
    """The scene of a chart with the rows of these values, and the rows."""
    (chart,) = (chart for chart in report.charts if chart.name == name)
    main, *others = chart.data
    rows = [one for one in report.rows[main] if all(one[key] == value for key, value in picks.items())]
    sets = {main: rows, **{other: report.rows[other] for other in others}}
    return vl_convert.vegalite_to_scenegraph({**chart.spec, "width": 700, "datasets": sets}), rows


def groups(scene: Any, kind: str) -> list[dict[str, Any]]:
    """The marks of a kind in drawing order, without axes and legends."""
    if isinstance(scene, list):
        return [found for value in scene for found in groups(value, kind)]
    if not isinstance(scene, dict):
        return []
    own = [scene] if scene.get("marktype") == kind and scene.get("role") == "mark" else []
    return own + [found for value in scene.values() for found in groups(value, kind)]


def texts(scene: Any, role: str) -> list[list[str]]:
    """The labels of the axes or legends that have that role, a list each."""
    if isinstance(scene, list):
        return [found for value in scene for found in texts(value, role)]
    if not isinstance(scene, dict):
        return []
    own = [[item["text"] for item in scene["items"]]] if scene.get("role") == role else []
    return own + [found for value in scene.values() for found in texts(value, role)]


def test_every_row_is_drawn_and_nothing_else(h200_report: Report) -> None:
    for name in ("speedups", "latency", "throughput"):
        scene, rows = drawing(h200_report, name, model="resnet50", **{"pass": "inference"})
        assert [len(groups(scene, "symbol")[-1]["items"])] == [len(rows)] != [0], name
    scene, rows = drawing(h200_report, "memory", model="resnet50", batch_size=16, **{"pass": "inference"})
    parts = sum(one[part] is not None for one in rows for part in MEMORY)
    assert len(groups(scene, "rect")[-1]["items"]) == parts > len(rows)


def test_every_factor_has_a_bar_from_end_to_end_whatever_its_warnings(gathered: Gather) -> None:
    busy = {"warnings": ["disturbed: a", "inconsistent: b"]}
    rows = [row("eager", 10.0, spread=0.05), row("ort", 2.0, spread=0.3, **busy), row("compiled", None, **busy)]
    report = compose(gathered(*rows))
    scene, lines = drawing(report, "speedups")
    assert [line["variant"] for line in lines] == ["ort", "eager"], "what failed is in a table only"
    told = [item["description"] for group in groups(scene, "rule") for item in group["items"]]
    drawn = [[float(end) for end in re.findall(r"factor_(?:low|high): ([\d.]+)", text)] for text in told]
    ends = [[line["factor_low"], line["factor_high"]] for line in lines]
    assert sorted(filter(None, drawn)) == [pytest.approx(pair) for pair in sorted(ends)]
    assert len({item["opacity"] for item in groups(scene, "symbol")[-1]["items"]}) == 1


@pytest.mark.parametrize("ms", [(0.92, 11.3), (3.0, 3.0), (1.05, 1.9), (0.004, 70_000.0)])
def test_logarithmic_axes_have_a_label_at_or_beyond_both_ends(gathered: Gather, ms: tuple[float, float]) -> None:
    report = compose(gathered(row("eager", ms[1]), row("ort", ms[0])))
    fields: dict[str, list[tuple[str, ...]]] = {
        "speedups": [("factor_low", "factor", "factor_high")],
        "throughput": [("latency_ms",), ("throughput",)],
    }
    for name, axes in fields.items():
        scene, lines = drawing(report, name)
        drawn = [
            [float(text.replace(",", "")) for text in labels if text]
            for labels in texts(scene, "axis-label")
            if all(re.fullmatch(r"[\d.,]*", text) for text in labels)
        ]
        assert len(drawn) == len(axes), name
        for names, labels in zip(axes, drawn, strict=True):
            figures = [one[field] for one in lines for field in names]
            assert min(labels) <= min(figures) <= max(figures) <= max(labels)
            assert min(labels) * 5.01 > min(figures), "no room without points"


def test_names_are_only_in_the_data_and_in_domains(hostile_report: Report) -> None:
    label = next(row["variant"] for row in hostile_report.rows["lines"] if "onload" in row["variant"])
    for chart in hostile_report.charts:
        text = json.dumps(chart.spec, ensure_ascii=False)
        assert "hacked" not in text.replace(json.dumps(label, ensure_ascii=False), ""), chart.name


def test_shapes_have_a_filter_and_curves_in_the_order_of_their_numbers(gathered: Gather) -> None:
    cases = [row("eager", 9.0, model="fixed"), row("ort", 3.0, model="fixed")]
    for width, length in product((8, 16), (128, 16, 64)):
        shape = f"length={length}/width={width}"
        more = {"batch_size": 2, "setting": shape, "shape": shape}
        cases += [row(name, ms * length, **more) for name, ms in (("eager", 2.0), ("ort", 1.0))]
    data = gathered(*cases)
    report = compose(data)
    shapes = [f"length={length}/width={width}" for length in (16, 64, 128) for width in (8, 16)]
    assert [(key["setting"], choice.winner["variant"]) for key, choice in data.choices if choice.winner] == [
        (setting, "ort") for setting in ("", *shapes)
    ]
    assert page._options(report)["setting"] == ["", *shapes]
    assert "<option value='3'>length 64, width 8</option>" in page.page(report)
    titles = {chart.name: chart.title for chart in report.charts if chart.name.startswith("latency")}
    assert titles == {"latency-0": "Latency against length", "latency-1": "Latency against width"}
    _, rows = drawing(report, "latency-0", rest="width=8")
    assert {(one["variant"], one["size"], one["latency_ms"]) for one in rows} == {
        (name, size, ms * size) for name, ms in (("eager", 2.0), ("ort", 1.0)) for size in (16, 64, 128)
    }


def test_roofs_bound_what_is_drawn_below_them(gathered: Gather) -> None:
    figures = {"flops_per_item": 2e9, "moved_mib": 100.0, "tflops": 1.0, "fraction_of_peak": 0.5, "floor_ms": 1.0}
    report = compose(gathered(row("eager", 2.0, **figures), roofs={"fp32_tflops": 2.0, "copy_gb_s": 100.0}))
    (line,) = report.rows["lines"]
    assert line["intensity"] == pytest.approx(2e9 / (100 * 2**20))
    assert len(report.rows["roofs"]) == 3
    for point in report.rows["roofs"]:
        assert point["tflops"] == pytest.approx(min(2.0, 0.1 * point["intensity"]))
    assert "roofline" in {chart.name for chart in report.charts}
    nothing = {"flops_per_item": 0, "tflops": 0.0, "moved_mib": 0.0, "floor_ms": 0.0}
    empty = compose(gathered(row("eager", 0.002, **nothing), name="nothing"))
    assert "roofline" not in {chart.name for chart in empty.charts}
    assert not re.search(r">(inf|nan)<", page.page(empty))
