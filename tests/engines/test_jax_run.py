"""A network in JAX from a job to its rows, next to PyTorch eager."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import polars as pl
import pytest
from runs import Profiler, run_job

from profiler import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed"),
]

NETWORK = """
from torch import nn

def tiny():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), nn.Flatten(),
        nn.Linear(392, 10),
    )
"""
JOB = """
models: [{name: tiny, factory: "net:tiny", input: [3, 16, 16]}]
engines: [eager, jax]
passes: [inference, training]
precisions: [fp32]
batch_sizes: [2]
device: cpu
training: {optimizers: [none], input_gradient: true}
budget: {seconds: 0.05, min_samples: 3}
"""


def test_a_run_compares_jax_with_eager(tmp_path: Path, profiler: Profiler) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    run = run_job(profiler, tmp_path, JOB)
    both = load(run)[0].collect()
    # Of weights only, although the backward pass goes on to the input.
    assert both.filter(pl.col("pass") == "training")["gradients_mib"].unique().len() == 1
    rows = both.filter(pl.col("engine") == "jax")
    assert rows["pass"].to_list() == ["inference", "training"]
    assert rows["status"].to_list() == ["ok", "ok"], rows["reason"].to_list()
    inference, training = rows.to_dicts()
    assert 0 < inference["rel_l2_error"] < 1e-5
    assert 0 < training["gradient_error"] < 1e-4
    for row in (inference, training):
        assert (row["clock"], row["jax_version"] is None) == ("host", False)
        assert row["build_s"] > 0
        proof = json.loads(row["proof"])
        assert proof["compute_types"].keys() == {"float32"}
