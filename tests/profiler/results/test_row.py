"""A Result survives the journal; its row derives statistics and intervals from raw samples, and only for an ok case."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
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
from profiler.results.row import all_spreads, earlier_spread, keep_spread, row_of, spread_of_bases
from profiler.stats.intervals import UNMEASURED, Spread, Spreads

CASE = Case("net", "ort", "ort-nhwc", "inference", "fp16", 4, "cuda", 1, ModelSource("net"), {"prefer_nhwc": True})
ENVIRONMENT = {"gpu": "H200", "host": "box", "cuda": "13.0", "torch_version": "2.13.0", "cpu": "not a column"}
SPREADS = Spreads(host=Spread(0.1, 2.0), device=Spread(0.01, 6.0))
_WITHOUT_FIGURES = (Group.CASE, Group.OUTCOME, Group.MACHINE, Group.PLACE, Group.VERSIONS)


def full(case_id: str = CASE.id, status: str = "ok", **more: Any) -> Result:
    result = Result(
        case_id,
        status,  # type: ignore[arg-type]
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
    return row_of(result or full(), case, "run", "suite", environment, SPREADS)


@pytest.mark.parametrize("result", [full(), full(status="failed"), Result(CASE.id, "oom", ["out of memory"])])
def test_a_result_is_one_line_and_reads_back_the_same(result: Result) -> None:
    line = result.to_json()
    assert "\n" not in line
    assert Result.from_json(line) == result


def test_reasons_are_added_and_none_is_overwritten() -> None:
    result = full()
    result.take("the outputs are wrong")
    result.fail("TF32 was on at fp16")
    result.take(Warning("drift", ""))
    result.take(None)
    assert (result.status, result.reason) == ("failed", "the outputs are wrong; TF32 was on at fp16")
    assert row_of_(result)["reason"] == result.reason
    assert result.has("drift")


@pytest.mark.parametrize("status", ["ok", "oom", "unsupported", "failed", "timeout", "crashed"])
def test_a_row_says_which_case_it_is_and_where_it_ran_and_has_figures_if_it_is_ok(status: str) -> None:
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


def test_a_rows_statistics_are_those_of_the_headline_clock_and_of_the_parts() -> None:
    samples = {"event": [2.0, 1.0, 3.0] * 12, "gpu": [1.0, 1.5], "host": [4.0], "step": [1.0, 3.0], "gpu_step": [0.5]}
    row = row_of_(full(samples=samples, figures={"gradients_mib": 7.0, "gradient_error": 1e-3}))
    assert (row["latency_ms"], row["latency_mean_ms"], row["latency_min_ms"], row["samples"]) == (2.0, 2.0, 1.0, 36)
    assert (row["clock"], row["throughput"], row["gpu_ms"], row["host_ms"]) == ("event", 2000.0, 1.25, 4.0)
    assert (row["step_ms"], row["gpu_step_ms"], row["enqueue_ms"]) == (2.0, 0.5, None)
    assert (row["gradients_mib"], row["gradient_error"]) == (7.0, 1e-3)


@pytest.mark.parametrize(("count", "given"), [(63, []), (64, [90]), (130, [90, 95]), (662, [90, 95, 99])])
def test_a_rows_percentiles_need_enough_samples(count: int, given: list[int]) -> None:
    row = row_of_(full(samples={"event": [float(i) for i in range(count)]}))
    known = [column.percentile for column in COLUMNS.values() if column.percentile and row[column.name] is not None]
    assert known == given


@pytest.mark.parametrize(
    ("precision", "calibration", "known"),
    [("int8", Path("images"), True), ("int8", None, False), ("fp16", Path("images"), None), ("fp32", None, None)],
)
def test_a_row_says_whether_its_int8_ranges_are_of_the_jobs_data(
    precision: str, calibration: Path | None, known: bool | None
) -> None:
    case = replace(CASE, precision=precision, source=ModelSource("net", calibration=calibration))
    assert row_of_(full(case.id, "failed"), case)["calibrated"] is known
    assert replace(case, engine="eager").calibrated is (None if known is None else False), "torchao's are of each call"


def test_a_row_says_what_its_training_did() -> None:
    own = {"engine": "eager", "variant": "eager", "pass_": "training"}
    case = replace(CASE, training=Training("sgd"), **own)  # type: ignore[arg-type]
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
def test_a_machine_is_called_by_its_label_or_what_it_is(told: dict[str, Any], name: str) -> None:
    assert row_of_(environment=told)["machine"] == name


def test_the_price_of_an_hour_is_that_of_a_million_items() -> None:
    machine = {"label": "rented", "cloud": "Some Cloud", "instance": "big", "usd_per_hour": 7.2}
    row = row_of_(environment=ENVIRONMENT | {"machine": machine})
    # 2,000 items a second are 7.2 million an hour.
    assert row["usd_per_million_items"] == pytest.approx(1.0)
    assert row["items_per_usd"] == pytest.approx(1e6)
    assert (row["cloud"], row["instance"], row["usd_per_hour"]) == ("Some Cloud", "big", 7.2)
    assert row_of_()["usd_per_million_items"] is None


def test_a_result_keeps_its_environment_and_the_version_that_ran_counts() -> None:
    result = full(environment={"host": "first"}, proof=Proof(library="TensorRT for RTX 1.7.1.116"))
    row = row_of_(result, replace(CASE, engine="trt-rtx"), {**ENVIRONMENT, "tensorrt_version": "11.4.0"})
    assert (row["host"], row["gpu"], row["tensorrt_version"]) == ("first", "H200", "1.7.1.116")


def ends(row: dict[str, Any], name: str) -> tuple[float, float]:
    low, high = ends_of(name)
    return row[low], row[high]


def around(middle: float, spread: Spread) -> Any:
    return pytest.approx((middle * math.exp(-spread.reach), middle * math.exp(spread.reach)))


def calm(ms: float, **clocks: float) -> dict[str, list[float]]:
    return {clock: [each * share for share in (0.999, 1.0, 1.001)] for clock, each in {"event": ms, **clocks}.items()}


@pytest.mark.parametrize(("enqueue", "spread"), [(0.5, SPREADS.device), (1.9, SPREADS.host)])
def test_a_figure_that_nothing_else_doubts_reaches_as_far_as_processes_differ(enqueue: float, spread: Spread) -> None:
    """Host-bound latencies have the host's spread, the device's own clock the device's."""
    row = row_of_(full(samples=calm(2.0, gpu=1.5, enqueue=enqueue, forward=2.0)))
    assert ends(row, "latency_ms") == ends(row, "forward_ms") == around(2.0, spread)
    assert ends(row, "throughput") == around(2000.0, spread)
    assert ends(row, "gpu_ms") == around(1.5, SPREADS.device)
    assert (row["latency_spread"], row["latency_spread_free"]) == (spread.sd, spread.free)
    assert (row["gpu_spread"], row["gpu_spread_free"]) == (SPREADS.device.sd, SPREADS.device.free)


