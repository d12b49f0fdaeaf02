"""A group's sentence and title, from small runs made by hand."""

from __future__ import annotations

import pytest
from handmade import line, on_gpu, row, run, said, thrice

from profiler.results import sentences, speedups


def test_the_sentence_names_the_fastest_its_gain_and_its_error():
    frames = run(row("eager", ms=5.8), row("ort-tuned", "fp16", ms=1.0, rel_l2_error=4e-4), spread=0.001)
    assert said(frames) == ["net, batch 1: ort-tuned fp16 is 5.8× fp32 eager (5.8–5.8), error 4e-4"]


@pytest.mark.parametrize(
    ("error", "says"),
    [(4.4e-7, ", error 4e-7"), (2e-12, ", error 2e-12"), (0.0, ", error 0"), (None, "")],
)
def test_the_sentence_gives_the_error_in_short(error, says):
    (text,) = said(run(row("eager", ms=2.0), row("ort", ms=1.0, rel_l2_error=error)))
    assert text.partition(")")[2] == says


def test_of_int8_that_was_calibrated_on_seeded_data_the_error_is_unknown():
    seeded = row("ort", "int8", ms=1.0, rel_l2_error=2e-2, warnings=["calibration: seeded"])
    (text,) = said(run(row("eager", ms=2.0), seeded))
    assert text.partition(")")[2] == ", error on your data unknown (calibrated on seeded data)"


@pytest.mark.parametrize(
    ("slow", "says"), [(1.5, "1.50× fp32 eager"), (6.04, "6.0× fp32 eager"), (31.4, "31.4× fp32 eager")]
)
def test_the_sentence_gives_as_many_digits_as_tell_something(slow, says):
    assert says in said(run(row("eager", ms=slow), row("ort", ms=1.0)))[0]


def test_what_failed_is_not_in_the_choice():
    lost = "model 'net': no ONNX graph in fp32: no operator for prims.bessel_j0; write it with others"
    rows = [
        row("eager", ms=1.0),
        *(row("ort", ms=None, batch_size=b, case_id=f"ort{b}", reason=lost) for b in (1, 16)),
        row("ort", "fp16", ms=None, status="failed", reason=lost),
        row("compiled", ms=None, status="oom", reason="CUDA: a long story"),
        row("compiled", "fp16", ms=None, reason="a" * 200, replicate=1),
        row("compiled", "fp16", ms=2.0),  # Another process of it is there.
        row("trt", ms=None, status="unsupported", reason="not installed"),
    ]
    results, _ = run(*rows)
    assert sentences.not_in_the_choice(results) == (
        "Not in the choice: ort fp32 at batch 1 and 16, ort fp16 at batch 1 (failed: no ONNX graph in fp32: no "
        "operator for prims.bessel_j0); compiled fp32 at batch 1 (out of memory)."
    )
    assert sentences.not_in_the_choice(results.filter(variant="eager")) is None
    (alone,) = sentences.not_in_the_choice(results.filter(replicate=1)).splitlines()
    assert alone.endswith(f"(failed: {'a' * 140} …).")


def test_the_sentence_for_training_says_so():
    frames = run(row("eager", ms=6.0, **{"pass": "training"}), row("compiled", ms=2.5, **{"pass": "training"}))
    assert said(frames)[0].startswith("net training, batch 1: compiled fp32 is 2.4× fp32 eager")


def test_what_else_distinguishes_a_group_stands_in_its_title_and_sentence():
    extra = {"pass": "training", "extra": "optimizer=sgd/head=logits"}
    frames = run(row("eager", ms=6.0, **extra), row("compiled", ms=2.0, **extra))
    ((key, lines),) = speedups.groups(speedups.summary(*frames))
    assert sentences.title(key) == "net, training, batch 1, optimizer sgd, head logits"
    sentence = sentences.group_sentence(key, lines)
    assert sentence and sentence.startswith("net training, batch 1, optimizer sgd, head logits: compiled fp32 is 3.0×")


