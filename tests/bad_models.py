"""Define models that go wrong in ways that happen by accident, and good ones between them."""

import sys

import torch
from torch import nn


class Net(nn.Module):
    """A convolution, a pool and a product, and what is `then` done with its output."""

    def __init__(self, then=lambda y: y):
        super().__init__()
        self.stem, self.head, self.then = nn.Conv2d(3, 4, 3), nn.Linear(4, 5), then

    def forward(self, x):
        return self.then(self.head(self.stem(x).relu().mean((2, 3))))


class TwoInputs(Net):
    def forward(self, image, mask):
        return super().forward(image) * mask


class Trained(Net):
    """Calls a batch normalization by its function, which `eval` does not reach."""

    def forward(self, x):
        return super().forward(nn.functional.batch_norm(x, None, None, training=True))


class Elsewhere(Net):
    """Keeps a tensor in a list, which does not move with the module."""

    def __init__(self):
        super().__init__()
        self.scales = [torch.ones(3, 1, 1, device="meta")]

    def forward(self, x):
        return super().forward(x * self.scales[0])


class Branches(Net):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


class Remembers(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


def good():
    return Net()


def raises():
    return nn.Linear(8, 5, width=3)


def exits():
    sys.exit("no license")


def no_module():
    return Net().state_dict()


def wrong_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def missing_input():
    return TwoInputs()


def no_tensor():
    return Net(lambda y: ["cat"] * len(y))


def nan():
    return Net(lambda y: (y - 100).log())


def other_device():
    return Elsewhere()


def training_mode():
    return Trained()


def control_flow():
    return Branches()


def operator():
    return Net(torch.special.bessel_j0)


def remembers():
    return Remembers()


def half():
    return Net().train().half()


def no_parameters():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
