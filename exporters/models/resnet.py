"""Build "resnet18" to "resnet200": (batch, 3, 224, 224) to (batch, 1000)."""

from __future__ import annotations

from torch import Tensor, nn


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class BasicBlock(nn.Module):
    expansion = 1
    branch_end = "bn2"
    """The layer whose weight scales the whole residual branch: seeded weights make it small (build_model.py)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3)
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
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width * 4, 1)
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
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


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
        self.conv1 = convolution(inputs, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width * 4, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = convolution(inputs, width * 4, 1, stride) if inputs != width * 4 else None

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
NETWORKS: dict[str, tuple[Block, tuple[int, int, int, int]]] = {
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
        self.conv1 = convolution(3, 64, 7, stride=2)
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


def build(name: str) -> nn.Module:
    return ResNet(*NETWORKS[name])
