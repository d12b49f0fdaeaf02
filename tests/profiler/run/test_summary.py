"""What a person reads at 120 columns: every figure whole, every reason told, no name taken for markup."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import handmade
import polars as pl
import pytest
from rich.console import Console
from runs import on_console

from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import with_all_columns
from profiler.results.speedups import summary
from profiler.run.summary import print_results


def row(variant: str, precision: str = "fp32", ms: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """One case with every figure that the tables show; without `ms` one that gave none."""
    if ms is None:
        return handmade.row(variant, precision, None, **more)
    figures = dict.fromkeys(("gpu_ms", "forward_ms", "backward_ms"), ms)
    interval = {"latency_ci_low_ms": 0.995 * ms, "latency_ci_high_ms": 1.005 * ms}
    shown = {"clock": "event", "host_ms": None, "rel_l2_error": 1.234e-4, "peak_memory_mib": 12345.6}
    return handmade.row(variant, precision, ms, **figures | interval | shown | more)


def thrice(variant: str, precision: str = "fp32", ms: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """Three replicates whose figures differ by half a percent."""
    factors = enumerate((0.995, 1.0, 1.005))
    return [row(variant, precision, ms * factor, replicate=i, **more) for i, factor in factors]


def frames(*rows: dict[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Results and samples; each measured case has 40 samples a clock within ±1 % of its latency."""
    results = with_all_columns(pl.DataFrame(list(rows), schema=RESULTS))
    samples = [
        {"run_id": "run", "case_id": r["case_id"], "clock": clock, "index": i, "ms": r["latency_ms"] * factor}
        for r in rows
        if "latency_ms" in r
        for clock in ("event", "gpu")
        for i, factor in enumerate([0.99, 1.01, 0.995, 1.005] * 10)
    ]
    return results, pl.DataFrame(samples, schema=SAMPLES)


def shown(
    results: pl.DataFrame, samples: pl.DataFrame, width: int = 120, lines: pl.DataFrame | None = None, **more: Any
) -> str:
    """`lines` are the results' summary, where they are shown more than once."""
    lines = summary(results, samples) if lines is None else lines
    return on_console(print_results, results, lines, width=width, **more)


def printed(*rows: dict[str, Any], width: int = 120) -> str:
    return shown(*frames(*rows), width=width)


def words(text: str, start: str) -> list[str]:
    """The cells of the only line that starts with `start`."""
    (line,) = [line for line in text.splitlines() if line.lstrip().startswith(start)]
    return line.split()


LADDER = [
    row(variant, precision, ms, **{"pass": pass_})
    for pass_ in ("inference", "training")
    for variant, precision, ms in [
        ("eager", "fp32", 1234.5678),
        ("eager-tuned", "tf32", 812.3),
        ("eager-nocudnn", "fp32", 9999.9),
        ("compiled", "fp16", 23.4),
        ("ort", "fp32", 345.6),
        ("ort-tuned", "fp16", 12.3),
        ("trt", "fp16", 8.1),
        ("trt-rtx", "int8", 7.9),
        ("openvino", "fp32", 456.7),
        ("ort", "bf16", 2345.6),
    ]
]
LONG = "resnet152-with-a-very-long-label-that-somebody-gave-it"
LONG_ROWS = [row("eager", ms=1234.5, model=LONG)] + [
    row(f"ort-{'very-' * n}long-label-{n}", "amp-fp16", 123.4 / n, model=LONG, warnings=[f"outliers: {n}"])
    for n in range(1, 10)
]
LONG_REASONS = [
    row("eager"),
    row("ort", ms=None, reason="RuntimeError: " + "a word and another, " * 40, model=LONG),
    row("compiled", ms=None, reason="/a/path/without/any/space/" * 12, model=LONG),
    *(row(f"{LONG}-{n}", ms=None, status="unsupported", reason="no such thing", model=LONG) for n in range(6)),
]


@pytest.mark.parametrize("rows", [LADDER, LONG_ROWS, LONG_REASONS], ids=["ten rows", "long names", "long reasons"])
def test_nothing_is_cut_off_and_nothing_is_wider_than_the_terminal(rows):
    text = printed(*rows)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 120


@pytest.mark.parametrize(("rows", "places"), [(LADDER, 2), (LONG_ROWS, 1)], ids=["ten rows", "long names"])
def test_every_row_has_its_figures(rows, places):
    text = printed(*rows)
    for one in rows:
        assert f"{one['latency_ms']:,.{places}f}" in text


