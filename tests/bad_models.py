"""Models that no graph can hold whole, and a good one."""

from torch import nn


class Net(nn.Module):
    """A convolution, a pool and a product, and what is `then` done with its output."""

    def __init__(self, then=lambda y: y):
        super().__init__()
        self.stem, self.head, self.then = nn.Conv2d(3, 4, 3), nn.Linear(4, 5), then

    def forward(self, x):
        return self.then(self.head(self.stem(x).relu().mean((2, 3))))


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


def control_flow():
    return Branches()
