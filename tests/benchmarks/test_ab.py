"""The A/B benchmark: whose turn it is, what is slowed and by how much, and what counts as right."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import handmade
import polars as pl
import pytest

from benchmarks.ab import REPLICATES, judge, slowing, turns
from benchmarks.slowed.sitecustomize import key_of
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.columns import SAMPLES

ROOT = Path(__file__).resolve().parents[2]


def test_no_side_is_always_last() -> None:
    assert [side for side, _ in turns()] == ["A", "B", "C", "C", "B", "A", "A", "B", "C"]
    assert [n for _, n in turns()] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_job_has_cells_enough_and_three_replicates(device: str) -> None:
    config = load_config(ROOT / "benchmarks" / "ab.yaml", device)
    cells = {replace(case, replicate=0).id for case in make_plan(config, device)}  # type: ignore[arg-type]
    assert config.replicates == REPLICATES
    assert len(cells) >= 10, "from which on compare knows what the cells' spread has in common"


def save(folder: Path, *medians: float, **columns: object) -> Path:
    usual = {"run_id": folder.name, "model": "net", "variant": "ort", "engine": "ort", "pass": "inference",
             "precision": "fp32", "batch_size": 1, "device": "cpu", "status": "ok", "clock": "host",
             "options": "{}", "machine": folder.name, "warnings": []}  # fmt: skip
    rows = [
        {**usual, "case_id": f"net/ort/{n}", "replicate": n, "latency_ms": ms, **columns}
        for n, ms in enumerate(medians)
    ]
    folder.mkdir()
    handmade.frame(rows).write_parquet(folder / "results.parquet")
    pl.DataFrame(schema=SAMPLES).write_parquet(folder / "samples.parquet")
    (folder / "environment.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("b", "c", "right"),
    [((1.0, 1.01, 0.99), (1.1, 1.11, 1.09), True), ((1.2, 1.21, 1.19), (1.1, 1.11, 1.09), False),
     ((1.0, 1.01, 0.99), (1.0, 1.01, 0.99), False)],
)  # fmt: skip
def test_equal_runs_should_tie_and_slowed_ones_be_slower(
    tmp_path: Path, b: tuple[float, ...], c: tuple[float, ...], right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"A": save(tmp_path / "A", 1.0, 1.01, 0.99), "B": save(tmp_path / "B", *b), "C": save(tmp_path / "C", *c)}
    assert judge(runs) is right
    assert "C, slowed by 10%" in capsys.readouterr().out


def test_on_a_gpu_a_call_is_slowed_by_a_share_of_the_same_cells_device_time(tmp_path: Path) -> None:
    cell = {"model": "net", "engine": "ort", "pass": "inference", "precision": "fp16", "batch_size": 16}
    options = {"prefer_nhwc": True, "cuda_graph": True}
    runs = {"A": save(tmp_path / "A", 4.0, gpu_ms=3.0, device="cuda", options=json.dumps(options), **cell)}
    told = slowing(tmp_path, runs)
    assert float(told["SLOWED_BY"]) == 0.05
    times = json.loads(Path(told["SLOWED_FROM"]).read_text())
    assert times == {key_of({**cell, "options": dict(reversed(options.items()))}): 3.0}


@pytest.mark.slow
def test_in_a_process_that_is_told_to_every_session_is_slowed(tmp_path: Path) -> None:
    """A call that takes 20 ms of its own is followed by half as much."""
    code = """
import time, types
import engines
module = types.SimpleNamespace(open_session=lambda job: Fake())
engines.import_module = lambda name: module
class Fake:
    began = ended = 0.0
    def run(self, mark):
        self.began = time.perf_counter()
        time.sleep(0.02)
        self.ended = time.perf_counter()
from engines.base import Job
from engines.options import EagerOptions
session = engines.open_session("eager", Job(None, "inference", "fp32", 1, "cpu", EagerOptions(), ()))
session.run(None); end = time.perf_counter()
print((end - session.ended) / (session.ended - session.began))
"""
    told = slowing(tmp_path, {"A": save(tmp_path / "A", 1.0)}) | {"SLOWED_BY": "0.5"}
    done = subprocess.run([sys.executable, "-c", code], env=told, cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) >= 0.5
