"""Live modules as factories: what is saved as code, and whose key follows it."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle.cloudpickle
import pytest
import torch
from torch import nn

from exporters.saved_module import load, save
from exporters.source import ModelError

CELL = """
import json
import small_factories
from torch import nn

UNUSED = 1
SCALE = 2.0

def scaled(x):
    return SCALE * x

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return scaled(self.linear(x))

model = nn.Sequential(Block(), small_factories.Branching())
"""


def run_cell(cell: str, name: str = "__main__") -> dict[str, Any]:
    session: dict[str, Any] = {"__name__": name}
    exec(compile(cell, f"<cell {len(cell)}>", "exec"), session)
    return session


def written(model: Any, folder: Path) -> str:
    """The source of the factory that the model is saved as."""
    folder.mkdir(exist_ok=True)
    assert save(model, folder) == "measured_module:load"
    return (folder / "measured_module.py").read_text()


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("UNUSED = 1", "UNUSED = 2", True),
        ("UNUSED = 1", "\n\n\nUNUSED = 1", True),
        ("SCALE = 2.0", "SCALE = 3.0", False),
        ("SCALE * x", "SCALE + x", False),
        ("scaled(self.linear(x))", "scaled(self.linear(x)) if self.training else scaled(self.linear(x))", False),
    ],
)
@pytest.mark.usefixtures("factories")
def test_the_factory_differs_where_the_code_does(tmp_path: Path, before: str, after: str, is_same: bool) -> None:
    one = written(run_cell(CELL)["model"], tmp_path / "one")
    two = written(run_cell(CELL.replace(before, after))["model"], tmp_path / "two")
    assert (one == two) == is_same
    assert one.partition("from exporters")[0].endswith("\nimport small_factories\n"), "its file belongs to the key"


@pytest.mark.usefixtures("factories")
def test_what_is_loaded_computes_and_compiles_as_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "a_notebook", ModuleType("a_notebook"))  # As a process has __main__.
    # The first block is called from torch's own file, so that the globals of its code are looked up by name.
    model = run_cell(CELL, "a_notebook")["model"][:1]
    written(model, tmp_path)
    for known in ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID"):
        getattr(cloudpickle.cloudpickle, known).clear()  # As in another process.
    made = load(tmp_path / "measured_module.pt")
    assert type(made[0]) is not type(model[0])
    x = torch.ones(4, 3)
    assert torch.equal(made(x), model(x))
    assert torch.equal(torch.compile(made, backend="eager", fullgraph=True)(x), model(x))


def test_a_function_that_can_be_imported_is_a_factory_as_it_is(factories: Path, tmp_path: Path) -> None:
    module = importlib.import_module("small_factories")
    assert save(module.small, tmp_path) == "small_factories:small"
    assert save(module.Branching, tmp_path) == "small_factories:Branching"
    (tmp_path / "nowhere").mkdir()
    made = written(lambda: module.small(4), tmp_path / "nowhere")
    assert "import small_factories" in made
    assert load(tmp_path / "nowhere" / "measured_module.pt")[0].out_channels == 4


def test_a_module_that_no_other_process_finds_is_saved_itself(
    factories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = importlib.import_module("small_factories").branching()
    assert "CODE" in written(model, tmp_path / "found")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(tmp_path)])
    importlib.invalidate_caches()
    written(model, tmp_path / "lost")
    contents = [(tmp_path / name / "measured_module.pt").read_bytes() for name in ("found", "lost")]
    assert [b"_make_skeleton_class" in content for content in contents] == [False, True]


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be saved .*TypeError: cannot pickle '_thread.lock'.*give a function"):
        save(Locked(), tmp_path)
