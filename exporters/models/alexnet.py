"""Build "alexnet" (BVLC) or "alexnet-owt": (batch, 3, 224, 224) to (batch, 1000)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from exporters.models.normalization import LocalResponseNorm
from exporters.models.plain import PlainNetwork


@dataclass(frozen=True)
class Stage:
    """One convolution with its ReLU, and what follows it."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    normalized: bool = False
    pooled: bool = False


@dataclass(frozen=True)
class Variant:
    stages: tuple[Stage, ...]
    dropout_first: bool
    """Where dropout is in the classifier: before each hidden layer (torchvision) or after it (Caffe)."""
    ceil_mode: bool


VARIANTS = {
    # https://github.com/BVLC/caffe/blob/master/models/bvlc_alexnet/deploy.prototxt: two groups, and LRN before pooling.
    # Caffe rounds pooled sizes up. That matters at 224 pixels (54 -> 27, then 13 and 6), where the benchmarks measure
    # it; at Caffe's own crop of 227 (55 -> 27) both roundings agree, and the parameters are the same.
    "alexnet": Variant(
        (
            Stage(96, 11, stride=4, normalized=True, pooled=True),
            Stage(256, 5, padding=2, groups=2, normalized=True, pooled=True),
            Stage(384, 3, padding=1),
            Stage(384, 3, padding=1, groups=2),
            Stage(256, 3, padding=1, groups=2, pooled=True),
        ),
        dropout_first=False,
        ceil_mode=True,
    ),
    # "One weird trick for parallelizing convolutional neural networks", as torchvision has it: no groups, no LRN.
    "alexnet-owt": Variant(
        (
            Stage(64, 11, stride=4, padding=2, pooled=True),
            Stage(192, 5, padding=2, pooled=True),
            Stage(384, 3, padding=1),
            Stage(256, 3, padding=1),
            Stage(256, 3, padding=1, pooled=True),
        ),
        dropout_first=True,
        ceil_mode=False,
    ),
}


def build(name: str) -> nn.Module:
    """Five convolutions and three linear layers."""
    variant = VARIANTS[name]
    layers: list[nn.Module] = []
    channels = 3
    for stage in variant.stages:
        layers += [
            nn.Conv2d(channels, stage.channels, stage.kernel, stage.stride, stage.padding, groups=stage.groups),
            nn.ReLU(inplace=True),
        ]
        if stage.normalized:
            layers.append(LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0))
        if stage.pooled:
            layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=variant.ceil_mode))
        channels = stage.channels
    classifier: list[nn.Module] = []
    for inputs in (channels * 6 * 6, 4096):
        hidden = [nn.Linear(inputs, 4096), nn.ReLU(inplace=True)]
        classifier += [nn.Dropout(0.5), *hidden] if variant.dropout_first else [*hidden, nn.Dropout(0.5)]
    return PlainNetwork(layers, [*classifier, nn.Linear(4096, 1000)])
