"""torchvision's networks with our seeded weights agree with ours on the GPU."""

from __future__ import annotations

import importlib
import re

import pytest
import torch

from exporters.build_model import load
from exporters.catalog import CATALOG
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelSource

PAIRS = {"alexnet-owt": "alexnet", **{name: name for name in CATALOG if re.fullmatch(r"vgg\d+|resnet(?!200)\d+", name)}}
"""By our name the function of torchvision.models with the same state-dict keys and the same computation."""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", PAIRS)
def test_equals_torchvision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision = importlib.import_module("torchvision")  # its absence is a failure where there is a GPU
    # One algorithm for both, in true fp32.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    source = ModelSource(name)
    ours = load(source)
    theirs = getattr(torchvision.models, PAIRS[name])(weights=None).eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.from_numpy(seeded_inputs(input_specs(source), batch=2)[0]).cuda()
    with torch.no_grad():
        expected, actual = theirs.cuda()(x), ours.cuda()(x)
    assert expected.std() > 0.1
    # Identical operators in identical order; the tolerance is for nondeterministic reductions.
    assert torch.linalg.vector_norm(actual - expected) <= 1e-6 * torch.linalg.vector_norm(expected)