@pytest.mark.parametrize(
    ("more", "warnings", "spread"),
    [
        ({}, [], SPREADS.host),
        ({"enqueue": [0.1]}, [], SPREADS.device),
        ({"enqueue": [1.9]}, [], SPREADS.host),
        ({"enqueue": [0.1]}, [Warning("host-bound", "2 ms a call, 1.5 ms in a loop")], SPREADS.host),
    ],
)
def test_a_call_that_the_host_times_and_the_device_sets_has_the_devices_spread(more, warnings, spread) -> None:
    samples = {"host": [2.0] * 100, **more}
    row = row_of_(full(clock="host", samples=samples, warnings=warnings))
    assert ends(row, "latency_ms") == around(2.0, spread)


def test_an_interval_reaches_to_what_contradicts_its_figure() -> None:
    samples = calm(2.0, enqueue=0.1)
    row = row_of_(full(samples=samples, throughput=1000.0))
    assert ends(row, "latency_ms") == (pytest.approx(2.0 * math.exp(-SPREADS.device.reach)), pytest.approx(4.0))
    assert row["throughput_high"] == pytest.approx(2000.0)
    parts = row_of_(full(samples=samples | calm(2.0, forward=1.0, backward=3.0)))
    assert parts["latency_high_ms"] == pytest.approx(4.0)
    waited = full(clock="host", samples={"host": samples["event"], "enqueue": [0.1]}, throughput=4000.0)
    assert row_of_(waited)["latency_low_ms"] == pytest.approx(2.0 * math.exp(-SPREADS.device.reach))
    without = row_of_(full(samples={}))
    assert {without[end] for name in WITH_ENDS for end in ends_of(name)} == {None}


