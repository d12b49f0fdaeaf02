"""The pictures of published benchmarks: what they draw, in which form, and as files next to published.md."""

from __future__ import annotations

import json
import re
from math import log
from pathlib import Path

import altair as alt
import polars as pl
import pytest
from handmade import row, run

from profiler.published import picture_specs as specs
from profiler.published import pictures
from profiler.published.claims.evidence import Evidence
from profiler.published.command import write
from profiler.published.pictures import Picture, published_pictures
from profiler.published.tables import published_tables
from profiler.results.reading import read_runs

SUITES = Path(__file__).resolve().parents[3] / "docs" / "results" / "suites" / "h200"
STUDIES = {"convnet-layers": "convnet-benchmarks", "minibatch-efficiency": "gpu-study"}
"""Of suites that are not called as their study."""


def results(suite: str) -> pl.DataFrame:
    return read_runs([SUITES / suite]).results.collect()


def drawn(suite: str) -> dict[str, Picture]:
    return {one.name: one for one in published_pictures(STUDIES.get(suite, suite), results(suite))}


def trained(network: str, ms: float, variant: str = "eager", **more: object) -> dict[str, object]:
    """A row of cnn-benchmarks on a GPU."""
    about = {"pass": "training", "batch_size": 16, "device": "cuda", "machine": "Card", "head": "logits"}
    return row(variant, ms=ms, model=network, is_base=variant == "eager", **(about | more))


@pytest.mark.parametrize(
    ("suite", "names"),
    [
        ("cnn-benchmarks", ["machines-cuda-training", "engines-H200-training", "errors"]),
        ("cloud-gpus", ["machines-cuda-training", "engines-H200-training", "errors"]),
        ("convnet-benchmarks", ["machines-cuda-training", "engines-H200-training"]),
        ("convnet-layers", ["layers"]),
        ("gpu-study", ["engines-H200-inference", "engines-H200-training"]),
        ("minibatch-efficiency", ["minibatch-cuda-inference", "minibatch-cuda-training"]),
    ],
)
def test_every_suite_has_its_pictures_and_each_is_vega_lite(suite: str, names: list[str]) -> None:
    found = drawn(suite)
    assert list(found) == names
    for picture in found.values():
        drawing = picture.drawing()
        assert "var(--" not in json.dumps(drawing), "a file has no style sheet that gives colours"
        del drawing["config"]["legend"]["layout"]  # Vega's, which Vega-Lite's schema does not know.
        alt.Chart.from_dict(drawing)  # Raises for what is not of the schema.


def test_bars_begin_at_zero_and_the_longest_of_a_network_fills_its_width() -> None:
    picture = drawn("cnn-benchmarks")["machines-cuda-training"]
    rows = pl.DataFrame(picture.rows)
    assert rows.group_by("network").agg(pl.col("share").max())["share"].to_list() == [1.0] * 10
    titan = rows.filter(network="ResNet-50", name="Pascal Titan X").to_dicts()[0]
    ours = rows.filter(network="ResNet-50", name="eager-benchmark fp32").to_dicts()[0]
    longest = rows.filter(network="ResNet-50", share=1.0)["figure"].item()
    assert titan["text"] == "Pascal Titan X: 104 ms"
    assert (titan["share"], ours["share"]) == pytest.approx((titan["figure"] / longest, ours["figure"] / longest))


def test_machines_are_the_newest_release_and_the_best_of_ours_at_each_precision() -> None:
    names = {one["name"] for one in drawn("cnn-benchmarks")["machines-cuda-training"].rows}
    published = {"GTX 1080 Ti", "Pascal Titan X", "GTX 1080", "Maxwell Titan X"}
    assert names - published == {"eager-benchmark fp32", "eager-tuned tf32", "eager-tuned fp16", "eager amp-fp16"}
    assert published <= names


def test_a_network_that_was_not_measured_is_not_drawn() -> None:
    first = published_pictures("cnn-benchmarks", run(trained("resnet50", 20.0))[0])[0]
    assert {one["network"] for one in first.rows} == {"ResNet-50"}


