"""JAX on the GPU: types as asked for, clocks, memory, outputs and gradients."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

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


def test_types_clocks_memory_and_errors(tmp_path: Path, profiler: Profiler) -> None:
    rows = load(run_job(profiler, tmp_path, JOB))[0].collect().to_dicts()
    assert len(rows) == 5
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        proof = json.loads(row["proof"])
        assert proof["device"] == "cuda"
        assert proof["compute_types"].keys() == {"bfloat16" if row["precision"] == "bf16" else "float32"}
        assert proof["tf32"] == (row["precision"] == "tf32")
        assert (row["clock"], row["gpu_ms"]) == ("host", None)
        assert 0 < row["enqueue_ms"] <= row["host_ms"]
        size = PARAMETERS_MIB / (2 if row["precision"] == "bf16" else 1)
        assert row["weights_mib"] == pytest.approx(size, rel=0.02)
        assert row["activations_mib"] > 0
        if row["pass"] == "training":
            assert row["gradient_error"] < 0.05