def test_a_network_by_another_name_and_a_reference_stand_in_the_title_and_the_base_in_the_sentence():
    pruned = {"model": "pruned", "network": "resnet18", "reference_model": "net", "is_base": False}
    frames = run(row("eager", ms=6.0), row("ort", ms=2.0, **pruned), row("ort", "fp16", ms=8.0, **pruned, batch_size=2))
    (_, _), (key, lines) = speedups.groups(speedups.summary(*frames).filter(batch_size=1))
    assert sentences.title(key) == "pruned (resnet18), inference, batch 1, against net"
    sentence = sentences.group_sentence(key, lines)
    assert sentence and sentence.startswith("pruned, batch 1: ort fp32 is 3.0× fp32 eager of net (")


def test_a_model_that_is_slower_than_its_reference_is_no_unclear_winner():
    wide = {"model": "wide", "reference_model": "net", "is_base": False}
    assert (
        "wide, batch 1: ort fp32 is 0.50× fp32 eager of net" in said(run(row("eager"), row("ort", ms=2.0, **wide)))[1]
    )


def test_a_reference_whose_base_was_disturbed_gives_no_factor():
    pruned = {"model": "pruned", "reference_model": "net", "is_base": False}
    frames = run(row("eager", ms=6.0, warnings=["disturbed: others took 40 %"], disturbance=0.4), row("ort", **pruned))
    assert (
        said(frames)[1]
        == "pruned, batch 1: ort fp32 looks fastest; the base, fp32 eager of net, was disturbed, so no factor"
    )


def test_where_nothing_was_faster_the_sentence_says_so():
    assert said(run(row("eager", ms=1.0), row("ort", ms=3.0))) == ["net, batch 1: nothing was faster than fp32 eager"]


def test_where_the_interval_reaches_one_there_is_no_clear_winner():
    (text,) = said(run(row("eager", ms=1.0), row("ort", ms=0.999), spread=0.2))
    assert text.startswith("net, batch 1: no clear winner; ort fp32 is 1.00× fp32 eager (0.")


def test_the_sentence_ends_with_the_verdict_on_device_time():
    frames = run(*thrice(on_gpu, "eager", ms=5.8, gpu_ms=5.7), *thrice(on_gpu, "ort", ms=1.0, gpu_ms=1.0))
    (text,) = said(frames)
    assert (
        text == "net, batch 1: ort fp32 is 5.8× fp32 eager (5.7–5.9), error 4e-4; on device time 5.7× (5.6–5.8): faster"
    )


def test_on_the_cpu_the_sentence_ends_with_the_verdict():
    (text,) = said(run(*thrice(row, "eager", ms=5.8), *thrice(row, "ort", ms=1.0)))
    assert text == "net, batch 1: ort fp32 is 5.8× fp32 eager (5.7–5.9), error 4e-4: faster"


def test_a_gain_that_is_not_the_devices_is_called_what_it_is():
    frames = run(*thrice(on_gpu, "eager", ms=3.0, gpu_ms=1.0), *thrice(on_gpu, "ort", ms=2.0, gpu_ms=1.5))
    (text,) = said(frames)
    assert text.endswith("; on device time 0.67× (0.66–0.67): slower")
    assert "no clear winner" not in text


@pytest.mark.parametrize(
    ("rows", "ending"),
    [
        ([*thrice(row, "eager", ms=1.001), *thrice(row, "ort", ms=1.0)], ": equivalent to fp32 eager"),
        (
            [*thrice(on_gpu, "eager", ms=3.0, gpu_ms=1.0), *thrice(on_gpu, "ort", ms=2.0, gpu_ms=1.0)],
            "; on device time 1.00× (0.99–1.01): not clearly different from fp32 eager "
            "(about 4 replicates would settle it)",
        ),
    ],
    ids=["tie on the cpu", "unclear on a gpu"],
)
def test_where_the_best_does_not_differ_from_the_base_the_sentence_says_so(rows, ending):
    (text,) = said(run(*rows))
    assert text.startswith("net, batch 1: no clear winner; ort fp32 is ")
    assert text.endswith(ending)
    assert text.count(ending[-30:]) == 1  # The base is the runner-up too, which need not be said twice.


