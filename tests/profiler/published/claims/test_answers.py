"""What the published rows say of the published statements, and what rows of one's own answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import published_rows
import pytest
from published_statements import CHECKS, Outcome, answers
from runs import on_console

from profiler.published import page, references
from profiler.published.claims import answers as rows_answer
from profiler.published.claims.evidence import Evidence
from profiler.published.page import KINDS, groups, headlines
from profiler.published.page import cost as headlines_cost
from profiler.published.studies import STUDIES

README = Path(__file__).resolve().parents[4] / "references" / "README.md"


def case(
    model: str, variant: str = "eager-benchmark", precision: str = "fp32", ms: float | None = 3.0, **more: Any
) -> Any:
    """A training row of the H200 at batch 16; without `ms` one that ran out of memory."""
    usual = {"status": "ok" if ms else "oom", "peak_memory_mib": 2048.0}
    return published_rows.case(model, variant, precision, ms, **{**usual, **more})


def without_cudnn(model: str, ms: float, **more: Any) -> Any:
    return case(model, "eager-nocudnn", ms=ms, options='{"cudnn": false}', **more)


def swept(model: str, times: dict[int, float], **more: Any) -> list[Any]:
    return [
        case(model, "eager", ms=ms, batch_size=size, throughput=1000 * size / ms, clock="event", **more)
        for size, ms in times.items()
    ]


def evidence(study: str, *cases: Any) -> Evidence:
    return Evidence(study, published_rows.frame(*cases))


def own(study: str, heading: str, *cases: Any) -> list[str]:
    (group,) = (group for group in groups(evidence(study, *cases)) if group.heading == heading)
    return list(group.own)


def test_every_statement_has_a_kind_and_every_kind_a_statement() -> None:
    kinds = {claim["kind"] for study in STUDIES for claim in references.claims(study)}
    assert kinds == set(KINDS) == set(CHECKS)
    shown = [claim for study in STUDIES for group in groups(evidence(study)) for claim in group.claims]
    assert len(shown) == references.read("conclusions").height


@pytest.mark.parametrize("study", STUDIES)
def test_verdict_and_answer_are_what_the_published_rows_say(study: str) -> None:
    found = answers(study)
    assert [(claim["verdict"], claim["answer"]) for claim, _ in found] == [(one.verdict, one.says) for _, one in found]


def exceptions() -> list[tuple[str, str]]:
    """The printed and the computed range of what the tables do not bear out, from references/README.md."""
    section = README.read_text(encoding="utf-8").split("### Conclusions that the tables do not bear out")[1]
    cells = [line.strip("|").split("|") for line in section.split("\n### ")[0].splitlines() if line.startswith("|")]
    return sorted((row[4].strip(), row[5].strip()) for row in cells[2:])


def test_of_the_speeds_those_do_not_hold_that_the_readme_of_references_lists() -> None:
    """Their printed ranges and their number agree; the computed ends are read off the sentences."""
    speeds = [
        claim
        for study in STUDIES
        for claim in references.claims(study)
        if "faster than" in claim["statement"] and "network" in claim["answer"] and claim["verdict"] != Outcome.HOLDS
    ]
    ranges = []
    for one in speeds:
        printed = re.search(r"([\d.]+)x to ([\d.]+)x faster", one["statement"])
        low, high = re.findall(r"([\d.]+)x", one["answer"])
        ranges.append((printed.expand(r"\1 to \2") if printed else "faster", float(low), float(high)))
    listed = [(said, *map(float, computed.split(" to "))) for said, computed in exceptions()]
    assert [said for said, *_ in sorted(ranges)] == [said for said, *_ in sorted(listed)]
    for (_, *ends), (_, *computed) in zip(sorted(ranges), sorted(listed), strict=True):
        assert ends == pytest.approx(computed, abs=0.051)


@pytest.mark.parametrize(
    ("study", "says"),
    [
        ("cloud-gpus", "**Not quite**: Quadro M4000 is 1.05x to 1.25x faster than Tesla K80. The published rows say "
         "1.01x to 1.32x, on 9 networks."),
        ("cloud-gpus", "**Holds**: Tesla K80 is 1.80x to 2.25x faster than GRID K520. The published rows say 1.81x to "
         "2.2x, on 4 networks."),
        ("cloud-gpus", "**Holds**: Quadro P5000 has 2 times the memory of GTX 1080. Its table has 16 GB against 8 GB."),
        ("cloud-gpus", "**Holds**: ResNet-152 runs out of memory on the GTX 1080 with cuDNN 5.1.10, with 16 images. "
         "The tables have no times of it there."),
        ("cnn-benchmarks", "**Not quite**: cuDNN is 2.2x to 3.0x faster than Torch without cuDNN on the Pascal Titan "
         "X. The published rows say 2.4x to 3.7x, on 9 networks."),
        ("cnn-benchmarks", "**Holds**: All networks but ResNet-200 run on the GTX 1080, with 16 images. The tables "
         "have times of them there."),
        ("cnn-benchmarks", "**Not quite**: ResNet-101 is about as fast as VGG-19. In the published rows it is 0.91x to "
         "0.96x as fast, on 4 GPUs."),
        ("cnn-benchmarks", "**Not quite**: ResNet-101 is more accurate than VGG-16 (top-5 error 6.21 % against 9.00 "
         "%). Its table has a top-5 error of 6.21 % against 8.80 %."),
        ("convnet-benchmarks", "**Holds**: Torch-7 (nn.SpatialConvolutionMM) is the fastest on OxfordNet [Model-A]: "
         "backward. The published rows say backward 579 ms, then NVidia CuDNN (R2) with 581 ms."),
        ("convnet-benchmarks", "**Does not hold**: The fastest library for each layer takes 985 ms for L1 to L5 "
         "(total). The lowest published times add up to 734 ms."),
        ("gpu-study", "**Cannot be checked**: Neon is almost always the fastest framework on Maxwell Titan X, GTX 1080 "
         "and Pascal Titan X. The source printed the figures as pictures."),
        ("gpu-study", "**Holds**: Training Oxford VGG on the GTX 1080, 128 images take almost 60 ms more than twice "
         "the time of 64. The published 899.86 ms are 59.30 ms more than twice 420.28 ms."),
        ("gpu-study", "**Holds**: A VGG with 19 layers is about as accurate as one with 16. cnn-benchmarks has a top-5 "
         "error of 9.00 % against 8.80 %."),
    ],
)  # fmt: skip
def test_a_statement_stands_beside_what_the_published_rows_say(study: str, says: str) -> None:
    assert says in map(page.sentence, references.claims(study))


def test_a_statement_that_the_rows_contradict_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind that is decided by rows can fail: the same statements against times that are upside down."""
    read = references.read

    def upside_down(name: str) -> pl.DataFrame:
        rows = read(name)
        return rows.with_columns(milliseconds=1000 / pl.col("milliseconds")) if "milliseconds" in rows.columns else rows

    monkeypatch.setattr(references, "read", upside_down)
    for study, failing in (("cnn-benchmarks", 8), ("cloud-gpus", 5), ("convnet-benchmarks", 11), ("gpu-study", 1)):
        verdicts = [answer.verdict for _, answer in answers(study)]
        assert verdicts.count(Outcome.FAILS) >= failing, study


