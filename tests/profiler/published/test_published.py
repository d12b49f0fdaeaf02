"""Tables in the published form, of made-up results and the real references: published rows and ours together."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from published_rows import case, frame, layer
from rich.console import Console
from runs import on_console

from exporters.single_layers import LAYERS as SHAPES
from profiler.errors import ConfigError
from profiler.published import references, setups
from profiler.published.claims.evidence import Evidence
from profiler.published.command import (
    Options,
    covers,
    execute,
    nothing_compared,
    present,
    print_published,
    require,
    write,
)
from profiler.published.pictures import published_pictures
from profiler.published.printed import Printed, measures, milliseconds, money, rates
from profiler.published.studies import STUDIES
from profiler.published.tables import markdown, published_tables
from profiler.results.columns import RESULTS

ROW = {"run_id": "run", "case_id": "a"}


def table(study: str, name: str, *cases: dict[str, Any]) -> Printed:
    (found,) = [t for t in published_tables(study, frame(*cases)) if t.name == name]
    return found


def own(printed: Printed) -> list[dict[str, Any]]:
    return printed.frame.filter("ours").to_dicts()


# How machine and library are called.


@pytest.mark.parametrize(
    ("more", "called"),
    [
        ({}, "PyTorch 2.11 eager fp32, cuDNN 9.19"),
        ({"variant": "eager-tuned", "precision": "fp16"}, "PyTorch 2.11 eager-tuned fp16, cuDNN 9.19"),
        ({"variant": "eager-nocudnn", "options": '{"cudnn": false}'}, "PyTorch 2.11 eager-nocudnn fp32, no cuDNN"),
        ({"engine": "ort", "variant": "mine", "pass": "inference"}, "ONNX Runtime 1.31 mine fp32, cuDNN 9.19"),
        ({"engine": "trt", "variant": "trt", "tensorrt_version": "11.4.0.106"}, "TensorRT 11.4 trt fp32"),
        ({"device": "cpu", "cudnn": None}, "PyTorch 2.11 eager fp32"),
        ({"cudnn": "8902"}, "PyTorch 2.11 eager fp32, cuDNN 8.9"),
        ({"head": "cross-entropy", "setting": ""}, "PyTorch 2.11 eager fp32, cuDNN 9.19, with loss"),
        ({"optimizer": "sgd"}, "PyTorch 2.11 eager fp32, cuDNN 9.19, optimizer sgd"),
        ({"model": "mine", "network": "resnet50"}, "PyTorch 2.11 eager fp32, cuDNN 9.19, as mine"),
    ],
)
def test_a_library_is_called_by_all_that_tells_it_from_another(more, called):
    row = {**dict.fromkeys(RESULTS), **case("resnet50"), **more}
    assert setups.software(row, row["variant"]) + setups.ending(row) == called


@pytest.mark.parametrize(
    ("study", "model", "pass_", "computed", "says"),
    [
        ("cnn-benchmarks", "vgg16", "training", True, ""),
        ("cnn-benchmarks", "vgg16", "training", False, ", without the image's gradient"),
        ("cnn-benchmarks", "vgg16", "training", None, ", without the image's gradient"),
        ("cnn-benchmarks", "resnet50", "training", False, ""),
        ("cnn-benchmarks", "resnet50", "training", True, ", with the image's gradient"),
        ("gpu-study", "vgg16", "training", True, ", with the image's gradient"),
        ("gpu-study", "vgg16", "inference", None, ""),
        ("cloud-gpus", "alexnet", "training", False, ", without the image's gradient"),
    ],
)
def test_a_row_says_where_it_computed_the_images_gradient_otherwise_than_the_study(
    study: str, model: str, pass_: str, computed: bool | None, says: str
) -> None:
    row = case(model, **{"pass": pass_, "input_gradient": computed, "usd_per_million_items": 2.0})
    found = network_names_of(study, row)
    assert found == {f"PyTorch 2.11 eager fp32, cuDNN 9.19{says}"}


def network_names_of(study: str, row: dict[str, Any]) -> set[str]:
    """What a row's library is called in the tables of times and of costs."""
    mine = setups.network_times(study, setups.times(frame(row))).filter("ours")
    cost = table(study, "cost", row).frame if study in ("cnn-benchmarks", "cloud-gpus") else mine
    assert mine["setup"].to_list() == [f"H200 with {name}" for name in mine["library"]]
    return {*mine["library"], *cost["library"]}


def test_replicates_are_one_row_and_a_failed_one_leaves_the_others():
    rows = [case("vgg16", ms=ms, replicate=i) for i, ms in enumerate((1.0, 2.0, 9.0))]
    (row,) = own(table("cnn-benchmarks", "networks", *rows, case("vgg16", ms=None, replicate=3)))
    assert (row["total_ms"], row["note"]) == (2.0, None)


def test_a_network_by_another_name_is_among_its_networks_rows():
    rows = own(table("cnn-benchmarks", "networks", case("vgg16"), case("mine", network="vgg16", ms=2.0)))
    assert [(row["network"], row["total_ms"], row["library"].endswith("as mine")) for row in rows] == [
        ("vgg16", 2.0, True),
        ("vgg16", 3.0, False),
    ]
    assert covers("cnn-benchmarks", {"model": "mine", "network": "vgg16", "pass": "training", "setting": ""})
    assert not covers("cnn-benchmarks", {"model": "mine", "network": None, "pass": "training", "setting": ""})


