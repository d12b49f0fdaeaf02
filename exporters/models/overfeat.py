"""Build "overfeat", the fast network: (batch, 3, 231, 231) to (batch, 1000)."""

from __future__ import annotations

from torch import nn

from exporters.models.plain import PlainNetwork

# Channels, kernel, stride, padding of each convolution, and whether a 2x2 pooling follows: the fast model of the
# paper's Table 1, with the paddings of the code that convnet-benchmarks measured,
# https://github.com/soumith/convnet-benchmarks/blob/master/torch7/imagenet_winners/overfeat.lua
CONVOLUTIONS = (
    (96, 11, 4, 0, True),
    (256, 5, 1, 0, True),
    (512, 3, 1, 1, False),
    (1024, 3, 1, 1, False),
    (1024, 3, 1, 1, True),
)


def build(name: str) -> nn.Module:
    """Five convolutions and three linear layers; the benchmark's Threshold(0, 1e-6) is a plain ReLU here."""
    if name != "overfeat":
        raise KeyError(name)
    layers: list[nn.Module] = []
    channels = 3
    for width, kernel, stride, padding, pooled in CONVOLUTIONS:
        layers += [nn.Conv2d(channels, width, kernel, stride, padding), nn.ReLU(inplace=True)]
        if pooled:
            layers.append(nn.MaxPool2d(2, stride=2))
        channels = width
    classifier = [
        nn.Dropout(0.5),
        nn.Linear(1024 * 6 * 6, 3072),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(3072, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, 1000),
    ]
    return PlainNetwork(layers, classifier)
