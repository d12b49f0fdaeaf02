"""Give networks of equal blocks, so that one's work is a known share more than the other's."""

from __future__ import annotations

from torch import nn


def six() -> nn.Module:
    return _blocks(6)


def seven() -> nn.Module:
    """Return a network with 17 % more work than `six`."""
    return _blocks(7)


def ten() -> nn.Module:
    """Return a network with 67 % more work than `six`."""
    return _blocks(10)


def _blocks(count: int) -> nn.Module:
    layers = [(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(count)]
    return nn.Sequential(*(layer for block in layers for layer in block))
