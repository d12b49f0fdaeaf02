"""Make timm's image models, with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

from exporters.declared_inputs import BATCH, DeclaredInput
from exporters.libraries.catalog import Known, similar
from exporters.source import ModelError


def build(name: str, options: Mapping[str, Any]) -> nn.Module:
    """`options` are timm.create_model's keyword arguments, such as num_classes."""
    _check(name)
    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


def inputs(name: str, options: Mapping[str, Any]) -> Known:
    """An image of the size that the model was made for, or of `img_size`."""
    _check(name)
    channels, height, width = timm.get_pretrained_cfg(name).input_size
    size = options.get("img_size", (height, width))
    height, width = (size, size) if isinstance(size, int) else size
    image = DeclaredInput((0,), (BATCH, options.get("in_chans", channels), "height", "width"), "float32")
    return Known((image,), {"height": height, "width": width})


def _check(name: str) -> None:
    if not timm.is_model(name.partition(".")[0]):
        raise ModelError(f"timm has no such model{similar(name, timm.list_models())}")
