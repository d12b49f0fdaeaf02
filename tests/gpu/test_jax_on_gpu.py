"""JAX on the GPU: types as asked for, clocks, memory, outputs and gradients."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

from profiler import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed"),
]

JOB = """
models: [resnet18]
engines: [jax]
passes: [inference, training]
precisions: [fp32, tf32, bf16]
batch_sizes: [8]
device: cuda
training: {head: logits, optimizers: [none], input_gradient: true}
budget: {seconds: 0.3, min_samples: 5, build_timeout: 300}
exclude: [{precision: bf16, pass: training}]
"""
PARAMETERS_MIB = 11_689_512 * 4 / 2**20


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> list[Any]:
    folder = tmp_path_factory.mktemp("jax")
    run = run_job(profiler, folder, JOB)
    found = load(run)[0].collect()
    with pl.Config(tbl_cols=20, fmt_str_lengths=80, tbl_width_chars=200):
        print(found.select("case_id", "status", "latency_ms", "enqueue_ms", "build_s", "slack_mib", "warnings"))
    return found.to_dicts()


def test_all_ran_on_the_gpu_in_the_types_asked_for(rows: list[Any]) -> None:
    assert len(rows) == 5
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        proof = json.loads(row["proof"])
        assert proof["device"] == "cuda"
        assert proof["compute_types"].keys() == {"bfloat16" if row["precision"] == "bf16" else "float32"}
        assert proof["tf32"] == (row["precision"] == "tf32")


def test_they_are_timed_on_the_host(rows: list[Any]) -> None:
    for row in rows:
        assert row["clock"] == "host"
        assert row["gpu_ms"] is None
        assert 0 < row["enqueue_ms"] <= row["host_ms"]


def test_figures_of_memory_and_of_errors_are_there(rows: list[Any]) -> None:
    for row in rows:
        size = PARAMETERS_MIB / (2 if row["precision"] == "bf16" else 1)
        assert row["weights_mib"] == pytest.approx(size, rel=0.02)
        assert row["activations_mib"] > 0
        if row["pass"] == "training":
            assert row["gradient_error"] < 0.05
