"""Tables in the published form, of made-up results and the real references: published rows and ours together."""

from __future__ import annotations

import io
from typing import Any

import handmade
import polars as pl
import pytest
from published_rows import case, frame
from rich.console import Console

from profiler.errors import ConfigError
from profiler.published import references
from profiler.published.command import page, present
from profiler.published.comparing import MATRIX
from profiler.published.studies import STUDIES
from profiler.published.tables import published_tables
from profiler.published.times import own_times, study_times
from profiler.tables.table import Section
from profiler.tables.writers import markdown

ENVIRONMENT = {
    "machine": "H200", "gpu": "NVIDIA H200", "torch_version": "2.11.0", "python": "3.12.3", "gpu_memory_mib": 143_771.0,
    "command": ["python", "-m", "profiler", "job"], "compute_capability": "9.0",
    "roofs": {"fp32_tflops": 51.0, "copy_gb_s": 4230.8},
}  # fmt: skip
CPU = {"machine": "a CPU", "device": "cpu", "cudnn": None}


def made(study: str, *cases: dict[str, Any]) -> tuple[list[str], list[Section]]:
    return published_tables(study, frame(*cases), [ENVIRONMENT])


def lines(sections: list[Section], heading: str) -> list[list[str]]:
    (section,) = [section for section in sections if section.heading.startswith(heading)]
    found = []
    for table in section.tables:
        found += [[table.title], *(line[2:-2].split(" | ") for line in markdown(table).splitlines())]
    return found


# The references as frames.


def test_missing_figures_are_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(references, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="is missing"):
        references.network_names("gpu-study")


# How a library is called.


@pytest.mark.parametrize(
    ("more", "called"),
    [
        ({}, "PyTorch 2.11 eager fp32, cuDNN 9.19"),
        ({"variant": "eager-tuned", "precision": "fp16"}, "PyTorch 2.11 eager-tuned fp16, cuDNN 9.19"),
        ({"variant": "eager-nocudnn", "options": '{"cudnn": false}'}, "PyTorch 2.11 eager-nocudnn fp32, no cuDNN"),
        ({"engine": "ort", "variant": "mine", "pass": "inference"}, "ONNX Runtime 1.31 mine fp32, cuDNN 9.19"),
        ({"engine": "trt", "variant": "trt", "tensorrt_version": "11.4.0.106"}, "TensorRT 11.4 trt fp32"),
        (CPU, "PyTorch 2.11 eager fp32"),
        ({"cudnn": "8902"}, "PyTorch 2.11 eager fp32, cuDNN 8.9"),
        ({"head": "cross-entropy", "setting": ""}, "PyTorch 2.11 eager fp32, cuDNN 9.19, with loss"),
        ({"model": "mine", "network": "resnet50"}, "PyTorch 2.11 eager fp32, cuDNN 9.19, as mine"),
    ],
)
def test_a_library_is_called_by_all_that_tells_it_from_another(more, called):
    assert own_times(frame(case(**{"model": "resnet50", **more})))["library"].to_list() == [called]


@pytest.mark.parametrize(
    ("study", "model", "pass_", "computed", "says"),
    [
        ("cnn-benchmarks", "vgg16", "training", True, ""),
        ("cnn-benchmarks", "vgg16", "training", None, ", without the image's gradient"),
        ("cnn-benchmarks", "resnet50", "training", True, ", with the image's gradient"),
        ("gpu-study", "vgg16", "training", True, ", with the image's gradient"),
        ("gpu-study", "vgg16", "inference", None, ""),
        ("cloud-gpus", "alexnet", "training", False, ", without the image's gradient"),
    ],
)
def test_a_row_says_where_it_computed_the_images_gradient_otherwise_than_the_study(study, model, pass_, computed, says):
    own = study_times(study, frame(case(model, **{"pass": pass_, "input_gradient": computed}))).filter("ours")
    assert own["library"].to_list() == [f"PyTorch 2.11 eager fp32, cuDNN 9.19{says}"]


