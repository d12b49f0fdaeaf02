"""Roofs that are really measured on this CPU, and whole runs that use them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hanging import end_once
from runs import Profiler

from engines.catalog import Pass
from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.processes.process import Call, run_one
from profiler.results.result import Result
from profiler.results.roofline import placed
from profiler.run.prepare import prepare
from profiler.worker import roofline
from profiler.worker.measure_case import measure_case
from profiler.worker.prepare_model import prepare_cost, prepare_model
from profiler.worker.roofline import (
    cpu_cache_mib,
    measure_roofs,
    precisions_needed,
)
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow


def ignore(message: object) -> None:
    pass


# Roofs.


def case(precision: str, pass_: Pass = "inference", source: ModelSource | None = None, engine: str = "eager") -> Case:
    return Case("a", engine, engine, pass_, precision, 2, "cpu", 0, source or ModelSource("a"))


def test_cpu_measures_what_is_asked_for_and_a_gpu_everything() -> None:
    assert precisions_needed("cpu", [case("native")]) == ("fp32",)
    assert precisions_needed("cpu", [case("bf16"), case("amp-fp16")]) == ("fp32", "fp16", "bf16")
    assert precisions_needed("cuda", []) == ("fp32", "tf32", "fp16", "bf16")


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    return measure_roofs(("cpu", ("fp32", "bf16"), 0.02), ignore).roofs


def test_roofs_of_this_cpu(measured: dict[str, float]) -> None:
    assert set(measured) == {"fp32_tflops", "bf16_tflops", "copy_gb_s", "cache_mib"}
    assert all(measured[name] > 0 for name in ("fp32_tflops", "bf16_tflops", "copy_gb_s"))
    # No machine that could run this is outside: a wrong unit would be, by a factor of 1000.
    assert 1e-3 < measured["fp32_tflops"] < 100
    assert 0.1 < measured["copy_gb_s"] < 5000


def test_narrow_type_is_no_slower_than_fp32(measured: dict[str, float]) -> None:
    assert measured["bf16_tflops"] >= measured["fp32_tflops"]


def test_roofs_that_other_processes_lower_are_known_to_be_low(
    forkserver: None, tmp_path: Path, busy_processors: list[int]
) -> None:
    call = Call("profiler.worker.roofline:measure_roofs", ("cpu", ("fp32",), 0.05), tmp_path / "log")
    found = run_one(call).value
    assert not found.quiet


def test_roof_that_cannot_be_measured_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(*_: Any) -> float:
        raise MemoryError("no buffers")

    monkeypatch.setattr(roofline, "_copy_gb_s", no_memory)
    found = measure_roofs(("cpu", ("fp32", "unknown"), 0.01), ignore).roofs
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
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Result]:
    """`measure()`: the Result of the tiny model's case."""
    (tmp_path / "roofline_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "roofline_factories", raising=False)
    source = ModelSource("tiny", factory="roofline_factories:tiny", input_shape=(3, 16, 16))

    def run() -> Result:
        prepared: Prepared = prepare_model((source, ("cpu",), tmp_path / "cache"), ignore)
        cost = prepare_cost((source, prepared, False, False, tmp_path / "cache"), ignore)
        prepared = Prepared(prepared.specs, prepared.state, prepared.reference, cost=cost)
        return measure_case(Task(case("fp32", source=source), prepared, Budget(seconds=0.05, min_samples=3)), ignore)

    return run


CONVOLUTION, LINEAR = 2 * 196 * 2 * 27, 2 * 2 * 196 * 10
FLOPS = CONVOLUTION + LINEAR


def test_row_has_what_its_place_follows_from(measure: Callable[[], Result]) -> None:
    result = measure()
    assert (result.status, result.reason) == ("ok", None)
    weights, inputs, outputs = (2 * 27 + 2) + (2 * 196 * 10 + 10), 2 * 3 * 16 * 16, 2 * 10
    found = placed(case("fp32"), result, {"fp32_tflops": 1.0, "copy_gb_s": 1.0, "cache_mib": 1e-9}).figures
    assert found["moved_mib"] == pytest.approx(4 * (weights + inputs + outputs) / 2**20)
    assert found["flops_per_item"] == FLOPS
    samples = sorted(result.samples["host"])
    assert 2 * FLOPS / samples[-1] / 1e9 <= found["tflops"] <= 2 * FLOPS / samples[0] / 1e9
    assert found["fraction_of_peak"] == found["tflops"]
    assert found["floor_ms"] == pytest.approx(max(2 * FLOPS / 1e9, 4 * (weights + inputs + outputs) / 1e6))


# In the prepare phase.

UNUSUAL = """
import os
import time
from pathlib import Path
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
            Path(os.environ["HANGS"], str(os.getpid())).touch()
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
    monkeypatch.setenv("HANGS", str(tmp_path))
    end_once(lambda child: (tmp_path / str(child.process.pid)).exists(), monkeypatch)
    made, told = prepared("Slow", ("eager", "inference"), ("eager", "training"))
    assert (made.cost.flops("inference"), made.cost.flops("training")) == (CONVOLUTION, None)
    log = tmp_path / "prepare-a.log"
    assert f"no roofline of a's training, whose FLOPs were not counted: see {log}" in told
    assert "FLOPs not counted: ended after 60 s" in log.read_text()
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
def runs(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> tuple[Finished, Finished]:
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
    assert "prepare: measuring peak FLOP/s and bandwidth\n" in done.stdout
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


def test_resumed_run_keeps_its_roofs_and_adds_what_is_missing(runs: tuple[Finished, Finished]) -> None:
    first, second = (environment for _, environment in runs)
    bf16 = {"bf16_tflops": second["roofs"]["bf16_tflops"]}
    assert second["roofs"] == {**first["roofs"], "fp32_tflops": 123.0, **bf16}


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
        assert row["floor_ms"] > 0


def test_rows_are_relative_to_the_roofs(runs: tuple[Finished, Finished]) -> None:
    rows, environment = runs[1]
    for row in rows.to_dicts():
        share = row["tflops"] / environment["roofs"]["fp32_tflops"]
        assert row["fraction_of_peak"] == pytest.approx(share), f"{row['case_id']}: fp32's roof holds for bf16, too"
