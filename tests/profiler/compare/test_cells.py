"""Cells of two sides: ratios, intervals, verdicts, and what is said where there can be none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from profiler.compare.cells import compare
from profiler.errors import ConfigError
from profiler.published.references import published_as_results
from profiler.results.columns import RESULTS
from profiler.results.reading import read_runs, with_all_columns
from profiler.stats.ratios import ratio_of, times_of
from profiler.stats.samples import Floats

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
RNG = np.random.default_rng


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {
        "model": "resnet50", "variant": "eager", "pass": "inference", "precision": "fp32", "batch_size": 1,
        "status": "ok", "clock": "host", "options": "{}", "peak_memory_mib": 100.0,
    }  # fmt: skip
    return with_all_columns(
        pl.DataFrame([{name: {**usual, **row}.get(name) for name in RESULTS} for row in rows], schema=RESULTS)
    )


def processes(run_id: str, *medians: float, **columns: Any) -> list[dict[str, Any]]:
    """One row a process, on the CPU."""
    return [{"run_id": run_id, "latency_ms": ms, "replicate": i, **columns} for i, ms in enumerate(medians)]


def only(cells: pl.DataFrame) -> dict[str, Any]:
    assert cells.height == 1
    return cells.to_dicts()[0]


def test_a_ratio_is_the_bases_time_over_the_sides() -> None:
    cell = only(
        compare(frame(*processes("a", 3.0, peak_memory_mib=100.0), *processes("b", 2.0, peak_memory_mib=150.0)))
    )
    assert (cell["base"], cell["side"]) == ("a", "b")
    assert cell["ratio"] == cell["device_ratio"] == pytest.approx(1.5), "b is 1.5 times faster"
    assert cell["memory_ratio"] == pytest.approx(1.5), "and takes 1.5 times the memory"
    assert (cell["base_ms"], cell["side_ms"]) == pytest.approx((3.0, 2.0))


def test_times_are_medians_over_processes() -> None:
    cell = only(compare(frame(*processes("a", 1.0, 2.0, 7.0), *processes("b", 1.0, 1.0, 1.0))))
    assert cell["base_ms"] == cell["ratio"] == pytest.approx(2.0)
    assert cell["replicates_to_settle"] > 3
    assert (cell["base_processes"], cell["side_processes"]) == (3, 3)


def test_probes_for_the_largest_batch_are_no_cells() -> None:
    """Where memory ends differs from run to run, and says nothing of how fast a batch is."""
    a = [*processes("a", 3.0), *processes("a", 9.0, batch_size=64, extra="probe=largest")]
    b = processes("b", 3.0) + processes("b", 9.0, batch_size=64, extra="head=logits/probe=largest", status="oom")
    assert only(compare(frame(*a, *b)))["batch_size"] == 1


def test_the_interval_between_processes_is_that_of_the_speedups() -> None:
    base, side = [2.0, 2.02, 1.99], [1.0, 1.03, 1.01, 1.02]
    cell = only(compare(frame(*processes("a", *base), *processes("b", *side))))
    expected = ratio_of(times_of([base]), times_of([side]))
    assert (cell["ratio_low"], cell["ratio_high"]) == pytest.approx((expected.low[0], expected.high[0]), rel=1e-6)
    assert cell["interval"] == "between processes"
    assert (cell["verdict"], cell["why_no_verdict"]) == ("faster", None)


@pytest.mark.parametrize(
    ("side", "verdict"),
    [
        ([1.0, 1.001, 0.999], "equivalent"),
        ([0.98, 0.981, 0.979], "equivalent"),  # Within the CPU's margin of 3 %.
        ([0.95, 0.951, 0.949], "faster"),
        ([1.05, 1.051, 1.049], "slower"),
        ([0.8, 1.05, 0.95], "unclear"),
    ],
)
def test_a_verdict_on_the_cpu_counts_from_3_percent_on(side: list[float], verdict: str) -> None:
    assert only(compare(frame(*processes("a", 1.0, 1.001, 0.999), *processes("b", *side))))["verdict"] == verdict


def gpu_rows(run_id: str, latency: list[float], device: list[float | None], **columns: Any) -> list[dict[str, Any]]:
    rows = processes(run_id, *latency, clock="event", **columns)
    return [{**row, "gpu_ms": ms} for row, ms in zip(rows, device, strict=True)]


def test_a_verdict_on_a_gpu_is_on_device_time_and_counts_from_1_percent_on() -> None:
    base = gpu_rows("a", [2.0, 2.0, 2.0], [1.0, 1.0001, 0.9999])
    side = gpu_rows("b", [3.0, 2.0, 2.5], [0.98, 0.9801, 0.9799])
    cell = only(compare(frame(*base, *side)))
    assert (cell["judged_on"], cell["verdict"]) == ("gpu", "faster")
    assert cell["ratio"] < 1 < cell["device_ratio"], "the host's launches blur the latency"
    assert cell["ratio_low"] < cell["ratio"] < cell["ratio_high"]


def test_without_device_time_there_is_no_verdict_on_a_gpu() -> None:
    base, side = gpu_rows("a", [2.0] * 3, [1.0] * 3), gpu_rows("b", [1.0] * 3, [0.5, None, 0.5])
    cell = only(compare(frame(*base, *side)))
    assert (cell["verdict"], cell["why_no_verdict"]) == (None, "no device time from 3 processes a side")
    assert cell["interval"] == "between processes", "of the latency"


@pytest.mark.parametrize(("base", "side"), [(1, 3), (3, 2), (2, 2), (1, 1)])
def test_under_three_processes_the_interval_is_within_them_and_there_is_no_verdict(base: int, side: int) -> None:
    ends = {"latency_ci_low_ms": 0.99, "latency_ci_high_ms": 1.02}
    cell = only(compare(frame(*processes("a", *[1.0] * base, **ends), *processes("b", *[1.0] * side, **ends))))
    assert cell["interval"] == "within process"
    assert cell["ratio_low"] < 1 < cell["ratio_high"]
    assert cell["verdict"] is None
    assert cell["why_no_verdict"] == f"{base} and {side} processes: a verdict needs 3 a side"


def test_under_thirty_effective_samples_there_is_no_interval_either() -> None:
    ends = {"latency_ci_low_ms": 0.99, "latency_ci_high_ms": 1.02}
    cell = only(compare(frame(*processes("a", 1.0, **ends), *processes("b", 1.0))))
    assert (cell["interval"], cell["ratio_low"], cell["ratio_high"]) == (None, None, None)
    assert "too few samples for an interval" in cell["why_no_verdict"]


def test_a_cpu_and_a_gpu_are_compared_by_latency() -> None:
    cell = only(compare(frame(*processes("a", 50.0, 51.0, 49.0), *gpu_rows("b", [1.0] * 3, [0.1] * 3))))
    assert cell["judged_on"] == "latency"
    assert cell["device_ratio"] == cell["ratio"] == pytest.approx(50, rel=0.01)
    assert cell["verdict"] == "faster"


@pytest.mark.parametrize("key", ["model", "variant", "pass", "precision", "batch_size", "extra"])
def test_only_equal_cells_are_compared(key: str) -> None:
    other = 2 if key == "batch_size" else "other"
    rows = frame(*processes("a", 1.0), *processes("b", 1.0), *processes("b", 9.0, **{key: other}))
    cells = compare(rows)
    assert cells.filter(pl.col("ratio").is_not_null())["side_ms"].to_list() == [1.0]
    alone = only(cells.filter(pl.col("ratio").is_null()))
    assert (alone[key], alone["base_status"], alone["side_status"]) == (other, None, "ok")


def test_shapes_of_one_run_are_sides():
    rows = [
        processes("a", ms, shape=f"width={size}", extra=f"head=logits/width={size}", flops_per_item=size)
        for size, ms in ((16, 1.0), (64, 4.0))
    ]
    cell = only(compare(frame(*rows[0], *rows[1]), "shape"))
    assert (cell["base"], cell["side"], cell["extra"]) == ("width=16", "width=64", "head=logits")
    assert (cell["ratio"], cell["differs"]) == (pytest.approx(0.25), None)


def test_shapes_of_each_model_have_a_base_of_their_own():
    rows = [
        one
        for model, name, sizes in (("gpt2", "cache", (16, 64)), ("bert", "sequence", (32, 128)))
        for size in sizes
        for one in processes("a", float(size), model=model, shape=f"{name}={size}", extra=f"{name}={size}")
    ]
    cells = compare(frame(*rows), "shape")
    assert {(c["model"], c["base"], c["side"], round(c["ratio"], 6)) for c in cells.to_dicts()} == {
        ("gpt2", "cache=16", "cache=64", 0.25),
        ("bert", "sequence=32", "sequence=128", 0.25),
    }


def test_rows_older_than_the_column_extra_are_compared_with_newer_ones() -> None:
    rows = frame(*processes("old", 1.0), *processes("new", 1.0, extra=""))
    assert only(compare(rows))["ratio"] == 1.0


@pytest.mark.parametrize("status", ["failed", "oom", "unsupported", "timeout", "crashed"])
def test_a_cell_that_failed_on_one_side_says_why(status: str) -> None:
    failed = {"run_id": "b", "status": status, "reason": "no luck", "latency_ms": None, "clock": None}
    cell = only(compare(frame(*processes("a", 1.0), failed)))
    assert (cell["base_status"], cell["side_status"], cell["side_reason"]) == ("ok", status, "no luck")
    assert cell["ratio"] is cell["verdict"] is cell["interval"] is None
    assert cell["side_processes"] == 0


def test_of_a_cell_that_failed_once_the_other_processes_count() -> None:
    failed = {"run_id": "b", "status": "crashed", "reason": "SIGSEGV", "replicate": 3}
    cell = only(compare(frame(*processes("a", 1.0, 1.0, 1.0), failed, *processes("b", 1.0, 1.0, 1.0))))
    assert (cell["side_status"], cell["side_processes"], cell["verdict"]) == ("ok", 3, "equivalent")


def test_sides_may_be_machines_of_several_runs() -> None:
    rows = frame(
        *processes("r1", 1.0, machine="A"), *processes("r2", 1.02, 0.98, machine="A"),
        *processes("r3", 2.0, 2.02, 1.98, machine="B"),
    )  # fmt: skip
    cell = only(compare(rows, by="machine"))
    assert (cell["base"], cell["side"], cell["base_processes"]) == ("A", "B", 3)
    assert cell["verdict"] == "slower"


def test_a_side_may_be_what_a_cell_is_named_by() -> None:
    rows = frame(*processes("r", 2.0), *processes("r", 1.0, variant="ort"), *processes("r", 4.0, precision="fp16"))
    cells = compare(rows, by="variant")
    assert cells.select("base", "side", "variant", "precision", "ratio").rows() == [
        ("eager", "ort", None, "fp32", 2.0),
        ("eager", "ort", None, "fp16", None),
    ]


def test_three_sides_are_each_compared_with_the_base() -> None:
    rows = frame(*processes("a", 1.0), *processes("b", 2.0), *processes("c", 4.0))
    assert compare(rows).select("side", "ratio").rows() == [("b", 0.5), ("c", 0.25)]
    assert compare(rows, base="c").select("side", "ratio").rows() == [("a", 4.0), ("b", 2.0)]


def test_of_each_side_the_fastest_variant_may_stand() -> None:
    rows = frame(
        *processes("a", 3.0), *processes("a", 2.0, variant="ort"), {"run_id": "a", "variant": "trt", "status": "oom"},
        *processes("b", 1.0, extra="head=logits"), *processes("b", 5.0, variant="compiled"),
    )  # fmt: skip
    cell = only(compare(rows, best=True))
    assert (cell["variant"], cell["ratio"]) == ("ort | eager", 2.0)


def test_published_figures_stand_as_machines() -> None:
    ours = frame(*processes("r", 10.0, machine="H200", model="resnet50", batch_size=16, **{"pass": "training"}))
    cells = compare(pl.concat([ours, published_as_results("cnn-benchmarks")]), by="machine", best=True)
    cell = only(cells.filter(pl.col("ratio").is_not_null(), side="GTX 1080 Ti"))
    assert cell["ratio"] == pytest.approx(10 / 101.20, rel=1e-3), "101.20 ms as printed"
    assert cell["why_no_verdict"].startswith("1 and 1 processes")


def test_what_makes_two_cells_of_one_name_not_the_same_is_said() -> None:
    same = {"flops_per_item": 4.1e9}
    for column, value, said in (("options", '{"a": 1}', "options"), ("flops_per_item", 3.9e9, "model")):
        rows = frame(*processes("a", 1.0, **same), *processes("b", 1.0, **{**same, column: value}))
        assert only(compare(rows))["differs"] == said
    assert only(compare(frame(*processes("a", 1.0, **same), *processes("b", 1.0, **same))))["differs"] is None
    assert only(compare(frame(*processes("a", 1.0), *processes("b", 1.0, **same))))["differs"] is None


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (processes("a", 1.0), {}, "only one side"),
        (processes("a", 1.0) + processes("b", 1.0), {"by": "machin"}, "did you mean 'machine'"),
        (processes("a", 1.0) + processes("b", 1.0), {"by": "batch_size"}, "no text column"),
        (processes("a", 1.0) + processes("b", 1.0), {"by": "driver"}, "that column is empty"),
        (processes("a", 1.0) + processes("b", 1.0), {"base": "c"}, "no side is called 'c'"),
        (processes("a", 1.0) + processes("b", 1.0, model="other"), {}, r"on both sides: .* \(a: resnet50; b: other\)"),
    ],
)
def test_what_cannot_be_compared_is_a_config_error(rows: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compare(frame(*rows), **options)


@pytest.mark.parametrize("zero", ["peak_memory_mib", "latency_ci_low_ms", "gpu_ms", "latency_ms"])
def test_a_figure_of_0_gives_no_infinite_ratio(zero: str) -> None:
    usual = {"latency_ci_low_ms": 0.9, "latency_ci_high_ms": 1.1, "gpu_ms": 1.0, "clock": "event"}
    cell = only(compare(frame(*processes("a", 1.0, **usual), *processes("b", 1.0, **{**usual, zero: 0.0}))))
    assert [name for name, value in cell.items() if isinstance(value, float) and not np.isfinite(value)] == []
    missing = {"peak_memory_mib": "memory_ratio", "latency_ci_low_ms": "ratio_low", "gpu_ms": "device_ratio"}
    assert cell[missing.get(zero, "ratio")] is None


def test_frames_may_be_lazy() -> None:
    assert compare(frame(*processes("a", 1.0), *processes("b", 1.0)).lazy()).height == 1


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_a_real_run_against_itself_is_equal_everywhere(name: str) -> None:
    rows = read_runs([GOLDEN / name]).results.collect()
    cells = compare(pl.concat([rows, rows.with_columns(run_id=pl.lit("again"))]))
    assert cells.height == rows.height
    assert cells["ratio"].to_list() == pytest.approx([1.0] * rows.height)
    assert cells["ratio_low"].count() == rows["latency_ci_low_ms"].count()


def spread_between_processes() -> Floats:
    """By cell, as a log standard deviation. Ten processes of a cell on one H200 differ by a median absolute deviation
    of 0.03 to 0.26 % (docs/method.md), which is a standard deviation of 0.04 to 0.4 %."""
    return np.exp(RNG(0).uniform(np.log(0.0004), np.log(0.004), 2000))


def simulated(
    real: pl.DataFrame, series: list[Floats], device: str, spread: Floats, slowed: float, seed: int
) -> pl.DataFrame:
    """Three processes of each of the real run's cells: its own raw samples, in blocks as they were correlated, each
    process by a factor of its own."""
    rng = RNG(seed)
    medians = []
    for samples, sigma in zip(series, np.resize(spread, len(series)), strict=True):
        block = min(10, samples.size)
        for _ in range(3):
            starts = rng.integers(0, samples.size, -(-samples.size // block))
            resampled = np.concatenate([np.take(samples, np.arange(s, s + block), mode="wrap") for s in starts])
            medians.append(float(np.median(resampled)) * np.exp(sigma * rng.normal()) * (1 + slowed))
    rows = pl.concat([real] * 3).sort("case_id")
    figure = pl.Series(medians)
    times = {"gpu_ms": figure, "latency_ms": figure} if device == "gpu" else {"latency_ms": figure}
    return rows.with_columns(run_id=pl.lit(f"seed {seed}"), **times)


@pytest.mark.parametrize(("device", "slowed", "noise"), [("gpu", 0.05, 1.0), ("cpu", 0.10, 5.0)])
def test_a_slowed_run_is_told_from_an_equal_one_in_95_of_100_cells(device: str, slowed: float, noise: float) -> None:
    """Of a CPU's processes nothing is published: five times a GPU's spread, 0.2 to 2 %, is assumed."""
    runs = read_runs([GOLDEN / ("h200" if device == "gpu" else "cpu")])
    real = runs.results.collect().sort("case_id")
    clock = "gpu" if device == "gpu" else "host"
    samples = {
        str(case): part["ms"].to_numpy()
        for (case,), part in runs.samples.collect().filter(clock=clock).group_by("case_id")
    }
    real = real.filter(pl.col("case_id").is_in(list(samples)))
    series = [samples[case] for case in real["case_id"]]
    spread = spread_between_processes() * noise

    def run(factor: float, seed: int) -> pl.DataFrame:
        return simulated(real, series, device, spread, factor, seed)

    counts = {"equal": 0.0, "slowed": 0.0}
    trials = 4
    for trial in range(trials):
        base = run(0.0, 3 * trial)
        for name, other, expected in (
            ("equal", run(0.0, 3 * trial + 1), ["equivalent", "unclear"]),
            ("slowed", run(slowed, 3 * trial + 2), ["slower"]),
        ):
            verdicts = compare(pl.concat([base, other]))["verdict"]
            assert verdicts.null_count() == 0
            counts[name] += float(verdicts.is_in(expected).mean() or 0) / trials  # type: ignore[arg-type]
    assert counts["equal"] >= 0.95, counts
    assert counts["slowed"] >= 0.95, counts


def test_variants_that_are_the_sides_have_options_of_their_own() -> None:
    rows = [{"run_id": "a", "variant": name, "options": f'{{"x": "{name}"}}', "replicate": 0} for name in ("p", "q")]
    assert only(compare(frame(*rows), by="variant"))["differs"] is None
