"""The proof of eager counts every kind of convolution and product."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.base import Job
from engines.catalog import EagerOptions
from engines.eager import EagerSession
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelSource
from exporters.weights import cached_state

pytestmark = pytest.mark.slow

MODULES = """
from torch import nn

class First(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x):
        return self.recurrent(x)[0]

def make(kind):
    if kind in ("LSTM", "GRU"):
        return First(getattr(nn, kind)(2, 4))
    return getattr(nn, kind)(2, 4, 3)
"""


@pytest.mark.parametrize(
    ("kind", "item"),
    [(f"Conv{kind}{n}d", (2, *(5,) * n)) for kind in ("", "Transpose") for n in (1, 2, 3)]
    + [("LSTM", (3, 2)), ("GRU", (3, 2))],
)
def test_each_kind_of_convolution_is_proven(
    kind: str, item: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all_kinds.py").write_text(MODULES)
    monkeypatch.syspath_prepend(tmp_path)
    source = ModelSource("net", factory="all_kinds:make", input_shape=item, options={"kind": kind})
    specs = tuple(input_specs(source))
    state = cached_state(source, Cache(tmp_path / "cache"))
    inputs = tuple(seeded_inputs(specs, 2))
    session = EagerSession(Job(source, "inference", "fp32", 2, "cpu", EagerOptions(), inputs, state, specs=specs))
    assert session.proof().compute_types == {"float32": 1}
