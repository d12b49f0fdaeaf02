"""Tables and sentences from a small run made by hand: speed-ups, pooled replicates, wording, and the files written."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from profiler.results import configurations, run_tables, sentences
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import load, with_all_columns
from profiler.stats import samples as statistics

Frames = tuple[pl.DataFrame, pl.DataFrame]


def row(variant: str, precision: str = "fp32", ms: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """One case; without `ms` one that gave no figures."""
    case = {
        "run_id": "run",
        "model": "net",
        "pass": "inference",
        "batch_size": 1,
        "replicate": 0,
        "engine": variant.partition("-")[0],
        "variant": variant,
        "precision": precision,
        "status": "ok" if ms is not None else "failed",
        "warnings": [],
    }
    if ms is not None:
        case |= {"clock": "host", "latency_ms": ms, "host_ms": ms, "throughput": 1000 / ms, "rel_l2_error": 4e-4}
    case |= more
    case.setdefault("case_id", "/".join(str(case[k]) for k in ("model", "variant", "pass", "precision", "replicate")))
    return case


def on_gpu(variant: str, ms: float, gpu_ms: float | None, **more: Any) -> dict[str, Any]:
    """One case of a GPU, where the headline is `event`."""
    return row(variant, ms=ms, clock="event", gpu_ms=gpu_ms, host_ms=9.0, **more)


def thrice(case: Callable[..., dict[str, Any]], *names: str, spread: float = 0.005, **figures: Any) -> list[Any]:
    """Three replicates whose figures differ by `spread`."""
    return [
        case(*names, replicate=i, **{k: v if v is None else v * factor for k, v in figures.items()})
        for i, factor in enumerate((1 - spread, 1.0, 1 + spread))
    ]


def run(*rows: dict[str, Any], spread: float = 0.01) -> Frames:
    """Results and samples; each measured case has 40 samples within ±`spread` of its latency and of its device time."""
    shape = [1 - spread, 1 - spread / 2, 1 + spread / 2, 1 + spread] * 10
    interval = statistics.median_interval(shape)
    assert interval is not None
    for r in rows:
        if "latency_ms" in r:
            r["latency_ci_low_ms"], r["latency_ci_high_ms"] = (r["latency_ms"] * end for end in vars(interval).values())
    results = with_all_columns(pl.DataFrame(list(rows), schema=RESULTS))
    samples = [
        {"run_id": "run", "case_id": r["case_id"], "clock": clock, "index": i, "ms": ms * factor}
        for r in rows
        if "latency_ms" in r
        for clock, ms in {r["clock"]: r["latency_ms"], "gpu": r.get("gpu_ms")}.items()
        if ms is not None
        for i, factor in enumerate(shape)
    ]
    return results, pl.DataFrame(samples, schema=SAMPLES)


def line(frames: Frames, variant: str, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    (found,) = configurations.summary(*frames).filter(variant=variant, precision=precision, **more).to_dicts()
    return found


def said(frames: Frames) -> list[str | None]:
    return [
        sentences.group_sentence(key, lines) for key, lines in configurations.groups(configurations.summary(*frames))
    ]


def test_speed_ups_are_relative_to_eager_fp32():
    frames = run(row("eager", ms=6.0), row("eager", "fp16", ms=4.0), row("ort", ms=3.0), row("ort", "fp16", ms=1.0))
    assert line(frames, "ort", "fp16")["speedup"] == pytest.approx(6.0)
    assert line(frames, "eager", "fp16")["speedup"] == pytest.approx(1.5)
    assert line(frames, "eager")["speedup"] == 1.0
    assert line(frames, "ort")["base"] == "fp32 eager"


def test_speed_ups_of_an_onnx_file_are_relative_to_ort():
    frames = run(row("ort", "native", ms=3.0), row("openvino", "native", ms=1.5))
    assert line(frames, "openvino", "native")["speedup"] == pytest.approx(2.0)
    assert line(frames, "openvino", "native")["base"] == "native ort"


@pytest.mark.parametrize(("key", "other"), [("model", "net2"), ("batch_size", 16), ("pass", "training")])
def test_each_group_has_its_own_base(key, other):
    frames = run(
        row("eager", ms=6.0),
        row("ort", ms=3.0),
        row("eager", ms=20.0, case_id="a", **{key: other}),
        row("ort", ms=5.0, case_id="b", **{key: other}),
    )
    assert line(frames, "ort", **{key: other})["speedup"] == pytest.approx(4.0)
    assert len(list(configurations.groups(configurations.summary(*frames)))) == 2


@pytest.mark.parametrize(
    "base", [row("eager", ms=None), row("eager", "fp16", ms=6.0), row("ort", "native", ms=6.0, model="net2")]
)
def test_without_a_base_there_is_no_speed_up_and_no_sentence(base):
    frames = run(base, row("ort", ms=3.0), row("ort", "fp16", ms=2.0))
    assert line(frames, "ort")["speedup"] is None
    assert said(frames)[-1] is None


def test_the_interval_of_a_speed_up_covers_it_and_the_base_has_none():
    frames = run(row("eager", ms=6.0), row("ort", ms=3.0))
    ort, eager = line(frames, "ort"), line(frames, "eager")
    assert 1.9 < ort["speedup_low"] < 2.0 < ort["speedup_high"] < 2.1
    assert (eager["speedup_low"], eager["speedup_high"]) == (None, None)


def test_the_interval_is_that_of_the_headline_clock():
    results, samples = run(row("eager", ms=6.0), row("ort", ms=3.0))
    strays = samples.with_columns(clock=pl.lit("gpu"), ms=pl.lit(1.0))
    assert line((results, pl.concat([samples, strays])), "ort") == line((results, samples), "ort")


def test_replicates_are_one_line_with_their_median_and_all_their_samples():
    fast = [row("ort", ms=ms, replicate=i) for i, ms in enumerate((2.0, 3.0, 10.0))]
    frames = run(row("eager", ms=6.0), *fast)
    ort = line(frames, "ort")
    assert (ort["replicates"], ort["latency_ms"]) == (3, 3.0)
    assert ort["speedup"] == pytest.approx(6.0 / 60.0 ** (1 / 3)), "of geometric means"
    # Between replicates lies far more than within one: an interval from one of them alone would not show it.
    assert ort["speedup_high"] - ort["speedup_low"] > 0.5
    # One process of the base is not enough to know the spread between processes.
    assert (ort["interval"], ort["verdict"]) == ("within process", None)


VERDICT = ["speedup", "interval", "verdict", "device_speedup", "device_speedup_low", "device_speedup_high"]


def test_without_replicates_there_is_an_interval_and_no_verdict():
    frames = run(on_gpu("eager", 6.0, 4.0), on_gpu("ort", 2.0, 1.0))
    speedup, interval, verdict, device, low, high = (line(frames, "ort")[column] for column in VERDICT)
    assert (speedup, interval, verdict) == (pytest.approx(3.0), "within process", None)
    assert device == pytest.approx(4.0)
    assert 3.9 < low < device < high < 4.1


@pytest.mark.parametrize(
    ("eager", "ort", "verdict"), [(4.0, 1.0, "faster"), (1.0, 4.0, "slower"), (1.0, 1.0, "indistinguishable")]
)
def test_on_a_gpu_three_replicates_a_side_give_a_verdict_on_device_time(eager, ort, verdict):
    # The headline says the opposite or nothing: it is not what counts.
    frames = run(*thrice(on_gpu, "eager", ms=6.0, gpu_ms=eager), *thrice(on_gpu, "ort", ms=6.0, gpu_ms=ort))
    found = line(frames, "ort")
    assert (found["interval"], found["verdict"]) == ("between processes", verdict)
    assert found["speedup"] == pytest.approx(1.0)
    assert found["speedup_low"] < 1.0 < found["speedup_high"]
    assert found["device_speedup"] == pytest.approx(eager / ort)
    assert found["device_speedup_low"] < found["device_speedup"] < found["device_speedup_high"]


@pytest.mark.parametrize(
    ("ort", "verdict"), [(3.0, "faster"), (5.8, "indistinguishable"), (6.2, "indistinguishable"), (7.0, "slower")]
)
def test_on_the_cpu_three_replicates_a_side_give_a_verdict_on_the_latency(ort, verdict):
    # 6.0 / 5.8 is 3.4 % faster; the interval reaches below the margin of 3 %.
    frames = run(*thrice(row, "eager", ms=6.0), *thrice(row, "ort", ms=ort))
    found = line(frames, "ort")
    assert (found["interval"], found["verdict"]) == ("between processes", verdict)
    ends = [f"speedup{end}" for end in ("", "_low", "_high")]
    assert [found[f"device_{end}"] for end in ends] == [found[end] for end in ends]


def test_the_margin_is_smaller_on_a_gpu():
    cpu = [*thrice(row, "eager", spread=0.001, ms=1.02), *thrice(row, "ort", spread=0.001, ms=1.0)]
    gpu = [
        *thrice(on_gpu, "eager", spread=0.001, ms=1.02, gpu_ms=1.02),
        *thrice(on_gpu, "ort", spread=0.001, ms=1.0, gpu_ms=1.0),
    ]
    assert [line(run(*rows), "ort")["verdict"] for rows in (cpu, gpu)] == ["indistinguishable", "faster"]


@pytest.mark.parametrize("case", [row, partial(on_gpu, gpu_ms=1.0)], ids=["cpu", "gpu"])
def test_a_speed_up_between_processes_lies_within_its_interval(case):
    # Six replicates are as slow as the base, so the medians' ratio is 1.00; the interval is 1.01 to 1.22.
    eager = [case("eager", ms=2.0, replicate=i) for i in range(10)]
    ort = [case("ort", ms=2.0 if i < 6 else 1.54, replicate=i) for i in range(10)]
    found = line(run(*eager, *ort), "ort")
    assert found["latency_ms"] == 2.0
    assert 1.0 < found["speedup_low"] < found["speedup"] < found["speedup_high"]
    assert found["speedup"] == pytest.approx((2.0 / 1.54) ** 0.4)


def test_device_times_are_bootstrapped_once_and_latencies_not_again(monkeypatch):
    names = ("eager", "ort", "trt", "compiled")
    frames = run(*(on_gpu(name, 7.1 - i, 4.0 - i / 2) for i, name in enumerate(names)))
    seen: list[tuple[float, ...]] = []
    bootstrap = statistics.bootstrap_medians

    def counted(samples: Any, *more: Any, **named: Any) -> Any:
        seen.append(tuple(samples))
        return bootstrap(samples, *more, **named)

    monkeypatch.setattr(statistics, "bootstrap_medians", counted)
    configurations.summary(*frames)
    assert len(seen) == len(set(seen)) == 4


def test_where_all_have_replicates_nothing_is_bootstrapped(monkeypatch):
    rows = [*thrice(on_gpu, "eager", ms=6.0, gpu_ms=4.0), *thrice(on_gpu, "ort", ms=2.0, gpu_ms=1.0)]
    frames = run(*rows)
    monkeypatch.setattr(statistics, "bootstrap_medians", lambda *_: pytest.fail("an interval that nobody sees"))
    assert line(frames, "ort")["verdict"] == "faster"


@pytest.mark.parametrize("side", ["eager", "ort"])
def test_a_replicate_without_device_time_leaves_no_verdict(side):
    rows = [*thrice(on_gpu, "eager", ms=6.0, gpu_ms=4.0), *thrice(on_gpu, "ort", ms=2.0, gpu_ms=1.0)]
    one = next(r for r in rows if r["variant"] == side)
    one["gpu_ms"] = None
    found = line(run(*rows), "ort")
    assert (found["verdict"], found["device_speedup_low"], found["device_speedup_high"]) == (None, None, None)
    assert (found["interval"], found["speedup_low"] is None) == ("between processes", False)


def test_where_no_replicate_has_device_time_there_is_none():
    rows = [*thrice(on_gpu, "eager", ms=6.0, gpu_ms=None), *thrice(on_gpu, "ort", ms=2.0, gpu_ms=None)]
    assert (line(run(*rows), "ort")["device_speedup"], line(run(*rows), "ort")["verdict"]) == (None, None)


def test_two_replicates_give_no_verdict():
    eager, ort = thrice(row, "eager", ms=6.0), thrice(row, "ort", ms=3.0)
    for rows in ([*eager, *ort[:2]], [*eager[:2], *ort]):
        found = line(run(*rows), "ort")
        assert (found["interval"], found["verdict"]) == ("within process", None)


def test_the_base_is_compared_with_nothing():
    frames = run(*thrice(on_gpu, "eager", ms=6.0, gpu_ms=4.0), *thrice(on_gpu, "ort", ms=2.0, gpu_ms=1.0))
    base = line(frames, "eager")
    assert [base[column] for column in VERDICT] == [1.0, None, None, 1.0, None, None]


def test_roofline_figures_are_medians_over_replicates():
    rows = [row("ort", replicate=i, fraction_of_peak=f, floor_ms=10 * f) for i, f in enumerate((0.2, 0.3, 0.9))]
    found = line(run(*rows), "ort")
    assert (found["fraction_of_peak"], found["floor_ms"]) == (0.3, 3.0)


def test_a_failed_replicate_leaves_the_others():
    frames = run(row("eager", ms=6.0), row("ort", ms=3.0), row("ort", ms=None, replicate=1))
    assert line(frames, "ort")["replicates"] == 1


def test_a_groups_lines_are_fastest_first():
    frames = run(row("eager", ms=6.0), row("compiled", ms=2.0), row("ort", ms=3.0))
    ((key, lines),) = configurations.groups(configurations.summary(*frames))
    assert key == {
        "model": "net",
        "pass": "inference",
        "batch_size": 1,
        "extra": None,
        "setting": "",
        "role": "cell",
    }
    assert [one["variant"] for one in lines] == ["compiled", "ort", "eager"]


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


@pytest.mark.parametrize(
    ("slow", "says"), [(1.5, "1.50× fp32 eager"), (6.04, "6.0× fp32 eager"), (31.4, "31.4× fp32 eager")]
)
def test_the_sentence_gives_as_many_digits_as_tell_something(slow, says):
    assert says in said(run(row("eager", ms=slow), row("ort", ms=1.0)))[0]


def test_the_sentence_for_training_says_so():
    frames = run(row("eager", ms=6.0, **{"pass": "training"}), row("compiled", ms=2.5, **{"pass": "training"}))
    assert said(frames)[0].startswith("net training, batch 1: compiled fp32 is 2.4× fp32 eager")


def test_what_else_distinguishes_a_group_stands_in_its_title_and_sentence():
    extra = {"pass": "training", "extra": "optimizer=sgd/head=logits"}
    frames = run(row("eager", ms=6.0, **extra), row("compiled", ms=2.0, **extra))
    ((key, lines),) = configurations.groups(configurations.summary(*frames))
    assert sentences.title(key) == "net, training, batch 1, optimizer sgd, head logits"
    sentence = sentences.group_sentence(key, lines)
    assert sentence and sentence.startswith("net training, batch 1, optimizer sgd, head logits: compiled fp32 is 3.0×")


def test_each_optimizer_has_its_own_base():
    sgd, none = ({"pass": "training", "extra": extra} for extra in ("optimizer=sgd", None))
    frames = run(
        row("eager", ms=6.0, case_id="a", **sgd), row("eager", ms=4.0, case_id="b", **none),
        row("compiled", ms=2.0, case_id="c", **sgd), row("compiled", ms=2.0, case_id="d", **none),
    )  # fmt: skip
    assert line(frames, "compiled", extra="optimizer=sgd")["speedup"] == pytest.approx(3.0)
    rows = configurations.summary(*frames).filter(pl.col("extra").is_null(), variant="compiled").to_dicts()
    assert [row["speedup"] for row in rows] == [pytest.approx(2.0)]


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
        ([*thrice(row, "eager", ms=1.001), *thrice(row, "ort", ms=1.0)], ": indistinguishable from fp32 eager"),
        (
            [*thrice(on_gpu, "eager", ms=3.0, gpu_ms=1.0), *thrice(on_gpu, "ort", ms=2.0, gpu_ms=1.0)],
            "; on device time 1.00× (0.99–1.01): indistinguishable from fp32 eager",
        ),
    ],
    ids=["cpu", "gpu"],
)
def test_where_the_best_is_indistinguishable_from_the_base_the_sentence_says_so(rows, ending):
    (text,) = said(run(*rows))
    assert text.startswith("net, batch 1: no clear winner; ort fp32 is ")
    assert text.endswith(ending)
    assert text.count("indistinguishable") == 1  # The base is the runner-up too, which need not be said twice.


@pytest.mark.parametrize(
    ("second", "ending"), [(1.01, ": faster, but indistinguishable from openvino fp32"), (1.2, ": faster")]
)
def test_where_the_best_is_indistinguishable_from_the_runner_up_the_sentence_says_so(second, ending):
    frames = run(*thrice(row, "eager", ms=5.0), *thrice(row, "openvino", ms=second), *thrice(row, "ort", ms=1.0))
    assert said(frames)[0].endswith(ending)
    tied = configurations.summary(*frames).sort("latency_ms")["indistinguishable_from"].to_list()
    assert tied == ["openvino fp32" if "openvino" in ending else None, None, None]


def test_the_best_may_be_indistinguishable_from_base_and_runner_up():
    frames = run(*thrice(row, "eager", ms=1.02), *thrice(row, "openvino", ms=1.01), *thrice(row, "ort", ms=1.0))
    assert said(frames)[0].endswith(": indistinguishable from fp32 eager and openvino fp32")


def test_the_runner_up_is_compared_although_the_base_has_too_few_replicates():
    frames = run(row("eager", ms=5.0), *thrice(row, "openvino", ms=1.01), *thrice(row, "ort", ms=1.0))
    assert said(frames)[0].endswith(", error 4e-4; indistinguishable from openvino fp32")


def test_a_runner_up_without_replicates_is_not_compared():
    frames = run(*thrice(row, "eager", ms=5.0), row("openvino", ms=1.0), *thrice(row, "ort", ms=1.0))
    assert "indistinguishable" not in said(frames)[0]


def test_where_the_base_is_the_best_its_runner_up_may_be_indistinguishable():
    frames = run(*thrice(row, "eager", ms=1.0), *thrice(row, "ort", ms=1.01))
    assert said(frames) == ["net, batch 1: nothing was faster than fp32 eager, indistinguishable from ort fp32"]


@pytest.mark.parametrize("side", ["eager", "ort"])
@pytest.mark.parametrize("kind", ["drift", "unsteady", "inconsistent"])
def test_where_the_best_or_the_base_was_disturbed_the_sentence_ends_with_it(side, kind):
    rows = [row("eager", ms=5.8), row("ort", ms=1.0), row("openvino", ms=2.0)]
    next(one for one in rows if one["variant"] == side)["warnings"] = [f"{kind}: by 40 %", "outliers: 3 of 40"]
    (text,) = said(run(*rows))
    assert text.startswith("net, batch 1: ort fp32 is 5.8× fp32 eager (")
    assert text.endswith(f"), error 4e-4 ({kind}: measure again)")


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


def test_problems_say_status_reason_and_where():
    frames = run(
        row("eager", ms=1.0),
        row("ort", ms=None, status="oom", reason="out of memory", batch_size=16),
        row("ort", ms=None, status="oom", reason="out of memory", batch_size=4, case_id="b"),
        row("ort", "tf32", ms=None, status="unsupported", reason="TF32 needs a GPU"),
    )
    told = run_tables.problems(frames[0]).to_dicts()
    assert [(one["status"], one["reason"], one["batch_size"]) for one in told] == [
        ("oom", "out of memory", [4, 16]),
        ("unsupported", "TF32 needs a GPU", [1]),
    ]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    frames = run(
        row("eager", ms=6.123456789, warnings=["outliers: 3", "host-bound: a; b"]),
        row("ort", ms=3.0, rel_l2_error=3.2e-7, peak_memory_mib=123.4),
        row("ort", "tf32", ms=None, status="unsupported", reason="no TF32"),
        row("compiled", ms=None, reason="expected Tensor | None,\nwhich is a long story: " + "x" * 1500),
    )
    run_tables.write_tables(tmp_path / "tables", frames[0], configurations.summary(*frames))
    return tmp_path / "tables"


def test_each_table_is_written_as_csv_and_as_markdown(written):
    names = {"latency", "memory", "speedup", "not-measured"}
    assert {path.name for path in written.iterdir()} == {f"{name}.{end}" for name in names for end in ("csv", "md")}


def test_csv_reads_back_with_all_digits(written):
    latency = pl.read_csv(written / "latency.csv")
    assert latency["latency_ms"].to_list() == [6.123456789, 3.0]
    assert latency["warnings"].to_list()[0] == "outliers: 3; host-bound: a; b"
    assert pl.read_csv(written / "memory.csv")["peak_memory_mib"].to_list() == [None, 123.4]
    speedup = pl.read_csv(written / "speedup.csv")
    assert speedup["speedup"].to_list() == pytest.approx([1.0, 6.123456789 / 3])
    assert speedup["warnings"].to_list()[0] == "outliers; host-bound"
    assert pl.read_csv(written / "not-measured.csv")["status"].to_list() == ["unsupported", "failed"]


def cells(path: Path) -> list[list[str]]:
    """The Markdown's rows, its ruler left out."""
    rows = [text for text in path.read_text().splitlines() if text]
    return [
        [cell.strip() for cell in text.replace(r"\|", "¦").strip("|").split("|")]
        for i, text in enumerate(rows)
        if i != 1
    ]