def test_a_gpu_and_a_processor_have_pictures_of_their_own() -> None:
    cpu = {"device": "cpu", "machine": "Mine"}
    rows = [trained("resnet50", 20.0), trained("vgg16", 40.0), trained("resnet50", 900.0, **cpu)]
    made = {one.name: one for one in published_pictures("cnn-benchmarks", run(*rows)[0])}
    assert {one["network"] for one in made["machines-cuda-training"].rows} == {"ResNet-50", "VGG-16"}
    assert {one["network"] for one in made["machines-cpu-training"].rows} == {"ResNet-50"}
    swept = [one | {"batch_size": size} for one in rows for size in (16, 32, 64)]
    made = {one.name: one for one in published_pictures("gpu-study", run(*swept)[0])}
    assert list(made) == ["minibatch-cuda-training", "minibatch-cpu-training"]
    assert {one["name"] for one in made["minibatch-cpu-training"].rows} == {"Mine eager fp32"}


def test_times_too_far_apart_for_bars_are_points_on_a_logarithmic_scale() -> None:
    marks = {
        name: json.dumps(one.spec) for suite in ("convnet-layers", "gpu-study") for name, one in drawn(suite).items()
    }
    assert '"type": "log"' in marks["layers"]
    assert '"type": "bar"' not in marks["layers"]
    assert '"type": "log"' not in marks["engines-H200-training"]
    assert '"type": "bar"' in marks["engines-H200-training"]


def test_what_did_not_fit_is_a_bar_that_says_so() -> None:
    rows = [trained("resnet50", 20.0), trained("vgg16", None, status="oom"), trained("vgg16", 9.0, variant="compiled")]
    made = {one.name: one for one in published_pictures("cnn-benchmarks", run(*rows)[0])}
    found = {one["text"]: one["share"] for one in made["engines-Card-training"].rows if one["network"] == "VGG-16"}
    assert found == {"compiled fp32: 9 ms": 1.0, "eager fp32: out of memory": 0.0}


def test_a_processor_with_no_library_is_called_by_its_name() -> None:
    mine = trained("resnet50", 20.0, device="cpu", gpu=None)
    (picture,) = [one for one in published_pictures("cnn-benchmarks", run(mine)[0]) if one.name.startswith("machines")]
    assert {one["name"] for one in picture.rows} == {"eager fp32", "Dual Xeon E5-2630 v3, without cuDNN"}


def test_machines_of_ours_are_named_where_there_are_several() -> None:
    rows = [trained("resnet50", 20.0, machine=machine) for machine in ("Card", "Other")]
    first = published_pictures("cnn-benchmarks", run(*rows)[0])[0]
    assert "lowest mean over the networks first" in first.note
    assert {"Card eager fp32", "Other eager fp32", "GTX 1080"} <= {one["name"] for one in first.rows}
    assert first.title == "Card, Other and the published GPUs: forward and backward pass"


def test_the_published_minibatches_stand_in_the_panel_of_their_network() -> None:
    rows = pl.DataFrame(drawn("minibatch-efficiency")["minibatch-cuda-training"].rows)
    theirs = rows.filter(pl.col("name").str.starts_with("GTX 1080"))
    assert theirs.select("network", "batch_size", pl.col("ms").round(2)).rows() == [
        ("Oxford VGG", 64, 6.57),
        ("Oxford VGG", 128, 7.03),
    ]
    assert rows["network"].n_unique() == 6


def test_names_of_networks_do_not_lie_upon_each_other() -> None:
    names = pl.DataFrame(drawn("cnn-benchmarks")["errors"].more["names"]).sort("place")
    range_of_errors = log(names["error"].max() / names["error"].min())
    pixels = names["place"].log().diff().drop_nulls() / range_of_errors * specs.ERRORS_HEIGHT
    assert pixels.min() > 12
    assert names["network"].to_list()[:3] == ["ResNet-200", "ResNet-152", "ResNet-101"], "in the order of errors"


def test_files_lie_next_to_the_page_that_shows_them(tmp_path: Path) -> None:
    frame = results("gpu-study")
    write(tmp_path, Evidence("gpu-study", frame), published_tables("gpu-study", frame))
    shown = re.findall(r"!\[(.*?)\]\((.*?)\)", (tmp_path / "published.md").read_text())
    assert [file for _, file in shown] == [
        "published-engines-h200-inference.svg",
        "published-engines-h200-training.svg",
    ]
    for what, file in shown:
        text = (tmp_path / file).read_text()
        assert text.startswith("<svg")
        assert "eager-benchmark fp32" in text
        assert what.startswith("H200, by engine and precision: forward")
    assert not list(tmp_path.glob("*.png"))


def test_a_name_of_a_machine_makes_a_file_name_anywhere() -> None:
    picture = pictures.Picture("engines-Some: Card/2 <x>-training", "", "", "networks", {}, [])
    assert picture.file == "published-engines-some-card-2-x-training.svg"