def test_every_row_has_its_name():
    found = [line.split()[:2] for line in printed(*LADDER).splitlines() if line.strip()]
    for one in LADDER:
        assert found.count([one["variant"], one["precision"]]) == 2  # Inference and training.


def test_every_group_has_a_title_its_rows_fastest_first_and_a_sentence():
    text = printed(row("eager", ms=6.0), row("ort", ms=2.5), row("eager", ms=60.0, batch_size=16))
    assert text.index("net, inference, batch 1\n") < text.index("net, inference, batch 16\n")
    assert text.index(" ort ") < text.index(" eager ")
    assert "net, batch 1: ort fp32 is 2.4× fp32 eager" in text


def test_a_line_gives_its_figures():
    text = printed(row("eager", ms=6.0), row("ort", ms=3.0))
    engine, precision, latency, spread, device, speedup, interval, items, memory, error = words(text, "ort ")
    assert (engine, precision, latency, spread, device) == ("ort", "fp32", "3.00", "0.5", "3.00")
    assert (speedup, items, memory, error) == ("2.00", "333", "12,346", "1.2e-4")
    low, high = (float(end) for end in interval.strip("()").split("–"))
    assert 1.9 < low <= 2.0 <= high < 2.1


def test_training_shows_the_gradients_error_where_there_is_room() -> None:
    more = {"pass": "training", "rel_l2_error": None, "gradient_error": 4.567e-6, "throughput": 12345.6}
    rows = [row(name, ms=ms, **more) for name, ms in (("eager", 1234.5678), ("eager-nocudnn", 999.9))]
    text = printed(*rows)
    assert "Gradient" in text and words(text, "eager-nocudnn  ")[-1] == "4.6e-6"
    narrow = printed(*rows, width=72)
    assert "Left out for the width: " in narrow and "Gradient error." in narrow
    assert "4.6e-6" not in narrow
    assert "Gradient" not in printed(row("eager"), row("ort", ms=0.5))


def test_training_shows_forward_and_backward():
    text = printed(
        row("eager", ms=6.0, forward_ms=2.0, backward_ms=4.0, **{"pass": "training"}),
        row("compiled", ms=3.0, forward_ms=1.0, backward_ms=2.0, **{"pass": "training"}),
    )
    assert "Forward" in text
    assert words(text, "compiled ")[4:6] == ["1.00", "2.00"]


def heads(text: str) -> str:
    """The two lines above the ruler, as one."""
    lines = text.splitlines()
    (ruler,) = [i for i, line in enumerate(lines) if line.startswith(" ───")]
    return " ".join(" ".join(lines[ruler - 2 : ruler]).split())


def test_a_verdict_is_a_column_where_there_is_one():
    text = printed(*thrice("eager", ms=6.0), *thrice("ort", ms=3.0), *thrice("trt", ms=6.01), *thrice("slow", ms=9.0))
    assert "Verdict" in heads(text)
    assert [words(text, start)[7] for start in ("ort ", "trt ", "slow ")] == ["faster", "unclear", "slower"]
    assert not {"faster", "tie", "unclear", "slower"} & set(words(text, "eager "))
    assert "Verdict: " in text
    assert "Verdict" not in printed(row("eager", ms=6.0), row("ort", ms=3.0))
    busy = {"warnings": ["disturbed: x"]}
    text = printed(*thrice("eager", ms=6.0, **busy), *thrice("ort", ms=3.0, **busy))
    assert "Verdict" not in text and "\n\n\n" not in printed(row("trt", ms=6.0, **busy))


def test_the_share_of_the_peak_is_a_column_where_it_is_known():
    text = printed(row("eager", fraction_of_peak=0.0123), row("ort", ms=0.5, fraction_of_peak=0.9))
    assert "peak %" in heads(text)
    assert [words(text, start)[5] for start in ("eager ", "ort ")] == ["1.2", "90.0"]
    assert "peak" not in printed(row("eager"), row("ort"))


def test_a_peak_that_was_measured_beside_other_work_is_has_no_shares_and_says_why():
    how = {"roofs_disturbance": "other processes took 70 % of 2 processors"}
    text = shown(*frames(row("eager", tflops=0.0123), row("ort", tflops=0.9)), **how)
    said = " ".join(text.split())
    assert "may be too low, so no share of the peak is given: while they were measured, other processes" in said
    assert "too low" not in shown(*frames(row("eager"), row("ort")), **how)


