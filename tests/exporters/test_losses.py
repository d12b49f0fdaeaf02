"""Start backward passes from losses of the user's own."""

from __future__ import annotations

import pytest
import torch

from exporters.losses import Objective, user_loss

pytestmark = pytest.mark.slow
LOSSES = """
import torch

def masked(result, target, mask=None, *, scale=1.0):
    assert mask is not None
    return ((result - target) * mask).sum() * scale

def by_place(result, y):
    return (result - y).sum()

def of_all(result, *inputs):
    return (result - sum(inputs)).sum()

def of_names(result, **inputs):
    return (result - inputs["target"]).sum()

class Module(torch.nn.Module):
    def forward(self, result, target):
        return (result - target).sum()

module = Module()
"""


def test_a_loss_takes_the_inputs_that_it_names_also_where_they_have_defaults(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(LOSSES)
    monkeypatch.syspath_prepend(tmp_path)
    result, mask, target = torch.full((2,), 5.0), torch.tensor([1.0, 0.0]), torch.full((2,), 2.0)
    assert user_loss("own_losses:masked", ["mask", "target"])(result, [mask, target]).item() == 3.0
    assert user_loss("own_losses:by_place", ["x", "other"])(result, [target, mask]).item() == 6.0, "the first inputs"
    for name, value in (("of_all", 5.0), ("of_names", 6.0), ("module", 6.0)):
        assert user_loss(f"own_losses:{name}", ["mask", "target"])(result, [mask, target]).item() == value


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6), (2, 6, 3, 3)])
def test_a_masked_class_is_no_target(shape):
    logits = torch.zeros(shape)
    axis = 2 if len(shape) == 3 else 1
    logits.narrow(axis, 0, 5).fill_(-torch.inf)
    loss, _ = Objective("cross-entropy").start(logits.requires_grad_(), [])
    assert loss.item() == 0.0
