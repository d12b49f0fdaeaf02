"""The roofline with plain numbers, roofs that are really measured on this CPU, and whole runs that use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from engines.base import Warning
from engines.catalog import Pass
from exporters.single_layers import LAYERS, Conv2d, Linear
from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.results.result import Result
from profiler.run.prepare import prepare
from profiler.worker import roofline
from profiler.worker.measure_case import measure_case
from profiler.worker.prepare_model import prepare_cost, prepare_model
from profiler.worker.roofline import (
    Floor,
    Work,
    arithmetic_saved,
    computed_in,
    cpu_cache_mib,
    floor,
    judge,
    measure_roofs,
    place,
    precisions_needed,
)
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow

ROOFS = {"fp32_tflops": 50.0, "fp16_tflops": 600.0, "copy_gb_s": 4000.0, "cache_mib": 50.0}
MIB = 2**20


def ignore(message: object) -> None:
    pass


# Where a case lies.


def placed(
    flops: float | None,
    batch: int,
    latency: float | None,
    moved: float | None,
    precision: str | None,
    roofs: roofline.Roofs,
) -> SimpleNamespace:
    unknown = dict.fromkeys(("flops_per_item", "moved_mib", "tflops", "fraction_of_peak", "floor_ms"))
    return SimpleNamespace(**unknown | place(Work(flops, batch, moved, precision), latency, roofs))


def test_case_bound_by_computation() -> None:
    found = placed(8e9, 16, 6.0, 150 * MIB, "fp32", ROOFS)
    assert found.flops_per_item == 8e9
    assert found.tflops == pytest.approx(16 * 8e9 / 6e-3 / 1e12)
    assert found.fraction_of_peak == pytest.approx(16 * 8e9 / 6e-3 / 50e12)
    assert found.floor_ms == pytest.approx(16 * 8e9 / 50e12 * 1e3)


def test_case_bound_by_memory() -> None:
    found = placed(1e6, 1, 1.0, 850 * MIB, "fp16", ROOFS)
    assert found.tflops == pytest.approx(1e-3)
    assert found.floor_ms == pytest.approx(800 * MIB / 4000e9 * 1e3), "50 MiB may stay in the cache"


def test_case_that_fits_into_the_cache_is_bound_by_computation() -> None:
    assert placed(1e6, 1, 1.0, 50 * MIB, "fp32", ROOFS).floor_ms == pytest.approx(1e6 / 50e12 * 1e3)


@pytest.mark.parametrize("unknown", [{}, {"cache_mib": 0.0}])
def test_memory_is_no_limit_while_the_size_of_the_cache_is_unknown(unknown: dict[str, float]) -> None:
    roofs = {name: roof for name, roof in ROOFS.items() if name != "cache_mib"} | unknown
    assert placed(1e6, 1, 1.0, 4e6, "fp32", roofs).floor_ms == pytest.approx(1e6 / 50e12 * 1e3)


def test_floor_names_its_limit() -> None:
    assert floor(Work(8e9, 16, 150 * MIB, "fp32"), ROOFS) == (pytest.approx(2.56), "arithmetic")
    assert floor(Work(1e6, 1, 850 * MIB, "fp32"), ROOFS) == (pytest.approx(800 * MIB / 4000e9 * 1e3), "memory")


def test_unknown_flops_leave_everything_unknown() -> None:
    assert place(Work(None, 1, 850 * MIB, "fp16"), 1.0, ROOFS) == {}


@pytest.mark.parametrize("precision", ["bf16", None])
def test_unknown_roof_leaves_what_is_relative_to_it_unknown(precision: str | None) -> None:
    found = placed(8e9, 1, 8.0, 1e6, precision, ROOFS)
    assert (found.flops_per_item, found.tflops) == (8e9, pytest.approx(1.0))
    assert (found.fraction_of_peak, found.floor_ms) == (None, None)


def test_without_roofs_or_sizes_there_is_no_floor() -> None:
    assert placed(8e9, 1, 8.0, 1e6, "fp32", {}).floor_ms is None
    assert placed(8e9, 1, 8.0, None, "fp32", ROOFS).floor_ms is None
    assert placed(8e9, 1, 8.0, 1e6, "fp32", {"fp32_tflops": 50.0}).floor_ms is None


def test_a_precision_whose_roof_is_not_measured_has_a_rate_and_no_more() -> None:
    found = placed(8e9, 1, 8.0, 1e6, "int8", ROOFS)
    assert (found.tflops, found.fraction_of_peak, found.floor_ms) == (1.0, None, None)


def test_without_samples_there_is_no_rate() -> None:
    found = placed(8e9, 1, None, 1e6, "fp32", ROOFS)
    assert (found.tflops, found.fraction_of_peak) == (None, None)
    assert found.floor_ms


def test_model_without_products_has_no_rate_but_a_floor() -> None:
    found = placed(0, 1, 1.0, 850 * MIB, "fp32", ROOFS)
    assert (found.tflops, found.fraction_of_peak) == (0.0, 0.0)
    assert found.floor_ms == pytest.approx(800 * MIB / 4000e9 * 1e3)


# What is too fast.


@pytest.mark.parametrize(("fastest", "lowest"), [(3.0, 2.31), (2.31, 2.31), (None, 2.31), (2.31, None), (1.0, 0.0)])
def test_time_above_the_floor_is_good(fastest: float | None, lowest: float | None) -> None:
    assert judge(fastest, None if lowest is None else (lowest, "arithmetic")) is None


def test_time_below_the_floor_is_warned_of() -> None:
    remark = judge(1.93, (2.31, "arithmetic"))
    assert isinstance(remark, Warning)
    assert str(remark) == (
        "below-floor: 1.20× faster than this machine's measured peak allows (1.93 ms, at least 2.31 ms); "
        "convolutions by Winograd need fewer multiplications"
    )
    remark = judge(1.93, (2.31, "memory"))
    assert isinstance(remark, Warning)
    assert "this machine's measured bandwidth allows" in remark.text
    assert "Winograd" not in remark.text


@pytest.mark.parametrize("lowest", [(2.5, "arithmetic"), (2.5, "memory")])
@pytest.mark.parametrize(("fastest", "fails"), [(1.0, False), (0.999, True), (0.1, True)])
def test_time_far_below_the_floor_fails_the_row(fastest: float, fails: bool, lowest: Floor) -> None:
    wrong = judge(fastest, lowest)
    assert isinstance(wrong, str if fails else Warning)
    if isinstance(wrong, str):
        assert f"({fastest:g} ms, at least 2.5 ms)" in wrong
        assert ("measured peak allows" if lowest[1] == "arithmetic" else "measured bandwidth allows") in wrong
        assert wrong.startswith("rejected: ")
        assert ("Winograd" in wrong) == (lowest[1] == "arithmetic")


def test_large_times_have_no_exponents() -> None:
    assert "(1,234 ms, at least 1,500 ms)" in str(judge(1234.4, (1500.0, "memory")))


@pytest.mark.parametrize(
    ("precision", "types", "expected"),
    [
        ("fp32", {"float16": 3}, "fp32"),
        ("tf32", {"float32": 3}, "tf32"),
        ("amp-fp16", {"float16": 3, "float32": 1}, "fp16"),
        ("amp-bf16", {}, "bf16"),
        ("int8", {"int8": 3, "float32": 1}, "int8"),
        ("native", {"float32": 3}, "fp32"),
        ("native", {"float16": 3}, "fp16"),
        ("native", {"float16": 3, "float32": 1}, None),
        ("native", {"int8": 3}, None),
        ("native", {}, None),
    ],
)
def test_roof_is_that_of_the_type_that_computes(precision: str, types: dict[str, int], expected: str | None) -> None:
    assert computed_in(precision, types) == expected


# Roofs.


def case(precision: str, pass_: Pass = "inference", source: ModelSource | None = None, engine: str = "eager") -> Case:
    return Case("a", engine, engine, pass_, precision, 2, "cpu", 0, source or ModelSource("a"))


def test_cpu_measures_what_is_asked_for_and_a_gpu_everything() -> None:
    assert precisions_needed("cpu", [case("native")]) == ("fp32",)
    assert precisions_needed("cpu", [case("bf16"), case("amp-fp16")]) == ("fp32", "fp16", "bf16")
    assert precisions_needed("cuda", []) == ("fp32", "tf32", "fp16", "bf16")


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    return measure_roofs(("cpu", ("fp32", "bf16"), 0.02), ignore)


def test_roofs_of_this_cpu(measured: dict[str, float]) -> None:
    assert set(measured) == {"fp32_tflops", "bf16_tflops", "copy_gb_s", "cache_mib"}
    assert all(measured[name] > 0 for name in ("fp32_tflops", "bf16_tflops", "copy_gb_s"))
    # No machine that could run this is outside: a wrong unit would be, by a factor of 1000.
    assert 1e-3 < measured["fp32_tflops"] < 100
    assert 0.1 < measured["copy_gb_s"] < 5000


def test_narrow_type_is_no_slower_than_fp32(measured: dict[str, float]) -> None:
    assert measured["bf16_tflops"] >= measured["fp32_tflops"]


def test_roof_that_cannot_be_measured_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(*_: Any) -> float:
        raise MemoryError("no buffers")

    monkeypatch.setattr(roofline, "_copy_gb_s", no_memory)
    found = measure_roofs(("cpu", ("fp32", "unknown"), 0.01), ignore)
    assert "fp32_tflops" in found
    assert "copy_gb_s" not in found
    assert "no buffers" in capsys.readouterr().err


def test_last_level_caches_are_counted_once_each(tmp_path: Path) -> None:
    ours = sorted(os.sched_getaffinity(0))[0]
    for cpu in (ours, 9999):
        for number, (level, size) in enumerate([(1, "48K"), (2, "1024K"), (3, "32768K")]):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{number}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", f"{cpu}")):
                (folder / name).write_text(f"{text}\n")
    assert cpu_cache_mib(tmp_path) == 32.0
    with pytest.raises(LookupError):
        cpu_cache_mib(tmp_path / "none")


# In the worker.

FACTORIES = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 196, 10))
"""


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], Result]:
    """`measure(roofs)`: the Result of the tiny model's case under these roofs."""
    (tmp_path / "roofline_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "roofline_factories", raising=False)
    source = ModelSource("tiny", factory="roofline_factories:tiny", input_shape=(3, 16, 16))

    def run(roofs: dict[str, float]) -> Result:
        prepared: Prepared = prepare_model((source, tmp_path / "cache"), ignore)
        cost = prepare_cost((source, prepared, False, tmp_path / "cache"), ignore)
        prepared = Prepared(prepared.specs, prepared.state, prepared.reference, cost=cost)
        task = Task(case("fp32", source=source), prepared, Budget(seconds=0.05, min_samples=3), roofs=roofs)
        return measure_case(task, ignore)

    return run


CONVOLUTION, LINEAR = 2 * 196 * 2 * 27, 2 * 2 * 196 * 10
FLOPS = CONVOLUTION + LINEAR


def test_row_has_its_place(measure: Callable[[dict[str, float]], Result]) -> None:
    result = measure({"fp32_tflops": 1.0, "copy_gb_s": 1.0, "cache_mib": 1e-9})
    samples = sorted(result.samples["host"])
    assert (result.status, result.reason) == ("ok", None)
    assert result.figures["flops_per_item"] == FLOPS
    assert 2 * FLOPS / samples[-1] / 1e9 <= result.figures["tflops"] <= 2 * FLOPS / samples[0] / 1e9
    assert result.figures["fraction_of_peak"] == result.figures["tflops"]
    weights, inputs, outputs = (2 * 27 + 2) + (2 * 196 * 10 + 10), 2 * 3 * 16 * 16, 2 * 10
    assert result.figures["floor_ms"] == pytest.approx(max(2 * FLOPS / 1e9, 4 * (weights + inputs + outputs) / 1e6))


def test_convolution_alone_may_go_by_fourier_transforms() -> None:
    """L2's 9×9 kernel on cuDNN's FFT; of memory, of a product and of a network nobody saves so much."""
    saved = arithmetic_saved(LAYERS["L2"])
    assert isinstance(judge(1.0, (60.0, "arithmetic"), saved), Warning)
    assert isinstance(judge(1.0, (90.0, "arithmetic"), saved), str)
    assert isinstance(judge(1.0, (60.0, "memory"), saved), str)
    for other in (Linear(64, 64), Conv2d((64, 8, 8), 64, (1, 1)), None):
        assert isinstance(judge(1.0, (3.0, "arithmetic"), arithmetic_saved(other)), str)


def test_impossible_row_is_judged_by_roofs_measured_again(
    measure: Callable[[dict[str, float]], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, quiet = ({"fp32_tflops": roof, "copy_gb_s": 1e3, "cache_mib": 0.0} for roof in (1e-9, 100.0))
    monkeypatch.setattr(roofline, "measure_roofs", lambda argument, report: quiet)
    result = measure(busy)
    assert (result.status, result.reason) == ("ok", None)
    assert result.figures["fraction_of_peak"] == pytest.approx(result.figures["tflops"] / 100)
    monkeypatch.setattr(roofline, "measure_roofs", lambda argument, report: busy)
    result = measure(busy)
    assert result.status == "failed"
    assert "rejected: " in str(result.reason)


# In the prepare phase.

UNUSUAL = """
import time
from torch import nn

class Auxiliary(nn.Module):
    # The second branch reaches no output.
    def __init__(self):
        super().__init__()
        self.layer, self.unread = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 200, 3)
    def forward(self, x):
        self.unread(x)
        return self.layer(x)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3)
    def forward(self, x):
        if self.training:
            time.sleep(1000)
        return self.layer(x)
"""


@pytest.fixture
def prepared(
    forkserver: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Prepared, list[str]]]:
    """`prepared(factory, (engine, pass), …)`: what its cases are given, and what the display was told."""
    (tmp_path / "unusual.py").write_text(UNUSUAL)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))

    def run(factory: str, *planned: tuple[str, Pass]) -> tuple[Prepared, list[str]]:
        source = ModelSource("a", factory=f"unusual:{factory}", input_shape=(3, 16, 16))
        cases, told = [case("fp32", pass_, source, engine) for engine, pass_ in planned], list[str]()
        return prepare(cases, Budget(), tmp_path, (str(tmp_path),), lambda what, done, total: told.append(what))[
            "a"
        ], told

    return run


