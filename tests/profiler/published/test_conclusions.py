"""Who is how many times faster: of the published rows alone the printed conclusions, of made-up ones ours."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from published_rows import case, frame, layer

from profiler.published import conclusions, page, references
from profiler.published.claims import answers
from profiler.published.claims.evidence import Evidence
from profiler.published.conclusions import (
    FORWARD_ONLY,
    MODELS,
    SINGLE_LAYERS,
    Comparison,
    compare,
    compare_libraries,
    compare_machines,
    compare_setups,
    most_telling,
)

RESULTS_OF_H200 = Path(__file__).resolve().parents[3] / "docs" / "results" / "suites" / "h200" / "cnn-benchmarks"
README = Path(__file__).resolve().parents[3] / "references" / "README.md"


def published_speeds() -> list[dict[str, str]]:
    with (README.parent / "conclusions.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if (row["source"], row["kind"]) == ("cloud-gpus", "speed")]


def exceptions() -> dict[tuple[str, str], str]:
    """The computed range of each printed conclusion that the tables do not bear out, from references/README.md."""
    heading = "### Conclusions that the tables do not bear out"
    section = README.read_text(encoding="utf-8").split(heading)[1].split("\n###")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {(row[2], row[3]): row[5] for row in rows[2:] if row[0] == "cloud-gpus"}


def found(slower: str, faster: str) -> Comparison:
    """What this project computes of a printed conclusion of cloud-gpus, from the published rows alone."""
    times = conclusions.published_times("cloud-gpus")
    if slower.startswith("cudnn"):
        slower, faster = slower.replace("cudnn", "cuDNN"), faster.replace("cudnn", "cuDNN")
        pairs = compare_libraries(conclusions.with_releases("cloud-gpus", times))
    else:
        pairs = compare_machines(times, by_release=True)
    (pair,) = [p for p in pairs if {p.faster, p.slower} == {slower, faster}]
    assert pair.faster == faster
    return pair


@pytest.mark.parametrize("printed", published_speeds(), ids=lambda row: f"{row['from']}-{row['to']}")
def test_of_the_published_rows_the_printed_conclusions_come_out(printed: dict[str, str]) -> None:
    """But for those that the README of references lists, whose ranges come out as it says."""
    pair = found(printed["from"], printed["to"])
    computed = exceptions().get((printed["from"], printed["to"]))
    if computed is not None:
        assert f"{pair.low:.3f} to {pair.high:.3f}" == computed
    elif printed["relation"] == "equal":
        assert pair.relation == "=="
        assert f"**{printed['to']} == {printed['from']}**: within 5 % of each other." in pair.sentence()
    else:
        assert pair.relation == ">"
        assert (pair.low, pair.high) == pytest.approx((float(printed["low"]), float(printed["high"])), abs=0.05)


def test_every_exception_is_a_printed_conclusion_and_some_hold() -> None:
    pairs = {(row["from"], row["to"]) for row in published_speeds()}
    assert set(exceptions()) < pairs
    assert len(pairs) - len(exceptions()) == 3


def test_a_sentence_is_worded_like_the_sources() -> None:
    pair = found("Quadro M4000", "Quadro P5000")
    assert pair.sentence() == (
        "Across the 9 models that both ran, the Quadro P5000 is **2.2x to 2.5x** faster than Quadro M4000."
    )
    assert found("Tesla K80", "Quadro P5000").sentence().startswith("Across all models, the Quadro P5000 is ")


ALL = "Across all models,"


def times(**setups: list[float]) -> pl.DataFrame:
    """Times of networks a, b, c, by setup; `ours` are those whose name has a capital letter."""
    rows = [
        {
            "setup": setup,
            "network": network,
            "published_network": network.upper(),
            "machine": setup,
            "ms": ms,
            "low_ms": None,
            "high_ms": None,
            "clock": None,
            "ours": setup != setup.lower(),
        }
        for setup, values in setups.items()
        for network, ms in zip("abc", values, strict=False)
    ]
    ends = {"low_ms": pl.Float64, "high_ms": pl.Float64, "clock": pl.String}
    return pl.DataFrame(rows, schema_overrides=ends).with_columns(of=pl.lit(3))


@pytest.mark.parametrize(
    ("slow", "relation", "says"),
    [
        ([2.0, 4.0, 9.0], ">", "Across all models, the fast is **2.0x to 3.0x** faster than slow."),
        ([2.0, 4.0, 6.0], ">", "Across all models, the fast is **2.0x** faster than slow."),
        ([1.04, 2.0, 2.9], "==", "Across all models, **fast == slow**: within 5 % of each other."),
        ([0.9, 3.0, 3.0], "~", f"{ALL} the fast is **0.90x to 1.50x** as fast as slow: "
         "1.11x in the geometric mean, slow is faster on A."),
        ([1.04, 2.0, 3.2], "~", f"{ALL} the fast is **1.00x to 1.07x** as fast as slow: 1.04x in the geometric mean."),
        ([2.5], ">", "On A only, the fast is **2.5x** faster than slow."),
        ([2.5, 5.0], ">", "Across the 2 models that both ran, the fast is **2.5x** faster than slow."),
        ([130.0, 500.0, 600.0], ">", "Across all models, the fast is **130x to 250x** faster than slow."),
    ],
)  # fmt: skip
def test_a_pair_is_put_into_words(slow: list[float], relation: str, says: str) -> None:
    (pair,) = compare(times(fast=[1.0, 2.0, 3.0], slow=slow), "setup")
    assert (pair.relation, pair.sentence()) == (relation, says)


def test_the_faster_comes_first_whichever_was_first_in_the_table() -> None:
    one, other = (compare(times(**rows), "setup") for rows in (
        {"slow": [2.0, 4.0, 9.0], "fast": [1.0, 2.0, 3.0]}, {"fast": [1.0, 2.0, 3.0], "slow": [2.0, 4.0, 9.0]},
    ))  # fmt: skip
    assert [pair.sentence() for pair in one] == [pair.sentence() for pair in other]


def test_those_that_have_no_network_in_common_are_not_compared() -> None:
    rows = pl.concat([times(a=[1.0]), times(b=[None, 2.0]).drop_nulls("ms")])
    assert compare(rows, "setup") == []


def test_the_clearest_comparison_comes_first() -> None:
    pairs = compare(times(one=[1.0], ten=[10.0], two=[2.0]), "setup")
    assert [(p.faster, p.slower) for p in pairs] == [("one", "ten"), ("two", "ten"), ("one", "two")]


# With rows of ours.


NETWORKS = {"vgg16": 128.14, "resnet50": 101.21, "alexnet": 13.89}
"""The totals of the GTX 1080 Ti with cuDNN 5.1.10, the fastest of the three together."""


def ours(factor: float, **more: Any) -> list[dict[str, Any]]:
    """Rows that are `factor` times as fast as the GTX 1080 Ti."""
    return [case(name, ms=ms / factor, **more) for name, ms in NETWORKS.items()]


def test_ours_are_compared_with_the_best_published_and_with_plain_fp32() -> None:
    rows = frame(*ours(10.0), *ours(20.0, precision="tf32"), *ours(30.0, variant="eager-tuned", precision="fp16"))
    (found,) = conclusions.times_of("cnn-benchmarks", rows).values()
    assert [pair.sentence() for pair in most_telling(found)] == [
        "Across the 3 models that both ran, the H200 with PyTorch 2.11 eager fp32, cuDNN 9.19 is **10.0x** faster than "
        "GTX 1080 Ti with cuDNN 5.1.10.",
        "Across the 3 models that both ran on the H200, PyTorch 2.11 eager-tuned fp16 is **3.0x** faster than PyTorch "
        "2.11 eager fp32.",
        "Across the 3 models that both ran on the H200, PyTorch 2.11 eager tf32 is **2.0x** faster than PyTorch 2.11 "
        "eager fp32.",
    ]


def test_a_cpu_of_ours_is_compared_with_the_published_cpu() -> None:
    rows = frame(case("resnet50", ms=6627.25 / 2, machine="Mine", device="cpu", cudnn=None))
    (found,) = conclusions.times_of("cnn-benchmarks", rows).values()
    (cpus,) = conclusions.by_device(found)
    assert conclusions.best_published(cpus) == {"Dual Xeon E5-2630 v3"}
    (pair,) = most_telling(found)
    assert pair.sentence() == (
        "On ResNet-50 only, the Mine with PyTorch 2.11 eager fp32 is **2.0x** faster than Dual Xeon E5-2630 v3."
    )


def test_a_gpu_is_not_held_against_a_cpu() -> None:
    rows = frame(*ours(10.0), case("resnet50", ms=300.0, machine="Mine", device="cpu", cudnn=None))
    (found,) = conclusions.times_of("cnn-benchmarks", rows).values()
    assert [{pair.faster.split(" with ")[0], pair.slower.split(" with ")[0]} for pair in most_telling(found)] == [
        {"H200", "GTX 1080 Ti"},
        {"Mine", "Dual Xeon E5-2630 v3"},
    ]
    evidence = Evidence("cnn-benchmarks", rows)
    kinds = page.machines, page.fastest, page.own_machines
    told = [sentence for kind in kinds for sentence in kind(evidence)]
    assert told and not any("H200" in one and ("Xeon" in one or "Mine" in one) for one in told)


CPU = {"machine": "Mine", "device": "cpu", "cudnn": None}
"""What makes a row one of our own processor."""


def test_a_gpu_and_a_processor_of_ours_are_compared_once_as_machines() -> None:
    rows = frame(*ours(10.0), *ours(20.0, precision="tf32"), case("resnet50", ms=300.0, **CPU))
    times = conclusions.times_of("cnn-benchmarks", rows)[MODELS]
    as_machines = [p for p in compare_machines(times, by_release=True) if "Mine" in (p.faster, p.slower)]
    assert {p.faster for p in as_machines} >= {"H200", "Pascal Titan X"}
    with_libraries = [pair.sentence() for pair in compare_setups(times) if pair.ours]
    assert {one for one in with_libraries if "Mine" in one} == {
        "On ResNet-50 only, the Mine with PyTorch 2.11 eager fp32 is **22.1x** faster than Dual Xeon E5-2630 v3."
    }
    assert any("tf32" in one for one in with_libraries)


def test_libraries_of_ours_are_compared_over_machines_only_where_several_ran_both() -> None:
    both = [*ours(10.0), *ours(20.0, precision="tf32")]
    others = ours(5.0, machine="H100"), ours(9.0, machine="H100", precision="tf32")
    counts = []
    for rows in (both, [*both, *others[0]], [*both, *others[0], *others[1]]):
        times = conclusions.times_of("cnn-benchmarks", frame(*rows))[MODELS]
        counts.append(sum(pair.ours for pair in conclusions.compare_shared_libraries(times)))
    assert counts == [0, 0, 1]


def test_a_network_of_about_the_same_time_is_not_called_faster() -> None:
    def said(resnet: float) -> list[str]:
        rows = frame(case("vgg16", ms=100.0), case("resnet50", ms=resnet))
        return answers.most_outdone(Evidence("cnn-benchmarks", rows))

    assert said(97.0) == []
    assert "ResNet-50 (1.11x as fast" in said(90.0)[0]


def test_of_a_machine_that_was_measured_twice_the_newer_release_counts() -> None:
    rows = frame(*ours(10.0, torch_version="2.9.0"), *ours(20.0, torch_version="2.11.0"))
    times = conclusions.times_of("cnn-benchmarks", rows)[MODELS]
    (pair,) = (p for p in compare_machines(times, by_release=True) if {p.faster, p.slower} == {"H200", "GTX 1080 Ti"})
    assert pair.low == pytest.approx(20.0)


def test_of_a_machine_without_plain_fp32_nothing_is_said_of_the_machine() -> None:
    rows = frame(*ours(20.0, precision="tf32"))
    (found,) = conclusions.times_of("cnn-benchmarks", rows).values()
    assert not any(pair.ours for pair in compare_machines(found, by_release=True))
    assert any(pair.ours for pair in compare_setups(found))


def machines(study: str, *cases: dict[str, Any]) -> list[str]:
    """What is said of our machine and the GTX 1080 Ti."""
    times = conclusions.times_of(study, frame(*cases))[MODELS]
    pairs = compare_machines(times, by_release=True)
    return [pair.sentence() for pair in pairs if {pair.faster, pair.slower} == {"H200", "GTX 1080 Ti"}]


def test_machines_are_compared_by_the_variant_that_does_as_the_published_library_did() -> None:
    rows = [
        *ours(10.0),
        *ours(15.0, variant="eager-benchmark"),
        *ours(20.0, variant="eager-benchmark", precision="tf32"),
    ]
    said = "Across the 3 models that both ran, the H200 is **{}x** faster than GTX 1080 Ti."
    assert machines("cnn-benchmarks", *rows) == [said.format("15.0")]
    text = page.markdown(Evidence("cnn-benchmarks", frame(*rows)))
    assert "newest cuDNN; ours in eager-benchmark fp32" in text
    # Where it was not measured, or gave no figures, plain eager takes its place.
    failed = ours(15.0, variant="eager-benchmark", status="oom", latency_ms=None)
    for others in ([], failed):
        assert machines("cnn-benchmarks", *ours(10.0), *others) == [said.format("10.0")]


def test_of_single_layers_the_tuned_variant_is_held_against_the_published() -> None:
    tuned = [layer(f"L{i}", (0.5, 1.0, 1.5)) | {"variant": "eager-benchmark"} for i in range(1, 6)]
    rows = frame(*(layer(f"L{i}", (1.0, 2.0, 3.0)) for i in range(1, 6)), *tuned)
    found = conclusions.times_of("convnet-benchmarks", rows)[SINGLE_LAYERS]
    assert set(found.filter("counterpart")["implementation"]) == {"eager-benchmark"}
    assert "eager-benchmark fp32" in most_telling(found, SINGLE_LAYERS)[0].faster


def test_the_time_of_an_image_counts_where_batch_sizes_differ() -> None:
    rows = frame(case("vgg16", ms=128.14 / 8, batch_size=2, device="cuda"))
    (found,) = conclusions.times_of("cnn-benchmarks", rows).values()
    pairs = [p for p in compare_setups(found) if p.ours and "1080 Ti" in p.faster + p.slower]
    assert [p.relation for p in pairs] == ["=="]


def test_what_gave_no_figures_is_in_no_range() -> None:
    rows = frame(*ours(10.0), case("resnet200", ms=None, status="oom", reason="CUDA out of memory"))
    (found,) = conclusions.times_of("cnn-benchmarks", rows).values()
    assert all("ResNet-200" not in pair.networks for pair in compare_setups(found) if pair.ours)


def test_the_page_has_every_pair_ours_first() -> None:
    text = page.markdown(Evidence("cnn-benchmarks", frame(*ours(10.0), *ours(20.0, precision="tf32"))))
    folded = text.partition("<details>")[2].partition("</details>")[0]
    sections = {part.splitlines()[0]: part.strip().splitlines()[2:] for part in folded.split("\n## ")[1:]}
    machines, libraries, both = (
        next(lines for heading, lines in sections.items() if heading.startswith(start))
        for start in ("Machines, each with its newest cuDNN", "Libraries", "Machines with their libraries")
    )
    setups = references.networks("cnn-benchmarks")["setup"].n_unique()
    every_two = (setups + 2) * (setups + 1) // 2
    assert len(both) == every_two - 2, "every two have a network in common; ours are on a GPU, one published is a CPU"
    assert all("H200" in line for line in both[: 2 * setups - 1])
    assert not any("H200" in line for line in both[2 * setups + 1 :])
    assert "H200" in machines[0]
    assert any("cuDNN 5.1.05 is" in line for line in libraries)
    assert not any("PyTorch" in line for line in libraries), "of one machine they stand among the setups"


def test_layers_are_compared_by_their_three_passes_together() -> None:
    rows = frame(*(layer(f"L{i}", (1.0, 2.0, 3.0)) for i in range(1, 6)))
    found = conclusions.times_of("convnet-benchmarks", rows)
    assert list(found) == [SINGLE_LAYERS]
    fastest = found[SINGLE_LAYERS].filter(setup="Titan Black with cuda-convnet2 (ConvLayer)", network="L1")
    # Its forward of 63 ms and backward of 224 ms, of 128 images.
    assert fastest["ms"].to_list() == [pytest.approx((63 + 224) / 128)]
    assert "Across all layers, " in page.markdown(Evidence("convnet-benchmarks", rows))
    assert all(
        pair.sentence().startswith("Across all layers") for pair in most_telling(found[SINGLE_LAYERS], SINGLE_LAYERS)
    )


def test_the_gpu_study_compares_forward_and_backward() -> None:
    rows = frame(
        case("vgg16", ms=42.028, batch_size=64, input_gradient=False),
        case("vgg16", ms=1.0, batch_size=64, **{"pass": "inference"}),
    )
    found = conclusions.times_of("gpu-study", rows)
    assert list(found) == [MODELS, FORWARD_ONLY]
    (pair,) = most_telling(found[MODELS])
    assert pair.sentence() == (
        "On Oxford VGG only, the H200 with PyTorch 2.11 eager fp32, cuDNN 9.19 is **10.0x** faster than GTX 1080 with "
        "TensorFlow 1.0.0, cuDNN 5.1."
    )


def test_the_gpu_study_compares_the_forward_pass_alone_too() -> None:
    shape = {"batch_size": 64, "pass": "inference"}
    eager = [case(name, ms=3.0, **shape) for name in ("vgg16", "alexnet")]
    ort = [
        case(name, ms=2.0, engine="ort", variant="ort", onnxruntime_version="1.31.1", **shape)
        for name in ("vgg16", "alexnet")
    ]
    rows = frame(*eager, *ort)
    (pair,) = most_telling(*conclusions.times_of("gpu-study", rows).values(), subject=FORWARD_ONLY)
    assert pair.sentence() == (
        "Across the 2 models that both ran on the H200, forward only, ONNX Runtime 1.31 ort fp32 is **1.50x** faster "
        "than PyTorch 2.11 eager fp32."
    )
    assert "their times for a forward pass, per\nimage" in page.markdown(Evidence("gpu-study", rows))


def test_a_range_reaches_to_the_ends_of_the_intervals_and_only_what_is_proven_is_faster() -> None:
    rows = times(fast=[1.0, 2.0, 3.0], slow=[2.0, 4.0, 6.0]).with_columns(
        low_ms=pl.when(setup="slow", network="c").then(2.5), high_ms=pl.when(setup="slow", network="b").then(5.0)
    )
    (pair,) = compare(rows, "setup")
    assert (pair.low, pair.high) == pytest.approx((2.5 / 3, 2.5))
    assert (pair.relation, pair.mean, pair.lost) == ("~", pytest.approx(2.0), ())
    twice = pl.concat([rows, times(fast=[9.0, 9.0, 9.0]).with_columns(pl.col("low_ms", "high_ms").cast(pl.Float64))])
    assert compare(twice, "setup") == [pair], "the lowest of several times counts"


def test_ours_have_the_intervals_of_their_rows_and_warnings_exclude_nothing() -> None:
    wide = {"latency_low_ms": 1.0, "latency_high_ms": 20.0, "warnings": ["host-bound: a", "disturbed: b"]}
    plain = ours(10.0)
    plain[0] |= wide
    (found,) = conclusions.times_of("cnn-benchmarks", frame(*plain)).values()
    (pair,) = most_telling(found)
    assert (pair.low, pair.high, len(pair.networks)) == pytest.approx((128.14 / 20, 128.14, 3))


def test_of_a_layer_the_interval_is_that_of_the_clock_of_its_total() -> None:
    layers = [layer(f"L{i}", (1.0, 2.0, 3.0)) for i in range(1, 6)]
    layers[0] |= {f"gpu_{part}_ms": 0.5 for part in ("forward", "grad_input", "grad_weight")}
    layers[0] |= {"gpu_ms": 1.5, "gpu_low_ms": 1.4, "gpu_high_ms": 1.6}
    layers[1] |= {"latency_low_ms": 5.0, "latency_high_ms": 8.0}
    own = conclusions.times_of("convnet-benchmarks", frame(*layers))[SINGLE_LAYERS].filter("ours")
    found = {row["network"]: (row["low_ms"], row["high_ms"]) for row in own.to_dicts()}
    assert found["L1"] == pytest.approx((1.4 / 128, 1.6 / 128))
    assert found["L2"] == pytest.approx((5 / 128, 8 / 128))