@pytest.mark.parametrize(("second", "ending"), [(1.01, ": faster, but equivalent to openvino fp32"), (1.2, ": faster")])
def test_where_the_best_is_equivalent_to_the_runner_up_the_sentence_says_so(second, ending):
    frames = run(*thrice(row, "eager", ms=5.0), *thrice(row, "openvino", ms=second), *thrice(row, "ort", ms=1.0))
    assert said(frames)[0].endswith(ending)
    tied = speedups.summary(*frames).sort("latency_ms")["indistinguishable_from"].to_list()
    assert tied == ["openvino fp32" if "openvino" in ending else None, None, None]


def test_the_best_may_be_equivalent_to_base_and_runner_up():
    frames = run(*thrice(row, "eager", ms=1.012), *thrice(row, "openvino", ms=1.01), *thrice(row, "ort", ms=1.0))
    assert said(frames)[0].endswith(": equivalent to fp32 eager and openvino fp32")


def test_the_runner_up_is_compared_although_the_base_has_too_few_replicates():
    frames = run(row("eager", ms=5.0), *thrice(row, "openvino", ms=1.01), *thrice(row, "ort", ms=1.0))
    assert said(frames)[0].endswith(", error 4e-4; equivalent to openvino fp32")


def test_a_runner_up_without_replicates_is_not_compared():
    frames = run(*thrice(row, "eager", ms=5.0), row("openvino", ms=1.0), *thrice(row, "ort", ms=1.0))
    assert "equivalent" not in said(frames)[0]


def test_where_the_base_is_the_best_its_runner_up_may_be_equivalent():
    frames = run(*thrice(row, "eager", ms=1.0), *thrice(row, "ort", ms=1.01))
    assert said(frames) == ["net, batch 1: nothing was faster than fp32 eager, equivalent to ort fp32"]


@pytest.mark.parametrize("side", ["eager", "ort"])
@pytest.mark.parametrize("kind", ["drift", "unsteady"])
def test_where_the_best_or_the_base_was_disturbed_the_sentence_ends_with_it(side, kind):
    rows = [row("eager", ms=5.8), row("ort", ms=1.0), row("openvino", ms=2.0)]
    next(one for one in rows if one["variant"] == side)["warnings"] = [f"{kind}: by 40 %", "outliers: 3 of 40"]
    (text,) = said(run(*rows))
    assert text.startswith("net, batch 1: ort fp32 is 5.8× fp32 eager (")
    assert text.endswith(f"), error 4e-4 ({kind}: measure again)")


@pytest.mark.parametrize(
    ("eager", "ort", "says"),
    [
        ("disturbed", "drift", "the base, fp32 eager, was disturbed"),
        ("drift", "inconsistent", "it was inconsistent"),
        ("disturbed", "disturbed", "it and the base, fp32 eager, were disturbed"),
        ("disturbed", "inconsistent", "it was inconsistent and the base, fp32 eager, was disturbed"),
    ],
)
def test_where_other_work_had_the_machine_the_sentence_says_whose_row_that_was_and_gives_no_factor(eager, ort, says):
    # The column `disturbance` is not printed: it may be another share than the one that the warning states.
    rows = [row("eager", ms=5.8, warnings=[f"{eager}: others took 51 %"], disturbance=0.97)]
    rows += [row("ort", ms=1.0, warnings=[f"{ort}: as it was"]), row("openvino", ms=2.0)]
    assert said(run(*rows)) == [f"net, batch 1: ort fp32 looks fastest; {says}, so no factor"]


def test_of_two_figures_that_contradict_each_other_the_larger_one_ranks_and_both_are_named():
    rows = [row("eager", ms=5.8), row("ort", ms=0.918, throughput=168.0, warnings=["inconsistent: x"])]
    ((_, lines),) = speedups.groups(speedups.summary(*run(*rows)))
    assert [line["variant"] for line in lines] == ["eager", "ort"]
    rows[0] = row("eager", ms=6.0)
    looks = "ort fp32 looks fastest (0.918 ms, but 5.95 ms by its throughput); it was inconsistent, so no factor"
    assert said(run(*rows)) == [f"net, batch 1: {looks}"]


