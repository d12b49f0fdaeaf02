"""Describe single layers as data without torch: `Conv2d`, `Linear`, and L1 to L5.

A layer is measured like a network of its own: see `exporters.source.ModelSource.layer`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from exporters.bounds import Count, Padding

Pair = tuple[Count, Count]
"""Height and width."""


@dataclass(frozen=True)
class Conv2d:
    """A two-dimensional convolution. `input` is channels, height and width of one item; the rest as in torch."""

    __pydantic_config__ = {"extra": "forbid", "strict": False}  # noqa: RUF012 -- read by pydantic

    input: tuple[Count, Count, Count]
    out_channels: Count
    kernel: Pair
    stride: Pair = (1, 1)
    padding: tuple[Padding, Padding] = (0, 0)
    dilation: Pair = (1, 1)
    groups: Count = 1
    bias: bool = True

    def __post_init__(self) -> None:
        for what, channels in (("input channels", self.input[0]), ("out_channels", self.out_channels)):
            if channels % self.groups:
                raise ValueError(f"{channels} {what} cannot be divided into {self.groups} groups")
        if min(self.output_size) < 1:
            raise ValueError(f"a kernel of {self.kernel} does not fit into an input of {self.input[1:]}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return self.input

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        height, width = (
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, padding, dilation, kernel, stride in zip(
                self.input[1:], self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        )
        return height, width

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.out_channels * (self._fan_in + self.bias)

    @property
    def multiply_adds(self) -> int:
        """Of one item's forward pass, the bias left out."""
        return self.out_channels * self._fan_in * math.prod(self.output_size)

    @property
    def _fan_in(self) -> int:
        return self.input[0] // self.groups * math.prod(self.kernel)


@dataclass(frozen=True)
class Linear:
    """A fully connected layer; names as in torch."""

    __pydantic_config__ = {"extra": "forbid", "strict": False}  # noqa: RUF012 -- read by pydantic

    in_features: Count
    out_features: Count
    bias: bool = True

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one item."""
        return (self.in_features,)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.out_features * (self.in_features + self.bias)

    @property
    def multiply_adds(self) -> int:
        """Of one item's forward pass, the bias left out."""
        return self.in_features * self.out_features


Layer = Conv2d | Linear

LAYERS: dict[str, Layer] = {
    "L1": Conv2d((3, 128, 128), 96, (11, 11)),
    "L2": Conv2d((64, 64, 64), 128, (9, 9)),
    "L3": Conv2d((128, 32, 32), 128, (9, 9)),
    "L4": Conv2d((128, 16, 16), 128, (7, 7)),
    "L5": Conv2d((384, 13, 13), 384, (3, 3)),
}
"""convnet-benchmarks' layers (https://github.com/soumith/convnet-benchmarks), which it measures at a minibatch of 128;
references/convnet-layer-shapes.csv has them as published. Without padding, which the table does not mention; with a
bias, which torch's SpatialConvolution always has."""