def test_other_work_takes_the_low_end_to_the_fastest_decile_and_a_drift_is_in_the_interval() -> None:
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
def test_outliers_and_a_drift_of_the_headline_clock_are_warned_of(samples: list[float], kinds: list[str]) -> None:
    assert [warning.kind for warning in sample_warnings({"host": samples}, "host")] == kinds
    assert sample_warnings({"host": samples}, "event") == []


def process(number: int, event: float, gpu: float, enqueue: float, variant: str = "eager") -> tuple[Case, Result]:
    case = Case("net", variant, variant, "inference", "fp32", 1, "cuda", number, ModelSource("net"))
    samples = {"event": [event] * 5, "enqueue": [enqueue] * 5, "gpu": [gpu] * 5}
    return case, Result(case.id, "ok", clock="event", samples=samples)


def squares(*values: float) -> float:
    logs = [math.log(value) for value in values]
    return sum((each - sum(logs) / len(logs)) ** 2 for each in logs)


@pytest.mark.parametrize(
    ("processes", "host", "device"),
    [
        # event, gpu, enqueue: bases that the host sets tell of both, those that the device sets of the device.
        ([(9.0, 2.0, 9.0), (5.6, 2.01, 5.6), (6.1, 2.0, 6.1)], (squares(9.0, 5.6, 6.1), 2), (squares(2, 2.01, 2), 2)),
        ([(8.0, 8.0, 0.1), (8.02, 8.02, 0.1)], (0, 0), (squares(8.0, 8.02), 1)),
        # On both sides of the line: one that the host sets.
        ([(9.0, 2.0, 9.0), (5.0, 2.0, 0.1)], (squares(9.0, 5.0), 1), (0.0, 1)),
    ],
)
def test_bases_tell_how_far_processes_differ(processes: Sequence[Any], host: Any, device: Any) -> None:
    found = spread_of_bases([*(process(n, *each) for n, each in enumerate(processes)), process(0, 1, 1, 0.1, "ort")])
    assert (found["host"], found["device"]) == (pytest.approx(host), pytest.approx(device))
    wild, result = process(len(processes), 90.0, 80.0, 90.0)
    disturbed = (wild, replace(result, warnings=[Warning("disturbed", "by others")]))
    assert spread_of_bases([*(process(n, *each) for n, each in enumerate(processes)), disturbed]) == found


@pytest.mark.parametrize("damaged", ["", "{"])
def test_earlier_runs_on_this_machine_count_and_others_do_not(
    damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"device": "cuda", "gpu": "card", "cpu": "chip", "cpu_cores": 4}
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path))
    (tmp_path / "spread.json").write_text(damaged)
    assert all_spreads(earlier_spread(environment)) == UNMEASURED
    keep_spread(environment, "run-00", {"host": (9.0, 2.0), "device": (0.0, 0.0)})
    assert earlier_spread(environment)["host"] == pytest.approx((9.0, 2.0))
    for number in range(1, 21):
        keep_spread(environment, f"run-{number:02}", {"host": (0.02, 2.0), "device": (0.0, 0.0)})
    keep_spread(environment | {"gpu": "other"}, "run-99", {"host": (5.0, 2.0), "device": (0.0, 0.0)})
    kept = earlier_spread(environment)
    assert kept["host"] == pytest.approx((0.06, 6.0)), "of the last 20 runs, but no more than six degrees"
    pooled = all_spreads(kept, {"host": (0.0, 10.0), "device": (0.0, 0.0)})
    assert pooled.host.sd == pytest.approx(math.sqrt(0.06 / 16))
    assert pooled.device == UNMEASURED.device
