"""What enters: nothing. What leaves: the cache and the small factories that the exporters' tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exporters.cache import Cache
from exporters.source import ModelSource

FACTORIES = """
from torch import nn

def small(width=8):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.LocalResponseNorm(3),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 49, 5),
    )

def other():
    return {"a": 1}

def raising():
    raise ValueError("no luck")

class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x

def branching():
    return Branching()
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the module `small_factories` on the path."""
    path = tmp_path / "small_factories.py"
    path.write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "small_factories", raising=False)
    return path


@pytest.fixture
def small(factories: Path) -> ModelSource:
    return ModelSource("mine", factory="small_factories:small", input_shape=(3, 16, 16))
