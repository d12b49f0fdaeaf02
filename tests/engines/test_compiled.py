"""Graph breaks and recompilations of torch.compile are reported with reason and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bad_models import Branches, Remembers
from torch._dynamo.utils import clear_compilation_metrics, counters

from engines import compiled

pytestmark = pytest.mark.slow


def ran(model: torch.nn.Module) -> None:
    torch._dynamo.reset()
    clear_compilation_metrics()
    # The compiler behind the graphs has no part in it.
    step = torch.compile(model.eval(), dynamic=False, backend="eager")
    with torch.inference_mode():
        for _ in range(3):
            step(torch.ones(2, 3, 8, 8))


def test_a_branch_on_a_value_is_a_break_and_a_counter_compiles_again():
    file = Path(__file__).parents[1] / "bad_models.py"
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "y.sum() > 0" in text)
    ran(Branches())
    code = "(`return y if y.sum() > 0 else -y`)"
    assert compiled._graph_breaks() == (f"a branch on a computed value at {file}:{line} {code}",)
    assert compiled._recompilations() == ()
    ran(Remembers())
    assert compiled._graph_breaks() == ()
    assert compiled._recompilations()[0] == "`self.calls == 0` no longer held"


def test_a_model_of_which_nothing_is_compiled_says_why_in_torchs_words():
    counters.clear()
    torch._dynamo.reset()
    torch.compile(torch.nn.LSTM(8, 16), backend="eager")(torch.ones(2, 3, 8))
    assert not counters["stats"]["unique_graphs"]
    assert compiled._why_nothing().startswith(
        "Dynamo does not support RNN, GRU, or LSTM. Set torch._dynamo.config.allow_rnn=True to enable"
    )
