"""Make small models of different kinds, for jobs of hundreds of cases."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """Classify a sequence by the last state of an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        return torch.as_tensor(self.head(states[:, -1]))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)).eval()


def convnet() -> nn.Module:
    torch.manual_seed(0)
    widths = [3, 32, 64, 64, 128]
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in pairwise(widths)
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).eval()


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent(256).eval()
