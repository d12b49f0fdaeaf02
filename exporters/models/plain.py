"""Build AlexNet, OverFeat and VGG: convolutions one after another, then three linear layers; logits (batch, 1000)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


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
class Network:
    stages: tuple[Stage, ...]
    positions: int
    """Of the features that the classifier gets, height times width."""
    dropout_first: bool = False
    """Where dropout is in the classifier: before each hidden layer (torchvision's AlexNet) or after it (Caffe)."""
    hidden: tuple[int, int] = (4096, 4096)
    pooling: int = 2
    """The window's side, at a stride of 2."""
    ceil_mode: bool = False


def _vgg(*counts: int) -> Network:
    """As many 3x3 convolutions before each of the five poolings."""
    stages = [
        Stage(width, 3, padding=1, pooled=number == count)
        for width, count in zip((64, 128, 256, 512, 512), counts, strict=True)
        for number in range(1, count + 1)
    ]
    return Network(tuple(stages), 7 * 7)


NETWORKS = {
    # https://github.com/BVLC/caffe/blob/master/models/bvlc_alexnet/deploy.prototxt: two groups, and LRN before pooling.
    # Caffe rounds pooled sizes up. That matters at 224 pixels (54 -> 27, then 13 and 6), where the benchmarks measure
    # it; at Caffe's own crop of 227 (55 -> 27) both roundings agree, and the parameters are the same.
    "alexnet": Network(
        (
            Stage(96, 11, stride=4, normalized=True, pooled=True),
            Stage(256, 5, padding=2, groups=2, normalized=True, pooled=True),
            Stage(384, 3, padding=1),
            Stage(384, 3, padding=1, groups=2),
            Stage(256, 3, padding=1, groups=2, pooled=True),
        ),
        6 * 6,
        pooling=3,
        ceil_mode=True,
    ),
    # "One weird trick for parallelizing convolutional neural networks", as torchvision has it: no groups, no LRN.
    "alexnet-owt": Network(
        (
            Stage(64, 11, stride=4, padding=2, pooled=True),
            Stage(192, 5, padding=2, pooled=True),
            Stage(384, 3, padding=1),
            Stage(256, 3, padding=1),
            Stage(256, 3, padding=1, pooled=True),
        ),
        6 * 6,
        dropout_first=True,
        pooling=3,
    ),
    # The fast model of the paper's Table 1, with the paddings of the code that convnet-benchmarks measured, whose
    # Threshold(0, 1e-6) is a plain ReLU here:
    # https://github.com/soumith/convnet-benchmarks/blob/master/torch7/imagenet_winners/overfeat.lua
    "overfeat": Network(
        (
            Stage(96, 11, stride=4, pooled=True),
            Stage(256, 5, pooled=True),
            Stage(512, 3, padding=1),
            Stage(1024, 3, padding=1),
            Stage(1024, 3, padding=1, pooled=True),
        ),
        6 * 6,
        dropout_first=True,
        hidden=(3072, 4096),
    ),
    # Models A, D and E of the paper's Table 1.
    "vgg11": _vgg(1, 1, 2, 2, 2),
    "vgg16": _vgg(2, 2, 3, 3, 3),
    "vgg19": _vgg(2, 2, 4, 4, 4),
}


class LocalResponseNorm(nn.LocalResponseNorm):
    """`torch.nn.LocalResponseNorm` that exports as one ONNX LRN node, with the same mathematics and no parameters.

    Left alone, torch decomposes it into ten nodes around a three-dimensional AveragePool, which has no fp16 or bf16
    kernel on the CPU and hides the layer from runtimes that fuse LRN (ORT's CUDA provider and TensorRT each have it as
    one kernel). ONNX's alpha is divided by the window's size as torch's is.
    """

    def forward(self, input: Tensor) -> Tensor:
        if torch.onnx.is_in_onnx_export():
            attributes: dict[str, Any] = {"alpha": self.alpha, "beta": self.beta, "bias": self.k, "size": self.size}
            # LRN-13 is the operator's newest version: https://onnx.ai/onnx/operators/onnx__LRN.html
            dtype, shape = input.dtype, input.shape
            return torch.onnx.ops.symbolic("LRN", (input,), attributes, dtype=dtype, shape=shape, version=13)
        return super().forward(input)


class PlainNetwork(nn.Module):
    """Images go through `features`, which are flattened and go through `classifier`. State-dict keys are torchvision's.

    torchvision puts an adaptive pooling in between that changes nothing at the canonical input but would be a kernel.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for s in network.stages:
            layers += [nn.Conv2d(channels, s.channels, s.kernel, s.stride, s.padding, groups=s.groups), nn.ReLU(True)]
            if s.normalized:
                layers.append(LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0))
            if s.pooled:
                layers.append(nn.MaxPool2d(network.pooling, stride=2, ceil_mode=network.ceil_mode))
            channels = s.channels
        self.features = nn.Sequential(*layers)
        classifier: list[nn.Module] = []
        inputs = channels * network.positions
        for width in network.hidden:
            hidden = [nn.Linear(inputs, width), nn.ReLU(True)]
            classifier += [nn.Dropout(0.5), *hidden] if network.dropout_first else [*hidden, nn.Dropout(0.5)]
            inputs = width
        self.classifier = nn.Sequential(*classifier, nn.Linear(inputs, 1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


def build(name: str) -> nn.Module:
    return PlainNetwork(NETWORKS[name])
