"""A captured model that takes another path than eager does is warned of, with CUPTI's names of the kernels."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from runs import Profiler, run_job

pytestmark = pytest.mark.gpu
NETS = """
import torch
from torch import nn


class Twofold(nn.Module):
    \"\"\"Computes in fp32, and eight times, what eager computes once, while a graph is captured.\"\"\"

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2048, 2048) / 45)

    def forward(self, x):
        y = x @ self.weight
        if torch.cuda.is_current_stream_capturing():
            for _ in range(8):
                y = (x.float() @ self.weight.float()).to(x.dtype)
        return y
"""


def test_a_captured_path_with_other_kernels_is_named(tmp_path: Path, profiler: Profiler) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    job = (
        'models: [{name: twofold, factory: "nets:Twofold", input: [2048]}]\nengines: [eager, eager-tuned]\n'
        "precisions: [fp16]\nbatch_sizes: [2048]\ndevice: cuda\nbudget: {seconds: 0.5}\n"
    )
    run = run_job(profiler, tmp_path, job)
    rows = {row["variant"]: row for row in pl.read_parquet(run / "results.parquet").to_dicts()}
    told = {v: [w for w in row["warnings"] if w.startswith("slower-kernels")] for v, row in rows.items()}
    assert told["eager"] == []
    (warning,) = told["eager-tuned"]
    captured, _, eager = warning.partition(" where eager runs ")
    assert " ms" in captured, warning
    assert " ms" in eager, warning
