"""Start backward passes from losses of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exporters.losses import user_loss

pytestmark = pytest.mark.slow
LOSSES = """
def masked(result, target, mask=None, *, scale=1.0):
    assert mask is not None
    return ((result - target) * mask).sum() * scale

def by_place(result, y):
    return (result - y).sum()
"""


def test_a_loss_takes_the_inputs_that_it_names_also_where_they_have_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_losses.py").write_text(LOSSES)
    monkeypatch.syspath_prepend(tmp_path)
    result, mask, target = torch.full((2,), 5.0), torch.tensor([1.0, 0.0]), torch.full((2,), 2.0)
    assert user_loss("own_losses:masked", ["mask", "target"])(result, [mask, target]).item() == 3.0
    assert user_loss("own_losses:by_place", ["x", "other"])(result, [target, mask]).item() == 6.0, "the first inputs"
