"""A Result survives the journal; its row derives statistics and intervals from raw samples, and only for an ok case."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.base import Proof, Warning
from engines.options import Training
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.results.columns import COLUMNS, RESULTS, Group, names
from profiler.results.result import WITH_ENDS, Result, ends_of, sample_warnings
from profiler.results.row import row_of

CASE = Case("net", "ort", "ort-nhwc", "inference", "fp16", 4, "cuda", 1, ModelSource("net"), {"prefer_nhwc": True})
ENVIRONMENT = {"gpu": "H200", "host": "box", "cuda": "13.0", "torch_version": "2.13.0", "cpu": "not a column"}
_WITHOUT_FIGURES = (Group.CASE, Group.OUTCOME, Group.MACHINE, Group.PLACE, Group.VERSIONS)


def full(case_id: str = CASE.id, status: str = "ok", **more: Any) -> Result:
    result = Result(
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
    return replace(result, **more)


def row_of_(result: Result | None = None, case: Case = CASE, environment: Any = ENVIRONMENT) -> dict[str, Any]:
    return row_of(result or full(), case, "run", "suite", environment)


@pytest.mark.parametrize("result", [full(), full(status="failed"), Result(CASE.id, "oom", ["out of memory"])])
def test_a_result_is_one_line_and_reads_back_the_same(result):
    line = result.to_json()
    assert "\n" not in line
    assert Result.from_json(line) == result


def test_reasons_are_added_and_none_is_overwritten():
    result = full()
    result.take("the outputs are wrong")
    result.fail("TF32 was on at fp16")
    result.take(Warning("drift", ""))
    result.take(None)
    assert (result.status, result.reason) == ("failed", "the outputs are wrong; TF32 was on at fp16")
    assert row_of_(result)["reason"] == result.reason
    assert result.has("drift")


@pytest.mark.parametrize("status", ["ok", "oom", "unsupported", "failed", "timeout", "crashed"])
def test_a_row_says_which_case_it_is_and_where_it_ran_and_has_figures_if_it_is_ok(status):
    row = row_of_(full(status=status))
    assert (row["run_id"], row["suite"], row["case_id"]) == ("run", "suite", "net/ort-nhwc/inference/fp16/b4/r1")
    assert (row["model"], row["engine"], row["variant"], row["pass"]) == ("net", "ort", "ort-nhwc", "inference")
    assert (row["gpu"], row["host"], row["torch_version"], row["tensorrt_version"]) == ("H200", "box", "2.13.0", None)
    assert (row["is_base"], row["model_kind"], row["setting"], row["optimizer"]) == (False, "canonical", "", None)
    assert json.loads(row["options"]) == {"prefer_nhwc": True}
    assert json.loads(row["proof"]) == {"tf32": False, "providers": {"CUDAExecutionProvider": 9}, "casts": 0}
    assert (row["status"], row["reason"]) == (status, full(status=status).reason)
    assert set(row) == set(RESULTS)
    figures = [name for group in Group if group not in _WITHOUT_FIGURES for name in names(group)]
    assert any(row[name] is not None for name in figures) == (status == "ok")


def test_a_rows_statistics_are_those_of_the_headline_clock_and_of_the_parts():
    samples = {"event": [2.0, 1.0, 3.0] * 12, "gpu": [1.0, 1.5], "host": [4.0], "step": [1.0, 3.0], "gpu_step": [0.5]}
    row = row_of_(full(samples=samples, figures={"gradients_mib": 7.0, "gradient_error": 1e-3}))
    assert (row["latency_ms"], row["latency_mean_ms"], row["latency_min_ms"], row["samples"]) == (2.0, 2.0, 1.0, 36)
    assert (row["clock"], row["throughput"], row["gpu_ms"], row["host_ms"]) == ("event", 2000.0, 1.25, 4.0)
    assert (row["step_ms"], row["gpu_step_ms"], row["enqueue_ms"]) == (2.0, 0.5, None)
    assert (row["gradients_mib"], row["gradient_error"]) == (7.0, 1e-3)


@pytest.mark.parametrize(("count", "given"), [(63, []), (64, [90]), (130, [90, 95]), (662, [90, 95, 99])])
def test_a_rows_percentiles_need_enough_samples(count, given):
    row = row_of_(full(samples={"event": [float(i) for i in range(count)]}))
    known = [column.percentile for column in COLUMNS.values() if column.percentile and row[column.name] is not None]
    assert known == given


@pytest.mark.parametrize(
    ("precision", "calibration", "known"),
    [("int8", Path("images"), True), ("int8", None, False), ("fp16", Path("images"), None), ("fp32", None, None)],
)
def test_a_row_says_whether_its_int8_ranges_are_of_the_jobs_data(precision, calibration, known):
    case = replace(CASE, precision=precision, source=ModelSource("net", calibration=calibration))
    assert row_of_(full(case.id, "failed"), case)["calibrated"] is known
    for engine in ("eager", "ort-dynamic"):  # Their ranges are of each call, so only its inputs count.
        dynamic = replace(case, engine=engine)
        assert dynamic.calibrated is (None if known is None else False)
        dynamic = replace(dynamic, source=ModelSource("net", data="items.npz"))
        assert dynamic.calibrated is (None if known is None else True)


def test_a_row_says_what_its_training_did():
    own = {"engine": "eager", "variant": "eager", "pass_": "training"}
    case = replace(CASE, training=Training("sgd"), **own)
    row = row_of_(full(case.id), case)
    known = [row[name] for name in ("setting", "optimizer", "head", "dropout")]
    assert known == ["optimizer=sgd", "sgd", "cross-entropy", False]
    ran = replace(full(case.id), proof=Proof(dropout=True))
    assert row_of_(ran, case)["dropout"], "the model's own code dropped"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"gpu": "H200", "cpu": "Xeon", "machine": {"label": "mine"}}, "mine"),
        ({"gpu": "H200", "cpu": "Xeon", "machine": {"cloud": "Some Cloud"}}, "H200"),
        ({"gpu": None, "cpu": "Xeon"}, "Xeon"),
    ],
)
def test_a_machine_is_called_by_its_label_or_what_it_is(told, name):
    assert row_of_(environment=told)["machine"] == name


def test_the_price_of_an_hour_is_that_of_a_million_items():
    machine = {"label": "rented", "cloud": "Some Cloud", "instance": "big", "usd_per_hour": 7.2}
    row = row_of_(environment=ENVIRONMENT | {"machine": machine})
    # 2,000 items a second are 7.2 million an hour.
    assert row["usd_per_million_items"] == pytest.approx(1.0)
    assert row["items_per_usd"] == pytest.approx(1e6)
    assert (row["cloud"], row["instance"], row["usd_per_hour"]) == ("Some Cloud", "big", 7.2)
    assert row_of_()["usd_per_million_items"] is None


def test_a_result_keeps_its_environment_and_the_version_that_ran_counts():
    result = full(environment={"host": "first"}, proof=Proof(library="TensorRT for RTX 1.7.1.116"))
    row = row_of_(result, replace(CASE, engine="trt-rtx"), {**ENVIRONMENT, "tensorrt_version": "11.4.0"})
    assert (row["host"], row["gpu"], row["tensorrt_version"]) == ("first", "H200", "1.7.1.116")


def ends(row: dict[str, Any], name: str) -> tuple[float, float]:
    low, high = ends_of(name)
    return row[low], row[high]


def calm(ms: float, **clocks: float) -> dict[str, list[float]]:
    return {clock: [each * share for share in (0.999, 1.0, 1.001)] for clock, each in {"event": ms, **clocks}.items()}


def test_an_interval_is_that_of_the_rows_own_process():
    row = row_of_(full(samples=calm(2.0, gpu=1.5, enqueue=0.1, forward=2.0)))
    assert ends(row, "latency_ms") == ends(row, "forward_ms") == pytest.approx((2.0, 2.0), rel=4e-3)
    assert ends(row, "throughput") == pytest.approx((2000.0, 2000.0), rel=4e-3)
    assert ends(row, "gpu_ms") == pytest.approx((1.5, 1.5), rel=4e-3)
    assert (row["latency_spread"], row["gpu_spread_free"], row["confirming"]) == (None, None, False)


def test_an_interval_reaches_to_what_contradicts_its_figure():
    samples = calm(2.0, enqueue=0.1)
    row = row_of_(full(samples=samples, throughput=1000.0))
    assert ends(row, "latency_ms") == (pytest.approx(2.0, rel=4e-3), pytest.approx(4.0))
    assert row["throughput_high"] == pytest.approx(2000.0)
    parts = row_of_(full(samples=samples | calm(2.0, forward=1.0, backward=3.0)))
    assert parts["latency_high_ms"] == pytest.approx(4.0)
    without = row_of_(full(samples={}))
    assert {without[end] for name in WITH_ENDS for end in ends_of(name)} == {None}


def test_other_work_takes_the_low_end_to_the_fastest_decile_and_a_drift_is_in_the_interval():
    times = [1.0] * 30 + [2.0] * 170
    mixed = {"event": [times[i * 7 % 200] for i in range(200)]}
    assert row_of_(full(samples=mixed))["latency_low_ms"] > 1.2
    row = row_of_(full(samples=mixed, warnings=[Warning("disturbed", "x")]))
    assert row["latency_low_ms"] == pytest.approx(1.0)
    assert row["throughput_high"] == pytest.approx(2000 * row["latency_ms"]), "as much faster as the latency may be"
    moved = ends(row_of_(full(samples={"event": [1.0] * 40 + [2.0] * 40 + [3.0] * 40})), "latency_ms")
    assert moved[0] <= 1.0 and moved[1] >= 3.0


STRAYS = [*([1.0, 1.001] * 15), *([1.02, 1.021] * 15), *([1.04, 1.041] * 12), *([9.0] * 6)]
FIRST = [1.0, 1.001, 0.999] * 20


@pytest.mark.parametrize(
    ("samples", "kinds"),
    [
        ([1.0, 1.1] * 10 + [9.0], []),
        ([1.0, 1.1] * 10 + [9.0] * 2, ["outliers"]),
        ([*FIRST, *(1.031 * ms for ms in FIRST[:30])], ["drift"]),
        ([*FIRST, *(1.01 * ms for ms in FIRST[:30])], []),
        (STRAYS, ["outliers", "drift"]),
    ],
)
def test_outliers_and_a_drift_of_the_headline_clock_are_warned_of(samples, kinds):
    assert [warning.kind for warning in sample_warnings({"host": samples}, "host")] == kinds
    assert sample_warnings({"host": samples}, "event") == []
