"""Models with several inputs, and of libraries, run in every engine that is installed on the GPU."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import polars as pl
import pytest

pytestmark = pytest.mark.gpu

NETS = """
import torch
from torch import nn


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 5)

    def forward(self, ids, mask):
        # For parts of several sizes ONNX Runtime's kernels copy from pinned memory, which its session has to free.
        first, *others = self.layer(self.table(ids)).split([10, 22, 32], -1)
        hidden = torch.cat([*others, first], -1) * mask[..., None]
        return {"logits": self.head(hidden.sum(1)), "hidden": hidden, "cache": None}


def text():
    torch.manual_seed(0)
    mask = (torch.arange(32) < torch.randint(1, 33, (4, 1))).long()
    return Text().eval(), {"ids": torch.randint(1000, (4, 32)), "mask": mask}
"""
JOB = """
models: [{model}]
engines: [eager, eager-tuned, compiled, ort, ort-tuned, trt, trt-rtx]
precisions: [fp32, fp16]
batch_sizes: [1, 3]
device: cuda
exclude:
  - {{variant: [eager-tuned, compiled, ort-tuned, trt, trt-rtx], precision: fp32}}
  - {{precision: fp16, batch_size: 1}}
"""
"""Nine cells without TensorRT: plain variants at fp32 and two batches, all at fp16 and one, where one is compiled."""
TEXT = """{name: text, factory: "nets:text"}"""


def needing(package: str, word: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.param(word, marks=pytest.mark.skipif(missing, reason=f"{package} is not installed"), id=word[:20])


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(TEXT, id="own"),
        needing("timm", "timm:vit_tiny_patch16_224"),
        needing("torchvision", "torchvision:resnet18"),
        needing("transformers", "{name: bert, network: 'hf:BertModel', options: {num_hidden_layers: 2}}"),
    ],
)
def test_every_engine_runs_it_or_says_why(model, tmp_path, command_line):
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "job.yaml").write_text(JOB.format(model=model))
    done = command_line("job.yaml", "--quick", cwd=tmp_path)
    print(done.stdout, done.stderr)
    (results,) = tmp_path.glob("results/*/results.parquet")
    rows = pl.read_parquet(results).to_dicts()
    wrong = {row["case_id"]: row["reason"] for row in rows if row["status"] not in ("ok", "unsupported")}
    assert wrong == {}
    assert [row["case_id"] for row in rows if any(w.startswith("unclosed") for w in row["warnings"])] == []
    compared = {row["variant"] for row in rows if row["rel_l2_error"] is not None}
    assert compared >= {"eager", "eager-tuned", "compiled", "ort", "ort-tuned"}
    tuned = [json.loads(row["proof"]) for row in rows if row["variant"] == "eager-tuned" and row["status"] == "ok"]
    assert tuned
    assert all(proof["cuda_graph"] for proof in tuned)
