"""Build the canonical networks, images to logits (batch, 1000), with torchvision's state-dict keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from exporters.catalog import CLASSES

# AlexNet, OverFeat and VGG: convolutions one after another, then three linear layers.


@dataclass(frozen=True)
class Network:
    """Sizes of consecutive convolutions, and the positions of other layers among them."""

    channels: tuple[int, ...]
    paddings: tuple[int, ...]
    kernels: tuple[int, ...] = (11, 5, 3, 3, 3)
    stride: int = 4
    """Stride of the first convolution."""
    pooled: tuple[int, ...] = (0, 1, 4)
    grouped: tuple[int, ...] = ()
    """Places of convolutions in two groups."""
    normalized: tuple[int, ...] = ()
    """Places where LRN comes before the pooling."""
    pooling: int = 2
    """The window's side, at a stride of 2."""
    ceil_mode: bool = False
    positions: int = 6 * 6
    """Height times width of the classifier's features."""
    hidden: tuple[int, int] = (4096, 4096)
    dropout_first: bool = False
    """Place of dropout in the classifier: before each hidden layer (torchvision's AlexNet) or after it (Caffe)."""


def _vgg(*counts: int) -> Network:
    """Return a VGG with `counts` 3x3 convolutions before each of the five poolings."""
    channels = [w for w, count in zip((64, 128, 256, 512, 512), counts, strict=True) for _ in range(count)]
    ends = tuple(total - 1 for total in itertools.accumulate(counts))
    ones = (1,) * len(channels)
    return Network(tuple(channels), ones, (3,) * len(channels), stride=1, pooled=ends, positions=7 * 7)


PLAIN = {
    # https://github.com/BVLC/caffe/blob/master/models/bvlc_alexnet/deploy.prototxt: two groups, and LRN before pooling.
    # Caffe rounds pooled sizes up. That matters at 224 pixels (54 -> 27, then 13 and 6), where the benchmarks measure
    # it; at Caffe's own crop of 227 (55 -> 27) both roundings agree, and the parameters are the same.
    "alexnet": Network(
        (96, 256, 384, 384, 256), (0, 2, 1, 1, 1), grouped=(1, 3, 4), normalized=(0, 1), pooling=3, ceil_mode=True
    ),
    # "One weird trick for parallelizing convolutional neural networks", as torchvision has it: no groups, no LRN.
    "alexnet-owt": Network((64, 192, 384, 256, 256), (2, 2, 1, 1, 1), pooling=3, dropout_first=True),
    # The fast model of the paper's Table 1, with the paddings of the code that convnet-benchmarks measured, whose
    # Threshold(0, 1e-6) is a plain ReLU here:
    # https://github.com/soumith/convnet-benchmarks/blob/master/torch7/imagenet_winners/overfeat.lua
    "overfeat": Network((96, 256, 512, 1024, 1024), (0, 0, 1, 1, 1), hidden=(3072, 4096), dropout_first=True),
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
        for n, shape in enumerate(zip(network.channels, network.kernels, strict=True)):
            stride, groups = 1 if n else network.stride, 2 if n in network.grouped else 1
            layers += [nn.Conv2d(channels, *shape, stride, network.paddings[n], groups=groups), nn.ReLU(True)]
            if n in network.normalized:
                layers.append(LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0))
            if n in network.pooled:
                layers.append(nn.MaxPool2d(network.pooling, stride=2, ceil_mode=network.ceil_mode))
            channels = network.channels[n]
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


# Inception-V1, "googlenet" as in the paper or "googlenet-torch".

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
    """Settings of an Inception-V1 network: the order of layers is fixed."""

    modules: Mapping[str, tuple[int, ...]]
    lrn: tuple[int, float, float, float]
    """Size, alpha, beta and k."""
    rounds_up: bool
    """Pooling: Caffe's rounds sizes up, without padding (112 -> 56 -> 28 -> 14 -> 7); Torch's rounds down, with a
    padding of 1 but after 3b (112 -> 56 -> 28 -> 13 -> 7)."""
    outputs: int
    """Outputs of the classifier; beyond CLASSES the first and the last ones are cut off."""
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


def conv_relu(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU(inplace=True))