def test_the_price_is_a_column_where_it_is_known():
    text = printed(row("eager", usd_per_million_items=12.5), row("ort", ms=0.5, usd_per_million_items=3.25))
    assert "USD/1M" in heads(text)
    assert [words(text, start)[-3] for start in ("eager ", "ort ")] == ["12.50", "3.25"]
    assert "USD" not in printed(row("eager"), row("ort"))


def test_the_note_on_intervals_within_processes_stands_where_one_is_shown():
    note = "Intervals cover noise within one process only"
    assert note in printed(row("eager", ms=6.0), row("ort", ms=3.0))
    assert note in printed(*thrice("eager", ms=6.0), row("ort", ms=3.0))
    assert note not in printed(*thrice("eager", ms=6.0), *thrice("ort", ms=3.0))
    assert note not in printed(row("ort", ms=3.0), row("trt", ms=2.0))


@pytest.mark.parametrize("given", [False, True])
def test_a_speed_up_without_an_interval_is_shown_as_such(given):
    few = {} if given else dict.fromkeys(("latency_ci_low_ms", "latency_ci_high_ms"))
    results, samples = frames(row("eager", ms=6.0), row("ort", ms=3.0, **few))
    text = shown(results, samples.filter(clock="event"))
    assert ("(95 %)" in heads(text)) == given
    assert ("fewer than 30 independent samples" in text) != given
    assert "2.00" in words(text, "ort ")
    assert ("–" in "".join(words(text, "ort "))) == given


FULL = [
    one
    for pass_ in ("inference", "training")
    for variant, precision, ms in [
        ("eager", "fp32", 1234.5),
        ("eager-nocudnn", "tf32", 1233.5),
        ("eager-tuned", "amp-fp16", 98.7),
    ]
    for one in thrice(variant, precision, ms, fraction_of_peak=0.987, **{"pass": pass_})
]


def test_all_columns_with_the_longest_labels_fit_into_120():
    text = printed(*FULL)
    for start in ("eager-nocudnn ", "eager-tuned "):
        inference, training = [line.split() for line in text.splitlines() if line.lstrip().startswith(start)]
        assert (len(inference), len(training)) == (12, 12)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 120


def test_a_narrow_terminal_does_without_the_least_important_columns():
    order = ["±", "peak %", "Device", "Items/s", "Rel.", "Memory", "Verdict"]
    both = frames(*(one for one in FULL if one["pass"] == "inference"))
    lines, kept = summary(*both), []
    for width in range(120, 59, -1):
        text = shown(*both, width, lines)
        titles = f" {heads(text)} "
        assert ("Verdict: against the base" in text) == (" Verdict " in titles), "no legend of what is not shown"
        assert ("Left out for the width: " in " ".join(text.split())) == (" ± " not in titles)
        kept.append([head for head in order if f" {head} " in titles])
    assert (kept[0], kept[-1]) == (order, [])
    for left in kept:
        assert left == order[len(order) - len(left) :]


def test_a_column_without_figures_is_left_out():
    text = printed(row("eager", gpu_ms=None, peak_memory_mib=None), row("ort", gpu_ms=None, peak_memory_mib=None))
    assert "Device" not in text
    assert "Memory" not in text
    assert "Latency" in text


def test_what_ranks_rows_that_contradict_themselves_is_said_where_there_is_one():
    contradictory = row("ort", ms=0.5, throughput=100.0, warnings=["inconsistent: x"])
    text = printed(row("eager", ms=5.0), contradictory)
    assert text.index(" eager ") < text.index(" ort "), "10 ms by its throughput"
    assert "is ranked by the slower of the two" in text
    assert "ranked by" not in printed(row("eager", ms=5.0), row("ort", ms=0.5))


def test_what_was_not_measured_is_listed_with_its_reason():
    text = printed(
        row("eager"),
        row("ort", "tf32", ms=None, status="unsupported", reason="TF32 needs a GPU"),
        row("ort-tuned", "tf32", ms=None, status="unsupported", reason="TF32 needs a GPU"),
        row("compiled", ms=None, status="oom", reason="out of memory", batch_size=64, log="logs/compiled.log"),
        row("trt", ms=None, status="crashed", reason="ended by SIGSEGV"),
    )
    _, listed = text.split("Not measured")
    assert listed.count("TF32 needs a GPU") == 1
    assert listed.count("log:") == listed.count("log: logs/compiled.log") == 1
    for word in ("unsupported", "oom", "crashed", "out of memory", "ended by SIGSEGV", "ort, ort-tuned", "compiled"):
        assert word in listed


