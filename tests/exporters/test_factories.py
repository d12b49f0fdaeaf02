"""Factories are called with errors that help, their examples are read, and live modules are saved as factories."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from exporters.build_model import build
from exporters.cache import Cache
from exporters.calls import call
from exporters.factories import called_once, save
from exporters.inputs import dimensions_of, input_specs, seeded_inputs
from exporters.source import ModelError, ModelSource


@pytest.mark.usefixtures("factories")
def test_a_live_module_is_saved_by_its_content(tmp_path, monkeypatch):
    module = importlib.import_module("small_factories")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), module.Branching())
    one, two = (save(each, tmp_path) for each in (model, nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), model[1])))
    assert one["factory"] == two["factory"] == "exporters.factories:load_saved"
    assert one == save(model, tmp_path) != two
    monkeypatch.syspath_prepend(tmp_path)
    x = torch.ones(2, 3, 16, 16)
    made = build(ModelSource("mine", input_shape=(3, 16, 16), **one))
    assert torch.equal(made(x), model.eval()(x))


@pytest.mark.usefixtures("factories")
def test_a_function_is_a_factory_as_it_is_if_it_can_be_imported(tmp_path):
    module = importlib.import_module("small_factories")
    assert save(module.small, tmp_path) == {"factory": "small_factories:small"}
    assert save(module.Branching, tmp_path) == {"factory": "small_factories:Branching"}
    cell = {"__name__": "__main__", "nn": nn}
    exec("class Net(nn.Module): ...\nmodel = nn.Sequential(Net())", cell)
    for model in (cell["Net"], cell["model"], lambda: module.small(4)):
        with pytest.raises(ModelError, match="no other process can import this; put it in a module of its own"):
            save(model, tmp_path)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("small_factories:raising", "raised ValueError: no luck at .*small_factories.py:14"),
        ("small_factories:other", "returned builtins.dict, not a torch.nn.Module"),
        ("small_factories:uncalled", "returned the class small_factories.Branching, not a torch.nn.Module"),
        ("small_factories:smal", "'mine': small_factories has no 'smal'; did you mean 'small'\\?$"),
        ("small_factories:zzz", "small_factories has no 'zzz'; valid: .*Branching$"),
        ("absent:f", "'absent:f': there is no module 'absent'; add its folder to import_from"),
        ("lacking:f", "raised ModuleNotFoundError: No module named 'absent' at .*lacking.py:1"),
        ("crossed:f", "returned builtins.dict, not a torch.nn.Module"),
    ],
)
def test_factory_errors(factories, factory, words):
    folder = factories.parent
    (folder / "lacking.py").write_text("import absent\n")
    (folder / "crossed.py").write_text("def f():\n    return {}, None\n")
    words = words.replace("{folder}", re.escape(str(folder)))
    with pytest.raises(ModelError, match=words):
        build(ModelSource("mine", factory=factory, input_shape=(3, 16, 16)))


EXAMPLES = """
import numpy as np
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
TWO = (torch.ones(4, 3), torch.ones(4, 3))
def several(): return nn.Bilinear(3, 3, 2), TWO
def traced(): return torch.jit.trace(nn.Bilinear(3, 3, 2), TWO), TWO
def single(): return nn.Linear(3, 2), torch.ones(4, 3).double()
def steps(): return nn.LSTM(3, 2, 2), (torch.ones(5, 4, 3), (torch.ones(2, 4, 2), torch.ones(2, 4, 2)))
def dims():
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    return nn.Bilinear(3, 3, 2), TWO[::-1], {"input1": {0: length, 1: batch}, "input2": {1: batch}}
def texts(): return *dims()[:2], {"input1": {0: "length", 1: "batch"}, "input2": {1: "batch"}}
def alone(): return Net()
def linear(): return nn.Linear(3, 2)
def bilinear(): return nn.Bilinear(3, 3, 2)
def lazy_norm(): return nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
def nothing(): return Net(), ()
def sparse(): return nn.Linear(3, 2), torch.eye(3).to_sparse()
def no_items(): return nn.Linear(3, 2), torch.ones(0, 3)
def arrays(): return nn.Linear(3, 2), np.ones((4, 3), np.float32)
def conjugate(): return nn.Identity(), torch.ones(4, 3, dtype=torch.cfloat).conj()
"""


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example_factories.py").write_text(EXAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "example_factories", raising=False)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))


def example(name: str, **more: Any) -> ModelSource:
    return ModelSource(name, factory=f"example_factories:{name}", **more)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("name", "specs", "dimensions"),
    [
        ("positional", [("ids", ("batch", 12), "int64"), ("extra.w.0", ("batch",), "float32")], []),
        (
            "keywords",
            [("ids", ("batch", 12), "int64"), ("extra.w.0", ("batch",), "float32"), ("mask", ("batch", 12), "int64")],
            ["length"],
        ),
        ("named", [("x", ("batch", 3), "float32")], ["length"]),
        ("several", [("input1", ("batch", 3), "float32"), ("input2", ("batch", 3), "float32")], []),
        ("traced", [("x0", ("batch", 3), "float32"), ("x1", ("batch", 3), "float32")], []),
        *[(name, [("x", ("batch", 3), "float32")], []) for name in ("single", "arrays")],
        ("conjugate", [("x", ("batch", 3), "complex64")], []),
    ],
)
def test_examples_are_inputs_of_any_nesting(name, specs, dimensions):
    source = example(name)
    assert dimensions_of(source) == dimensions
    assert not (Cache().root / "inputs").exists(), "a dry run writes nothing"
    found = input_specs(source)
    assert [(spec.name, spec.shape, spec.dtype) for spec in found] == specs
    arrays = seeded_inputs(found, 6)
    if arrays[0].dtype.kind == "i":
        assert arrays[0][:, 0].tolist() == [0, 12, 24, 36, 0, 12], "the values of the examples, which repeat"
    outputs = call(build(source), found, [torch.from_numpy(array) for array in arrays])
    assert len(outputs) == 6
    assert torch.allclose(outputs[:2], outputs[4:], atol=1e-6)


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("name", "arrays", "inputs"),
    [("linear", ["any"], ["x"]), ("lazy_norm", ["any"], ["x"]), ("bilinear", ["input1", "input2"], None)],
)
def test_data_give_the_inputs_of_a_factory_without_any(tmp_path, name, arrays, inputs):
    np.savez(tmp_path / "d.npz", labels=np.arange(9), **{array: np.ones((9, 3), np.float32) for array in arrays})
    source = example(name, data=str(tmp_path / "d.npz"))
    found = input_specs(source)
    assert [(spec.name, spec.shape) for spec in found] == [(array, ("batch", 3)) for array in inputs or arrays]
    assert len(call(build(source), found, [torch.ones(2, 3)] * len(found))) == 2
    with pytest.raises(ModelError, match="its inputs are unknown"):
        input_specs(replace(source, batch={(inputs or arrays)[0]: 1}))
    np.savez(tmp_path / "e.npz", labels=np.arange(9))
    with called_once(), pytest.raises(ModelError, match="its inputs are unknown"):
        assert input_specs(source) == found
        input_specs(replace(source, data=str(tmp_path / "e.npz")))


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("name", "batch", "expected"),
    [
        ("steps", {"input": 1, "hx.0": 1, "hx.1": 1}, [(5, "batch", 3), (2, "batch", 2), (2, "batch", 2)]),
        *[(name, {}, [("length", "batch"), (4, "batch")]) for name in ("dims", "texts")],
        ("several", {"input1": 1, "input2": None}, [(4, "batch"), (4, 3)]),
        ("named", {"input": 1}, [(4, "batch")]),
        ("steps", {"input": 0, "hx.0": 1}, "batch: axis 1 of 'hx.0' has size 4, 'input' has 5 items"),
        ("steps", {"hx": 1}, "batch: no input 'hx'"),
    ],
)
def test_the_batch_of_an_example_is_on_the_named_axis(name, batch, expected):
    source = example(name, batch=batch)
    if isinstance(expected, str):
        with pytest.raises(ModelError, match=re.escape(expected)):
            input_specs(source)
        return
    specs = input_specs(source)
    sizes = {"length": 4}
    assert [spec.shape for spec in specs] == [tuple(sizes.get(size, size) for size in shape) for shape in expected]
    for spec, array in zip(specs, seeded_inputs(specs, 7), strict=True):
        assert array.shape == spec.at(7)


@pytest.mark.usefixtures("examples")
def test_a_named_axis_has_other_sizes():
    ids, _, mask = input_specs(example("keywords", dimensions={"length": 20}, varied={"length": (8, 20)}))
    assert (ids.shape, mask.free_axes) == (("batch", 20), {0: "batch", 1: "length"})
    assert seeded_inputs([ids], 1)[0][0].tolist() == [*range(12), *range(8)]


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("alone", r"add `input: .*\(module, example_inputs\)"),
        ("nothing", "no example is a tensor with a dimension"),
        ("no_items", "example 'x' holds no items"),
        ("sparse", "reading example 'x' failed: .*; give a dense tensor with values"),
    ],
)
def test_examples_that_cannot_be_used_are_errors(name, says):
    with pytest.raises(ModelError, match=says):
        input_specs(example(name))
