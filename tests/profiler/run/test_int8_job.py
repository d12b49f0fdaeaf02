"""int8 from the YAML to the row, as a user asks for it: calibrated, proved, and refused where it cannot be."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from runs import Profiler, run_job

NETS = """
from torch import nn

def good():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 10))

def half():
    # ONNX Runtime has no transposed convolution in int8.
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 3, 3), nn.Flatten())

class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x
"""
JOB = """
models:
  - {name: seeded, factory: "nets:good", input: [3, 16, 16]}
  - {name: calibrated, factory: "nets:good", input: [3, 16, 16], calibration: images}
  - {name: misfit, factory: "nets:good", input: [3, 16, 16], calibration: bytes}
  - {name: half, factory: "nets:half", input: [3, 16, 16], calibration: images}
  - {name: branching, factory: "nets:Branching", input: [3, 16, 16]}
engines: [ort, {name: ort, label: plain, optimize: false}, eager]
exclude: [{variant: eager, model: [calibrated, misfit, branching]}]
precisions: [int8]
device: cpu
budget: {seconds: 0.05, min_samples: 3}
"""


@pytest.fixture(scope="module")
def rows(profiler: Profiler, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By model and variant."""
    folder = tmp_path_factory.mktemp("int8")
    (folder / "nets.py").write_text(NETS)
    for name, dtype in (("images", np.float32), ("bytes", np.uint8)):
        (folder / name).mkdir()
        items = np.random.default_rng(0).normal(size=(2, 3, 16, 16)) * 4
        np.save(folder / name / "a.npy", items.astype(dtype))
    results = pl.read_parquet(run_job(profiler, folder, JOB, PROFILER_CACHE=str(folder / "cache")) / "results.parquet")
    return {f"{row['model']}/{row['variant']}": row for row in results.iter_rows(named=True)}


def test_a_graph_is_quantized_and_its_calibration_is_told(rows):
    row = rows["seeded/ort"]
    assert (row["status"], row["reason"]) == ("ok", None)
    assert json.loads(row["proof"])["compute_types"] == {"int8": 2}
    # Without VNNI two products of 8 bits are added in 16, which end at 32,767.
    assert 1e-4 < row["rel_l2_error"] < (0.1 if torch.cpu._is_vnni_supported() else 0.4)
    assert row["export_s"] > 0 and row["flops_per_item"] > 0 and row["tflops"] > 0
    assert (row["fraction_of_peak"], row["floor_ms"]) == (None, None), "an integer roof is not measured"
    of_models = {name: rows[f"{name}/ort"]["calibrated"] for name in ("seeded", "calibrated", "misfit")}
    assert of_models == {"seeded": False, "calibrated": True, "misfit": True}
    kinds = {name: {w.partition(":")[0] for w in rows[f"{name}/ort"]["warnings"]} for name in ("seeded", "calibrated")}
    assert ["calibration" in kinds[name] for name in ("seeded", "calibrated")] == [True, False]
    assert row["rel_l2_error"] != rows["calibrated/ort"]["rel_l2_error"]


def test_what_stays_in_float_is_remarked_or_fails(rows):
    expected = {
        "seeded/plain": ("failed", "asked for int8, computed in float32"),
        "misfit/ort": ("failed", "a.npy: uint8 of shape (2, 3, 16, 16), but an item is float32"),
        "branching/ort": ("failed", "the export to ONNX failed"),
        "half/ort": ("ok", ""),
    }
    assert rows["branching/ort"]["reason"].count("the export to ONNX failed") == 1, "a cause is said once"
    for name, (status, says) in expected.items():
        assert rows[name]["status"] == status
        assert says in (rows[name]["reason"] or "")
    assert any(text.startswith("mixed-precision: 1 of 2 ") for text in rows["half/ort"]["warnings"])


def test_a_module_is_quantized_by_torchao_or_its_row_says_why_not(rows):
    row, without = rows["seeded/eager"], rows["half/eager"]
    assert without["status"] == "unsupported"
    if importlib.util.find_spec("torchao") is None:
        assert (row["status"], row["reason"]) == ("unsupported", without["reason"])
        assert row["reason"].startswith("torchao is not installed: pip install")
        return
    assert without["reason"] == "int8: torchao quantizes nn.Linear layers, and the model has none"
    assert (row["status"], row["calibrated"]) == ("ok", False)
    assert any(text.startswith("mixed-precision: 1 of 2 ") for text in row["warnings"])
    assert row["build_s"] > 0
    assert 1e-4 < row["rel_l2_error"] < 0.1
    proof = json.loads(row["proof"])
    assert proof["compute_types"] == {"float32": 1, "int8": 1}
    assert (proof["linear_layers"], proof["quantized_layers"]) == (1, 1)
    assert "Int8DynamicActivation" in proof["quantized_by"]
