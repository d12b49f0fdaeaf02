"""Make torchvision's models, with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torchvision
from torch import nn

from exporters.declared_inputs import BATCH, DeclaredInput
from exporters.libraries.catalog import Known, similar
from exporters.source import ModelError

_IMAGE = 224
_OTHER_IMAGES = {"inception_v3": 299}
_VIDEO = (16, 112)
"""Frames and their height and width, of torchvision.models.video."""


def build(name: str, options: Mapping[str, Any]) -> nn.Module:
    """`options` are the keyword arguments of torchvision's builder, such as num_classes."""
    builder = _builder(name)
    # A detector's backbone has weights of its own, which are downloaded unless they are refused.
    backbone = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    model: nn.Module = builder(**{"weights": None, **backbone, **options})
    return model


def inputs(name: str, options: Mapping[str, Any]) -> Known:
    """An image of 224 by 224, as classifiers take it, or a clip of 16 frames. Detectors take a batch item by item."""
    module = _builder(name).__module__
    if ".video" in module:
        frames, side = _VIDEO
        clip = DeclaredInput((0,), (BATCH, 3, "frames", "height", "width"), "float32")
        return Known((clip,), {"frames": frames, "height": side, "width": side})
    if ".optical_flow" in module:
        pair = tuple(DeclaredInput((n,), (BATCH, 3, "height", "width"), "float32") for n in range(2))
        return Known(pair, {"height": 128, "width": 128})
    side = options.get("image_size", _OTHER_IMAGES.get(name, _IMAGE))
    # Detectors scale pixels from 0 to 1.
    span = (0.0, 1.0) if ".detection" in module else None
    image = DeclaredInput((0,), (BATCH, 3, "height", "width"), "float32", span)
    return Known((image,), {"height": side, "width": side})


def _builder(name: str) -> Any:
    names = torchvision.models.list_models()
    if name not in names:
        raise ModelError(f"torchvision has no such model{similar(name, names)}")
    return torchvision.models.get_model_builder(name)
