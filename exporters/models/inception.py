"""Build Inception-V1, "googlenet" as in the paper or "googlenet-torch": (batch, 3, 224, 224) to (batch, 1000)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from exporters.catalog import CLASSES
from exporters.models.plain import LocalResponseNorm
from exporters.source import ModelError

# Widths of each inception module (the paper's Table 1): 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pooling's projection.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


@dataclass(frozen=True)
class Variant:
    """What differs between networks whose layers have the same order."""

    modules: Mapping[str, tuple[int, ...]]
    lrn: tuple[int, float, float, float]
    """Size, alpha, beta and k."""
    rounds_up: bool
    """Pooling: Caffe's rounds sizes up, without padding (112 -> 56 -> 28 -> 14 -> 7); Torch's rounds down, with a
    padding of 1 but after 3b (112 -> 56 -> 28 -> 13 -> 7)."""
    outputs: int
    """Of the classifier. Of more than CLASSES the first and the last ones are cut off."""
    dropout: float

    def pooling(self, padding: int = 1) -> nn.MaxPool2d:
        return nn.MaxPool2d(3, stride=2, padding=0 if self.rounds_up else padding, ceil_mode=self.rounds_up)


VARIANTS = {
    "googlenet": Variant(MODULES, (5, 1e-4, 0.75, 1.0), rounds_up=True, outputs=CLASSES, dropout=0.4),
    # https://github.com/soumith/inception.torch/blob/master/googlenet.lua, which cnn-benchmarks measured. 4a to 4e run
    # at 13x13. Its softmax is left out, as everywhere here; its dropout is commented out there.
    "googlenet-torch": Variant(
        {**MODULES, "4a": (192, 96, 204, 16, 48, 64), "5a": (256, 160, 320, 48, 128, 128)},
        (11, 1.1e-3, 0.5, 2.0),
        rounds_up=False,
        outputs=1008,
        dropout=0.0,
    ),
}


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU(inplace=True))


class Inception(nn.Module):
    """Four parallel branches, concatenated along the channels."""

    def __init__(self, inputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        one, three_reduce, three, five_reduce, five, projection = widths
        self.branch1 = convolution(inputs, one, 1)
        self.branch3 = nn.Sequential(convolution(inputs, three_reduce, 1), convolution(three_reduce, three, 3))
        self.branch5 = nn.Sequential(convolution(inputs, five_reduce, 1), convolution(five_reduce, five, 5))
        self.branch_pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), convolution(inputs, projection, 1))
        self.outputs = one + three + five + projection

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)], dim=1)


def auxiliary_head(inputs: int) -> nn.Sequential:
    """A classifier on 14x14 activations, part of the training loss only (section 5 of the paper)."""
    return nn.Sequential(
        nn.AvgPool2d(5, stride=3),
        convolution(inputs, 128, 1),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 1024),
        nn.ReLU(inplace=True),
        nn.Dropout(0.7),
        nn.Linear(1024, CLASSES),
    )


class GoogLeNet(nn.Module):
    """Inception-V1 with LRN and without batch normalization (torchvision's googlenet has the latter). With `auxiliary`,
    training mode returns (logits, logits after 4a, logits after 4d), eval mode the logits alone."""

    def __init__(self, variant: Variant, auxiliary: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, stride=2),
            variant.pooling(),
            LocalResponseNorm(*variant.lrn),
            convolution(64, 64, 1),
            convolution(64, 192, 3),
            LocalResponseNorm(*variant.lrn),
            variant.pooling(),
        )
        self.inception = nn.ModuleDict()
        channels = 192
        for name, widths in variant.modules.items():
            self.inception[name] = module = Inception(channels, widths)
            channels = module.outputs
        self.pool = nn.ModuleDict({"3b": variant.pooling(padding=0), "4e": variant.pooling()})
        self.average = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(variant.dropout)
        self.fc = nn.Linear(1024, variant.outputs)
        heads = {"4a": auxiliary_head(512), "4d": auxiliary_head(528)} if auxiliary else {}
        self.auxiliary = nn.ModuleDict(heads)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.stem(x)
        extra = []
        for name, module in self.inception.items():
            x = module(x)
            if self.training and name in self.auxiliary:
                extra.append(self.auxiliary[name](x))
            if name in self.pool:
                x = self.pool[name](x)
        logits: Tensor = self.fc(self.dropout(self.average(x).flatten(1)))
        if self.fc.out_features > CLASSES:
            logits = logits[:, 1 : 1 + CLASSES]
        return (logits, *extra) if extra else logits


def build(name: str, auxiliary: bool = False) -> nn.Module:
    if auxiliary and name != "googlenet":
        raise ModelError(f"model {name!r} has no auxiliary classifiers; leave out auxiliary, or take 'googlenet'")
    return GoogLeNet(VARIANTS[name], auxiliary)