def test_the_batch_size_of_what_was_not_measured_is_told():
    text = printed(row("eager"), row("ort", ms=None, status="oom", reason="out of memory", batch_size=64))
    assert "64" in text.split("Not measured")[1]


def test_tables_that_are_elsewhere_come_before_what_was_not_measured():
    results, samples = frames(row("eager"), row("ort", ms=None, reason="no luck"))
    console = Console(file=io.StringIO(), width=120)
    study = partial(console.print, "a study's table")
    print_results(console, results, summary(results, samples), lambda key: True, print_more=study)
    text = console.file.getvalue()
    assert "Latency" not in text
    assert 0 <= text.index("a study's table") < text.index("Not measured")


def test_what_first_calls_are_is_said_below_their_column():
    of_both = [
        row("eager", setting=f"n={n}", extra=f"n={n}", case_id=str(n), first_call_ms=ms)
        for n, ms in ((4, None), (8, 2.0))
    ]
    assert "First call: what the first request of a new shape waits for" in " ".join(printed(*of_both).split())
    assert "First call" not in printed(*of_both[:1])


def test_a_reason_of_many_words_is_whole():
    reason = " ".join(f"word{n}" for n in range(60))
    text = printed(row("eager"), row("ort", ms=None, reason=reason))
    assert reason in " ".join(text.split())


def test_where_everything_failed_the_reasons_are_all_there_is():
    text = printed(row("ort", ms=None, reason="no luck"))
    assert "no luck" in text
    assert "Latency" not in text


def test_where_all_was_measured_nothing_is_listed():
    text = printed(row("eager"), row("ort"))
    assert "Not measured" not in text
    assert "Warnings" not in text


def test_each_kind_of_warning_is_told_once_with_the_rows_that_carry_it():
    rows = [row(name, warnings=["outliers: 3 of 9", "host-bound: a"]) for name in ("eager", "ort", "trt")]
    rows.append(row("compiled", warnings=["host-bound: a", "remeasured: first taken while the card slowed down"]))
    assert "remeasured (net/compiled/inference/fp32/b1/r0): " in printed(*rows)
    rows[0]["warnings"] += rows[3]["warnings"][1:]
    _, told = printed(*rows, row("onnx", warnings=rows[0]["warnings"][:2])).split("Warnings")
    assert told.count("outliers (4 rows): ") == told.count("host-bound (every row): ") == 1
    names = "net/eager/inference/fp32/b1/r0 and net/compiled/inference/fp32/b1/r0"
    assert f"remeasured ({names}): " in " ".join(told.split()), "which figures are of another time"


@pytest.mark.parametrize("name", ["[red]", "[/]", "[bold]mine[/bold]", ":smile:", "[link=x]"])
@pytest.mark.parametrize(
    "place",
    [{"model": None}, {"variant": None}, {"reason": None, "ms": None}, {"warnings": None}],
    ids=lambda p: next(iter(p)),
)
def test_names_that_look_like_markup_are_printed_as_they_are(name, place):
    more: dict[str, Any] = {key: name if value is None and key != "ms" else value for key, value in place.items()}
    variant = more.pop("variant", "ort")
    if "warnings" in more:
        more = {"warnings": [name.strip(":") if name.startswith(":") else name]}
        name = more["warnings"][0]
    text = printed(row("eager"), row(variant, **more), row("trt", model=more.get("model", "net")))
    assert name in text


def test_a_run_ends_with_how_many_cases_were_disturbed_and_how_many_came_right():
    again = "remeasured: first taken while the card slowed down"
    marks = {"ort": [again], "compiled": [again, "throttled: hw-slowdown"], "eager": ["throttled: hw-slowdown"]}
    rows = [row(variant, warnings=warnings) for variant, warnings in marks.items()]
    unmeasured = row("trt", status="unsupported", reason="no GPU", ms=None)
    text = printed(*rows, row("other"), unmeasured)
    assert "\n3 of 4 cases were throttled: 1 came right when measured again, 2 remain; 1 of 3 was not " in text
    one = printed(rows[0])
    assert "\n1 of 1 case was throttled: 1 came right when measured again, 0 remain.\n" in one
    assert "measured again," not in printed(row("other"))


