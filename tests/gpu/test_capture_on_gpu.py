"""A model that no CUDA graph can record runs without one, and the row says why."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from matrix_product import write_text
from runs import run_job

pytestmark = pytest.mark.gpu
JOB = """
models:
  - {name: control_flow, factory: "bad_models:control_flow", input: [3, 8, 8]}
  - {name: good, factory: "bad_models:good", input: [3, 8, 8]}
engines: [eager, eager-tuned]
passes: [inference, training]
batch_sizes: [2]
device: cuda
budget: {seconds: 0.2}
"""


def test_a_branch_on_a_value_is_enqueued_at_every_call(tmp_path, profiler):
    (tmp_path / "bad_models.py").write_text((Path(__file__).parents[1] / "bad_models.py").read_text())
    run = run_job(profiler, tmp_path, JOB)
    for row in pl.read_parquet(run / "results.parquet").to_dicts():
        assert row["status"] == "ok", (row["case_id"], row["reason"])
        told = [warning for warning in row["warnings"] if warning.startswith("no-cuda-graph")]
        assert bool(told) == (row["model"] == "control_flow" and row["variant"] == "eager-tuned"), row["case_id"]
        assert all("y.sum() > 0" in warning for warning in told)


def test_what_a_model_keeps_of_its_first_call_alone_is_made_in_eager(tmp_path, profiler):
    (tmp_path / "kept.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass First(nn.Module):\n    bias = None\n\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(8, 8)\n\n"
        "    def forward(self, x):\n        if self.bias is None:\n            self.bias = self.layer.weight.sum(0)\n"
        "        return self.layer(x) + self.bias\n"
    )
    job = (
        "models:\n  - {name: first, factory: 'kept:First', input: [8]}\nengines: [compiled]\nbatch_sizes: [2, 4]\n"
        "device: cuda\nbudget: {seconds: 0.2}\n"
    )
    rows = pl.read_parquet(run_job(profiler, tmp_path, job) / "results.parquet").to_dicts()
    assert [row["batch_size"] for row in rows] == [2, 4]
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        assert [warning.partition(":")[0] for warning in row["warnings"]].count("eager-first") == 1, row["case_id"]
        assert row["rel_l2_error"] < 1e-2, row["case_id"]


def test_onnx_runtime_goes_on_without_a_graph_where_a_node_is_the_cpus(tmp_path, profiler):
    # Its CUDA provider has no Det, which alone would leave an output that is bound to the GPU as it was (1.31).
    nodes = "a = Relu (x)  b = Det (a)  y = Exp (b)"
    write_text(tmp_path / "d.onnx", f"g (float[batch, 3, 3] x) => (float[batch] y) {{ {nodes} }}")
    job = (
        "models: [{name: det, onnx: d.onnx}]\nengines: [ort-tuned]\nbatch_sizes: [2]\ndevice: cuda\n"
        "budget: {seconds: 0.2}\n"
    )
    run = run_job(profiler, tmp_path, job)
    (row,) = pl.read_parquet(run / "results.parquet").to_dicts()
    assert [warning.partition(":")[0] for warning in row["warnings"]].count("no-cuda-graph") == 1
