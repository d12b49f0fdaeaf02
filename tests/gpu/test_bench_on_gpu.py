"""One run of every engine and precision on the GPU; each test looks at another promise of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

from profiler import load

pytestmark = pytest.mark.gpu

JOB = """
models: [resnet18]
engines: [eager, eager-tuned, eager-nocudnn, compiled, ort, ort-tuned]
passes: [inference, training]
precisions: [fp32, tf32, fp16, bf16]
batch_sizes: [2]
device: cuda
budget: {seconds: 0.3, min_samples: 5}
exclude:
  - {engine: compiled, pass: training, precision: [tf32, fp16, bf16]}
  - {engine: compiled, pass: inference, precision: [tf32]}
  - {variant: eager-nocudnn, pass: training}
"""

BOUNDS = {"fp32": (0, 1e-5), "tf32": (1e-5, 5e-3), "fp16": (1e-5, 1e-2), "bf16": (1e-4, 5e-2)}
"""Relative L2 error to the fp32 reference on the CPU."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Path:
    folder: Path = tmp_path_factory.mktemp("gpu")
    return run_job(profiler, folder, JOB)


@pytest.fixture(scope="module")
def rows(run: Path) -> pl.DataFrame:
    return load(run)[0].collect()


def only(rows: pl.DataFrame, **equal: str) -> pl.DataFrame:
    return rows.filter(*(pl.col(key) == value for key, value in equal.items()))


def test_what_can_run_here_ran(rows):
    bad = rows.filter(~pl.col("status").is_in(["ok", "unsupported"]))
    assert bad.is_empty(), bad.select("case_id", "status", "reason").rows()
    for variant in ("eager", "eager-tuned", "eager-nocudnn"):
        found = only(rows, variant=variant, status="ok", **{"pass": "inference"})["precision"].to_list()
        assert found == ["fp32", "tf32", "fp16", "bf16"]
    for variant in ("ort", "ort-tuned"):
        found = only(rows, variant=variant, status="ok")["precision"].to_list()
        assert found == ["fp32", "tf32", "fp16"]


def test_outputs_agree_with_fp32_eager_on_the_cpu(rows):
    inference = only(rows, status="ok", **{"pass": "inference"})
    for row in inference.to_dicts():
        error = row["rel_l2_error"]
        low, high = BOUNDS[row["precision"]]
        # PyTorch's own convolution kernels know no TF32; only the last layer's product can use it.
        low = 0 if row["variant"] == "eager-nocudnn" else low
        assert low <= error < high, (row["case_id"], error)
        assert row["error_items"] > row["batch_size"], "further items were fed, into recorded graphs too"


def test_every_clock_is_there(rows):
    for row in only(rows, status="ok").to_dicts():
        assert row["clock"] == "event"
        clocks = ["latency_ms", "enqueue_ms", "host_ms", "h2d_ms", "d2h_ms", "throughput"]
        if not any(w.startswith("gate-overrun") for w in row["warnings"]):
            clocks.append("gpu_ms")
        if row["pass"] == "training":
            clocks += ["forward_ms", "backward_ms"]
        assert all((row[clock] or 0) > 0 for clock in clocks), (row["case_id"], {c: row[c] for c in clocks})


def test_proof_says_what_ran(rows):
    for row in only(rows, status="ok").to_dicts():
        proof: dict[str, Any] = json.loads(row["proof"])
        assert proof["tf32"] == (row["precision"] == "tf32")
        if row["variant"] in ("eager-tuned", "ort-tuned", "compiled"):
            assert proof["cuda_graph"], row["case_id"]
        if row["engine"] == "ort":
            assert set(proof["compute_providers"]) == {"CUDAExecutionProvider"}