def test_disturbed_cases_that_were_not_measured_again_are_not_said_to_be():
    rows = [row("eager", warnings=["disturbed: a"]), row("ort", warnings=["disturbed: b"])]
    assert "\n2 of 2 cases were disturbed; none of them was measured again this time.\n" in printed(*rows)
    assert "\n1 of 1 case was disturbed; it was not measured again this time.\n" in printed(rows[0])
    ids, spent = [case["case_id"] for case in rows], "the time for that, `budget.repeats`, was spent"
    of = "\n2 of 2 cases were disturbed: 0 came right when measured again, 2 remain"
    assert f"{of}.\n" in shown(*frames(*rows), width=150, repeated=(ids, ""))
    left = f"{of}; 1 of 2 was not measured again this time ({spent}).\n"
    assert left in shown(*frames(*rows), width=200, repeated=(ids[:1], spent))


def test_what_is_said_of_disturbed_cases_names_the_kinds_that_the_list_of_warnings_has():
    took = "other processes took 40 % of 2 processors"
    again = f"remeasured: first taken while {took}, and while latency and throughput contradicted each other"
    rows = [row("eager", warnings=[again]), row("ort", warnings=[f"disturbed: {took}"]), row("trt")]
    assert "\n2 of 3 cases were disturbed or inconsistent: 1 came right" in printed(*rows)
    rows[0]["warnings"] = ["inconsistent: a", again]
    assert "latency and throughput (on a CPU a call's median and mean) contradict" in " ".join(printed(*rows).split())
    assert (
        "\n2 of 3 cases were disturbed or inconsistent: 0 came right when measured again, 2 remain; 1 of "
        in printed(*rows)
    )


def test_a_table_leaves_out_factors_of_disturbed_rows_and_notes_it():
    rows = [row("eager", ms=4.0), row("ort", ms=1.0, warnings=["disturbed: a"]), row("trt", ms=2.0)]
    text = printed(*rows)
    assert words(text, "ort ")[2:] == ["1.00", "0.5", "1.00", "1,000", "12,346", "1.2e-4", "disturbed"]
    assert "2.00" in words(text, "trt ") and "disturbed" not in words(text, "trt ")
    rows[0]["warnings"] = ["inconsistent: a"]
    text = printed(*rows)
    assert words(text, "trt ")[-2:] == ["base:", "inconsistent"]
    assert "Speed-up" not in heads(text)


def test_more_seconds_are_no_advice_where_the_base_was_disturbed():
    few = {"latency_ci_low_ms": None, "latency_ci_high_ms": None}
    results, samples = frames(row("eager", ms=4.0, warnings=["disturbed: a"], **few), row("ort", ms=1.0, **few))
    assert "budget.seconds" not in shown(results, samples.clear())
    assert "budget.seconds" in shown(results.with_columns(warnings=pl.lit([], pl.List(pl.String))), samples.clear())


def test_that_figures_are_rough_is_said_once_and_last():
    drifting = {"warnings": ["drift: x"], "latency_ci_low_ms": None, "latency_ci_high_ms": None}
    models = ("net", "other", "third")
    rows = [row(variant, model=model, **drifting) for model in models for variant in ("eager", "ort")]
    results, samples = frames(*rows)
    quick = shown(results, samples.clear(), sampling_seconds=0.3)
    assert quick.count("drift") == 1, "on every row: not in each sentence"
    assert "drift (every row): figures moved" in quick
    (last,) = quick.rpartition("\n\n")[2].splitlines()
    assert last.startswith("Rough figures: cases were sampled for 0.3 s (`budget.seconds`).")
    assert quick.count("Rough") == 1
    assert "No interval" not in quick, "that is why"
    failed, none = frames(row("eager", ms=None, status="failed", reason="no table"))
    assert "Rough" not in shown(failed, none, sampling_seconds=0.3), "there is no figure"
    longer = shown(results, samples.clear(), sampling_seconds=3.0)
    assert longer.rstrip().endswith("No interval: fewer than 30 independent samples. Raise `budget.seconds`.")
    assert "Rough" not in longer


# Single layers and batch sweeps: one table a layer, one a family, and no flood of groups