def test_own_rows_say_what_cudnn_is_worth() -> None:
    rows = [case("resnet34", ms=10.0), without_cudnn("resnet34", 20.0)]
    rows += [case("resnet18", ms=10.0), without_cudnn("resnet18", 40.0, latency_low_ms=30.0, latency_high_ms=50.0)]
    (said,) = own("cnn-benchmarks", "Machines and libraries", *rows)
    assert said == (
        "Across the 2 models that both ran on the H200, PyTorch 2.11 eager-benchmark fp32 with cuDNN 9.19 is **2.0x to "
        "5.0x** faster than without cuDNN."
    )


def test_own_rows_say_which_networks_are_both_faster_and_more_accurate() -> None:
    rows = [case("vgg16", ms=16.0), case("resnet50", ms=8.0), case("resnet152", ms=40.0), case("alexnet", ms=1.0)]
    found = own("cnn-benchmarks", "Network against network", *rows)
    assert found[-1] == (
        "On the H200, 1 network is both faster and more accurate than VGG-16 (top-5 error 8.80 %): ResNet-50 (2.0x as "
        "fast, 7.02 %)."
    )
    assert [line.startswith("On every published GPU, 2 networks are both") for line in found] == [True, False, False]


def test_own_rows_say_what_fits() -> None:
    rows = [case("resnet200"), case("vgg16", ms=None), case("alexnet"), without_cudnn("alexnet", 4.5)]
    assert own("cnn-benchmarks", "Memory", *rows) == [
        "ResNet-200 with 16 images, which ran out of memory on the GTX 1080 (8 GB), takes **2.0 GiB** at its peak on "
        "the H200 (PyTorch 2.11 eager-benchmark fp32, workspaces of cuDNN's search included).",
        "On the H200, PyTorch 2.11 eager-benchmark fp32, forward and backward, ran out of memory on VGG-16.",
        "On the H200, AlexNet runs without cuDNN, too: PyTorch 2.11 eager-nocudnn fp32 takes 4.5 ms.",
    ]