class Inception(nn.Module):
    """Four parallel branches, concatenated along the channels."""

    def __init__(self, inputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        single, three_reduce, three, five_reduce, five, projection = widths
        self.branch1 = conv_relu(inputs, single, 1)
        self.branch3 = nn.Sequential(conv_relu(inputs, three_reduce, 1), conv_relu(three_reduce, three, 3))
        self.branch5 = nn.Sequential(conv_relu(inputs, five_reduce, 1), conv_relu(five_reduce, five, 5))
        self.branch_pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv_relu(inputs, projection, 1))
        self.outputs = single + three + five + projection

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)], dim=1)


class GoogLeNet(nn.Module):
    """Inception-V1 with LRN, without batch normalization and auxiliary classifiers, unlike torchvision's."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_relu(3, 64, 7, stride=2),
            variant.pooling(),
            LocalResponseNorm(*variant.lrn),
            conv_relu(64, 64, 1),
            conv_relu(64, 192, 3),
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

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for name, module in self.inception.items():
            x = module(x)
            if name in self.pool:
                x = self.pool[name](x)
        logits: Tensor = self.fc(self.dropout(self.average(x).flatten(1)))
        if self.fc.out_features > CLASSES:
            logits = logits[:, 1 : 1 + CLASSES]
        return logits


# "resnet18" to "resnet200".


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class BasicBlock(nn.Module):
    expansion = 1
    branch_end = "bn2"
    """Names the layer whose weight scales the residual branch: seeded weights make it small (build_model.py)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        return self.relu(x + shortcut)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """The stride is on the 3x3 convolution, as in fb.resnet.torch and torchvision; the paper has it on the first."""

    expansion = 4
    branch_end = "bn3"

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, width * 4, 1)
        self.bn3 = nn.BatchNorm2d(width * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(inputs, width * 4, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        return self.relu(x + shortcut)  # type: ignore[no-any-return]


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """The 1x1 convolution of a shortcut whose shape changes (option B of the paper)."""
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class PreactivationBottleneck(nn.Module):
    """Batch normalization and ReLU come before each convolution; the sum passes on untouched.

    A stage's first block projects its shortcut from the *activated* input, without batch normalization. The first block
    of all gets an input that the stem has activated already. Both as in models/preresnet.lua of fb.resnet.torch.
    """

    expansion = 4
    branch_end = "conv3"

    def __init__(self, inputs: int, width: int, stride: int, activated: bool) -> None:
        super().__init__()
        self.bn1 = nn.Identity() if activated else nn.BatchNorm2d(inputs)
        self.relu1 = nn.Identity() if activated else nn.ReLU(inplace=True)
        self.conv1 = conv(inputs, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, width * 4, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = conv(inputs, width * 4, 1, stride) if inputs != width * 4 else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.relu1(self.bn1(x))
        shortcut = x if self.downsample is None else self.downsample(activated)
        y = self.conv1(activated)
        y = self.conv2(self.relu(self.bn2(y)))
        y = self.conv3(self.relu(self.bn3(y)))
        return y + shortcut  # type: ignore[no-any-return]


# Block, and number of blocks in each of the four stages: Table 1 of "Deep Residual Learning for Image Recognition"; the
# 200-layer row is fb.resnet.torch's.
Block = type[BasicBlock | Bottleneck | PreactivationBottleneck]
RESNETS: dict[str, tuple[Block, tuple[int, int, int, int]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
    "resnet200": (PreactivationBottleneck, (3, 24, 36, 3)),
}


class ResNet(nn.Module):
    """State-dict keys are torchvision's; the pre-activation network adds `bn_last` before the pooling."""

    def __init__(self, block: Block, counts: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = conv(3, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = 64, []
        for stage, count in enumerate(counts):
            blocks: list[nn.Module] = []
            width = 64 * 2**stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                if issubclass(block, PreactivationBottleneck):
                    blocks.append(block(channels, width, stride, activated=stage == index == 0))
                else:
                    blocks.append(block(channels, width, stride))
                channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        preactivated = issubclass(block, PreactivationBottleneck)
        self.bn_last = nn.BatchNorm2d(channels) if preactivated else nn.Identity()
        self.relu_last = nn.ReLU(inplace=True) if preactivated else nn.Identity()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.avgpool(self.relu_last(self.bn_last(x)))
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


BUILDERS: dict[str, Callable[[str], nn.Module]] = {
    "plain": lambda name: PlainNetwork(PLAIN[name]),
    "inception": lambda name: GoogLeNet(VARIANTS[name]),
    "resnet": lambda name: ResNet(*RESNETS[name]),
}
"""Builders of networks by name, by family of the catalog."""
