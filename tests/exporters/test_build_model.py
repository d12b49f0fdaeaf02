"""Modules get the right weights, seeded ones that every parity figure sees, and errors that help."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from exporters import load_model
from exporters.build_model import (
    CALIBRATION_ITEMS,
    build,
    calibrate,
    initialize,
    load,
    restore,
    vary_constants,
)
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelError, ModelSource
from exporters.weights import source_key


def states_equal(first: nn.Module, second: nn.Module) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module")
def resnet18() -> nn.Module:
    return load_model("resnet18")


@pytest.fixture(scope="module")
def googlenet() -> dict[str, Tensor]:
    return load_model("googlenet").state_dict()


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "resnet50"])
def test_seeded_activations_stay_in_range(name):
    """Far inside fp16's 65504, and neither vanishing nor the same for every item."""
    source = ModelSource(name)
    model = load(source)
    peaks: list[float] = []

    def record(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        peaks.append(output.abs().max().item())

    for module in model.modules():
        module.register_forward_hook(record)
    with torch.no_grad():
        logits = model(torch.from_numpy(seeded_inputs(input_specs(source), batch=2)[0]))
    assert max(peaks) < 100
    assert 0.1 < logits.std() < 30
    assert (logits[0] - logits[1]).std() > 0.01


def test_seeded_resnet_is_well_conditioned():
    """fp32 against fp64: 3e-4 for ResNet-152 whose residual branches are at full scale, 3e-6 here. On smaller images,
    which do not change how deep it is."""
    model = build(ModelSource("resnet152"))
    generator = torch.Generator().manual_seed(0)
    initialize(model, generator)
    items = torch.randn(CALIBRATION_ITEMS, 3, 64, 64, generator=generator)
    calibrate(model, lambda: model(items))
    x = torch.randn(1, 3, 64, 64, generator=generator)
    with torch.no_grad():
        actual = model(x).double()
        expected = model.double()(x.double())
    assert torch.linalg.vector_norm(actual - expected) < 2e-5 * torch.linalg.vector_norm(expected)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_file(tmp_path, suffix, googlenet):
    state = {**googlenet, "fc.bias": torch.full((1000,), 3.0)}
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    model = load_model("googlenet", weights=path)
    assert torch.equal(model.get_parameter("fc.bias"), state["fc.bias"])
    assert torch.equal(model.get_parameter("fc.weight"), state["fc.weight"])


def test_weights_that_do_not_fit_name_the_keys(tmp_path, googlenet):
    state = dict(googlenet)
    state["head.bias"] = state.pop("fc.bias")
    state["fc.weight"] = torch.zeros(10, 1024)
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(ModelError) as caught:
        load_model("googlenet", weights=tmp_path / "weights.pt")
    for words in ("Missing key(s)", '"fc.bias"', '"head.bias"', "size mismatch for fc.weight"):
        assert words in str(caught.value)


@pytest.fixture
def checkpoint(tmp_path: Path, small: ModelSource) -> ModelSource:
    state = {f"module.{name}": tensor + 1 for name, tensor in build(small).state_dict().items()}
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}, path)
    return replace(small, weights=path)


def test_a_checkpoint_is_read_by_key_and_prefix(checkpoint):
    loaded = load(replace(checkpoint, key="state_dict", prefix="module."))
    own = build(replace(checkpoint, weights=None)).state_dict()
    assert all(torch.equal(tensor, own[name] + 1) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "add `key: state_dict` next to weights"),
        ({"key": "model"}, "it has no key 'model'; it has epoch, state_dict, optimizer"),
        ({"key": "optimizer"}, "no state dict of tensors; save one by torch.save"),
        ({"key": "state_dict", "prefix": "model."}, "keys do not fit the model; add `prefix: module.` next to weights"),
    ],
)
def test_a_checkpoint_that_does_not_fit_says_which_key_to_give(checkpoint, changes, says):
    with pytest.raises(ModelError) as caught:
        load(replace(checkpoint, **changes))
    assert says in str(caught.value)


def test_unknown_names_and_options():
    with pytest.raises(ModelError, match="unknown model 'resnet5o'; did you mean 'resnet50'"):
        load_model("resnet5o")
    with pytest.raises(ModelError, match="has no options; leave out depth"):
        load_model("vgg16", depth=3)


DRAWING = """
import random
import numpy
import torch

DRAWN = [random.random(), numpy.random.rand(), torch.rand(()).item()]

def drawn():
    layer = torch.nn.Linear(2, 3)
    rows = [DRAWN, [random.random(), numpy.random.rand(), torch.rand(()).item()]]
    layer.weight.data = torch.tensor(rows).T.contiguous()
    return layer
"""


def test_drawn_weights_are_the_same_in_every_process(tmp_path, monkeypatch):
    (tmp_path / "drawing.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(tmp_path)
    source = ModelSource("drawn", factory="drawing:drawn", input_shape=(2,))
    first = build(source)
    np.random.seed(1), random.seed(1), torch.manual_seed(1)
    before = random.getstate()
    assert states_equal(first, build(source)), "also where the module is imported already"
    assert random.getstate() == before, "the caller's generators go on"
    key = "from exporters.weights import *\nprint(source_key(ModelSource('drawn', 'drawing:drawn', input_shape=(2,))))"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    command = [sys.executable, "-c", key]
    other = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == source_key(source)


def test_factory(small):
    assert not build(small).training
    wide = ModelSource(small.name, factory=small.factory, input_shape=small.input_shape, options={"width": 4})
    assert build(wide).get_parameter("0.weight").shape[0] == 4


def test_restore(tmp_path, small, resnet18):
    for source, model in ((ModelSource("resnet18"), copy.deepcopy(resnet18)), (small, load(small))):
        first = next(model.parameters())
        with torch.no_grad():
            first.mul_(2)  # so that a restore that ignores the file is noticed
        torch.save(model.state_dict(), tmp_path / "state.pt")
        restored = restore(source, tmp_path / "state.pt")
        assert states_equal(model, restored)
        assert not restored.training
        assert all(parameter.requires_grad for parameter in restored.parameters())
        before = (tmp_path / "state.pt").read_bytes()
        with torch.no_grad():
            next(restored.parameters()).zero_()
        assert (tmp_path / "state.pt").read_bytes() == before, "a private copy"


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


def test_every_parameter_reaches_the_output(net):
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


def test_biases_do_not_hide_the_input():
    torch.manual_seed(0)
    net = nn.Linear(64, 100)
    nn.init.normal_(net.weight, std=2e-5)  # timm's BEiT starts its last layer so.
    nn.init.zeros_(net.bias)
    vary_constants(net, torch.Generator().manual_seed(0))
    y = net(torch.randn(8, 64))
    assert 0.02 < net.bias.std() / y.std() < 0.5


def test_a_deep_network_of_batch_norms_does_not_amplify_rounding():
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