def test_of_a_network_that_did_not_fit_the_least_memory_in_fp32_counts() -> None:
    rows = [case("resnet200", peak_memory_mib=9830.4), case("resnet200", "eager", peak_memory_mib=5632.0)]
    said, ran = own("cnn-benchmarks", "Memory", *rows)
    assert said.endswith("takes **5.5 GiB** at its peak on the H200 (PyTorch 2.11 eager fp32, the least in fp32).")
    assert ran == "On the H200, the one network that was asked for ran: nothing was out of memory."
    missing = case("vgg16", "ort", status="unsupported", latency_ms=None)
    assert own("cnn-benchmarks", "Memory", *rows, missing)[1] == "On the H200, nothing was out of memory."


def test_a_label_with_a_word_of_its_own_has_no_article() -> None:
    rows = [case("vgg16", machine="My Xeon"), case("vgg16", "eager-tuned", ms=1.0, machine="My Xeon")]
    text = page.markdown(evidence("cnn-benchmarks", *rows))
    assert "On My Xeon, the one network" in text and "My Xeon with" in text and "the My Xeon" not in text


def test_a_cuda_graph_without_cudnn_is_called_one() -> None:
    rows = [case("vgg16"), case("vgg16", "eager-nocudnn-graph", ms=6.0, options='{"cudnn": false}')]
    (said,) = own("cnn-benchmarks", "Machines and libraries", *rows)
    assert said.endswith("is **2.0x** faster than without cuDNN (in a CUDA graph).")


def test_own_sweeps_say_where_they_end() -> None:
    found = evidence("gpu-study", *swept("alexnet", {16: 4.0, 32: 6.0, 64: 30.0, 128: 40.0}))
    (knee,) = rows_answer.knees(found)
    assert knee.endswith("90 % of the best throughput of those up to 128 is 32 (AlexNet).")


@pytest.mark.parametrize(("reach", "bends"), [(0.0, {8: "concave-up", 16: "concave-down"}), (0.4, {8: None, 16: None})])
def test_a_curve_bends_beyond_the_intervals_of_its_times(reach: float, bends: dict[int, str | None]) -> None:
    rows = swept("vgg16", {4: 20.0, 8: 24.0, 16: 46.4, 32: 64.0})
    for row in rows:
        row |= {"latency_low_ms": (1 - reach) * row["latency_ms"], "latency_high_ms": (1 + reach) * row["latency_ms"]}
    found = rows_answer.bends(evidence("gpu-study", *rows).swept)
    assert dict(found.select("batch_size", "shape").rows()) == bends
    # 5, 3, 2.9 and 2 ms a sample, a doubling apart.
    assert found["curvature"].to_list() == pytest.approx([1.9, -0.8])


