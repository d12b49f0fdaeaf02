"""The charts' specifications, their colours, and which rows stand in a chart together."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import pytest
import vl_convert
from handmade import row, run

from profiler.report import charts, page, palette
from profiler.report.chart_specs import MEMORY, SETUP, STATES, Domains
from profiler.report.charts import Chart
from profiler.report.data import Data, gather
from profiler.report.findings import findings, headline
from profiler.report.images import _specs
from profiler.report.palette import DARK, LIGHT, Palette
from profiler.report.sections import Report, compose
from profiler.report.tables import tables
from profiler.results.reading import read_runs

DOMAINS = Domains(["eager", "ort"], ["fp32", "fp16"], [1, 16], ["weights_mib", "load_s"], 1e5, (-0.1, 0.2))
DOMAINS = replace(DOMAINS, dimensions={"sequence": [16, 64]})
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
    one = replace(DOMAINS, batches=[4])
    assert set(charts.make(DOMAINS)) - set(charts.make(one)) == {"latency", "efficiency"}


def test_models_of_several_batch_sizes_each_their_own_have_no_curves(tmp_path: Path) -> None:
    cases = [row("eager", ms=9.0, model=name, batch_size=size, case_id=name) for name, size in (("a", 2), ("b", 8))]
    report = written(tmp_path, *cases)
    assert not {"latency", "efficiency"} & {chart.name for chart in report.charts}
    assert "efficiency" not in {table.name for table in report.tables}


def test_one_chart_has_every_factor_of_every_model_and_the_run_of_what_two_runs_measured(doubted: Data) -> None:
    report = compose(doubted)
    chart = charts.make(DOMAINS)["overview"]
    here = charts.select(chart, report.rows["lines"])
    other = [{**row, "model": "other", "cell": "other, batch 1"} for row in here]
    _, spec = next(_specs(replace(report, rows={"lines": [*here, *other]}), chart))
    crosses, dots = groups(vl_convert.vegalite_to_scenegraph(spec), "symbol")
    drawn = Counter(re.search(r"cell: ([^;]+)", item["description"])[1] for item in dots["items"])
    assert drawn == {"net, batch 1": 2, "net, batch 16": 1, "other, batch 1": 3}
    assert [re.search("No factor: (.*)", item["description"])[1] for item in crosses["items"]] == ["inconsistent"] * 2
    again = pl.concat([doubted.configurations, doubted.configurations.with_columns(run=pl.lit("again"))])
    cells = {
        row["cell"] for row in charts.rows(replace(doubted, configurations=again))["lines"] if row["batch_size"] < 2
    }
    assert cells == {f"net, batch 1, {run}" for run in ("again", report.rows["lines"][0]["run"])}


def test_every_row_is_drawn_and_nothing_else(h200_report: Report) -> None:
    """As many points, bars and ticks in the drawing as there are rows and parts."""
    marks = {"speedups": "symbol", "throughput": "symbol", "memory": "rect", "samples": "rect", "setup": "rect"}
    marks |= {"overview": "symbol"}
    for chart in h200_report.charts:
        if chart.name not in marks:
            continue
        about, spec = next(_specs(h200_report, chart))
        rows = spec["datasets"]["lines"]
        fields = MEMORY if chart.name == "memory" else SETUP
        expected = {
            "speedups": len(rows),
            "overview": len(rows),
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


def texts(scene: Any, role: str) -> list[list[str]]:
    """What the axes or legends say whose labels have that role, a list each."""
    if isinstance(scene, list):
        return [found for value in scene for found in texts(value, role)]
    if not isinstance(scene, dict):
        return []
    own = [[item["text"] for item in scene["items"]]] if scene.get("role") == role else []
    return own + [found for value in scene.values() for found in texts(value, role)]


@pytest.mark.parametrize("ms", [(0.92, 11.3), (2.0, 5.0), (3.0, 3.0), (1.05, 1.9), (0.004, 70_000.0)])
def test_logarithmic_axes_have_a_label_at_or_beyond_both_ends(tmp_path: Path, ms: tuple[float, float]) -> None:
    report = written(tmp_path, row("eager", ms=ms[1]), row("ort", ms=ms[0]))
    by_name = {chart.name: chart for chart in report.charts}
    fields = {"overview": ["speedup"], "throughput": ["latency_ms", None]}
    for name, axes in fields.items():
        ((_, spec),) = _specs(report, by_name[name])
        drawn = [
            [float(text.replace(",", "")) for text in labels if text]
            for labels in texts(vl_convert.vegalite_to_scenegraph(spec), "axis-label")
            if all(re.fullmatch(r"[\d.,]*", text) for text in labels)
        ]
        assert len(drawn) == len(axes), name
        for field, labels in zip(axes, drawn, strict=True):
            figures = [one[field] if field else 1 / one["item_s"] for one in report.rows["lines"]]
            assert min(labels) <= min(figures) <= max(figures) <= max(labels)
            assert min(labels) * 5.01 > min(figures), "no room without points"


def test_a_legend_has_only_what_the_chart_shows_in_the_colour_that_it_has_everywhere(tmp_path: Path) -> None:
    other = {"model": "other", "case_id": "other"}
    report = written(tmp_path, row("eager", ms=2.0), row("ort", ms=1.0), row("eager", "fp16", ms=1.5, **other))
    (chart,) = (chart for chart in report.charts if chart.name == "throughput")
    of_net, of_other = (spec for _, spec in _specs(report, chart))
    legend = [texts(vl_convert.vegalite_to_scenegraph(spec), "legend-label") for spec in (of_net, of_other)]
    assert legend == [[["eager"], ["ort"], ["fp32"]], [["eager"], ["fp16"]]]
    assert domains(of_net) == domains(of_other)


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


@pytest.fixture(scope="module")
def doubted(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """A run of two engines at two batch sizes and in training, of which `ort` at batch 16 was disturbed."""

    def case(variant: str, batch: int, ms: float, **more: Any) -> dict[str, Any]:
        place = {"batch_size": batch, "case_id": f"{variant}/{batch}/{more}", "flops_per_item": 1e9, "set_up_s": 1.0}
        figures = {"tflops": batch / ms, "moved_mib": 10.0, "fraction_of_peak": 0.5, "load_s": 1.0}
        figures["throughput"] = 1000 * batch / ms
        return row(variant, ms=ms, **place, **figures, **more)

    cases = [case("eager", batch, 2.0 * batch) for batch in (1, 16)]
    cases += [case("ort", 1, 1.0), case("ort", 16, 4.0, warnings=["inconsistent: a"])]
    training = {"pass": "training", "forward_ms": 10.0, "backward_ms": 20.0}
    cases += [case("eager", 16, 30.0, **training, warnings=["disturbed: b"]), case("compiled", 16, 29.0, **training)]
    folder = tmp_path_factory.mktemp("doubted")
    for name, frame in zip(("results", "samples"), run(*cases), strict=True):
        frame.write_parquet(folder / f"{name}.parquet")
    return gather(read_runs([folder]))


def test_what_was_disturbed_is_lighter_and_the_legend_and_the_tip_say_so(doubted: Data) -> None:
    report = compose(doubted)
    by_name = {chart.name: chart for chart in report.charts}
    marks = {"latency": "symbol", "throughput": "symbol", "efficiency": "symbol"}
    marks |= {"samples": "rect", "training": "rect"}
    for name, kind in marks.items():
        for about, spec in _specs(report, by_name[name]):
            drawn = groups(vl_convert.vegalite_to_scenegraph(spec), kind)[-1]["items"]
            tips = {re.search(r"Measured: ([^;]+)", item["description"])[1] for item in drawn}
            rows = spec["datasets"]["lines"]
            assert {item["opacity"] for item in drawn} == {0.3 if row["measured"] == STATES[1] else 1 for row in rows}
            assert tips == {row["measured"] for row in rows}, (name, about)
            lighter = sum(item["opacity"] < 1 for item in drawn)
            alike = len(drawn) // len(rows)  # Ticks and parts of a bar.
            assert lighter == alike * sum(row["measured"] == STATES[1] for row in rows), (name, about)
    legend = json.dumps(by_name["latency"].spec)
    assert json.dumps({"domain": list(STATES)})[1:-1] in legend
    alt.Chart.from_dict(by_name["latency"].spec, validate=True)


def written(folder: Path, *cases: dict[str, Any]) -> Report:
    for name, frame in zip(("results", "samples"), run(*cases), strict=True):
        frame.write_parquet(folder / f"{name}.parquet")
    return compose(gather(read_runs([folder])))


def test_what_failed_has_a_cross_with_its_whole_reason_where_its_model_has_a_row(tmp_path: Path) -> None:
    reason = f"the outputs are {'quite ' * 90}wrong; see `outputs: [NAME]`"
    lost = row("ort", ms=None, case_id="b", reason=reason)
    report = written(tmp_path, row("eager", ms=2.0), lost, {**lost, "model": "broken", "case_id": "c"})
    (chart,) = (chart for chart in report.charts if chart.name == "overview")
    ((_, spec),) = _specs(report, chart)
    crosses, _ = groups(vl_convert.vegalite_to_scenegraph(spec), "symbol")
    cells = [re.search("cell: ([^;]+)", item["description"])[1] for item in crosses["items"]]
    assert cells == ["net, batch 1", "broken, batch 1"]
    assert all(item["description"].endswith(f"No factor: failed: {reason}") for item in crosses["items"])
    assert page._options(report)["model"] == ["net", "broken"]


def test_the_fastest_is_larger_that_the_answer_names(tmp_path: Path) -> None:
    """Not int8 on seeded data, which has no rank."""
    cases = [row("eager", ms=10.0), row("ort", ms=5.0), row("ort", "int8", ms=1.0, calibrated=False)]
    (_, spec), *_ = _specs(written(tmp_path, *cases), charts.make(DOMAINS)["overview"])
    items = groups(vl_convert.vegalite_to_scenegraph(spec), "symbol")[-1]["items"]
    (largest,) = (item for item in items if item["size"] == max(item["size"] for item in items))
    assert len(items) == 3
    assert "Engine: ort; Latency: fastest; Precision: fp32;" in largest["description"]


def test_no_chart_draws_a_factor_that_no_table_states(doubted: Data) -> None:
    report = compose(doubted)
    factors = {(r["pass"], r["variant"], r["batch_size"]): r["speedup"] for r in report.rows["lines"]}
    assert factors["inference", "ort", 1] == pytest.approx(2.0)
    assert factors["inference", "ort", 16] is factors["training", "compiled", 16] is None
    (overview,) = (chart for chart in report.charts if chart.name == "overview")
    about_training = [one for one in report.rows["lines"] if one["pass"] == "training"]
    assert {one["why"] for one in charts.select(overview, about_training)} == {"disturbed", "base: disturbed"}
    (speedups,) = (section for section in report.sections if section.name == "speedups")
    assert "Without a factor: 3 of 6 configurations" in speedups.text[-1]


def at_shapes(folder: Path) -> Report:
    """A run of three lengths, by their numbers in another order than as text, at two widths, and of another model."""
    cases = [row("eager", ms=9.0, model="fixed", case_id="fixed"), row("ort", ms=3.0, model="fixed", case_id="fixed2")]
    for width, length in product((8, 16), (128, 16, 64)):
        shape = f"length={length}/width={width}"
        more = {"batch_size": 2, "setting": shape, "extra": shape, "shape": shape}
        cases += [
            row(name, ms=ms * length, case_id=f"{name}/{shape}", **more) for name, ms in (("eager", 2.0), ("ort", 1.0))
        ]
    return written(folder, *cases)


def test_shapes_go_by_their_numbers_have_a_filter_and_curves_and_are_said_once(tmp_path: Path) -> None:
    report = at_shapes(tmp_path)
    shapes = [f"length={length}/width={width}" for length in (16, 64, 128) for width in (8, 16)]
    answer = next(table for table in report.tables if table.name == "answer").frame.filter(
        pl.col("restricted_to").is_null()
    )
    assert answer["extra"].to_list() == [None, *shapes]
    assert set(answer["configuration"]) == {"ort fp32"}
    assert page._options(report)["shape"] == shapes
    keys = page._keys(next(table for table in report.tables if table.name == "latency"), page._options(report))
    assert {places[keys["keys"].index("shape")] for places in keys["rows"]} == {-2, *range(6)}, "fixed has none of them"
    assert "<option value='2'>length 64, width 8</option>" in page.page(report)
    by_name = {chart.name: chart for chart in report.charts}
    assert [by_name[name].title for name in by_name if name.startswith("shapes-")] == [
        f"{what} against {name}" for name in ("length", "width") for what in ("Latency", "Throughput")
    ]
    drawn = charts.select(by_name["shapes-0-latency"], report.rows["sizes-0"])
    assert {(one["variant"], one["size"], one["rest"]) for one in drawn} == {
        (name, size, "width=8") for name in ("eager", "ort") for size in (16, 64, 128)
    }
    said = "takes 16.0 ms at length 16 and 128 ms at length 128: 8.0× the time for 8 times the size."
    assert report.findings["shapes-0-latency"][0]["text"] == f"ort fp32, the fastest at length 128 and batch 2, {said}"
    assert [one["shape"] for one in report.findings["latency"]] == [], "one batch size"
    assert [one["shape"] for one in report.findings["speedups"]] == [None, *shapes]
    assert not any("[" in text for section in report.sections for text, _ in section.sentences)
    assert {one["cell"] for one in report.rows["lines"]} == {
        "fixed, batch 1",
        *(f"net, {s.replace('=', ' ').replace('/', ', ')}, batch 2" for s in shapes),
    }


def test_where_nothing_was_disturbed_charts_say_nothing_of_it(h200_report: Report) -> None:
    assert not any("disturbed" in json.dumps(chart.spec) for chart in h200_report.charts)


def test_a_sentence_of_a_chart_says_which_of_its_rows_were_disturbed(doubted: Data) -> None:
    found = findings(doubted)
    said = {(name, one["pass"]): one["text"] for name, texts in found.items() for one in texts}
    doubt = "; ort fp32 at batch 16 was inconsistent."
    for name in ("latency", "throughput", "efficiency", "samples", "setup"):
        assert said[name, "inference"].endswith(doubt), said[name, "inference"]
    for name in ("latency", "efficiency"):
        assert "×" not in said[name, "inference"], "of a disturbed row no factor"
    assert said["speedups", "inference"].endswith("the fastest is ort fp32, which was inconsistent.")
    assert said["speedups", "training"] == (
        "Over fp32 eager at batch 16: compiled fp32; the fastest is compiled fp32; fp32 eager was disturbed."
    )
    assert "disturbed" not in said["training", "training"], "it names only the fastest"
    judged = "the 1 of 2 models and batch sizes that can be judged in inference"
    assert headline(doubted.configurations) == f"ort fp32 is the fastest for {judged}"
    calm = doubted.configurations.filter(pl.col("batch_size") == 1)
    slower = calm.with_columns(own_disturbed=pl.when(rank=2).then(pl.lit("disturbed")))
    assert headline(slower) == "ort fp32 is the fastest; 1 configuration that was disturbed may be faster"


def test_tables_leave_out_factors_of_what_was_disturbed_and_note_it(doubted: Data) -> None:
    made = tables(doubted)
    rows = pl.DataFrame(made["speedups"].frame).to_dicts()
    cells = {(r["pass"], r["variant"], r["batch_size"]): (r["speedup"], r["gain"], r["note"]) for r in rows}
    assert cells["inference", "ort", 1] == (pytest.approx(2.0), pytest.approx(2.0), None)
    assert cells["inference", "ort", 16] == (None, None, "inconsistent")
    assert cells["training", "compiled", 16] == (None, None, "base: disturbed")
    (setup,) = pl.DataFrame(made["setup"].frame).filter(variant="ort", batch_size=16)["pays_off_items"]
    (gain,) = pl.DataFrame(made["efficiency"].frame).filter(variant="ort", batch_size=16)["item_gain"]
    assert (setup, gain) == (None, None)
