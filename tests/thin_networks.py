"""Make canonical networks small where size brings no new operator: fewer repeated blocks, narrow hidden layers."""

from __future__ import annotations

import importlib
from itertools import pairwise

import torch
from torch import nn

from exporters.build_model import SEED, initialize
from exporters.catalog import CATALOG
from exporters.source import ModelSource

HIDDEN = 256


def thin_source(network: str) -> ModelSource:
    """Of the canonical network made thin."""
    shape = CATALOG[network].input_shape
    return ModelSource(f"thin-{network}", factory="thin_networks:thin", input_shape=shape, options={"network": network})


def thin(network: str) -> nn.Module:
    """HIDDEN features between linear layers; of a ResNet each block once that differs by more than its width."""
    family = importlib.import_module(f"exporters.models.{CATALOG[network].family}")
    with torch.device("meta"):
        model: nn.Module = family.build(network)
        for stage, blocks in (("layer1", 2), ("layer2", 2), ("layer3", 1), ("layer4", 1)):
            if hasattr(model, stage):
                model.set_submodule(stage, model.get_submodule(stage)[:blocks])  # type: ignore[index]
        linear = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
        sizes = [next(iter(linear.values())).in_features, *[HIDDEN] * (len(linear) - 1), 1000]
        for path, (inputs, outputs) in zip(linear, pairwise(sizes), strict=True):
            model.set_submodule(path, nn.Linear(inputs, outputs))
    model = model.to_empty(device="cpu").eval()
    initialize(model, torch.Generator().manual_seed(SEED))
    return model