def test_own_rows_say_which_variant_is_the_fastest_and_what_did_not_run() -> None:
    shape = {"batch_size": 64, "pass": "inference"}
    rows = [case(name, "eager", ms=ms, **shape) for name, ms in (("alexnet", 1.0), ("vgg16", 9.0), ("resnet50", 5.0))]
    ort = {"engine": "ort", "onnxruntime_version": "1.31.1", **shape}
    rows += [case(name, "ort", ms=ms, **ort) for name, ms in (("alexnet", 2.0), ("vgg16", 4.0), ("resnet50", None))]
    assert own("gpu-study", "The fastest library", *rows) == [
        "On the H200, forward in fp32, the fastest variant is eager on 2 of 3 networks that it ran, ort on 1 of 2.",
        "On the H200, ONNX Runtime 1.31 ort fp32, forward, ran out of memory on ResNet-50.",
    ]
    # Where the other was not tried nobody wins; what ran out of memory was.
    (said, *_) = own("gpu-study", "The fastest library", *rows[:-1])
    assert said.endswith("eager on 1 of 2 networks that it ran, ort on 1 of 2.")
    # Only at the published batch size, as in the tables.
    small = [{**row, "batch_size": 1, "latency_ms": 0.1, "status": "ok"} for row in rows if row["variant"] == "ort"]
    (said, _) = own("gpu-study", "The fastest library", *small, *rows)
    assert said.endswith("eager on 2 of 3 networks that it ran, ort on 1 of 2.")
    tied = {**rows[0], "latency_low_ms": 0.9, "latency_high_ms": 3.0}
    (said, _) = own("gpu-study", "The fastest library", tied, *rows[1:])
    assert said.endswith("eager on 2 of 3 networks that it ran, ort on 2 of 2, ties included.")


def test_what_costs_least_is_held_against_the_published_librarys_way_on_the_networks_of_both() -> None:
    def priced(name: str, usd: float, **more: Any) -> Any:
        return case(name, usd_per_hour=3.0, usd_per_million_items=usd, throughput=1000 / usd, **more)

    rows = [priced(name, 4.0) for name in ("alexnet", "vgg16", "resnet50")]
    amp = {"precision": "amp-fp16", "variant": "eager"}
    rows += [priced(name, usd, **amp) for name, usd in (("alexnet", 1.0), ("vgg16", 5.0))]
    (said,) = headlines_cost(evidence("cnn-benchmarks", *rows))
    assert said.endswith(
        "fp32, cuDNN 9.19, at 3 USD an hour; with PyTorch 2.11 eager amp-fp16, cuDNN 9.19, **0.25x to 1.25x** as much, "
        "on the 2 networks that both ran."
    )


def test_own_sweeps_answer_what_is_said_of_minibatches() -> None:
    rows = swept("vgg16", {4: 4.0, 8: 6.0, 16: 10.0, 32: 24.0, 64: 40.0, 128: 85.0}, gpu_ms=None)
    found = own("gpu-study", "Minibatches", *rows)
    assert found[:2] == [
        "On the H200, forward and backward, a larger minibatch took less time per sample in 3 of 5 steps from one "
        "minibatch to the next; not surely for Oxford VGG at 32 and 128.",
        "On the H200, training Oxford VGG, 128 images take 85.0 ms: 5.00 ms more than twice the 40.0 ms of 64.",
    ]
    assert found[2:] == [
        "On the H200, forward and backward, after a minibatch of 8 the time per sample falls more slowly than before "
        "it (concave-up) for Oxford VGG; it bends most at 16 (Oxford VGG)."
    ]


def test_own_layers_say_what_the_best_of_each_is_worth_and_what_memory_they_take() -> None:
    shape = {"model_kind": "layer", "head": None, "setting": "", "batch_size": 128, "clock": "event"}
    rows = []
    for number in range(1, 6):
        for variant, parts, mib in (("eager", (1.0, 2.0, 3.0), 100.0), ("eager-benchmark", (2.0, 1.0, 2.0), 300.0)):
            times = dict(zip(("forward_ms", "grad_input_ms", "grad_weight_ms"), parts, strict=True))
            more = {**shape, **times, "peak_memory_mib": mib}
            rows.append(case(f"L{number}", variant, ms=sum(parts), **more))
    assert own("convnet-benchmarks", "The fastest library", *rows) == [
        "On the H200 in fp32, the fastest variant for each layer and pass takes 20.00 ms for L1 to L5; "
        "eager-benchmark, the fastest single one, 25.00 ms."
    ]
    assert own("convnet-benchmarks", "Memory", *rows) == [
        "On the H200, L1 takes from 100 MiB (eager fp32) to 300 MiB (eager-benchmark fp32): 3 times as much."
    ]


