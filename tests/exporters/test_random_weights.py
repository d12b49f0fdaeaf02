"""Weights that a library starts as constants are drawn, and batch normalization without statistics gets some."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from exporters.random_weights import RESIDUAL_SCALE, calibrate, vary_constants


class Net(nn.Module):
    """A residual branch that ends in a scale of 0, one in layer scale, and a head that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.branch = nn.Conv2d(8, 8, 1)
        self.end = nn.BatchNorm2d(8)
        self.gamma = nn.Parameter(torch.full((8,), 1e-6))
        self.gain = nn.Parameter(torch.zeros(()))
        self.head = nn.Linear(8, 4)
        self.focal = nn.Parameter(torch.full((4,), -4.6))
        for parameter in (self.stem.bias, self.branch.bias, self.end.weight, *self.head.parameters()):
            assert parameter is not None
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.stem(x)) * 100
        y = y + self.end(self.branch(y)) + self.gain * y.tanh()
        y = y + self.gamma[:, None, None] * y.sin()
        return self.head(y.mean((2, 3))) + self.focal


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    net = Net().eval()
    vary_constants(net, torch.Generator().manual_seed(0))
    return net


def test_every_parameter_reaches_the_output(net: Net) -> None:
    x = torch.randn(2, 3, 6, 6)
    expected = net(x)
    for name, parameter in net.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(2) if parameter.any() else parameter.add_(1)  # As far off as without it.
        change = torch.linalg.vector_norm(net(x) - expected) / torch.linalg.vector_norm(expected)
        assert change > 1e-4, name
        with torch.no_grad():
            parameter.copy_(kept)


def test_scales_stay_near_1_and_residual_ones_below(net: Net) -> None:
    assert 0.75 <= net.norm.weight.min() < net.norm.weight.max() <= 1.25
    for scale in (net.end.weight, net.gamma, net.gain):
        assert 0.75 * RESIDUAL_SCALE <= scale.min() <= scale.max() <= 1.25 * RESIDUAL_SCALE
    assert torch.equal(net.focal, torch.full((4,), -4.6)), "a constant that says something"


def test_what_is_no_constant_is_kept() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    nn.init.normal_(net.get_parameter("1.weight"))
    before = {name: value.clone() for name, value in net.named_parameters()}
    vary_constants(net, torch.Generator().manual_seed(1))
    kept = {name for name, value in net.named_parameters() if torch.equal(value, before[name])}
    assert kept == {"0.weight", "0.bias", "1.weight"}


def test_biases_do_not_hide_the_input() -> None:
    torch.manual_seed(0)
    net = nn.Linear(64, 100)
    nn.init.normal_(net.weight, std=2e-5)  # timm's BEiT starts its last layer so.
    nn.init.zeros_(net.bias)
    vary_constants(net, torch.Generator().manual_seed(0))
    y = net(torch.randn(8, 64))
    assert 0.02 < net.bias.std() / y.std() < 0.5


def test_a_deep_network_of_batch_norms_does_not_amplify_rounding() -> None:
    torch.manual_seed(0)
    layers = [[nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()] for _ in range(40)]
    net = nn.Sequential(nn.Conv2d(3, 16, 1), *(each for layer in layers for each in layer)).eval()
    vary_constants(net, torch.Generator().manual_seed(0))
    x = torch.randn(8, 3, 8, 8)
    calibrate(net, lambda: net(x))
    expected = net(x)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.half())
    change = torch.linalg.vector_norm(net(x) - expected) / torch.linalg.vector_norm(expected)
    assert change < 0.05  # With biases around 0 it is 0.36.
    assert expected.std(0).mean() > 0.02 * expected.std(), "all items alike"


def test_only_statistics_that_are_not_there_are_taken(net: Net) -> None:
    trained = torch.full((8,), 3.0)
    net.end.running_mean = trained.clone()
    x = torch.randn(8, 3, 6, 6)
    calibrate(net, lambda: net(x))
    assert torch.equal(net.end.running_mean, trained)
    y = net.stem(x)
    assert net.norm.running_mean is not None
    torch.testing.assert_close(net.norm.running_mean, y.mean((0, 2, 3)))
    assert not net.norm.training
    assert not net.end.training


def test_a_model_that_does_not_run_keeps_its_mode(net: Net) -> None:
    with pytest.raises(RuntimeError):
        calibrate(net, lambda: net(torch.randn(1, 5, 6, 6)))
    assert not net.norm.training
    assert net.norm.momentum == 0.1


def test_statistics_are_all_taken_or_none(net: Net) -> None:
    def fails_late() -> None:
        net(torch.randn(8, 3, 6, 6))
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        calibrate(net, fails_late)
    for norm in (net.norm, net.end):
        assert norm.running_mean is not None
        assert not norm.running_mean.any()