# Networks.


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Replicates are one row, and a failed one leaves the others.
        ([*(case("vgg16", ms=ms, replicate=i) for i, ms in enumerate((1.0, 2.0, 9.0))),
          case("vgg16", ms=None, replicate=3)], [("vgg16", 2.0, None)]),
        ([case("vgg16"), case("mine", network="vgg16", ms=2.0)], [("vgg16", 3.0, None), ("vgg16", 2.0, None)]),
        ([case("resnet200", ms=None, status="oom", reason="CUDA error")], [("resnet200", None, "out of memory")]),
        ([case("resnet200", ms=None, status="crashed")], [("resnet200", None, "crashed")]),
        ([case("vgg16", warnings=["host-bound: a", "outliers: b"])], [("vgg16", 3.0, "host-bound")]),
        # What is no forward and backward pass of its networks, without an update, is left out.
        ([case("alexnet"), case("alexnet", **{"pass": "inference"}), case("overfeat"), case("alexnet", optimizer="sgd"),
          case("alexnet", model_kind="layer")], [("alexnet", 3.0, None)]),
        # The published batch size, or what there is.
        ([case("vgg16"), case("vgg16", batch_size=1)], [("vgg16", 3.0, None)]),
        ([case("vgg16", batch_size=1)], [("vgg16", 3.0, None)]),
    ],
)  # fmt: skip
def test_own_rows_of_a_study(rows, expected):
    own = study_times("cnn-benchmarks", frame(*rows)).filter("ours")
    assert own.select("network", "total_ms", pl.coalesce("note", "why")).rows() == expected


def test_another_batch_size_is_ranked_by_the_time_per_image():
    found = lines(made("cnn-benchmarks", case("vgg16", ms=20.0, batch_size=2))[1], "cnn-benchmarks")
    vgg16 = found[found.index(["VGG-16"]) :]
    assert vgg16[1][-2:] == ["Batch", "Per image (ms)"]
    # 10 ms an image: slower than 128.14 / 16, 128.62 / 16 and 157.39 / 16.
    assert [row[0].startswith("▸") for row in vgg16[3:7]] == [False, False, False, True]
    both = case("vgg16", ms=20.0, batch_size=2), case("vgg16", precision="tf32", ms=30.0, batch_size=16)
    told = lines(made("cnn-benchmarks", *both)[1], "cnn-benchmarks")
    ours = [row for row in told if "▸" in row[0] and "**" in str(row)]
    assert [row[1][-15:] for row in ours if "tf32" not in row[1]] == [], "bold is the lowest an image, too"


def test_an_unknown_interval_and_an_unknown_device_time_have_their_reasons():
    _, sections = made("cnn-benchmarks", case("vgg16", **dict.fromkeys(handmade.KNOWN)))
    found = lines(sections, "cnn-benchmarks")
    _, heads, _, ours, theirs = found[found.index(["VGG-16"]) :][:5]
    at = heads.index("95 %, ms")
    assert (ours[at], theirs[at].strip()) == ("±?", ""), "published rows have no intervals"
    assert "A GPU has no device time where" in str([section.paragraphs for section in sections])


# Layers, frameworks, minibatches.


def test_the_study_of_minibatches_gives_the_devices_time_per_sample():
    def swept(batch: int, ms: float | None, **more: Any) -> dict[str, Any]:
        return case("vgg16", ms=ms, batch_size=batch, **more)

    rows = [swept(32, 320.0, gpu_ms=64.0), swept(64, 64.0, gpu_ms=64.0), swept(128, None, status="oom")]
    # The same machine at another price is one row, the faster.
    rows += [swept(size, 10.0 * size, usd_per_hour=3.0, peak_memory_mib=size) for size in (32, 64, 256)]
    said, sections = made("gpu-study", *rows)
    found = lines(sections, "Minibatch")
    assert found[:2] == [["Oxford VGG, forward + backward"], ["GPU", "Framework", "32", "64", "128", "256", "Note"]]
    cells = [[cell.strip("*") for cell in row[2:]] for row in found[3:]]
    called = "the call's time: 32, 64, 256"
    assert cells == [["2.00", "1.00", "out of memory", "10.00", called], ["", "6.57", "7.03", "", ""]]
    peaks = lines(sections, "Peak memory")
    assert peaks[3][3:] == ["32", "64", "out of memory", "256"]
    assert not [part for part in sections if "A row that is missing" in str(part.paragraphs)], "no row is missing"
    assert not [text for text in said if "with 256 at a time" in text], "of 256 only the call's time is known"
    assert not any(section.heading.startswith("GPU vs") for section in sections)


