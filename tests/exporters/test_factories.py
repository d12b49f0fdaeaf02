"""Factories are called with errors that help, their examples are read, and live modules are saved as factories."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle.cloudpickle
import pytest
import torch

from exporters.build_model import build
from exporters.calls import call
from exporters.factories import load_file, save
from exporters.inputs import dimensions_of, input_specs, seeded_inputs
from exporters.source import ModelError, ModelSource

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
    made = load_file(tmp_path / "measured_module.pt")
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
    assert load_file(tmp_path / "nowhere" / "measured_module.pt")[0].out_channels == 4


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("small_factories:raising", "raised ValueError: no luck at .*small_factories.py:14"),
        ("small_factories:other", "returned builtins.dict, not a torch.nn.Module"),
        ("small_factories:smal", "'mine': small_factories has no 'smal'; did you mean 'small'\\?$"),
        ("small_factories:zzz", "small_factories has no 'zzz'; valid: .*Branching, branching$"),
        ("absent:f", "'absent:f': there is no module 'absent'; add its folder to import_from"),
        ("lacking:f", "raised ModuleNotFoundError: No module named 'absent' at .*lacking.py:1"),
        ("small_factories", "is not 'package.module:function'"),
    ],
)
def test_factory_errors(factories: Path, factory: str, words: str) -> None:
    folder = factories.parent
    (folder / "lacking.py").write_text("import absent\n")
    words = words.replace("{folder}", re.escape(str(folder)))
    with pytest.raises(ModelError, match=words):
        build(ModelSource("mine", factory=factory, input_shape=(3, 16, 16)))


EXAMPLES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(50, 16), nn.Linear(16, 4)

    def forward(self, ids, extra, *, mask=None, scale=1):
        x = self.table(ids) * extra["w"][0][:, None, None]
        return self.last(x if mask is None else x * mask[..., None]).mean(1) * scale

IDS, WEIGHTS, MASK = torch.arange(48).reshape(4, 12), {"w": [torch.ones(4) * 3]}, torch.ones(4, 12, dtype=torch.int64)
LENGTH = torch.export.Dim("length", min=2, max=64)

def positional(): return Net(), (IDS, WEIGHTS)
def keywords():
    shapes = {"ids": {0: torch.export.Dim.AUTO, 1: LENGTH}, "extra": None, "mask": {1: LENGTH}, "scale": None}
    return Net(), {"ids": IDS, "extra": WEIGHTS, "mask": MASK, "scale": 2}, shapes
def named(): return nn.Linear(3, 2), (torch.ones(4, 3),), {"input": (None, LENGTH)}
def single(): return nn.Linear(3, 2), torch.ones(4, 3).double()
def alone(): return Net()
def unlike(): return Net(), (torch.ones(3, 2), torch.ones(4))
def nothing(): return Net(), ()
"""


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example_factories.py").write_text(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "example_factories", raising=False)


def example(name: str, **more: Any) -> ModelSource:
    return ModelSource(name, factory=f"example_factories:{name}", **more)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("name", "specs", "dimensions"),
    [
        ("positional", [("x0", ("batch", 12), "int64"), ("x1.w.0", ("batch",), "float32")], []),
        (
            "keywords",
            [("ids", ("batch", 12), "int64"), ("extra.w.0", ("batch",), "float32"), ("mask", ("batch", 12), "int64")],
            ["length"],
        ),
        ("named", [("x", ("batch", 3), "float32")], ["length"]),
        ("single", [("x", ("batch", 3), "float32")], []),
    ],
)
def test_examples_are_inputs_of_any_nesting(name: str, specs: list[Any], dimensions: list[str]) -> None:
    source = example(name)
    found = input_specs(source)
    assert [(spec.name, spec.shape, spec.dtype) for spec in found] == specs
    assert dimensions_of(source) == dimensions
    arrays = seeded_inputs(found, 6)
    if arrays[0].dtype.kind == "i":
        assert arrays[0][:, 0].tolist() == [0, 12, 24, 36, 0, 12], "the values of the examples, which repeat"
    outputs = call(build(source), found, [torch.from_numpy(array) for array in arrays])
    assert len(outputs) == 6
    assert torch.allclose(outputs[:2], outputs[4:], atol=1e-6)


@pytest.mark.usefixtures("examples")
def test_a_named_axis_has_other_sizes() -> None:
    ids, _, mask = input_specs(example("keywords", dimensions={"length": 20}, varied={"length": (8, 20)}))
    assert (ids.shape, mask.free_axes) == (("batch", 20), {0: "batch", 1: "length"})
    assert seeded_inputs([ids], 1)[0][0].tolist() == [*range(12), *range(8)]


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("alone", r"add `input: .*\(module, example_inputs\)"),
        ("unlike", r"first dimension .* \(3, 2\), \(4,\)"),
        ("nothing", "shapes are none"),
    ],
)
def test_examples_that_cannot_be_used_are_errors(name: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        input_specs(example(name))