@pytest.mark.parametrize(("name", "rows"), [("latency", 2), ("memory", 2), ("speedup", 2), ("not-measured", 2)])
def test_markdown_has_one_line_a_row_and_as_many_cells_as_the_head(written, name, rows):
    head, *body = cells(written / f"{name}.md")
    assert head == pl.read_csv(written / f"{name}.csv").columns
    assert len(body) == rows
    assert {len(one) for one in body} == {len(head)}


def test_layers_and_batch_sweeps_have_tables_of_their_own(tmp_path):
    layer = row("eager", model="L1", model_kind="layer", **{"pass": "training"}, forward_ms=1.0, machine="here")
    sweep = [row("eager", case_id=f"s{b}", batch_size=b, extra="sweep=batch", machine="here") for b in (1, 2)]
    results, samples = run(layer, *sweep)
    run_tables.write_tables(tmp_path, results, configurations.summary(results, samples))
    assert pl.read_csv(tmp_path / "layer-passes.csv")["layer"].to_list() == ["L1"]
    assert (tmp_path / "best-per-layer.md").is_file()
    assert pl.read_csv(tmp_path / "minibatch.csv")["batch_size"].to_list() == [1, 2]
    assert (tmp_path / "minibatch-knees.csv").is_file()
    assert (tmp_path / "largest-batch.csv").is_file()


