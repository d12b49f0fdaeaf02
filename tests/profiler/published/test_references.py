"""The published figures as frames: every printed row once, in its order, by names that sentences can use."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from exporters.catalog import CATALOG
from profiler.errors import ConfigError
from profiler.published import references
from profiler.published.references import published_as_results
from profiler.published.studies import STUDIES
from profiler.results.columns import RESULTS

ROOT = Path(__file__).resolve().parents[3]


def test_the_studies_are_those_of_the_files():
    assert set(references.read("studies")["source"]) == set(STUDIES)


@pytest.mark.parametrize(("study", "rows"), [("cnn-benchmarks", 116), ("cloud-gpus", 66), ("convnet-benchmarks", 12)])
def test_a_networks_row_has_its_three_times(study, rows):
    frame = references.networks(study)
    assert frame.height == rows
    assert frame.select("network", "setup").is_unique().all(), "two rows would be called alike"
    sums = frame.select(pl.col("forward_ms") + pl.col("backward_ms") - pl.col("total_ms")).to_series()
    assert sums.abs().max() <= 1.001
    assert set(frame["network"]) <= set(references.network_names(study)) <= set(CATALOG)


@pytest.mark.parametrize(
    ("study", "network", "rank", "expected"),
    [
        ("cnn-benchmarks", "vgg16", 1, ("GTX 1080 Ti", "5.1.10", "GTX 1080 Ti with cuDNN 5.1.10", 128.14)),
        ("cnn-benchmarks", "vgg16", 9, ("Pascal Titan X", "None", "Pascal Titan X without cuDNN", 358.53)),
        ("cnn-benchmarks", "vgg16", 12, (*("CPU: Dual Xeon E5-2630 v3", "None", "CPU: Dual Xeon E5-2630 v3"), 8495.48)),
        ("convnet-benchmarks", "vgg11", 4, ("Titan Black", "Torch-7", "Titan Black with Torch-7", 841)),
    ],
)  # fmt: skip
def test_a_row_is_called_as_printed_and_as_a_sentence_would(study, network, rank, expected):
    (row,) = references.networks(study).filter(network=network, rank=rank).to_dicts()
    assert (row["machine"], row["library"], row["setup"], row["total_ms"]) == expected


def test_the_layers_are_the_printed_tables():
    frame = references.layers()
    assert frame.height == 4 * 12
    (best,) = frame.filter(table="gradWeight", library="cherry-picking").to_dicts()
    assert [best[name] for name in ("L1", "L2", "L3", "L4", "L5", "total")] == [199, 107, 36, 9, 21, 372]
    (ccv,) = references.layer_summary().filter(library="ccv").to_dicts()
    assert (ccv["forward_ms"], ccv["backward_ms"], ccv["total_ms"]) == (809, None, None)


def test_the_times_of_the_gpu_study_are_those_of_its_text():
    assert references.networks("gpu-study").select("network", "batch_size", "total_ms").rows() == [
        ("vgg16", 64, 420.28),
        ("vgg16", 128, 899.86),
    ]


def test_a_gpu_of_a_cloud_has_its_instance():
    (row,) = references.hardware("cloud-gpus").filter(gpu="Tesla K80").to_dicts()
    assert (row["instance"], row["memory"], row["cuda_cores"]) == ("p2, NCx, K80", "12GB GDDR5", 2496)


def test_networks_have_their_printed_names_in_their_printed_order():
    names = references.network_names("gpu-study")
    assert list(names.items())[:4] == [
        ("alexnet", "AlexNet"), ("overfeat", "Overfeat"), ("vgg16", "Oxford VGG"), ("googlenet", "GoogLeNet"),
    ]  # fmt: skip
    assert names["resnet152"] == "ResNet-152"


def test_without_the_folder_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(references, "FOLDER", tmp_path / "references")
    with pytest.raises(ConfigError, match=r"references/cnn-benchmarks\.csv is missing: .* leave published out"):
        references.networks("cnn-benchmarks")


@pytest.mark.parametrize("study", ["cnn-benchmarks", "cloud-gpus", "convnet-benchmarks", "gpu-study"])
def test_every_published_total_is_a_row_in_training(study: str) -> None:
    printed = pl.read_csv(ROOT / "references" / f"{study}.csv", infer_schema=False)
    totals = printed.filter(pl.col("pass") == "total").drop_nulls(["milliseconds", "network"])
    rows = published_as_results(study)
    assert dict(rows.schema) == RESULTS
    assert sorted(rows["latency_ms"]) == sorted(totals["milliseconds"].cast(pl.Float64))
    assert set(rows["pass"]) == {"training"}
    assert rows["case_id"].is_unique().all()
    if study != "gpu-study":
        slower = (rows["forward_ms"] + rows["backward_ms"] - rows["latency_ms"]).abs() / rows["latency_ms"]
        assert slower.max() < 0.02  # type: ignore[operator]


def test_a_published_cpu_is_called_as_it_is() -> None:
    rows = published_as_results("cnn-benchmarks").filter(device="cpu")
    assert set(rows["machine"]) == {"Dual Xeon E5-2630 v3"}
    assert set(rows["variant"]) == {"nn"}


def test_a_study_that_is_none_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cnn-benchmarks'"):
        published_as_results("cnn-benchmark")