def rows_of_all() -> list[Any]:
    """One of each thing that the first five conclusions tell."""
    priced = {"usd_per_hour": 3.0, "usd_per_million_items": 0.5, "throughput": 8000.0}
    rows = [case("vgg16", ms=16.0, input_gradient=True, **priced)]
    rows += [case(name, ms=ms, **priced) for name, ms in (("resnet50", 8.0), ("resnet200", 40.0))]
    tuned = {**priced, "usd_per_million_items": 0.25, "throughput": 16_000.0}
    rows += [
        case(name, "eager-tuned", "fp16", ms=2.0, input_gradient=name == "vgg16", **tuned)
        for name in ("vgg16", "resnet50", "resnet200")
    ]
    return [*rows, without_cudnn("vgg16", 32.0, input_gradient=True)]


def test_the_page_opens_with_the_five_that_tell_most_and_folds_the_pairs() -> None:
    text = page.markdown(evidence("cnn-benchmarks", *rows_of_all()))
    first = [line for line in text.splitlines() if re.match(r"\d\. ", line)]
    assert first == [
        "1. Across the 3 models that both ran, the H200 with PyTorch 2.11 eager-benchmark fp32, cuDNN 9.19 is **7.4x "
        "to 12.9x** faster than Pascal Titan X with cuDNN 5.1.05.",
        "2. Across the 3 models that both ran, the H200 with PyTorch 2.11 eager-tuned fp16, cuDNN 9.19 is **51.8x to "
        "148x** faster than Pascal Titan X with cuDNN 5.1.05.",
        "3. A million images, forward and backward, cost **0.5 USD** (VGG-16) on the H200 with "
        "PyTorch 2.11 eager-benchmark fp32, cuDNN 9.19, at 3 USD an hour; with PyTorch 2.11 eager-tuned fp16, "
        "cuDNN 9.19, **0.50x** as much, on the 3 networks that both ran.",
        "4. On VGG-16 only on the H200, PyTorch 2.11 eager-benchmark fp32 with cuDNN 9.19 is **2.0x** faster than "
        "without cuDNN.",
        "5. On the H200, 1 network is both faster and more accurate than VGG-16 (top-5 error 8.80 %): ResNet-50 (2.0x "
        "as fast, 7.02 %).",
    ]
    opened, _, folded = text.partition("<details>\n<summary>Every two machines and libraries: ")
    assert folded.count("</details>") == 1 and "<details>" not in folded
    assert "## Machines with their libraries" in folded and "## Machines with their libraries" not in opened
    assert "Of 14 statements, 8 do not quite hold and 6 hold.\n" in opened


def test_of_several_machines_of_ones_own_the_page_says_which_is_faster() -> None:
    mine = rows_of_all()
    slower = [
        {**row, "machine": "H100", "latency_ms": 2 * row["latency_ms"], "usd_per_million_items": None} for row in mine
    ]
    found = headlines(evidence("cnn-benchmarks", *mine, *slower))
    assert found[2] == "Across the 3 models that both ran, the H200 is **2.0x** faster than H100."
    assert not [line for line in found if "H200 with" in line and "H100 with" in line]


def test_the_terminal_has_the_five_and_counts_the_verdicts() -> None:
    found = evidence("gpu-study", case("vgg16", "eager", ms=42.0, batch_size=64))
    lines = on_console(page.show, found, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "1. On Oxford VGG only, the H200 with PyTorch 2.11 eager fp32" in text and "**" not in text
    assert text.endswith("Of 12 statements, 2 hold and 10 cannot be checked. conclusions.md has each of them.")
    assert len(lines) < 20, "the verdicts are the same for everyone"
