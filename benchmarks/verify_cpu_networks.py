"""Networks of one operator, or of the same one many times, whose calls take from a microsecond to a second on a CPU."""

from __future__ import annotations

import torch
from torch import nn


class Product(nn.Module):
    """The same square matrix `times` times, so that long calls need no more memory than short ones."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.linear.weight)  # Values neither vanish nor explode.
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.linear(x)
        return x


def identity() -> nn.Module:
    """The shortest call that there is."""
    return nn.Identity()


def product(width: int, times: int) -> nn.Module:
    """`times` products of the batch with one `width` × `width` matrix."""
    return Product(width, times)