def test_branch_that_no_engine_computes_is_not_counted(
    prepared: Callable[..., tuple[Prepared, list[str]]],
) -> None:
    made, _ = prepared("Auxiliary", ("ort", "inference"))
    assert made.cost.flops("inference") == CONVOLUTION
    assert made.cost.weight_bytes("fp32") == 4 * (2 * 27 + 2)


def test_training_that_cannot_be_counted_in_time_loses_nothing_else(
    prepared: Callable[..., tuple[Prepared, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiler.run.prepare._COUNT_SECONDS", 5.0)
    monkeypatch.setattr("profiler.run.prepare._GRADIENT_SECONDS", 1.0)
    made, told = prepared("Slow", ("eager", "inference"), ("eager", "training"))
    assert (made.cost.flops("inference"), made.cost.flops("training")) == (CONVOLUTION, None)
    log = tmp_path / "prepare-a.log"
    assert f"no roofline of a's training, whose FLOPs were not counted: see {log}" in told
    assert "FLOPs not counted: ended after 5 s" in log.read_text()
    made, told = prepared("Slow", ("eager", "inference"))
    assert (made.cost.flops("inference"), made.cost.flops("training")) == (CONVOLUTION, None)
    assert not [what for what in told if "no roofline" in what]
    assert log.read_text().count("ended after") == 1, "no training is planned, so none was tried"


# In whole runs.

JOB = """
models: [{name: tiny, factory: "tiny:tiny", input: [3, 16, 16]}]
engines: [eager]
passes: [inference, training]
precisions: [fp32, bf16]
batch_sizes: [2]
device: cpu
budget: {seconds: 0.05, min_samples: 3}
"""
Finished = tuple[pl.DataFrame, dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, profiler: Callable[..., Any]) -> tuple[Finished, Finished]:
    """A run of fp32 alone, and the same run gone on with, its fp32 roof made up in between."""
    folder = tmp_path_factory.mktemp("roofline")
    (folder / "job.yaml").write_text(JOB)
    (folder / "tiny.py").write_text(FACTORIES)

    def finish(*arguments: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = profiler(*arguments, cwd=folder, PROFILER_CACHE=str(folder / "cache"))
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def state() -> Finished:
        environment = json.loads((path / "environment.json").read_text())
        return pl.read_parquet(path / "results.parquet"), environment

    done = finish("job.yaml", "--only", "precision=fp32", "--only", "pass=training")
    assert "prepare: measuring peak FLOP/s and bandwidth, 1 of 1" in done.stdout
    (path,) = (folder / "results").iterdir()
    first = state()
    roofs = {**first[1]["roofs"], "fp32_tflops": 123.0}
    (path / "environment.json").write_text(json.dumps({**first[1], "roofs": roofs}))
    finish("--resume", str(path))
    second = state()
    shutil.rmtree(folder)
    return first, second


def test_run_keeps_its_roofs(runs: tuple[Finished, Finished]) -> None:
    roofs = runs[0][1]["roofs"]
    assert set(roofs) == {"fp32_tflops", "copy_gb_s", "cache_mib"}
    assert all(value > 0 for name, value in roofs.items() if name != "cache_mib")


def test_resumed_run_keeps_the_first_roofs_and_adds_what_is_missing(runs: tuple[Finished, Finished]) -> None:
    first, second = (environment["roofs"] for _, environment in runs)
    assert second == {**first, "fp32_tflops": 123.0, "bf16_tflops": second["bf16_tflops"]}
    assert second["bf16_tflops"] > 0


def test_rows_of_both_passes_have_the_columns(runs: tuple[Finished, Finished]) -> None:
    rows = runs[1][0].to_dicts()
    assert {(row["pass"], row["precision"]) for row in rows} == {
        (pass_, precision) for pass_ in ("inference", "training") for precision in ("fp32", "bf16")
    }
    flops = {"inference": FLOPS, "training": 2 * CONVOLUTION + 3 * LINEAR}
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        assert row["flops_per_item"] == flops[row["pass"]]
        assert row["tflops"] == pytest.approx(2 * row["flops_per_item"] / row["latency_ms"] / 1e9)
        assert row["fraction_of_peak"] > 0
        assert row["floor_ms"] > 0


def test_rows_are_relative_to_the_roofs_of_their_time(runs: tuple[Finished, Finished]) -> None:
    rows = {(row["pass"], row["precision"]): row for row in runs[1][0].to_dicts()}
    first, second = (environment["roofs"] for _, environment in runs)
    for key, roof in (
        (("training", "fp32"), first["fp32_tflops"]),
        (("inference", "fp32"), 123.0),
        (("training", "bf16"), second["bf16_tflops"]),
    ):
        assert rows[key]["fraction_of_peak"] == pytest.approx(rows[key]["tflops"] / roof), key
