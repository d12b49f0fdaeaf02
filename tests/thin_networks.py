"""Make canonical networks small where size brings no new operator: fewer repeated blocks, narrow hidden layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from exporters.build_model import initialize
from exporters.catalog import CATALOG
from exporters.factories import SEED
from exporters.networks import BUILDERS, RESNETS, VARIANTS, GoogLeNet, ResNet
from exporters.source import ModelSource

HIDDEN = 256
MODULES = ("3b", "4e", "5b")
"""A GoogLeNet's blocks before and after its two inner poolings."""


def thin_source(network: str) -> ModelSource:
    shape = CATALOG[network].input_shape
    return ModelSource(f"thin-{network}", factory="thin_networks:thin", input_shape=shape, options={"network": network})


def thin(network: str) -> nn.Module:
    """HIDDEN features between linear layers; of a ResNet each block once that differs by more than its width."""
    with torch.device("meta"):
        if network in VARIANTS:
            modules = {name: widths for name, widths in VARIANTS[network].modules.items() if name in MODULES}
            model: nn.Module = GoogLeNet(replace(VARIANTS[network], modules=modules))
        elif network in RESNETS:
            # A first block, one that only adds its shortcut, and one with a stride. The others differ by their width.
            model = ResNet(RESNETS[network][0], (2, 1, 0, 0))
        else:
            model = BUILDERS[CATALOG[network].family](network)
        linear = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
        sizes = [next(iter(linear.values())).in_features, *[HIDDEN] * (len(linear) - 1), 1000]
        for path, (inputs, outputs) in zip(linear, pairwise(sizes), strict=True):
            model.set_submodule(path, nn.Linear(inputs, outputs))
    model = model.to_empty(device="cpu").eval()
    initialize(model, torch.Generator().manual_seed(SEED))
    return model
