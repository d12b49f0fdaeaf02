"""Build "vgg11", "vgg16" or "vgg19": (batch, 3, 224, 224) to (batch, 1000)."""

from __future__ import annotations

from torch import nn

from exporters.models.plain import PlainNetwork

# Width and number of 3x3 convolutions before each of the five poolings: models A, D and E of the paper's Table 1.
STAGES = {
    "vgg11": ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)),
    "vgg16": ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)),
    "vgg19": ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)),
}


def build(name: str) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, count in STAGES[name]:
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, stride=2))
    classifier = [
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(4096, 1000),
    ]
    return PlainNetwork(layers, classifier)
