"""What a module keeps from one call to the next is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from profiler.worker.prepare_model import changed_places, held_state

pytestmark = pytest.mark.slow


class Streaming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("conjugated", torch.ones(2, dtype=torch.complex64).conj())
        self.cache: list[torch.Tensor] = []
        self.calls = 0
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, how: str) -> torch.Tensor:
        if how == "buffer":
            self.h = self.layer(x) + self.h
        elif how == "list":
            self.cache.append(x)
        elif how in ("shape", "type"):
            self.h = torch.zeros(1, 3) if how == "shape" else torch.zeros(3, dtype=torch.int32)
        elif how == "number":
            self.calls += 1
        return x


@pytest.mark.parametrize(
    ("how", "places"),
    [
        *[(how, ["inner.h"]) for how in ("buffer", "shape", "type")],
        ("list", ["inner.cache"]),
        ("number", ["inner.calls"]),
        ("", []),
    ],
)
def test_the_place_that_changed_is_named(how, places):
    model = nn.Module()
    model.inner = Streaming()
    before = held_state(model)
    with torch.no_grad():
        model.inner(torch.ones(3), how)
    assert changed_places(before, held_state(model)) == places
    assert held_state("no module") == held_state(None) == {}
