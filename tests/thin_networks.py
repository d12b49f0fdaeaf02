"""Make canonical networks small where size brings no new operator: fewer repeated blocks, narrow hidden layers."""

from __future__ import annotations

import importlib
from itertools import pairwise

import torch
from torch import nn

from exporters.build_model import SEED, initialize
from exporters.catalog import CATALOG

HIDDEN = 256


def thin(network: str) -> nn.Module:
    """The first two blocks of each of a ResNet's stages; between linear layers HIDDEN features."""
    family = importlib.import_module(f"exporters.models.{CATALOG[network].family}")
    with torch.device("meta"):
        model: nn.Module = family.build(network)
        for path, module in list(model.named_modules()):
            if path.startswith("layer") and "." not in path:
                model.set_submodule(path, nn.Sequential(*list(module.children())[:2]))
        linear = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
        sizes = [next(iter(linear.values())).in_features, *[HIDDEN] * (len(linear) - 1), 1000]
        for path, (inputs, outputs) in zip(linear, pairwise(sizes), strict=True):
            model.set_submodule(path, nn.Linear(inputs, outputs))
    model = model.to_empty(device="cpu").eval()
    initialize(model, torch.Generator().manual_seed(SEED))
    return model
