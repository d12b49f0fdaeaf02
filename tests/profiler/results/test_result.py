"""A Result survives the journal; its row derives statistics from raw samples, and only for an ok case."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.base import Proof, Warning
from engines.catalog import Training
from exporters.source import ModelSource
from profiler.job.case import Case, CaseId
from profiler.results.columns import RESULTS
from profiler.results.ends import WITH_ENDS, ends_of
from profiler.results.result import Result, layer_warnings, printable, sample_warnings
from profiler.results.run_folder import RunFolder
from profiler.stats.intervals import Spread, Spreads

CASE = Case("net", "ort", "ort-nhwc", "inference", "fp16", 4, "cuda", 1, ModelSource("net"), {"prefer_nhwc": True})
ENVIRONMENT = {"gpu": "H200", "host": "box", "cuda": "13.0", "torch_version": "2.13.0", "cpu": "not a column"}
SPREADS = Spreads(host=Spread(0.1, 2.0), device=Spread(0.01, 6.0))
FIGURES = [c for c in RESULTS if c.endswith(("_ms", "_mib", "_s", "_error")) or c in ("samples", "throughput", "clock")]


def full(case_id: CaseId = CASE.id, status: str = "ok") -> Result:
    return Result(
        case_id,
        status,
        reasons=[] if status == "ok" else ['it said "no"\nand – 1×'],
        log=None if status == "ok" else "logs/net.log",
        reference="eager-fp32-cpu",
        clock="event",
        stop_reason="precision",
        throughput=2000.0,
        samples={"event": [2.0, 1.0, 3.0], "gpu": [1.0, 1.5], "host": [4.0]},
        figures={"peak_memory_mib": 100.5, "load_s": 0.5, "rel_l2_error": 1e-3, "power_w": 250.0, "throttled": False},
        proof=Proof(tf32=False, providers={"CUDAExecutionProvider": 9}, details={"casts": 0}),
        warnings=[Warning("outliers", "3")],
        phases={"measure": 3.0},
    )


def row_of(
    result: Result | None = None, case: Case = CASE, environment: Mapping[str, Any] = ENVIRONMENT
) -> dict[str, Any]:
    return (result or full()).row("run", "suite", case, environment, SPREADS)


@pytest.mark.parametrize("result", [full(), full(status="failed"), Result(CASE.id, "oom", ["out of memory"])])
def test_a_result_is_one_line_and_reads_back_the_same(result):
    line = result.to_json()
    assert "\n" not in line
    assert Result.from_json(line) == result


def test_reasons_are_added_and_none_is_overwritten():
    result = full()
    result.fail("the outputs are wrong")
    result.fail("TF32 was on at fp16")
    assert (result.status, result.reason) == ("failed", "the outputs are wrong; TF32 was on at fp16")
    assert row_of(result)["reason"] == result.reason
    assert Result.from_json(result.to_json()).reason == result.reason


def test_a_row_keeps_the_environment_that_it_was_measured_in(run):
    run.write_environment({"host": "first", "gpu": None, "driver": "1.0", "command": ["profiler"]})
    run.append(full())
    run.write_environment(now := {"host": "second", "gpu": None, "driver": "2.0"})
    (result,) = run.results().values()
    assert result.environment == {"host": "first", "gpu": None, "driver": "1.0"}
    assert result == replace(full(), environment=result.environment)
    row = row_of(result, environment=now)
    assert (row["host"], row["driver"]) == ("first", "1.0")
    # Written once more, as a row is that fails later.
    run.append(result)
    assert run.results()[result.case_id] == result


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path)


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c"])
def test_a_reason_with_any_line_separator_stays_one_journal_line(run, separator):
    run.append(Result(CASE.id, "failed", [f"first{separator}second"]))
    assert run.results()[CASE.id].reason == printable(f"first{separator}second")


def test_a_rows_statistics_are_those_of_the_headline_clock():
    result = full()
    result.samples["event"] *= 12
    row = row_of(result)
    assert (row["latency_ms"], row["latency_mean_ms"], row["latency_min_ms"], row["samples"]) == (2.0, 2.0, 1.0, 36)
    assert (row["clock"], row["throughput"], row["gpu_ms"], row["host_ms"]) == ("event", 2000.0, 1.25, 4.0)
    assert row.get("enqueue_ms") is None
    assert row["latency_p90_ms"] is None


@pytest.mark.parametrize(("count", "given"), [(63, []), (64, [90]), (130, [90, 95]), (662, [90, 95, 99])])
def test_a_rows_percentiles_need_enough_samples(count, given):
    result = full()
    result.samples = {"event": [float(i) for i in range(count)]}
    row = row_of(result)
    assert [q for q in (90, 95, 99) if row[f"latency_p{q}_ms"] is not None] == given


def test_a_row_says_which_case_it_is_and_where_it_ran():
    row = row_of()
    assert (row["run_id"], row["suite"], row["case_id"]) == ("run", "suite", "net/ort-nhwc/inference/fp16/b4/r1")
    assert (row["model"], row["engine"], row["variant"], row["pass"]) == ("net", "ort", "ort-nhwc", "inference")
    assert (row["gpu"], row["host"], row["torch_version"], row["tensorrt_version"]) == ("H200", "box", "2.13.0", None)
    assert json.loads(row["options"]) == {"prefer_nhwc": True}
    assert json.loads(row["proof"]) == {"tf32": False, "providers": {"CUDAExecutionProvider": 9}, "casts": 0}


@pytest.mark.parametrize(
    ("precision", "calibration", "known"),
    [("int8", Path("images"), True), ("int8", None, False), ("fp16", Path("images"), None), ("fp32", None, None)],
)
def test_a_row_says_whether_its_int8_ranges_are_of_the_jobs_data(precision, calibration, known):
    case = replace(CASE, precision=precision, source=ModelSource("net", calibration=calibration))
    for status in ("ok", "failed"):
        assert row_of(full(case.id, status), case)["calibrated"] is known
    assert replace(case, engine="eager").calibrated is (None if known is None else False), "torchao's are of each call"


def test_a_row_says_what_else_distinguishes_its_case_and_what_its_training_did():
    case = replace(
        CASE, engine="eager", variant="eager", pass_="training", setting="optimizer=sgd", training=Training("sgd")
    )
    row = row_of(full(case.id), case)
    assert (row["setting"], row["is_base"], row["model_kind"]) == ("optimizer=sgd", False, "canonical")
    assert (row["optimizer"], row["head"], row["dropout"]) == ("sgd", "cross-entropy", False)
    plain = row_of()
    assert (plain["setting"], plain.get("optimizer"), plain.get("dropout")) == ("", None, None)


def test_the_parts_of_a_training_iteration_and_of_its_memory_are_columns():
    result = full()
    result.samples |= {"step": [1.0, 3.0], "gpu_forward": [0.5], "grad_weight": [0.25]}
    result.figures = {"gradients_mib": 7.0, "optimizer_mib": 14.0, "loss_error": 1e-4, "gradient_error": 1e-3}
    row = row_of(result)
    assert (row["step_ms"], row["gpu_forward_ms"], row["grad_weight_ms"]) == (2.0, 0.5, 0.25)
    assert row.get("gpu_step_ms") is None
    assert (row["gradients_mib"], row["optimizer_mib"]) == (7.0, 14.0)
    assert (row["loss_error"], row["gradient_error"]) == (1e-4, 1e-3)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"gpu": "H200", "cpu": "Xeon", "machine": {"label": "mine"}}, "mine"),
        ({"gpu": "H200", "cpu": "Xeon", "machine": {"cloud": "Some Cloud"}}, "H200"),
        ({"gpu": None, "cpu": "Xeon"}, "Xeon"),
    ],
)
def test_a_machine_is_called_by_its_label_or_what_it_is(told, name):
    assert row_of(environment=told)["machine"] == name


def test_the_price_of_an_hour_is_that_of_a_million_items():
    machine = {"label": "rented", "cloud": "Some Cloud", "instance": "big", "usd_per_hour": 7.2}
    row = row_of(environment=ENVIRONMENT | {"machine": machine})
    # 2,000 items a second are 7.2 million an hour.
    assert row["usd_per_million_items"] == pytest.approx(1.0)
    assert row["items_per_usd"] == pytest.approx(1e6)
    assert (row["cloud"], row["instance"], row["usd_per_hour"]) == ("Some Cloud", "big", 7.2)
    unpriced = row_of()
    assert "usd_per_million_items" not in unpriced
    failed = row_of(full(status="failed"), environment=ENVIRONMENT | {"machine": machine})
    assert failed["usd_per_hour"] == 7.2
    assert "usd_per_million_items" not in failed


def test_the_version_of_tensorrt_is_that_of_the_library_that_ran():
    result = full()
    result.proof = Proof(library="TensorRT for RTX 1.7.1.116")
    row = row_of(result, replace(CASE, engine="trt-rtx"), {**ENVIRONMENT, "tensorrt_version": "11.4.0"})
    assert row["tensorrt_version"] == "1.7.1.116"


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_every_key_of_a_row_is_a_column(status):
    assert set(row_of(full(status=status))) <= set(RESULTS)


@pytest.mark.parametrize("status", ["oom", "unsupported", "failed", "timeout", "crashed"])
def test_the_row_of_a_case_that_is_not_ok_has_a_reason_and_no_figures(status):
    row = row_of(full(status=status))
    assert {column: row[column] for column in FIGURES if row.get(column) is not None} == {}
    assert (row["status"], row["reason"]) == (status, full(status=status).reason)


def ends(row: dict[str, Any], name: str) -> tuple[float, float]:
    low, high = ends_of(name)
    return row[low], row[high]


def around(middle: float, spread: Spread) -> Any:
    return pytest.approx((middle * math.exp(-spread.reach), middle * math.exp(spread.reach)))


def calm(ms: float, **clocks: float) -> dict[str, list[float]]:
    return {clock: [each * share for share in (0.999, 1.0, 1.001)] for clock, each in {"event": ms, **clocks}.items()}


def test_a_figure_that_nothing_else_doubts_reaches_as_far_as_processes_differ():
    """Where the host sets the latency, processes differ by the host's spread, but on the device's own clock."""
    for enqueue, spread in ((0.5, SPREADS.device), (1.9, SPREADS.host)):
        result = replace(full(), samples=calm(2.0, gpu=1.5, enqueue=enqueue, forward=2.0), throughput=2000.0)
        row = row_of(result)
        assert ends(row, "latency_ms") == around(2.0, spread)
        assert ends(row, "forward_ms") == around(2.0, spread)
        assert ends(row, "throughput") == around(2000.0, spread)
        assert ends(row, "gpu_ms") == around(1.5, SPREADS.device)
        assert (row["latency_spread"], row["latency_spread_free"]) == (spread.sd, spread.free)
        assert (row["gpu_spread"], row["gpu_spread_free"]) == (SPREADS.device.sd, SPREADS.device.free)
    alone = row_of(replace(full(), samples=calm(2.0, enqueue=0.1)))
    assert not {"gpu_spread", "gpu_low_ms", "forward_low_ms"} & alone.keys()


def test_an_interval_reaches_to_what_contradicts_its_figure():
    samples = calm(2.0, enqueue=0.1)
    other = ends(row_of(replace(full(), samples=samples, throughput=1000.0)), "latency_ms")
    assert other == (pytest.approx(2.0 * math.exp(-SPREADS.device.reach)), pytest.approx(4.0))
    rate = row_of(replace(full(), samples=samples, throughput=1000.0))
    assert rate["throughput_high"] == pytest.approx(2000.0)
    parts = row_of(replace(full(), samples=samples | calm(2.0, forward=1.0, backward=3.0), throughput=2000.0))
    assert parts["latency_high_ms"] == pytest.approx(4.0)
    waited = replace(full(), clock="host", samples={"host": samples["event"], "enqueue": [0.1]}, throughput=4000.0)
    assert row_of(waited)["latency_low_ms"] == pytest.approx(2.0 * math.exp(-SPREADS.host.reach))


def test_other_work_takes_the_low_end_to_the_fastest_decile_and_a_drift_is_in_the_interval():
    times = [1.0] * 30 + [2.0] * 170
    mixed = [times[i * 7 % 200] for i in range(200)]
    assert row_of(replace(full(), samples={"event": mixed}))["latency_low_ms"] > 1.2
    disturbed = replace(full(), samples={"event": mixed}, warnings=[Warning("disturbed", "x")])
    assert row_of(disturbed)["latency_low_ms"] == pytest.approx(1.0)
    row = row_of(replace(disturbed, throughput=2000.0))
    assert row["throughput_high"] == pytest.approx(2000 * row["latency_ms"]), "as much faster as the latency may be"
    moved = ends(row_of(replace(full(), samples={"event": [1.0] * 40 + [2.0] * 40 + [3.0] * 40})), "latency_ms")
    assert moved[0] <= 1.0 and moved[1] >= 3.0


def test_a_row_without_samples_has_no_interval():
    row = row_of(replace(full(), samples={}))
    assert [end for name in WITH_ENDS for end in ends_of(name) if end in row] == []


@pytest.mark.parametrize(("strays", "warned"), [(1, False), (2, True)])
def test_outliers_are_warned_of_above_one_sample_in_twenty(strays, warned):
    samples = {"host": [1.0, 1.1] * 10 + [9.0] * strays}
    assert bool(sample_warnings(samples, "host")) == warned
    assert sample_warnings(samples, "event") == []


@pytest.mark.parametrize(("factor", "says"), [(1.031, "3.1 % slower"), (0.969, "3.1 % faster"), (1.01, None)])
def test_a_drift_is_warned_of_in_words(factor, says):
    first = [1.0, 1.001, 0.999] * 10
    samples = {"host": [*first, *first, *(factor * ms for ms in first)]}
    expected = [Warning("drift", f"the last third of the samples is {says} than the first")] if says else []
    assert sample_warnings(samples, "host") == expected
    assert sample_warnings(samples, "event") == []


@pytest.mark.parametrize(
    ("samples", "clock", "says"),
    [
        ({"host": [4.0] * 3}, "host", "together 12 ms, 3.0× what the case takes without the profiler"),
        (
            {"event": [20.0] * 3, "gpu": [5.0] * 3},
            "event",
            "together 12 ms, 2.4× what the case takes without the profiler",
        ),
        ({"host": [8.0] * 3}, "host", None),
        ({"event": [7.0] * 3, "gpu": [12.5] * 3}, "event", None),
        ({}, "host", None),
    ],
)
def test_layers_that_take_far_longer_than_the_case_are_warned_of(samples, clock, says):
    layers = [{"ms": 5.0}, {"ms": 7.0}]
    expected = [Warning("slow-layers", says)] if says else []
    assert layer_warnings(layers, samples, clock) == expected


def test_outliers_and_a_drift_are_both_warned_of():
    samples = {"host": [*([1.0, 1.001] * 15), *([1.02, 1.021] * 15), *([1.04, 1.041] * 12), *([9.0] * 6)]}
    assert [warning.kind for warning in sample_warnings(samples, "host")] == ["outliers", "drift"]
