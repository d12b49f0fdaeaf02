"""How many times faster: one answer, whichever command is asked, and how ties and bases are named."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from handmade import line, on_gpu, row, run, said, thrice
from polars.testing import assert_frame_equal

from profiler.compare.command import Options, make_comparison
from profiler.job.conditions import Filter
from profiler.recommend.choice import Request, recommend
from profiler.report.data import gather
from profiler.results import speedups
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import read_runs, with_all_columns
from profiler.results.speedups import spreads, summary
from profiler.stats import samples as statistics
from profiler.stats.ratios import PRIOR_CONFIGURATIONS, Verdict

MODELS = 40


def simulated(clock: str, seed: int, gain: float = 0.04, spread: float = 0.012) -> pl.DataFrame:
    """Results of three processes of eager and of ort, which is faster by `gain`, for each of 40 models."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number in range(MODELS):
        own = spread * np.exp(rng.normal(0, 0.5))
        for variant, ms in (("eager", 1.0), ("ort", 1 / (1 + gain))):
            for replicate, noise in enumerate(rng.normal(size=3)):
                figure = ms * np.exp(own * noise)
                rows.append(
                    {
                        "run_id": "run", "case_id": f"net{number}/{variant}/inference/fp32/b1/r{replicate}",
                        "model": f"net{number}", "engine": variant, "variant": variant, "pass": "inference",
                        "precision": "fp32", "batch_size": 1, "replicate": replicate, "status": "ok", "clock": clock,
                        "device": "cuda" if clock == "event" else "cpu", "latency_ms": figure, "gpu_ms": figure,
                        "samples": 0, "warnings": [],
                    }
                )  # fmt: skip
    return with_all_columns(pl.DataFrame(rows, schema=RESULTS))


def by_model(frame: pl.DataFrame) -> dict[str, str]:
    return dict(frame.filter(variant="ort").select("model", "verdict").sort("model").iter_rows())


@pytest.mark.parametrize(("clock", "seed"), [("host", 0), ("host", 1), ("event", 2)])
def test_every_command_gives_the_same_verdict_on_the_same_processes(clock: str, seed: int, tmp_path: Path) -> None:
    """The table of a run, compare, report and recommend; each may be asked about a part of the run alone."""
    results = simulated(clock, seed)
    results.write_parquet(tmp_path / "results.parquet")
    pl.DataFrame(schema=SAMPLES).write_parquet(tmp_path / "samples.parquet")
    folder = str(tmp_path)

    def compared(*only: str) -> dict[str, str]:
        request = Options(runs=(folder,), by="variant", base="eager", only=only)
        return dict(make_comparison(request).cells.select("model", "verdict").sort("model").iter_rows())

    table = by_model(summary(results, pl.DataFrame(schema=SAMPLES)))
    assert len(table) == MODELS
    assert {*table.values()} >= {Verdict.FASTER, Verdict.UNCLEAR}, "the simulation tells nothing"
    assert compared() == table
    for model in ("net0", "net1", "net2", "net3"):
        expected = {model: table[model]}
        assert compared(f"model={model}") == expected
        assert by_model(gather(read_runs([folder]), Filter(model=[model])).configurations) == expected
        margin = recommend(results, Request(model)).margin
        assert margin is not None
        expected_word = Verdict(table[model])
        assert margin.verdict and margin.verdict.differs == expected_word.differs
        assert margin.verdict.ties == expected_word.ties


