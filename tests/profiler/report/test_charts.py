"""The charts' specifications, and what they draw."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import altair as alt
import pytest
import vl_convert
from report_rows import row

from profiler.report import command as page
from profiler.report.chart_specs import MEMORY, Domains, charts, config
from profiler.report.command import Report, compose

DOMAINS = Domains(["eager", "ort"], ["fp32", "fp16"], [1, 16], ["weights_mib"])


def test_specifications_are_vega_lites():
    made = {chart.name: chart.draw() for chart in charts(DOMAINS)}
    assert list(made) == ["speedups", "latency", "throughput", "memory", "roofline", "layers"]
    for name, spec in made.items():
        assert spec["width"] == "container", name
        alt.Chart.from_dict(spec, validate=True)
    assert set(made) - {chart.name for chart in charts(replace(DOMAINS, batches=[]))} == {"latency"}
    assert {*made} <= {*page._TITLES}
    own = config()
    del own["legend"]["layout"]  # Vega's, which Vega-Lite hands on and its schema does not know.
    alt.Config.from_dict(own, validate=True)


def drawing(report: Report, name: str, **picks: Any) -> tuple[Any, list[Any]]:
    (chart,) = (chart for chart in report.charts if chart.name == name)
    main, *others = chart.data
    rows = [one for one in report.rows[main] if all(one[key] == value for key, value in picks.items())]
    sets = {main: rows, **{other: report.rows[other] for other in others}}
    return vl_convert.vegalite_to_scenegraph({**chart.draw(), "width": 700, "datasets": sets}), rows


def walk(scene: Any, key: str, value: str) -> list[dict[str, Any]]:
    """The parts of a scene of which `key` is `value`, in drawing order."""
    if not isinstance(scene, list | dict):
        return []
    own = [scene] if isinstance(scene, dict) and scene.get(key) == value else []
    inner = scene.values() if isinstance(scene, dict) else scene
    return own + [found for part in inner for found in walk(part, key, value)]


def groups(scene: Any, kind: str) -> list[dict[str, Any]]:
    return [group for group in walk(scene, "marktype", kind) if group.get("role") == "mark"]


def test_every_row_is_drawn_and_nothing_else(h200_report):
    for name in ("speedups", "latency", "throughput"):
        scene, rows = drawing(h200_report, name, model="resnet50", **{"pass": "inference"})
        assert [len(groups(scene, "symbol")[-1]["items"])] == [len(rows)] != [0], name
    scene, rows = drawing(h200_report, "memory", model="resnet50", batch_size=16, **{"pass": "inference"})
    parts = sum(one[part] is not None for one in rows for part in MEMORY)
    assert len(groups(scene, "rect")[-1]["items"]) == parts > len(rows)


def test_every_factor_has_a_bar_from_end_to_end_whatever_its_warnings(gathered):
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
    wide = [row("eager", 10.0), row("ort", 1.0, latency_low_ms=0.01, latency_high_ms=2.0)]
    lines = compose(gathered(*wide, name="wide")).rows["lines"]
    assert {line["variant"]: line["factor"] for line in lines} == {"eager": 1.0, "ort": None}, "as wide it is no figure"


def test_a_chart_without_a_figure_is_left_out_and_draws_no_busy_one(gathered):
    timed = {"flops_per_item": 2e9, "moved_mib": 100.0, "tflops": 1.0, "floor_ms": 0.1, "peak_memory_mib": 9.0}
    roofs = {"roofs": {"fp32_tflops": 2.0, "copy_gb_s": 100.0}}
    wide = {"latency_low_ms": 0.1, "latency_high_ms": 9.0, "throughput": 500.0}
    busy = [row(name, 1.0, batch_size=size, **timed, **wide) for name in ("eager", "ort") for size in (1, 4)]
    assert {chart.name for chart in compose(gathered(*busy, **roofs)).charts} == {"memory"}
    still = compose(gathered(*busy, row("openvino", 1.0, throughput=1000.0, **timed), name="still", **roofs))
    assert {chart.name for chart in still.charts} == {"memory", "latency", "throughput", "roofline"}
    assert {line["variant"] for line in still.rows["lines"] if line["throughput"] is not None} == {"openvino"}
    rates = {"throughput_low": 1.0, "throughput_high": 5000.0, "throughput": 500.0}
    assert compose(gathered(row("eager", 1.0, **rates), name="rates")).rows["lines"][0]["throughput"] is None


def test_error_bars_of_one_batch_size_stand_side_by_side(h200_report):
    scene, rows = drawing(h200_report, "latency", model="resnet50", **{"pass": "inference"})
    places = [round(item["x"], 1) for group in groups(scene, "rule") for item in group["items"]]
    assert len(set(places)) == len(places) == len(rows)
    middle = (min(places) + max(places)) / 2
    left, right = [x for x in places if x < middle], [x for x in places if x > middle]
    assert len(left) == len(right) and max(left) - min(left) < (min(right) - max(left)) / 4


def test_settings_have_a_filter_in_the_order_of_their_numbers(gathered):
    cases = [row("eager", 9.0, model="fixed"), row("ort", 3.0, model="fixed")]
    for width, length in product((8, 16), (128, 16, 64)):
        shape = f"length={length}/width={width}"
        cases += [row(name, 1.0, batch_size=2, setting=shape, shape=shape) for name in ("eager", "ort")]
    report = compose(gathered(*cases))
    shapes = [f"length={length}/width={width}" for length in (16, 64, 128) for width in (8, 16)]
    assert page._options(report.rows["lines"])["setting"] == ["", *shapes]
    assert "<option value='3'>length 64, width 8</option>" in page.page(report)
    assert "latency" not in {chart.name for chart in report.charts}, "one batch size is no curve"


def test_roofs_bound_what_is_drawn_below_them(gathered):
    figures = {"flops_per_item": 2e9, "moved_mib": 100.0, "tflops": 1.0, "fraction_of_peak": 0.5, "floor_ms": 1.0}
    report = compose(gathered(row("eager", 2.0, **figures), roofs={"fp32_tflops": 2.0, "copy_gb_s": 100.0}))
    (line,) = report.rows["lines"]
    assert line["intensity"] == pytest.approx(2e9 / (100 * 2**20))
    assert len(report.rows["roofs"]) == 3
    for point in report.rows["roofs"]:
        assert point["tflops"] == pytest.approx(min(2.0, 0.1 * point["intensity"]))
    assert "roofline" in {chart.name for chart in report.charts}
    roofs = {"roofs": {"fp32_tflops": 2.0, "copy_gb_s": 100.0}, "roofs_quiet": False}
    assert compose(gathered(row("eager", 2.0, **figures), name="busy", **roofs)).rows["roofs"] == []
    nothing = {"flops_per_item": 0, "tflops": 0.0, "moved_mib": 0.0, "floor_ms": 0.0}
    empty = compose(gathered(row("eager", 0.002, **nothing), name="nothing"))
    assert "roofline" not in {chart.name for chart in empty.charts}
    assert not re.search(r">(inf|nan)<", page.page(empty))
