"""References that are taken on the GPU are those of the CPU, but for rounding."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from exporters.gradients import relative_l2
from exporters.source import ModelSource
from profiler.worker.outputs import read_outputs
from profiler.worker.prepare_model import prepare_model

sys.path.insert(0, str(Path(__file__).resolve().parent))
import graphs

pytestmark = pytest.mark.gpu

SLOW = """
import time

import torch
from torch import nn


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        if x.device.type == "cpu" and len(x) == 1:
            time.sleep(8)  # Times 8 is more than a CPU may take.
        return self.layer(x)


class Large(Slow):
    def forward(self, x):
        if x.device.type == "cpu" and torch.is_inference_mode_enabled():
            raise MemoryError("out of memory")
        return self.layer(x)
"""


@pytest.mark.parametrize("name", ["resnet18", "alexnet", "graph"])
def test_both_devices_give_the_same_reference(name: str, tmp_path: Path) -> None:
    # With TF32 these differ by 1e-4 and more.
    model = ModelSource(name, onnx=graphs.convolution(tmp_path / "g.onnx")) if name == "graph" else ModelSource(name)
    found: dict[str, Any] = {}
    for run, device in (("cpu", "cpu"), ("first", "cuda"), ("second", "cuda")):
        made = prepare_model((model, (device,), tmp_path / "cache"), lambda message: None)
        assert made.reference is not None
        assert (made.taken.device, made.taken.batch) == (device, 8)
        found[run] = list(read_outputs(made.reference).values())
        shutil.rmtree(tmp_path / "cache" / "reference")
    for cpu, first, second in zip(*found.values(), strict=True):
        assert relative_l2(first, cpu) < 1e-5
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["Slow", "Large"])
def test_what_the_cpu_cannot_afford_is_compared_with_the_gpus(name: str, tmp_path: Path, command_line: Any) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    model = f'{{name: slow, factory: "slow:{name}", input: [3, 16, 16]}}'
    (tmp_path / "job.yaml").write_text(f"models: [{model}]\nengines: [eager]\nbatch_sizes: [2]\ndevice: cuda\n")
    command_line("job.yaml", "--quick", cwd=tmp_path)
    rows = pl.read_parquet(tmp_path / "results/*/results.parquet").to_dicts()
    assert len(rows) == 3, "the base has three processes"
    for row in rows:
        assert (row["status"], row["reference"]) == ("ok", "eager-fp32-cuda"), row["reason"]
        assert row["rel_l2_error"] <= row["rel_l2_error_high"] < 1e-5
