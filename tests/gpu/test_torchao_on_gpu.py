"""torchao on the GPU: int8 and fp8 beside fp16 in eager and compiled: what ran in which type, errors, memory."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from runs import Profiler, run_job

from profiler import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed"),
]

NET = """
from torch import nn
from torch.nn import functional


class Encoder(nn.Module):
    '''Patches, a block of attention and a perceptron, and a head whose ten outputs are no multiple of 8.'''

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 512, 16, 16)
        self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)
        self.wide, self.narrow = nn.Linear(512, 2048), nn.Linear(2048, 512)
        self.first, self.second, self.head = nn.LayerNorm(512), nn.LayerNorm(512), nn.Linear(512, 10)

    def forward(self, image):
        x = self.patches(image).flatten(2).mT
        q, k, v = (part.unflatten(2, (8, 64)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, 2))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.narrow(functional.gelu(self.wide(self.second(x))))
        return self.head(x.mean(1))
"""
JOB = """
models: [{name: encoder, factory: "net:Encoder", input: [3, 224, 224]}]
engines: [eager, compiled]
precisions: [fp16, int8, fp8]
batch_sizes: [8]
device: cuda
budget: {seconds: 0.2, min_samples: 5, build_timeout: 300}
"""
QUANTIZED = {"int8": "int8", "fp8": "float8"}
"""Precisions with the type that products are computed in."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> list[Any]:
    folder = tmp_path_factory.mktemp("torchao")
    (folder / "net.py").write_text(NET)
    run = run_job(profiler, folder, JOB)
    return load(run)[0].collect().to_dicts()


def test_linear_layers_ran_in_8_bits_and_all_else_in_bf16(rows):
    assert len(rows) == 6
    for row in rows:
        assert row["status"] == "ok", (row["case_id"], row["reason"])
        proof = json.loads(row["proof"])
        if row["precision"] in QUANTIZED:
            # All but the head; the convolution and the head are left.
            assert proof["compute_types"] == {QUANTIZED[row["precision"]]: 4, "bfloat16": 2}, row["case_id"]
            assert (proof["linear_layers"], proof["quantized_layers"]) == (5, 4)
            assert row["build_s"] > 0
        assert proof["cuda_graph"] == (row["engine"] == "compiled")
        bound = 0.1 if row["precision"] in QUANTIZED else 0.02
        assert 1e-5 < row["rel_l2_error"] < bound, row["case_id"]
        assert not [warning for warning in row["warnings"] if warning.startswith("inaccurate")]


def test_quantized_weights_take_a_byte(rows):
    size = {(row["engine"], row["precision"]): row["weights_mib"] for row in rows}
    for engine in ("eager", "compiled"):
        for precision in QUANTIZED:
            # Of 3.5 million weights 3.1 million are quantized.
            assert 0.5 < size[engine, precision] / size[engine, "fp16"] < 0.62
