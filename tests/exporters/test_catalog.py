"""The catalog's rows say what the networks are; layers have modules, weights, graphs, keys and costs like theirs."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from exporters.build_model import build, load, structure
from exporters.cache import Cache
from exporters.catalog import CATALOG, LAYERS, Conv2d
from exporters.flops import cached_cost
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import export_onnx
from exporters.source import ModelSource

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", CATALOG)
def test_row_describes_its_network(name: str) -> None:
    row = CATALOG[name]
    with torch.device("meta"):
        model = structure(ModelSource(name)).eval()
        with FlopCounterMode(display=False) as counter:
            logits = model(torch.empty(2, *row.input_shape))
    assert logits.shape == (2, 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == row.parameters
    assert counter.get_total_flops() == 2 * 2 * row.multiply_adds  # two operations each, two items


def test_importing_catalog_and_inputs_leaves_torch_out() -> None:
    code = (
        "import sys, exporters.catalog, exporters.inputs, exporters.cache, exporters.onnx_export\n"
        "from exporters.weights import source_key\n"
        "from exporters.source import ModelSource\n"
        "from exporters.catalog import LAYERS\n"
        "assert len({source_key(ModelSource('resnet50')), source_key(ModelSource('L1', layer=LAYERS['L1']))}) == 2\n"
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SMALL = ModelSource("a-layer", layer=Conv2d((6, 11, 14), 10, (5, 2)))


def forward(module: nn.Module, batch: int) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = module(torch.from_numpy(seeded_inputs(input_specs(SMALL), batch)[0]))
    return output


def test_a_layers_work_is_counted(cache: Cache) -> None:
    """Unlike a network's first layer, a layer computes the gradient of its input too."""
    output, weights = forward(build(SMALL), 2), 10 * (6 * 5 * 2 + 1)
    assert output.shape == (2, 10, 7, 13)
    cost = cached_cost(SMALL, input_specs(SMALL), cache, export_onnx(SMALL, "fp32", cache).path, trains=True)
    multiply_adds = 10 * 7 * 13 * 6 * 5 * 2
    assert (cost.flops("inference"), cost.flops("training")) == (2 * multiply_adds, 3 * 2 * multiply_adds)
    assert cost.weight_bytes("fp16") == 2 * weights


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_export_computes_what_torch_computes(precision: str, cache: Cache) -> None:
    path = export_onnx(SMALL, precision, cache).path
    types = {tensor.data_type for tensor in onnx.load(path).graph.initializer if len(tensor.dims) > 1}
    assert types == {{"fp32": onnx.TensorProto.FLOAT, "fp16": 10, "bf16": 16}[precision]}
    if precision == "bf16":
        return  # ONNX Runtime has no bf16 convolution; the checker has inferred all shapes and types.
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (x,) = seeded_inputs(input_specs(SMALL), 3)
    (got,) = session.run(None, {"x": x.astype({"fp32": np.float32, "fp16": np.float16}[precision])})
    np.testing.assert_allclose(got, forward(load(SMALL), 3), atol=1e-4 if precision == "fp32" else 3e-2)


def test_l1_to_l5_are_the_published_ones() -> None:
    rows = list(csv.DictReader((ROOT / "references" / "convnet-layer-shapes.csv").open()))
    published = {
        row["layer"]: Conv2d(
            (int(row["in_channels"]), int(row["input_height"]), int(row["input_width"])),
            int(row["out_channels"]),
            (int(row["kernel_height"]), int(row["kernel_width"])),
        )
        for row in rows
    }
    assert published == LAYERS
    assert {(row["stride_height"], row["stride_width"]) for row in rows} == {("1", "1")}
