"""Make the image models of timm and torchvision, with random weights; imports each where it is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from exporters.libraries import DeclaredInputs, similar
from exporters.source import BATCH, ModelError, TensorSpec

_IMAGE = 224
_OTHER_IMAGES = {"inception_v3": 299}


def build_timm(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Make the model; `options` are timm.create_model's keyword arguments, such as num_classes."""
    model: nn.Module = _timm(name).create_model(name, pretrained=False, **options)
    return model


def inputs_timm(name: str, options: Mapping[str, Any]) -> DeclaredInputs:
    """Return an image of the size that the model was made for, or of `img_size`."""
    channels, height, width = _timm(name).get_pretrained_cfg(name).input_size
    size = options.get("img_size", (height, width))
    height, width = (size, size) if isinstance(size, int) else size
    image = TensorSpec("x", (BATCH, options.get("in_chans", channels), "height", "width"), "float32")
    return DeclaredInputs((image,), {"height": height, "width": width})


def _timm(name: str) -> Any:
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise ModelError(f"timm has no such model{similar(name, timm.list_models())}")
    return timm


def build_torchvision(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Make the model; `options` are the keyword arguments of torchvision's builder, such as num_classes."""
    builder = _builder(name)
    # A detector's backbone has weights of its own, which are downloaded unless they are refused.
    backbone = {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    model: nn.Module = builder(**{"weights": None, **backbone, **options})
    return model


def inputs_torchvision(name: str, options: Mapping[str, Any]) -> DeclaredInputs:
    """Return an image of the model's usual size."""
    module = _builder(name).__module__
    side = options.get("image_size", _OTHER_IMAGES.get(name, _IMAGE))
    # Detectors scale pixels from 0 to 1.
    span = (0.0, 1.0) if ".detection" in module else None
    image = TensorSpec("x", (BATCH, 3, "height", "width"), "float32", range=span)
    return DeclaredInputs((image,), {"height": side, "width": side})


def _builder(name: str) -> Any:
    import torchvision

    names = torchvision.models.list_models()
    if name not in names:
        raise ModelError(f"torchvision has no such model{similar(name, names)}")
    return torchvision.models.get_model_builder(name)