def case(model: str, variant: str = "eager", ms: float | None = 3.0, **more: Any) -> dict[str, Any]:
    place = {"pass": "training", "batch_size": 16, "machine": "here", "device": "cuda", "model_kind": "canonical"}
    figures = {"clock": "event", "host_ms": None, "rel_l2_error": None, "throughput": 16_000 / ms} if ms else {}
    ended = {} if ms else {"status": "oom", "reason": "CUDA out of memory"}
    return handmade.row(variant, ms=ms, model=model, **place | figures | ended | more)


def layer(name: str, variant: str, *parts: float, **more: Any) -> dict[str, Any]:
    times = dict(zip(("forward_ms", "grad_input_ms", "grad_weight_ms"), parts, strict=True))
    return case(name, variant, sum(parts), model_kind="layer", flops_per_item=3e9, **times, **more)


def swept(batch: int, ms: float | None, **more: Any) -> dict[str, Any]:
    rate = 1000 * batch / ms if ms else None
    return case("vgg16", ms=ms, batch_size=batch, extra="head=logits/sweep=batch", throughput=rate, **more)


def tables(*cases: dict[str, Any], width: int = 120, **how: Any) -> str:
    results = with_all_columns(pl.DataFrame(list(cases), schema=RESULTS))
    return shown(results, pl.DataFrame(schema=SAMPLES), width, **how)


def lines(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip().startswith(start)]


LAYERS = [layer("L1", "eager", 1.0, 2.0, 4.0), layer("L1", "tuned", 1.5, 1.0, 1.0), layer("L2", "eager", 1.0, 1.0, 1.0)]


def test_a_layer_has_one_table_for_all_its_passes() -> None:
    alone = case("L1", "ort", 0.5, model_kind="layer", **{"pass": "inference"})
    text = tables(*LAYERS, alone)
    assert [" ".join(words) for words in lines(text, "L")] == ["L1, batch 16", "L2, batch 16"]
    # 16 items of 3 GFLOP, a third of them in the forward pass.
    assert lines(text, "tuned")[0][2:] == ["1.500", "1.00", "1.00", "3.50", "10.7", "13.71"]
    assert lines(text, "ort")[0][2:] == ["0.500"]
    assert text.index("tuned") < text.index("eager"), "the fastest first"
    assert "Speed-ups" not in text, "there are none"


def test_of_several_variants_the_best_of_each_pass_is_a_line() -> None:
    text = tables(*LAYERS)
    (best,) = lines(text, "best of")
    assert best[-4:] == ["1.00", "1.00", "1.00", "3.00"], "of L1; L2 has one variant"


@pytest.mark.parametrize("width", [120, 80])
def test_a_family_of_a_sweep_is_one_table(width: int) -> None:
    text = tables(swept(16, 16.0), swept(32, 20.0), swept(64, None), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "vgg16, training, eager fp32, head logits" in text
    assert text.count("item ms") == 1
    assert "batch 16" not in text, "no group of its own"
    (first,) = lines(text, "16 ")
    assert first == ["16", "16.0", "1.000", "1,000", "62"]
    assert lines(text, "64 ")[0] == ["64", "out", "of", "memory"]
    assert "vgg16 training, eager fp32, head logits: " in text, "what the curve says"


def test_groups_whose_tables_stand_elsewhere_keep_their_sentence() -> None:
    pair = [case("vgg16", ms=6.0), case("vgg16", "compiled", ms=2.0)]
    told = tables(*pair, elsewhere=lambda group: group["model"] == "vgg16")
    assert "vgg16, training, batch 16\n" not in told
    assert "vgg16 training, batch 16: compiled fp32 is 3.0× fp32 eager" in told
    assert "vgg16, training, batch 16" in tables(*pair)


def test_layers_and_sweeps_stand_once_where_they_stand_elsewhere() -> None:
    text = tables(*LAYERS, swept(16, 16.0), swept(32, 20.0), elsewhere=lambda group: True)
    assert "batch 16" not in text
    assert "item ms" not in text


def test_an_optimizers_step_and_a_price_are_columns() -> None:
    text = tables(
        case("vgg16", step_ms=0.75, usd_per_million_items=1.25, extra="optimizer=sgd"),
        case("vgg16", "compiled", step_ms=0.25, usd_per_million_items=0.75, extra="optimizer=sgd"),
    )
    assert "vgg16, training, batch 16, optimizer sgd" in text
    assert {"0.750", "1.250"} <= set(lines(text, "eager")[0])
