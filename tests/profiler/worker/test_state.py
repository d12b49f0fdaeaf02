"""What a module keeps from one call to the next is named."""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from profiler.worker.prepare_model import changed_places, held_state, unread_types

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("change", "places"),
    [
        (lambda inner: inner.h.add_(1), ["inner.h"]),
        (lambda inner: setattr(inner, "h", torch.zeros(1, 3)), ["inner.h"]),
        (lambda inner: setattr(inner, "h", torch.zeros(3, dtype=torch.int32)), ["inner.h"]),
        (lambda inner: inner.cache.append(torch.ones(3)), ["inner.cache"]),
        (lambda inner: setattr(inner, "calls", 1), ["inner.calls"]),
        (lambda inner: setattr(inner, "_last", torch.ones(3)), ["inner._last"]),
        (lambda inner: inner(torch.ones(3)), []),
    ],
    ids=["values", "shape", "type", "list", "number", "private", "nothing"],
)
def test_the_place_that_changed_is_named(change: Callable[[Any], object], places: list[str]):
    inner = nn.Linear(3, 3)
    held = {"h": torch.zeros(3), "sparse": torch.eye(3).to_sparse(), "conjugated": torch.tensor([1j]).conj()}
    for name, tensor in held.items():
        inner.register_buffer(name, tensor)
    vars(inner).update(cache=[torch.zeros(3)], calls=0, _last=torch.zeros(3))
    inner.cache.insert(0, inner.cache)
    model = nn.ModuleDict({"inner": inner})
    before = held_state(model)
    change(inner)
    assert changed_places(before, held_state(model)) == places
    assert held_state("no module") == held_state(None) == {}


def test_parameters_in_lists_are_not_copied():
    assert held_state(nn.LSTM(2, 2))["_flat_weights"] == []


@dataclass
class Logits:
    logits: Any


class Holder:
    def __init__(self, logits: Any) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    ("make", "types"),
    [
        (lambda x: x, []),
        (lambda x: (x, None, object(), 2.5, "word", x.dtype, x.shape, {"a": [x]}, UserDict(a=x), Logits(x)), []),
        (lambda x: (x, Holder(x)), ["Holder"]),
        (lambda x: {"a": x, "b": [x, {x}, Logits(Holder(x))]}, ["set", "Holder"]),
        (lambda x: (x, deque([x])), ["deque"]),
        (lambda x: (x, UserDict(a=(part for part in x)), x.numpy()), ["generator", "ndarray"]),
    ],
    ids=["tensor", "containers", "object", "nested", "deque", "mapping"],
)
def test_parts_of_a_result_that_may_hide_tensors_are_named(make: Callable[[Any], Any], types: list[str]):
    assert list(unread_types(make(torch.zeros(2)))) == types
