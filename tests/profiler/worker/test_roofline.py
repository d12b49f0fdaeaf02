"""Roofs that are really measured on this CPU, and whole runs that use them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hanging import end_once
from runs import run_job

from engines.options import Pass
from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.processes.holders import Holders
from profiler.processes.process import Call, run_one
from profiler.results.roofline import precisions_needed
from profiler.run.prepare import prepare
from profiler.worker import roofline
from profiler.worker.roofline import cpu_cache_mib, measure_roofs
from profiler.worker.task import Prepared

pytestmark = pytest.mark.slow
IGNORE: Any = lambda message: None  # noqa: E731


def case(precision: str, pass_: Pass = "inference", source: ModelSource | None = None, engine: str = "eager") -> Case:
    return Case("a", engine, engine, pass_, precision, 2, "cpu", 0, source or ModelSource("a"))


def test_cpu_measures_what_is_asked_for_and_a_gpu_everything():
    assert precisions_needed("cpu", [case("native")]) == ("fp32",)
    assert precisions_needed("cpu", [case("bf16"), case("amp-fp16")]) == ("fp32", "fp16", "bf16")
    assert precisions_needed("cuda", []) == ("fp32", "tf32", "fp16", "bf16")


def test_roofs_of_this_cpu(monkeypatch, capsys):
    measured = measure_roofs(("cpu", ("fp32", "bf16"), 0.02), IGNORE).roofs
    assert set(measured) == {"fp32_tflops", "bf16_tflops", "copy_gb_s", "cache_mib"}
    assert measured["bf16_tflops"] >= measured["fp32_tflops"]
    # No machine that could run this is outside: a wrong unit would be, by a factor of 1000.
    assert 1e-3 < measured["fp32_tflops"] < 100
    assert 0.1 < measured["copy_gb_s"] < 5000

    def no_memory(*_: Any) -> float:
        raise MemoryError("no buffers")

    monkeypatch.setattr(roofline, "_copy_gb_s", no_memory)
    assert set(measure_roofs(("cpu", ("fp32",), 0.01), IGNORE).roofs) == {"fp32_tflops", "cache_mib"}
    assert "no buffers" in capsys.readouterr().err


def test_roofs_that_other_processes_lower_are_known_to_be_low(forkserver, tmp_path, busy_processors):
    call = Call("profiler.worker.roofline:measure_roofs", ("cpu", ("fp32",), 0.05), tmp_path / "log")
    assert not run_one(call).value.quiet


def test_last_level_caches_are_counted_once_each(tmp_path):
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


FACTORIES = """
import os
import time
from pathlib import Path
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 196, 10))

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
CONVOLUTION, LINEAR = 2 * 196 * 2 * 27, 2 * 2 * 196 * 10
FLOPS = CONVOLUTION + LINEAR


@pytest.fixture
def prepared(forkserver: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """`prepared(factory, (engine, pass), …)`: what its cases are given."""
    (tmp_path / "unusual.py").write_text(FACTORIES)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))

    def run(factory: str, *planned: tuple[str, Pass]) -> Prepared:
        source = ModelSource("a", factory=f"unusual:{factory}", input_shape=(3, 16, 16))
        cases = [case("fp32", pass_, source, engine) for engine, pass_ in planned]
        with Holders() as holders:
            return prepare(cases, Budget(), tmp_path, (str(tmp_path),), lambda *_: None, holders)["a"]

    return run


def test_branch_that_no_engine_computes_is_not_counted(prepared):
    """Counted, it would put rows far above the roofline."""
    made = prepared("Auxiliary", ("ort", "inference"))
    assert made.cost.flops("inference") == CONVOLUTION
    assert made.cost.weight_bytes(32) == 4 * (2 * 27 + 2)


def test_what_cannot_be_counted_in_time_is_told_apart_from_what_can(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("HANGS", str(tmp_path))
    end_once(lambda child: (tmp_path / str(child.process.pid)).exists(), monkeypatch)
    planned, trained = [("eager", "inference"), ("eager", "training")], []
    for passes, flops in ((planned, None), (planned[:1], CONVOLUTION)):
        made = prepared("Slow", *passes)
        assert (made.cost.flops("inference"), made.cost.flops("training")) == (flops, None)
        trained.append({each.name for each in tmp_path.iterdir() if each.name.isdigit()})
    assert trained[0]
    assert trained[1] == trained[0], "what is not planned is not tried"


JOB = """
models: [{name: tiny, factory: "tiny:tiny", input: [3, 16, 16]}]
engines: [eager]
passes: [inference, training]
precisions: [fp32, bf16]
batch_sizes: [2]
device: cpu
budget: {seconds: 0.05, min_samples: 3}
"""


def test_a_resumed_run_keeps_its_roofs_and_its_rows_are_below_them(tmp_path, profiler):
    (tmp_path / "tiny.py").write_text(FACTORIES)
    run = partial(run_job, profiler, tmp_path, PROFILER_CACHE=str(tmp_path / "cache"))
    path = run(JOB, "--only", "precision=fp32", "--only", "pass=training")
    environment = json.loads((path / "environment.json").read_text())
    assert set(environment["roofs"]) == {"fp32_tflops", "copy_gb_s", "cache_mib"}
    made_up = {**environment["roofs"], "fp32_tflops": 123.0}
    (path / "environment.json").write_text(json.dumps({**environment, "roofs": made_up}))
    run(None, "--resume", str(path))
    roofs = json.loads((path / "environment.json").read_text())["roofs"]
    assert roofs == {**made_up, "bf16_tflops": roofs["bf16_tflops"]}
    rows = pl.read_parquet(path / "results.parquet").to_dicts()
    shutil.rmtree(path)
    assert {(row["pass"], row["precision"]) for row in rows} == {
        (pass_, precision) for pass_ in ("inference", "training") for precision in ("fp32", "bf16")
    }
    flops = {"inference": FLOPS, "training": 2 * CONVOLUTION + 3 * LINEAR}
    weights, inputs, outputs = (2 * 27 + 2) + (2 * 196 * 10 + 10), 2 * 3 * 16 * 16, 2 * 10
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        assert row["flops_per_item"] == flops[row["pass"]]
        assert row["tflops"] == pytest.approx(2 * row["flops_per_item"] / row["latency_ms"] / 1e9)
        assert row["floor_ms"] > 0
        assert row["fraction_of_peak"] == pytest.approx(row["tflops"] / 123.0), "fp32's roof holds for bf16, too"
        if (row["pass"], row["precision"]) == ("inference", "fp32"):
            assert row["moved_mib"] == pytest.approx(4 * (weights + inputs + outputs) / 2**20)
