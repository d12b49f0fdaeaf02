"""The catalog's rows say what the networks are; layers have modules, weights, graphs, keys and costs like theirs."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from exporters.build_model import structure
from exporters.catalog import CATALOG, LAYERS, Conv2d
from exporters.source import ModelSource

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", CATALOG)
def test_row_describes_its_network(name):
    row = CATALOG[name]
    with torch.device("meta"):
        model = structure(ModelSource(name)).eval()
        with FlopCounterMode(display=False) as counter:
            logits = model(torch.empty(2, *row.input_shape))
    assert logits.shape == (2, 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == row.parameters
    assert counter.get_total_flops() == 2 * 2 * row.multiply_adds  # two operations each, two items


def test_importing_catalog_and_inputs_leaves_torch_out():
    code = (
        "import sys, exporters.catalog, exporters.inputs, exporters.cache, exporters.onnx_export\n"
        "from exporters.weights import source_key\n"
        "from exporters.source import ModelSource\n"
        "from exporters.catalog import LAYERS\n"
        "assert len({source_key(ModelSource('resnet50')), source_key(ModelSource('L1', layer=LAYERS['L1']))}) == 2\n"
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_l1_to_l5_are_the_published_ones():
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
