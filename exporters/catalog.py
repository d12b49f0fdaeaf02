"""List the canonical networks, single layers, and the bounds of a job's numbers; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

# Larger numbers cannot be measured and would overflow tables and clocks. All bounds exclude infinity and NaN.
LARGEST = 2**31 - 1
"""The largest 32-bit index, as kernels use."""
Count = Annotated[int, Interval(gt=0, le=LARGEST)]
Replicates = Annotated[int, Interval(gt=0, le=1000)]
Samples = Annotated[int, Interval(ge=3, le=1_000_000)]
Seconds = Annotated[float, Interval(gt=0, le=1e6)]
Repeats = Annotated[float, Interval(ge=0, le=1000)]
"""Multiples of the first measurement's time."""
Price = Annotated[float, Interval(gt=0, le=1e6)]
"""USD an hour."""
CLASSES = 1000
"""ImageNet's classes: every canonical network has them as outputs."""


@dataclass(frozen=True)
class Architecture:
    """One canonical network: 1000 ImageNet classes, logits out, no softmax."""

    name: str
    family: str
    """Key of `exporters.networks.BUILDERS`."""
    input_shape: tuple[int, int, int]
    """Channels, height and width of one item."""
    parameters: int
    multiply_adds: int
    """Per item: one multiplication and one addition count as 1; convolutions and linear layers, biases left out."""
    top1_error: float | None
    """Per cent on ImageNet 2012's validation set, single crop (VGG: dense), as cnn-benchmarks publishes it
    (https://github.com/jcjohnson/cnn-benchmarks); None if it publishes none."""
    top5_error: float | None
    citation: str


# Titles and first authors of the papers.
ALEXNET = "ImageNet Classification with Deep Convolutional Neural Networks. Krizhevsky et al. NIPS 2012"
ONE_WEIRD_TRICK = "One weird trick for parallelizing convolutional neural networks. Krizhevsky. arXiv 2014"
OVERFEAT = "OverFeat: Integrated Recognition, Localization and Detection. Sermanet et al. ICLR 2014"
VGG = "Very Deep Convolutional Networks for Large-Scale Image Recognition. Simonyan, Zisserman. ICLR 2015"
GOOGLENET = "Going Deeper with Convolutions. Szegedy et al. CVPR 2015"
RESNET = "Deep Residual Learning for Image Recognition. He et al. CVPR 2016"
PREACTIVATION = "Identity Mappings in Deep Residual Networks. He et al. ECCV 2016"

IMAGE = (3, 224, 224)

# OverFeat's Table 4, GoogLeNet's section 5 and torchvision's documentation of its weights have the same counts;
# tests/exporters/test_catalog.py counts googlenet-torch and ResNet-200 by hand, from their Lua sources.
ARCHITECTURES = (
    Architecture("alexnet", "plain", IMAGE, 60_965_224, 720_608_384, 42.90, 19.80, ALEXNET),
    Architecture("alexnet-owt", "plain", IMAGE, 61_100_840, 714_188_480, None, None, ONE_WEIRD_TRICK),
    Architecture("overfeat", "plain", (3, 231, 231), 145_920_872, 2_801_403_904, None, None, OVERFEAT),
    Architecture("vgg11", "plain", IMAGE, 132_863_336, 7_609_090_048, None, None, VGG),
    Architecture("vgg16", "plain", IMAGE, 138_357_544, 15_470_264_320, 27.00, 8.80, VGG),
    Architecture("vgg19", "plain", IMAGE, 143_667_240, 19_632_062_464, 27.30, 9.00, VGG),
    Architecture("googlenet", "inception", IMAGE, 6_998_552, 1_582_671_872, None, 10.07, GOOGLENET),
    Architecture("googlenet-torch", "inception", IMAGE, 7_066_380, 1_509_265_120, None, 10.07, GOOGLENET),
    Architecture("resnet18", "resnet", IMAGE, 11_689_512, 1_814_073_344, 30.43, 10.76, RESNET),
    Architecture("resnet34", "resnet", IMAGE, 21_797_672, 3_663_761_408, 26.73, 8.74, RESNET),
    Architecture("resnet50", "resnet", IMAGE, 25_557_032, 4_089_184_256, 24.01, 7.02, RESNET),
    Architecture("resnet101", "resnet", IMAGE, 44_549_160, 7_801_405_440, 22.44, 6.21, RESNET),
    Architecture("resnet152", "resnet", IMAGE, 60_192_808, 11_513_626_624, 22.16, 6.16, RESNET),
    Architecture("resnet200", "resnet", IMAGE, 64_666_152, 15_007_481_856, 21.66, 5.79, PREACTIVATION),
)

CATALOG: dict[str, Architecture] = {row.name: row for row in ARCHITECTURES}


@dataclass(frozen=True)
class Conv2d:
    """A convolution with a bias, without padding, at a stride of 1."""

    input_shape: tuple[int, int, int]
    """Channels, height and width of one item."""
    out_channels: int
    kernel: tuple[int, int]


LAYERS = {
    "L1": Conv2d((3, 128, 128), 96, (11, 11)),
    "L2": Conv2d((64, 64, 64), 128, (9, 9)),
    "L3": Conv2d((128, 32, 32), 128, (9, 9)),
    "L4": Conv2d((128, 16, 16), 128, (7, 7)),
    "L5": Conv2d((384, 13, 13), 384, (3, 3)),
}
"""convnet-benchmarks' layers (https://github.com/soumith/convnet-benchmarks), which it measures at a minibatch of 128;
references/convnet-layer-shapes.csv has them as published. Without padding, which the table does not mention; with a
bias, which torch's SpatialConvolution always has."""