def test_the_leads_between_libraries_come_with_their_verdicts():
    unknown = dict.fromkeys(handmade.KNOWN)
    rows = [case(model, ms=10.0, batch_size=64) for model in ("resnet50", "resnet101", "resnet152")]
    rows += [case("resnet50", "compiled", ms=5.0, batch_size=64), case("resnet101", "compiled", ms=9.98, batch_size=64)]
    rows += [case("resnet152", "compiled", ms=20.0, batch_size=64, **unknown)]
    (said,) = [text for text in made("gpu-study", *rows)[0] if "leads" in text]
    compiled, eager = (f"PyTorch 2.11 {variant} fp32, cuDNN 9.19" for variant in ("compiled", "eager"))
    leads = f"{compiled} leads on 2; {eager} leads on 1"
    verdicts = "the lead is proven on 1, within the margin on 1, without an interval on 1"
    assert said == f"On the H200, forward + backward, 3 networks: {leads}; {verdicts}."
    one = made("gpu-study", *[row for row in rows if row["model"] == "resnet50"])[0]
    assert any(f"1 network: {compiled} leads on 1; the lead is proven on 1." in text for text in one)


# The matrix of ratios.


def test_the_matrix_compares_with_each_published_machine_and_our_counterpart():
    ends = {"latency_low_ms": 6.9, "latency_high_ms": 7.0}
    rows = [
        case("alexnet", "eager-benchmark", ms=6.945, **ends), case("vgg16", "eager-benchmark", ms=12.814),
        case("alexnet", "eager-tuned", ms=3.4725), case("vgg16", ms=1000.0, **CPU),
    ]  # fmt: skip
    found = lines(made("cnn-benchmarks", *rows)[1], MATRIX)
    matrix = {row[0]: dict(zip(found[1], row, strict=True)) for row in found[3:]}
    own = "▸ H200, PyTorch 2.11 eager-benchmark fp32, cuDNN 9.19"
    assert matrix[own]["GTX 1080 Ti"] == "4.5 (2.0–10.0)", "geometric mean, least and greatest end"
    tuned = matrix["▸ H200, PyTorch 2.11 eager-tuned fp32, cuDNN 9.19"]
    assert tuned[own].startswith("2.0"), "over what both ran"
    assert matrix["Pascal Titan X"]["GTX 1080 Ti"].startswith("0.99 (0.94")
    cpu = matrix["▸ a CPU, PyTorch 2.11 eager fp32"]
    assert (cpu["GTX 1080 Ti"], cpu["CPU: Dual Xeon E5-2630 v3"]) == ("", "8.5"), "a GPU and a CPU are not compared"


# The page and the terminal.


def test_the_page_has_every_table_and_the_sources_statements(tmp_path):
    console, rows = Console(file=io.StringIO(), width=80), frame(case("vgg16", ms=8495.5, python="3.10.13"))
    assert present(console, "cnn-benchmarks", rows, [ENVIRONMENT], tmp_path)
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= 80
    assert "AlexNet" not in printed, "of which nothing is ours"
    assert {"2,831.83", "8,495.50", "8,495.48", "128.14"} <= set(printed.split())
    text = (tmp_path / "published.md").read_text()
    assert text == page("cnn-benchmarks", *published_tables("cnn-benchmarks", rows, [ENVIRONMENT]), rows, [ENVIRONMENT])
    assert (
        "\n- H200, 2026-11-22: NVIDIA H200, torch 2.11.0, Python 3.10.13 and 3.12.3; `python -m profiler job`\n" in text
    )
    assert "**AlexNet**" in text
    claims = references.read("conclusions").filter(source="cnn-benchmarks")
    assert claims.height > 10
    for row in claims.to_dicts():
        assert f"| {row['verdict']} | {row['statement'][:20]}" in text.replace("\\", "")


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("rows", [[], [case("alexnet", **{"pass": "other"})]])
def test_without_a_row_of_its_own_nothing_is_said(study, rows, tmp_path):
    console = Console(file=io.StringIO())
    assert present(console, study, frame(*rows), [ENVIRONMENT], tmp_path) is False
    assert console.file.getvalue() == ""
    assert list(tmp_path.iterdir()) == []
