"""A network in JAX from a job to its rows, next to PyTorch eager."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from runs import Profiler, run_job

from engines.base import Job
from engines.catalog import Options
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelSource
from exporters.weights import cached_state
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
training: {optimizers: [sgd], input_gradient: true}
budget: {seconds: 0.05, min_samples: 3}
"""


def test_a_run_compares_jax_with_eager(tmp_path: Path, profiler: Profiler) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    # XLA itself knows nothing of the variable: it takes as many threads as torch has.
    run = run_job(profiler, tmp_path, JOB, OMP_NUM_THREADS="1")
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
        assert proof["threads"] == 1


def test_what_is_exported_runs_without_this_project_and_gives_the_modules_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.jax_xla import write_program

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "net_to_export.py").write_text(NETWORK)
    source = ModelSource("tiny", factory="net_to_export:tiny", input_shape=(3, 16, 16))
    folder = tmp_path / "out"
    folder.mkdir()
    job = Job(source, "inference", "fp32", 2, "cpu", Options(), ())
    deployed = write_program(job, folder, None)
    config = {"model": "tiny", "device": "cpu", "precision": "fp32", **deployed.config}
    (folder / "config.json").write_text(json.dumps(config))
    (items,) = seeded_inputs(input_specs(source), 2)
    np.save(folder / "x.npy", items)
    command = [sys.executable, "run.py", "--input", "x.npy", "--output", "y.npy"]
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=outside)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = restore(source, cached_state(source, Cache()))(torch.from_numpy(items)).numpy()
    assert np.linalg.norm(np.load(folder / "y.npy") - expected) < 1e-5 * np.linalg.norm(expected)
    # For a GPU that is not there.
    write_program(replace(job, precision="bf16", device="cuda"), folder, None)