def test_a_runs_common_spread_needs_ten_configurations_and_leaves_other_runs_alone() -> None:
    many = simulated("host", 0)
    few = many.filter(pl.col("model").is_in([f"net{n}" for n in range(PRIOR_CONFIGURATIONS // 2 - 1)]))
    found = spreads(pl.concat([many, few.with_columns(run_id=pl.lit("few"))]))
    priors = dict(found.select("run_id", "latency_prior_free").iter_rows())
    assert priors["run"] > 0 == priors["few"]
    assert priors["run"] == pytest.approx(spreads(many)["latency_prior_free"][0])


def test_probes_and_failed_rows_are_not_in_a_common_spread() -> None:
    many = simulated("host", 0)
    probes = many.with_columns(
        extra=pl.lit("probe=largest"), setting=None, role=None, is_base=None, batch_size=pl.lit(9, pl.Int64)
    )
    failed = many.with_columns(status=pl.lit("failed"), batch_size=pl.lit(7, pl.Int64))
    noisy = pl.concat([with_all_columns(probes), failed]).with_columns(latency_ms=pl.col("latency_ms") ** 9)
    assert_frame_equal(spreads(pl.concat([many, noisy])), spreads(many))


# One row of each configuration: medians of replicates, speed-ups, verdicts


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


PRUNED = {"model": "pruned", "reference_model": "net", "is_base": False}


def test_speed_ups_of_a_model_with_a_reference_are_relative_to_that_ones_base():
    frames = run(
        *(row("eager", ms=6.0), row("ort", ms=3.0), row("eager", ms=9.0, batch_size=2, case_id="b2")),
        *(row("eager", ms=4.0, **PRUNED), row("ort", ms=2.0, **PRUNED)),
    )
    assert line(frames, "ort", model="pruned")["speedup"] == pytest.approx(3.0)
    assert line(frames, "eager", model="pruned")["speedup"] == pytest.approx(1.5)
    assert line(frames, "eager", model="pruned")["base"] == "fp32 eager of net"
    assert line(frames, "ort", model="net")["base"] == "fp32 eager"


@pytest.mark.parametrize(("key", "other"), [("model", "net2"), ("batch_size", 16), ("pass", "training")])
def test_each_group_has_its_own_base(key, other):
    frames = run(
        row("eager", ms=6.0),
        row("ort", ms=3.0),
        row("eager", ms=20.0, case_id="a", **{key: other}),
        row("ort", ms=5.0, case_id="b", **{key: other}),
    )
    assert line(frames, "ort", **{key: other})["speedup"] == pytest.approx(4.0)
    assert len(list(speedups.groups(speedups.summary(*frames)))) == 2


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
    assert ort["speedup"] == pytest.approx(6.0 / 3.0), "as the latencies say"
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
    ("eager", "ort", "verdict"), [(4.0, 1.0, "faster"), (1.0, 4.0, "slower"), (1.0, 1.0, "equivalent")]
)
def test_on_a_gpu_three_replicates_a_side_give_a_verdict_on_device_time(eager, ort, verdict):
    # The headline says the opposite or nothing: it is not what counts.
    cases = [("eager", eager), ("ort", ort)]
    rows = [row for name, ms in cases for row in thrice(on_gpu, name, spread=0.002, ms=6.0, gpu_ms=ms)]
    found = line(run(*rows), "ort")
    assert (found["interval"], found["verdict"]) == ("between processes", verdict)
    assert found["speedup"] == pytest.approx(1.0)
    assert found["speedup_low"] < 1.0 < found["speedup_high"]
    assert found["device_speedup"] == pytest.approx(eager / ort)
    assert found["device_speedup_low"] < found["device_speedup"] < found["device_speedup_high"]


@pytest.mark.parametrize(
    ("ort", "verdict"), [(3.0, "faster"), (5.8, "unclear"), (6.0, "equivalent"), (6.2, "unclear"), (7.0, "slower")]
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
    assert [line(run(*rows), "ort")["verdict"] for rows in (cpu, gpu)] == ["equivalent", "faster"]


@pytest.mark.parametrize("case", [row, partial(on_gpu, gpu_ms=1.0)], ids=["cpu", "gpu"])
def test_a_speed_up_is_that_of_the_latencies_and_within_its_interval(case):
    # Six replicates are as slow as the base, so the medians' ratio is 1.00; that of the means is 1.01 to 1.22.
    eager = [case("eager", ms=2.0, replicate=i) for i in range(10)]
    ort = [case("ort", ms=2.0 if i < 6 else 1.54, replicate=i) for i in range(10)]
    found = line(run(*eager, *ort), "ort")
    assert found["latency_ms"] == 2.0
    assert found["speedup"] == found["speedup_low"] == pytest.approx(1.0)
    assert found["speedup_high"] > 1.2


def test_device_times_are_bootstrapped_once_and_latencies_not_again(monkeypatch):
    names = ("eager", "ort", "trt", "compiled")
    frames = run(*(on_gpu(name, 7.1 - i, 4.0 - i / 2) for i, name in enumerate(names)))
    seen: list[tuple[float, ...]] = []
    bootstrap = statistics.bootstrap_medians

    def counted(samples: Any, *more: Any, **named: Any) -> Any:
        seen.append(tuple(samples))
        return bootstrap(samples, *more, **named)

    monkeypatch.setattr(statistics, "bootstrap_medians", counted)
    speedups.summary(*frames)
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
    ((key, lines),) = speedups.groups(speedups.summary(*frames))
    assert key == {
        "model": "net",
        "pass": "inference",
        "batch_size": 1,
        "extra": None,
        "setting": "",
        "role": "cell",
        "network": None,
        "reference_model": None,
    }
    assert [one["variant"] for one in lines] == ["compiled", "ort", "eager"]


def test_each_optimizer_has_its_own_base():
    sgd, none = ({"pass": "training", "extra": extra} for extra in ("optimizer=sgd", None))
    frames = run(
        row("eager", ms=6.0, case_id="a", **sgd), row("eager", ms=4.0, case_id="b", **none),
        row("compiled", ms=2.0, case_id="c", **sgd), row("compiled", ms=2.0, case_id="d", **none),
    )  # fmt: skip
    assert line(frames, "compiled", extra="optimizer=sgd")["speedup"] == pytest.approx(3.0)
    rows = speedups.summary(*frames).filter(pl.col("extra").is_null(), variant="compiled").to_dicts()
    assert [row["speedup"] for row in rows] == [pytest.approx(2.0)]