def test_where_nothing_looks_faster_than_the_base_whoever_was_disturbed_might_be():
    rows = [row("eager", ms=1.0), row("ort", ms=1.5), row("trt", ms=3.0)]
    rows[1] |= {"warnings": ["disturbed: a", "drift: b"], "disturbance": 0.5}
    doubt = "ort fp32 was disturbed and may be faster"
    assert said(run(*rows)) == [f"net, batch 1: nothing was faster than fp32 eager; {doubt}"]
    rows[2] |= {"warnings": ["inconsistent: a"]}
    doubt = "ort fp32 and trt fp32 were disturbed and may be faster"
    assert said(run(*rows)) == [f"net, batch 1: nothing was faster than fp32 eager; {doubt}"]
    rows[0] |= {"warnings": ["disturbed: a"], "disturbance": 0.06}
    says = "nothing looks faster than fp32 eager; it was disturbed, so that is not certain"
    assert said(run(*rows)) == [f"net, batch 1: {says}"]


def test_the_winners_factor_holds_where_a_slower_one_was_disturbed_which_may_be_faster():
    rows = [row("eager", ms=4.0), row("ort", ms=1.0), *(row(name, ms=2.0) for name in ("trt", "compiled", "openvino"))]
    for one in rows[2:]:
        one["warnings"] = ["disturbed: a"]
    (text,) = said(run(*rows))
    assert text.startswith("net, batch 1: ort fp32 is 4.0× fp32 eager (")
    assert text.endswith("; 3 others were disturbed and may be faster")


def test_the_disturbances_of_both_sides_and_of_every_replicate_are_told_once():
    eager, ort = thrice(row, "eager", ms=5.8), thrice(row, "ort", ms=1.0)
    eager[2]["warnings"], ort[1]["warnings"] = ["unsteady: a", "drift: b"], ["unsteady: c"]
    assert said(run(*eager, *ort))[0].endswith(": faster (drift, unsteady: measure again)")
    assert line(run(*eager, *ort), "eager")["warnings"] == ["unsteady", "drift"]


def test_a_disturbed_line_that_the_sentence_does_not_name_is_not_told():
    (text,) = said(run(row("eager", ms=5.8), row("trt", ms=2.0, warnings=["drift: b"]), row("ort", ms=1.0)))
    assert "measure again" not in text


def test_where_nothing_was_faster_than_a_disturbed_base_the_sentence_says_both():
    frames = run(row("eager", ms=1.0, warnings=["drift: b"]), row("ort", ms=3.0))
    assert said(frames) == ["net, batch 1: nothing was faster than fp32 eager (drift: measure again)"]


def test_a_group_of_one_line_has_no_sentence():
    assert said(run(row("eager", ms=1.0))) == [None]


def test_what_moved_on_every_row_is_not_said_again_of_each_group():
    rows = [row("eager", ms=5.8, warnings=["drift: a", "unsteady: b"]), row("ort", warnings=["drift: c"])]
    ((key, lines),) = speedups.groups(speedups.summary(*run(*rows)))
    assert sentences.group_sentence(key, lines).endswith("error 4e-4 (drift, unsteady: measure again)")
    assert sentences.group_sentence(key, lines, {"drift"}).endswith("error 4e-4 (unsteady: measure again)")
    assert sentences.group_sentence(key, lines, {"drift", "unsteady"}).endswith("error 4e-4")
    # Where other work had the machine every sentence says it: without that its claim would be too strong.
    busy = [row("eager", ms=5.8, warnings=["disturbed: a"]), row("ort", warnings=["disturbed: b"])]
    ((key, lines),) = speedups.groups(speedups.summary(*run(*busy)))
    assert sentences.group_sentence(key, lines, {"disturbed"}).endswith(
        "ort fp32 looks fastest; it and the base, fp32 eager, were disturbed, so no factor"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [([0.3], "0.3 s"), ([0.05, 3.0, 0.2], "0.2 s"), ([3.0], None), ([None, 3.0], None), ([], None)],
)
def test_figures_are_rough_where_cases_were_sampled_for_too_short(seconds: list[float | None], said: str | None):
    text = sentences.rough(seconds)
    assert (text is None) == (said is None)
    assert said is None or f"sampled for {said} (`budget.seconds`)" in text