# The networks of 000 and 001.


def test_published_rows_and_ours_are_ranked_together():
    printed = table("cnn-benchmarks", "networks", case("alexnet", ms=15.0), case("alexnet", precision="tf32", ms=3.0))
    rows = printed.frame.filter(network="alexnet").to_dicts()
    assert [row["total_ms"] for row in rows[:4]] == [3.0, 13.89, 14.56, 15.0]
    assert [row["ours"] for row in rows[:4]] == [True, False, False, True]
    assert rows[1]["machine"] == "GTX 1080 Ti"
    assert len(rows) == 8 + 2


def test_a_network_of_which_nothing_is_ours_stands_as_published():
    printed = table("cnn-benchmarks", "networks", case("alexnet"))
    published = references.networks("cnn-benchmarks").filter(network="resnet50")
    rows = printed.frame.filter(network="resnet50")
    assert sorted(rows["total_ms"]) == sorted(published["total_ms"])
    assert not rows["ours"].any()


@pytest.mark.parametrize(
    ("status", "reason", "note"),
    [
        ("oom", "CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("unsupported", "no such thing", "unsupported: no such thing"),
        ("crashed", None, "crashed: no reason was given"),
    ],
)
def test_what_gave_no_figures_is_a_row_of_blanks_with_the_reason(status, reason, note):
    printed = table("cnn-benchmarks", "networks", case("resnet200", ms=None, status=status, reason=reason))
    last = printed.frame.filter(network="resnet200").to_dicts()[-1]
    assert (last["note"], last["total_ms"], last["rank"], last["ours"]) == (note, None, None, True)
    assert f"| ▸ H200 | PyTorch 2.11 eager fp32, cuDNN 9.19 |  |  |  | {note} |" in printed.markdown()


def test_rows_that_are_no_forward_and_backward_pass_are_left_out():
    stray = [
        case("alexnet", **{"pass": "inference"}), case("alexnet", setting="optimizer=sgd/head=logits", optimizer="sgd"),
        case("overfeat"), case("alexnet", model_kind="layer"),
    ]  # fmt: skip
    assert len(own(table("cnn-benchmarks", "networks", case("alexnet"), *stray))) == 1


def test_at_another_batch_size_the_time_per_image_ranks_and_the_table_says_so():
    printed = table("cnn-benchmarks", "networks", case("vgg16", ms=20.0, batch_size=2))
    assert "ranked by the time per image" in printed.note
    rows = printed.frame.filter(network="vgg16").to_dicts()
    # 10 ms an image: slower than 128.14 / 16, 128.62 / 16 and 157.39 / 16.
    assert [row["ours"] for row in rows[:4]] == [False, False, False, True]
    assert "| Batch | Per image (ms) |" in printed.markdown()
    usual = table("cnn-benchmarks", "networks", case("vgg16", ms=20.0))
    assert "Per image" not in usual.markdown()


def test_where_the_published_batch_size_was_measured_the_others_are_left_out():
    (row,) = own(table("cnn-benchmarks", "networks", case("vgg16"), case("vgg16", batch_size=1)))
    assert row["batch_size"] == 16


def test_markdown_is_the_published_form_with_ours_marked_and_the_best_bold():
    text = table("cnn-benchmarks", "networks", case("alexnet")).markdown()
    start = text.index("### AlexNet")
    assert text[start:].splitlines()[2:6] == [
        "| GPU | cuDNN | Forward (ms) | Backward (ms) | Total (ms) |",
        "| --- | --- | ---: | ---: | ---: |",
        "| ▸ H200 | PyTorch 2.11 eager fp32, cuDNN 9.19 | 1.00 | 2.00 | 3.00 |",
        "| GTX 1080 Ti | 5.1.10 | **4.31** | 9.58 | **13.89** |",
    ]


def test_several_machines_stand_in_one_table():
    other = case("alexnet", ms=4.0, machine="B200")
    assert {row["machine"] for row in own(table("cloud-gpus", "networks", case("alexnet"), other))} == {"H200", "B200"}


# The machines.


ENVIRONMENT = {
    "machine": "H200", "gpu_memory_mib": 143_771.0, "compute_capability": "9.0", "cpu": "Xeon", "cpu_cores": 24,
    "memory_mib": 65_536.0, "platform": "Linux-6", "cuda": "13.0",
    "roofs": {"fp32_tflops": 51.0, "copy_gb_s": 4230.8},
}  # fmt: skip


def about_the_machine(study: str, name: str, *cases: dict[str, Any], **more: Any) -> Printed:
    (found,) = [t for t in published_tables(study, frame(*cases), [ENVIRONMENT | more]) if t.name == name]
    return found


def test_the_cards_of_the_gpu_study_have_all_that_its_text_says_and_ours_no_price_that_nobody_gave():
    lines = about_the_machine("gpu-study", "hardware", case("vgg16", batch_size=64)).markdown().splitlines()
    assert lines[-5:] == [
        "| ▸ H200 | 140GiB |  |  | 51.00 measured |  | 4,231 measured | 9.0 |  |",
        "| Tesla K40 | 12GB GDDR5 | Kepler | 2,880 |  | 745 | 288 | 3.5 |  |",
        "| Maxwell Titan X | 12GB GDDR5 | Maxwell | 3,072 |  | 1,000 | 336.5 | 5.1 | 1000.00 (original) |",
        "| GTX 1080 | 8GB GDDR5X | Pascal | 2,560 |  | 1,607 | 320 | 6.1 | less than 800.00 |",
        "| Pascal Titan X | 12GB GDDR5X | Pascal | 3,584 |  | 1,417 | 480 | 6.1 | 1200.00 (current) |",
    ]


def test_the_computers_around_the_cards_are_those_of_the_sources_and_ours():
    lines = about_the_machine("cnn-benchmarks", "hosts", case("vgg16")).markdown().splitlines()
    assert lines[-5:-2] == [
        "| ▸ H200 | Xeon | 24 | 64GiB | Linux-6 | 13.0 |",
        "| GTX 1080 | 2 x Intel Xeon E5-2630 v3 | 2 x 8, 32 threads | 64GB | Ubuntu 14.04 | 8.0 Release Candidate |",
        lines[-4].replace("GTX 1080", "Maxwell Titan X"),
    ]
    black = about_the_machine("convnet-benchmarks", "hosts", case("vgg11", batch_size=32)).markdown()
    assert "| Titan Black | Intel i7-3930K | 6 | 3.20 |  | Ubuntu 14.04 x86_64 |  |" in black
    assert (
        "| all published |  |  |  | Ubuntu 14.04 | 8.0 Release Candidate |"
        in about_the_machine("cloud-gpus", "hosts", case("vgg16")).markdown()
    )


def test_of_a_machine_of_which_nothing_is_known_there_is_no_row():
    names = {t.name for t in published_tables("cnn-benchmarks", frame(case("vgg16")), [{"machine": "other"}])}
    assert names == {"overview", "networks"}


# The networks' own lists.


def test_the_overview_has_the_published_speed_and_that_of_each_machine_of_ours():
    other = {"machine": "a CPU", "device": "cpu", "cudnn": None}
    printed = table(
        "cnn-benchmarks",
        "overview",
        case("vgg16", ms=9.0),
        case("vgg16", "eager-benchmark", ms=8.0, warnings=["host-bound: a"]),
        case("vgg16", precision="tf32", ms=1.0),
        case("resnet50", ms=7.0, **other),
        case("alexnet", ms=5.0, batch_size=2, **other),
    )
    setups_ = "ours: a CPU with PyTorch 2.11 eager fp32; H200 with PyTorch 2.11 eager-benchmark fp32, cuDNN 9.19."
    assert setups_ in printed.note
    lines = printed.markdown().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| Network"))
    columns = ["Network", "Layers", "Top-1 error (%)", "Top-5 error (%)", "Speed (ms)"]
    own_columns = ["▸ a CPU, 2 images (ms)", "▸ H200 (ms)", "▸ a CPU (ms)"]
    assert lines[start] == f"| {' | '.join([*columns, *own_columns, 'Citation'])} |"
    assert "| AlexNet | 8 | 42.90 | 19.80 | 14.56 | 5.00 |  |  | \\[1] |" in lines
    assert "| VGG-16 | 16 | 27.00 | 8.80 | 128.62 |  | 8.00 h |  | \\[3] |" in lines
    assert [line for line in lines[start + 12 :] if line] == [printed.legend]
    assert printed.legend.startswith("h: ")


def test_two_speeds_of_a_network_on_one_machine_are_two_columns():
    rows = [case("vgg16", ms=9.0), case("mine", network="vgg16", ms=8.0), case("vgg19", ms=7.0)]
    frame_ = table("cnn-benchmarks", "overview", *rows).frame.filter(network="vgg16")
    software = "H200 with PyTorch 2.11 eager fp32, cuDNN 9.19"
    assert frame_.select(f"{software} (ms)", f"{software}, as mine (ms)").row(0) == (9.0, 8.0)


def test_what_a_row_did_not_compute_is_said_above_the_table_and_makes_no_column():
    rows = [case("vgg16", input_gradient=True), case("resnet50"), case("alexnet", input_gradient=False)]
    printed = table("cnn-benchmarks", "overview", *rows)
    assert "H200 (ms)" in printed.frame.columns
    assert "without the image's gradient" in printed.note


def test_the_gpu_study_tells_the_history_of_its_networks():
    lines = table("gpu-study", "overview", case("overfeat", batch_size=64, ms=5.0)).markdown().splitlines()
    assert [line for line in lines if line.startswith("| ")][2:] == [
        "| AlexNet | 2012 | 8 | 15.3 |  |",
        "| second best | 2012 |  | 26.2 |  |",
        "| previous edition |  |  | 25 |  |",
        "| Overfeat | 2013 |  | 14.2 | 5.00 |",
        "| VGG Net | 2014 | 11 to 19 | 7.3 |  |",
        "| GoogLeNet | 2014 | 22 | 6.67 |  |",
        "| ResNet | 2015 | 110 | 3.57 |  |",
    ]


# 001: clouds and costs.


def rented(**more: Any) -> dict[str, Any]:
    price = {"cloud": "Some Cloud", "instance": "big", "usd_per_hour": 7.2}
    return price | {"usd_per_million_items": 1.5, "items_per_usd": 1e6 / 1.5} | more


def test_a_rented_machine_stands_among_the_published_with_cloud_and_instance():
    hardware = about_the_machine("cloud-gpus", "hardware", case("alexnet", **rented()))
    row = hardware.frame.row(0, named=True)
    assert (row["gpu"], row["cloud"], row["instance"], row["memory"]) == ("H200", "Some Cloud", "big", "140GiB")
    assert (row["fp32_tflops"], row["price"], row["ours"]) == (51.0, "7.2 an hour", True)
    text = hardware.markdown()
    assert (
        "| ▸ H200 | Some Cloud | big | 140GiB |  |  | 51.00 measured | 4,231 measured | 9.0 | 7.2 an hour |  |" in text
    )
    assert "[Quadro M4000](https://www.techpowerup.com/gpudb/2757/quadro-m4000) | [Paperspace](https://www.pap" in text
    assert "/), [Google Cloud](https://cloud.google.com) | p2, NCx, K80 | 12GB GDDR5 | Kepler | 2,496 | 2.80 |" in text


def test_a_million_images_cost_what_the_row_says_cheapest_first():
    rows = [
        case("resnet50", **rented(usd_per_million_items=3.0)),
        case("resnet50", precision="amp-fp16", **rented()),
        case("resnet50", **rented(usd_per_million_items=0.25), **{"pass": "inference"}),
        case("alexnet", **rented()),
        case("resnet18"),
    ]
    cost = table("cloud-gpus", "cost", *rows).frame
    assert cost.select("network", "pass", "usd_per_million_items").rows() == [
        ("AlexNet", "training", 1.5),
        ("ResNet-50", "inference", 0.25),
        ("ResNet-50", "training", 1.5),
        ("ResNet-50", "training", 3.0),
    ]


def test_an_image_costs_joules_too_and_a_price_has_its_source():
    rows = [
        case("alexnet", **rented(), energy_mj_per_item=720.0),
        case("alexnet", machine="Other", energy_mj_per_item=360.0),
        case("alexnet", machine="Idle"),
    ]
    environments = [{"machine": "H200", "usd_per_hour": 7.2, "price_source": "Some Cloud's list, 2026-11-01"}]
    (cost,) = [t for t in published_tables("cloud-gpus", frame(*rows), environments) if t.name == "cost"]
    # 720 J for a thousand images, and 3.6 MJ are a kWh.
    assert cost.frame.select("machine", "usd_per_hour", "joules_per_item", "kwh_per_million_items").rows() == [
        ("H200", 7.2, pytest.approx(0.72), pytest.approx(0.2)),
        ("Other", None, pytest.approx(0.36), pytest.approx(0.1)),
    ]
    assert "Stated prices: H200: 7.20 USD an hour (Some Cloud's list, 2026-11-01)." in cost.note
    assert "| 0.72 | 0.2 |" in cost.markdown()
    without = table("cloud-gpus", "cost", case("alexnet", **rented()))
    assert "J/image" not in without.markdown()
    assert "H200: 7.20 USD an hour (as the user stated it)" in without.note


def test_without_a_price_there_is_no_table_of_costs():
    assert "cost" not in {t.name for t in published_tables("cloud-gpus", frame(case("alexnet")))}


# 002.


def test_the_libraries_of_002_have_their_class_and_their_whole_milliseconds():
    ours = case("alexnet-owt", "eager-channels-last", ms=12.345, batch_size=128)
    text = table("convnet-benchmarks", "networks", ours).markdown()
    assert "| GPU | Library | Class/Function | Time (ms) | forward (ms) | backward (ms) |" in text
    address = "https://github.com/soumith/cuda-convnet2.torch/blob/master/cudaconv3/src/filter_acts.cu"
    assert f"| Titan Black | cuda-convnet2 | [ConvLayer]({address}) | **275** | **88** | **187** |" in text
    assert "| eager-channels-last | 12.35 | 4.12 | 8.23 |" in text


LAYERS = [layer(f"L{i}", (1.0 * i, 2.0, 3.0)) for i in range(1, 6)]


def layer_row(printed: Printed, **which: Any) -> dict[str, Any]:
    (row,) = printed.frame.filter(pl.col("ours"), **which).to_dicts()
    return row


def test_layers_have_a_table_for_each_pass_and_one_for_their_sum():
    passes = table("convnet-benchmarks", "layers-by-pass", *LAYERS)
    forward = layer_row(passes, section="forward")
    assert [forward[f"L{i}"] for i in range(1, 6)] == [1, 2, 3, 4, 5]
    assert (forward["total"], forward["machine"], forward["implementation"]) == (15, "H200", "eager")
    assert layer_row(passes, section="backward (gradInput + gradWeight)")["L4"] == 5
    assert layer_row(passes, section="gradWeights")["total"] == 15
    sums = layer_row(table("convnet-benchmarks", "layers", *LAYERS))
    assert (sums["total_ms"], sums["forward_ms"], sums["backward_ms"]) == (40, 15, 25)
    assert layer_row(table("convnet-benchmarks", "layer-memory", *LAYERS))["L1"] == 100


def test_the_shapes_of_the_layers_are_the_printed_ones_and_those_that_are_measured():
    lines = table("convnet-benchmarks", "layer-shapes", *LAYERS[:4]).markdown().splitlines()
    assert lines[-5:] == [
        "| L1 | 128x128 | 128 | 3->96 | 11x11 | 1x1 | 128 |",
        "| L2 | 64x64 | 128 | 64->128 | 9x9 | 1x1 | 128 |",
        "| L3 | 32x32 | 128 | 128->128 | 9x9 | 1x1 | 128 |",
        "| L4 | 16x16 | 128 | 128->128 | 7x7 | 1x1 | 128 |",
        "| L5 | 13x13 | 128 | 384->384 | 3x3 | 1x1 |  |",
    ]
    for row in references.layer_shapes().to_dicts():
        own_ = SHAPES[row["layer"]]
        channels, *size = own_.input
        assert (row["input"], row["maps"]) == ("{}x{}".format(*size), f"{channels}->{own_.out_channels}")
        assert (row["kernel"], row["stride"]) == ("{}x{}".format(*own_.kernel), "{}x{}".format(*own_.stride))


def test_a_total_that_is_no_number_stands_as_printed():
    text = table("convnet-benchmarks", "layers", *LAYERS).markdown()
    address = "(https://github.com/liuliu/ccv/blob/unstable/lib/cuda/cwc_convnet.cu)"
    assert f"| Titan Black | ccv | [ccv_convnet_layer]{address} | 809+bw | 809 |  |" in text


def test_the_published_rows_of_the_layers_stand_beside_ours_ranked():
    frame_ = table("convnet-benchmarks", "layers-by-pass", *LAYERS).frame.filter(section="gradInput")
    assert frame_["ours"].to_list()[0]
    assert frame_.height == 12 + 1
    assert frame_["total"].drop_nulls().is_sorted()
    assert frame_.row(-1, named=True)["library"] == "ccv", "it has no figures"


def test_of_several_variants_the_best_of_each_layer_is_a_row():
    tuned = [layer(f"L{i}", (9.0 if i == 1 else 0.5, 2.5, 1.0), "eager-benchmark") for i in range(1, 6)]
    passes = table("convnet-benchmarks", "layers-by-pass", *LAYERS, *tuned)
    best = layer_row(passes, section="forward", implementation="best per layer")
    assert (best["library"], best["L1"], best["total"]) == ("best of ours, fp32", 1.0, 3.0)
    assert layer_row(passes, section="gradInput", implementation="best per layer")["total"] == 10


def test_an_engine_without_training_has_a_forward_time_alone():
    alone = [
        case(
            f"L{i}",
            "ort",
            ms=0.5,
            model_kind="layer",
            batch_size=128,
            setting="",
            clock="event",
            **{"pass": "inference"},
        )
        for i in range(1, 6)
    ]
    passes = table("convnet-benchmarks", "layers-by-pass", *LAYERS, *alone).frame.filter(implementation="ort")
    assert passes["section"].to_list() == ["forward"]
    assert passes["total"].to_list() == [2.5]


def test_a_layer_that_did_not_fit_is_a_blank_that_says_so():
    failed = layer("L5", (1.0, 1.0, 1.0), status="oom", reason="no", **dict.fromkeys(
        ("latency_ms", "forward_ms", "grad_input_ms", "grad_weight_ms", "peak_memory_mib")))  # fmt: skip
    row = layer_row(table("convnet-benchmarks", "layers-by-pass", *LAYERS[:4], failed), section="forward")
    assert (row["L5"], row["total"], row["note"]) == (None, None, "L5: out of memory")


# 003.


def sixty_four(model: str, pass_: str, ms: float | None, **more: Any) -> dict[str, Any]:
    return case(model, ms=ms, **{"pass": pass_, "batch_size": 64, "input_gradient": False, **more})


def test_the_study_of_frameworks_has_a_column_a_network():
    rows = [
        sixty_four("vgg16", "training", 100.0), sixty_four("vgg16", "inference", 30.0),
        sixty_four("alexnet", "training", 10.0),
        sixty_four("resnet152", "training", None, status="oom", reason="CUDA out of memory"),
    ]  # fmt: skip
    found = table("gpu-study", "frameworks", *rows)
    both = found.frame.filter(section="forward + backward").to_dicts()
    assert [row["machine"] for row in both] == ["H200", "GTX 1080"]
    ours, published = both
    assert (ours["AlexNet"], ours["Oxford VGG"], ours["ResNet-152"]) == (10.0, 100.0, None)
    assert ours["note"] == "ResNet-152: out of memory"
    assert (published["Oxford VGG"], published["library"]) == (420.28, "TensorFlow 1.0.0, cuDNN 5.1")
    (forward,) = found.frame.filter(section="forward").to_dicts()
    assert (forward["Oxford VGG"], forward["AlexNet"]) == (30.0, None)
    assert "as pictures" in found.note


def swept(model: str, batch: int, ms: float | None, **more: Any) -> dict[str, Any]:
    return case(model, ms=ms, batch_size=batch, **more)


def test_the_study_of_minibatches_gives_the_time_per_sample():
    rows = [
        swept("vgg16", 32, 64.0), swept("vgg16", 64, 64.0),
        swept("vgg16", 128, None, status="oom", reason="CUDA out of memory"),
    ]  # fmt: skip
    found = table("gpu-study", "minibatch", *rows)
    (ours,), (published,) = found.frame.filter("ours").to_dicts(), found.frame.filter(~pl.col("ours")).to_dicts()
    assert (published["64"], published["128"]) == (pytest.approx(420.28 / 64), pytest.approx(899.86 / 128))
    assert (ours["32"], ours["64"], ours["128"]) == (2.0, 1.0, None)
    assert ours["note"] == "out of memory at 128"
    names = {t.name for t in published_tables("gpu-study", frame(*rows))}
    assert "frameworks" not in names, "its rows had a process each"


def test_a_sweep_is_printed_and_drawn_on_the_devices_time():
    rows = [swept("vgg16", 32, 320.0, gpu_ms=64.0, warnings=["host-bound: so it is"]), swept("vgg16", 64, 64.0)]
    rows.append(swept("vgg16", 128, 128.0, gpu_ms=129.0))
    found = table("gpu-study", "minibatch", *rows)
    (ours,) = own(found)
    assert (ours["32"], ours["64"], ours["brief"]) == (2.0, 1.0, "h at 32")
    assert "Own times are the device's own" in found.note
    (picture,) = [one for one in published_pictures("gpu-study", frame(*rows)) if one.name == "minibatch-cuda-training"]
    drawn = {one["batch_size"]: one["ms"] for one in picture.rows if "H200" in one["name"]}
    assert drawn == {32: 2.0, 64: 1.0, 128: 1.0}, "the device takes no longer than the call"


def test_runs_of_one_machine_at_two_prices_are_one_row_the_faster():
    prices = ((64.0, 3.0), (32.0, 4.0))
    rows = [swept("vgg16", size, ms, usd_per_hour=price) for ms, price in prices for size in (32, 64, 128)]
    (ours,) = own(table("gpu-study", "minibatch", *rows))
    assert ours["32"] == 1.0


# What stands out.


def bold(printed: Printed, which: pl.Expr, name_in: str = "implementation") -> list[tuple[str, str]]:
    """Row and column of the figures that stand out, of the rows that `which` is true of."""
    return [
        (row[name_in], name)
        for section in printed.tables()
        for name, best in section.bold.items()
        for row, out, chosen in zip(
            section.frame.to_dicts(), best, section.frame.with_columns(x=which)["x"].to_list(), strict=True
        )
        if out and chosen
    ]


@pytest.mark.parametrize(("name", "rows"), [("networks", [case("vgg11", batch_size=32)]), ("layers", LAYERS)])
def test_of_the_published_figures_those_are_bold_that_the_source_set_bold(name, rows):
    file = {"networks": "convnet-benchmarks", "layers": "convnet-layers"}[name]
    source = (
        references.read(file)
        .filter(emphasis="bold")
        .select("implementation", "pass", "network" if name == "networks" else "layer")
    )
    expected = sorted((row["implementation"], f"{row['pass']}_ms") for row in source.to_dicts())
    assert sorted(bold(table("convnet-benchmarks", name, *rows), ~pl.col("ours"))) == expected


def test_ours_compete_with_ours_at_one_batch_size_and_a_single_one_with_nobody():
    rows = [case("vgg16", ms=3.0), case("vgg16", precision="tf32", ms=2.0), case("vgg16", machine="B200", batch_size=1)]
    found = bold(table("cnn-benchmarks", "networks", *rows), pl.col("ours"), "library")
    assert found == [
        ("PyTorch 2.11 eager tf32, cuDNN 9.19", f"{pass_}_ms") for pass_ in ("forward", "backward", "total")
    ]


def test_what_is_put_together_of_several_libraries_is_not_the_best():
    tuned = [layer(f"L{i}", (0.5, 0.5, 0.5), "eager-benchmark") for i in range(1, 6)]
    printed = table("convnet-benchmarks", "layers-by-pass", *LAYERS, *tuned)
    assert {name for name, _ in bold(printed, pl.lit(value=True))}.isdisjoint({"best per layer"})
    assert ("eager-benchmark", "L1") in bold(printed, pl.col("ours"))


# What is written and printed.


@pytest.mark.parametrize(
    ("format_", "value", "text"),
    [
        (measures, 14.2, "14.20"),
        (measures, 22425.16, "22,425.16"),
        (measures, 0.4561, "0.456"),
        (measures, 0.04561, "0.0456"),
        (measures, 275.0, "275.00"),
        (measures, None, ""),
        (rates, 4321.4, "4,321"),
        (rates, 9.4512, "9.45"),
        (money, 0.1234, "0.123"),
        (money, 39.06, "39.1"),
    ],
)
def test_a_cell_has_as_many_digits_as_tell_something(format_, value, text):
    assert format_([value]) == [text]


@pytest.mark.parametrize(
    ("times", "texts"),
    [
        ([(275.0, False), (12.0, False), (275.0, True)], ["275", "12", "275.00"]),
        ([(275.0, False), (7.5, False), (None, False)], ["275.00", "7.50", ""]),
    ],
)
def test_published_milliseconds_that_are_all_whole_stay_whole(times, texts):
    rows = pl.DataFrame(times, schema={"ms": pl.Float64, "ours": pl.Boolean}, orient="row")
    (table_,) = Printed("name", "Title", rows, [milliseconds("ms", "Time")]).tables()
    assert [cells for _, cells in table_.columns()] == [texts]


def test_a_terminal_has_the_brief_note_and_a_file_the_whole():
    failed = sixty_four("resnet50", "training", None, status="failed", reason="the outputs are wrong")
    found = table("gpu-study", "frameworks", sixty_four("vgg16", "training", 100.0), failed)
    text = " ".join(on_console(print_published, found, width=200).split())
    assert "failed" in text
    assert "outputs" not in text
    assert "ResNet-50: failed: the outputs are wrong" in found.markdown()


def test_the_folder_has_a_page_and_a_csv_a_table(tmp_path):
    results = frame(case("alexnet", **rented()))
    tables = published_tables("cloud-gpus", results)
    write(tmp_path / "tables", Evidence("cloud-gpus", results), tables)
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    pictures = {"published-machines-cuda-training.svg", "published-errors.svg"}
    assert names == {"published.md", "conclusions.md", *(f"published-{t.name}.csv" for t in tables)} | pictures
    assert [t.name for t in tables] == ["networks", "hardware", "cost"]
    back = pl.read_csv(tmp_path / "tables" / "published-networks.csv")
    assert back.filter("ours").select("network", "total_ms").rows() == [("alexnet", 3.0)]
    assert back.filter(~pl.col("ours")).height == 66
    page = (tmp_path / "tables" / "published.md").read_text()
    assert "](published-errors.svg)" in page
    assert re.sub(r"!\[.*\n\n", "", page) == markdown("cloud-gpus", tables, {})
    assert page.startswith(r"# GPU in the Cloud \| cnn-benchmarks: published and own figures")


@pytest.mark.parametrize("width", [120, 80])
def test_the_terminal_marks_ours_and_cuts_no_figure(width):
    printed = table("cnn-benchmarks", "networks", case("vgg16", ms=8495.5), case("resnet50", "eager-tuned", ms=3.0))
    lines = on_console(print_published, printed, width=width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "AlexNet" not in text, "of which nothing is ours"
    assert [line.split()[1] for line in lines if "▸" in line] == ["H200", "H200"]
    for figure in ("5,663.67", "2,831.83", "8,495.50", "8,495.48", "6,627.25", "101.21"):
        assert figure in text


def test_results_of_other_networks_are_an_error_that_says_so(tmp_path):
    frame(case("vgg11", **ROW)).write_parquet(tmp_path / "results.parquet")
    with pytest.raises(ConfigError, match="no row of these runs fits a table of cnn-benchmarks"):
        execute(Options(runs=[str(tmp_path)], study="cnn-benchmarks"), Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("study", "message"),
    [("cnn-benchmark", "did you mean 'cnn-benchmarks'"), ("cnn-benchmarks", "there is no such folder")],
)
def test_what_cannot_be_compared_is_an_error(tmp_path, study, message):
    with pytest.raises(ConfigError, match=message):
        execute(Options(runs=[str(tmp_path / "nowhere")], study=study), Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("study", "group", "expected"),
    [
        ("cnn-benchmarks", {"model": "vgg16", "pass": "training", "setting": "head=logits"}, True),
        ("cnn-benchmarks", {"model": "vgg16", "pass": "inference", "setting": ""}, False),
        ("cnn-benchmarks", {"model": "mine", "pass": "training", "setting": ""}, False),
        ("cnn-benchmarks", {"model": "vgg16", "pass": "training", "setting": "optimizer=sgd"}, False),
        ("gpu-study", {"model": "vgg16", "pass": "inference", "setting": ""}, True),
        ("convnet-benchmarks", {"model": "L2", "pass": "inference", "setting": ""}, True),
    ],
)
def test_a_group_is_printed_once(study, group, expected):
    assert covers(study, group) is expected


def test_without_a_study_the_valid_ones_are_listed():
    with pytest.raises(ConfigError, match="--study: say next to which figures: cnn-benchmarks, cloud-gpus, "):
        execute(Options(runs=["results"]), Console())


def test_a_run_of_another_pass_has_no_tables_not_even_of_its_machine_and_is_told_what_to_add(tmp_path):
    forward = frame(case("alexnet", **{"pass": "inference"}))
    assert present(Console(file=io.StringIO()), "cnn-benchmarks", forward, [ENVIRONMENT], tmp_path) is False
    assert nothing_compared("cnn-benchmarks", ["inference"]) == (
        "Nothing of this run is comparable: cnn-benchmarks compares training; add `passes: [training]`"
    )
    assert "cnn-benchmarks has other networks: alexnet, " in nothing_compared("cnn-benchmarks", ["training"])


@pytest.mark.parametrize("study", STUDIES)
def test_of_a_run_that_was_interrupted_before_its_first_row_nothing_is_said(study, tmp_path):
    console = Console(file=io.StringIO())
    assert present(console, study, frame(), [], tmp_path) is False
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_missing_figures_are_told_before_a_run(monkeypatch, tmp_path):
    monkeypatch.setattr(references, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="leave published out of the config"):
        require("gpu-study")
    require(None)


# What other work disturbed, and what the host sets.


def test_a_disturbed_row_has_a_mark_in_every_table() -> None:
    busy = {"warnings": ["inconsistent: a", "drift: b"]}
    rows = own(table("cnn-benchmarks", "networks", case("resnet50", **busy), case("vgg16")))
    assert {row["network"]: (row["note"], row["brief"]) for row in rows} == {
        "resnet50": ("x", "x"),
        "vgg16": (None, None),
    }
    cases = [case("vgg16", batch_size=size) for size in (16, 32, 64)]
    cases[0] |= busy
    cases[2] |= busy
    cases += [case("vgg16", ms=None, reason="no", batch_size=size) for size in (128, 256)]
    (row,) = own(table("gpu-study", "minibatch", *cases))
    assert row["note"] == "x at 16, 64; failed: no at 128"
    layers = [
        case(f"L{n}", model_kind="layer", head=None, setting="", batch_size=128, clock="event", grad_input_ms=1.0,
             grad_weight_ms=1.0, **(busy if n == 3 else {}))
        for n in range(1, 6)
    ]  # fmt: skip
    (row,) = own(table("convnet-benchmarks", "layers", *layers))
    assert row["note"] == "L3: x"
    notes = {row["table"]: row["note"] for row in own(table("convnet-benchmarks", "layers-by-pass", *layers))}
    assert set(notes.values()) == {"L3: x"}


HELD_UP = {"warnings": ["host-bound: a", "outliers: b"]}


def test_a_row_that_the_host_sets_is_marked_and_the_table_says_what_the_mark_means() -> None:
    rows = [case("resnet50", gpu_ms=2.0, **HELD_UP), case("vgg16"), case("alexnet", warnings=["outliers: b"])]
    printed = table("cnn-benchmarks", "networks", *rows)
    assert {row["network"]: (row["note"], row["gpu_ms"]) for row in own(printed)} == {
        "resnet50": ("h", 2.0), "vgg16": (None, None), "alexnet": (None, None),
    }  # fmt: skip
    assert printed.legend.startswith("h: the host, not the device, sets the latency")
    assert f"\n{printed.legend}\n" in printed.markdown()
    console = Console(width=160, record=True, file=io.StringIO())
    print_published(console, printed)
    assert "h: the host, not the device" in console.export_text()
    assert "h: the host" not in table("cnn-benchmarks", "networks", *rows[1:]).markdown()


def test_in_a_table_with_a_column_a_network_or_a_batch_the_mark_names_it() -> None:
    cases = [case("vgg16", batch_size=size, **(HELD_UP if size < 8 else {})) for size in (2, 4, 8)]
    swept = table("gpu-study", "minibatch", *cases)
    (row,) = own(swept)
    assert (row["note"], swept.legend[:2]) == ("h at 2, 4", "h:")
    rows = [sixty_four("vgg16", "training", 9.0), sixty_four("alexnet", "training", 3.0, **HELD_UP)]
    frameworks = table("gpu-study", "frameworks", *rows)
    (row,) = own(frameworks)
    assert (row["note"], frameworks.legend[:2]) == ("AlexNet: h", "h:")


# How far an own row can be relied on.


def test_an_own_row_has_its_interval_and_a_published_one_none() -> None:
    ends = {"latency_low_ms": 1.9, "latency_high_ms": 2.2, "samples": 12}
    printed = table("cnn-benchmarks", "networks", case("resnet50", ms=2.0, **ends), case("vgg16"))
    (interval,) = [field for field in printed.fields if field.heading == "95 %"]
    found = printed.frame.filter(network="resnet50")
    cells = interval.format(*(found[column] for column in interval.columns))
    assert [cell for cell, ours in zip(cells, found["ours"], strict=True) if ours] == ["1.90–2.20"]
    assert {cell for cell, ours in zip(cells, found["ours"], strict=True) if not ours} == {""}
    assert "95 %" not in table("cnn-benchmarks", "networks", case("vgg16")).markdown(), "it is the figure itself"


def test_the_csv_has_the_number_of_samples(tmp_path: Path) -> None:
    table("cnn-benchmarks", "networks", case("resnet50", samples=12)).write(tmp_path)
    found = pl.read_csv(tmp_path / "published-networks.csv").filter("ours")
    assert found["samples"].to_list() == [12]