def test_markdown_cuts_nothing_off(written):
    for path in written.glob("*.md"):
        assert "…" not in path.read_text()
    assert "x" * 1500 in (written / "not-measured.md").read_text()


def test_markdown_shows_a_small_error_as_what_it_is(written):
    head, _, ort = cells(written / "latency.md")
    assert float(ort[head.index("rel_l2_error")]) == pytest.approx(3.2e-7, rel=0.01)


def test_a_run_in_which_nothing_could_be_measured_has_its_tables_too(tmp_path):
    results, samples = run(row("ort", ms=None, reason="no"))
    run_tables.write_tables(tmp_path / "tables", results, configurations.summary(results, samples))
    assert pl.read_csv(tmp_path / "tables" / "latency.csv").height == 0
    assert pl.read_csv(tmp_path / "tables" / "not-measured.csv").height == 1


def test_no_name_breaks_out_of_a_cell_of_markdown(hostile_run, tmp_path):
    results, samples = (frame.collect() for frame in load(hostile_run))
    lines = configurations.summary(results, samples)
    run_tables.write_tables(tmp_path, results, lines)
    for path in tmp_path.glob("*.md"):
        rows = path.read_text().splitlines()
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1, path.name
        assert not re.search(r"(?<!\\)[<`*]", path.read_text()), path.name
