"""Runs, as a user starts them, where distributions or modules are not installed: only what needs them is affected."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from exporters.cache import Cache

Profiler = Callable[..., CompletedProcess[str]]
Rows = dict[tuple[str, str, str], dict[str, Any]]

SITE = """
'''Every Python process of the run, its forkserver among them, finds neither these distributions nor these modules.'''
import importlib.machinery
import importlib.metadata
import os

DISTRIBUTIONS, MODULES = (set(os.environ[f"MISSING_{what}"].split(",")) for what in ("DISTRIBUTIONS", "MODULES"))
PathFinder, MetadataPathFinder = importlib.machinery.PathFinder, importlib.metadata.MetadataPathFinder
find_spec, find_distributions = PathFinder.find_spec, MetadataPathFinder.find_distributions


def spec(name, path=None, target=None):
    return None if name in MODULES else find_spec(name, path, target)


def distributions(context=importlib.metadata.DistributionFinder.Context()):
    return (found for found in find_distributions(context) if found.metadata["Name"] not in DISTRIBUTIONS)


PathFinder.find_spec, MetadataPathFinder.find_distributions = staticmethod(spec), distributions
"""
TINY = """
from torch import nn


def good():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))
"""
JOB = """
models: [{name: good, factory: "tiny:good", input: [3, 16, 16]}]
engines: [eager, ort]
precisions: [fp32, int8]
device: cpu
budget: {seconds: 0.05, min_samples: 3, repeats: 0}
"""
WITH_A_FILE = JOB.replace("models: [", "models: [{name: theirs, onnx: linear.onnx}, ").replace("ort]", "ort, openvino]")


def write_linear(path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", d]) for n, d in (("x", 4), ("y", 3))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


@pytest.fixture
def run(tmp_path: Path, command_line: Profiler, exports: Cache) -> Callable[..., Rows]:
    """Run a job where some distributions and modules are not installed; its rows by model, variant and precision."""

    def measure(job: str, distributions: Sequence[str], modules: Sequence[str] = ()) -> Rows:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
        (tmp_path / "tiny.py").write_text(TINY)
        (tmp_path / "job.yaml").write_text(job)
        write_linear(tmp_path / "linear.onnx")
        site = {
            "PYTHONPATH": f"{tmp_path / 'site'}:{Path(__file__).resolve().parents[3]}",
            "MISSING_DISTRIBUTIONS": ",".join(distributions),
            "MISSING_MODULES": ",".join(modules),
        }
        done = command_line("job.yaml", cwd=tmp_path, PROFILER_CACHE=str(exports.root), **site)
        (folder,) = (tmp_path / "results").iterdir()
        rows = pl.read_parquet(folder / "results.parquet").to_dicts()
        assert rows, done.stdout + done.stderr
        environment = json.loads((folder / "environment.json").read_text())
        assert not set(distributions) & environment["packages"].keys()
        return {(row["model"], row["variant"], row["precision"]): row for row in rows}

    return measure


def test_distributions_under_other_names_affect_no_row(run: Any) -> None:
    rows = run(JOB, ["onnxruntime-gpu", "onnxscript", "onnx", "torch"])
    assert {key: (row["status"], row["reason"]) for key, row in rows.items() if key[1:] != ("eager", "int8")} == {
        ("good", "eager", "fp32"): ("ok", None),
        ("good", "ort", "fp32"): ("ok", None),
        ("good", "ort", "int8"): ("ok", None),
    }
    assert rows["good", "ort", "fp32"]["onnxruntime_version"], "as the module says"


def test_without_onnx_runtime_only_what_needs_it_is_unsupported(run: Any) -> None:
    pytest.importorskip("openvino")
    rows = run(WITH_A_FILE, ["onnxruntime-gpu"], ["onnxruntime"])
    assert rows["good", "eager", "fp32"]["status"] == "ok"
    assert rows["good", "eager", "fp32"]["rel_l2_error"] is not None
    why = "onnxruntime is not installed: pip install 'onnxruntime>=1.22'"
    for precision in ("fp32", "int8"):
        row = rows["good", "ort", precision]
        assert (row["status"], row["reason"]) == ("unsupported", why)
    row = rows["theirs", "openvino", "fp32"]
    assert row["status"] == "unsupported"
    assert row["reason"] == f"outputs of an ONNX file are checked against ONNX Runtime's: {why}"
