"""A look at a model says what preparing it would, without running it or taking the memory of its weights."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from engines.base import Unsupported
from exporters.declared_inputs import BATCH, DeclaredInput, declared_inputs
from exporters.inputs import TensorSpec
from exporters.qdq_placement import PLACEMENTS
from exporters.source import ModelError, ModelSource
from profiler.worker.look_at_model import look_at_model
from profiler.worker.prepare_model import check_source, prepare_model
from profiler.worker.reference_outputs import no_reference
from profiler.worker.task import Look

FACTORIES = """
import torch
from torch import nn

def small():
    return nn.Linear(3, 2)

def huge():
    return nn.Linear(3, 1 << 38)

def needs_values():
    rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
    return nn.Sequential(nn.Linear(3, 2), nn.Dropout(rates[1]))

def raising():
    return nn.Linear(3, width(2))

def width(value):
    raise ValueError("no luck")

def wide():
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 1))

class Picky(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(x[:, :2])

def picky():
    return Picky(3, 2)

class Raising(nn.Linear):
    def __init__(self, way):
        super().__init__(3, 2)
        self.way = way

    def forward(self, x):
        if self.way == "own" and x.shape[0] > 0:
            raise KeyError("no table")
        if self.way == "not written":
            raise NotImplementedError("later")
        try:
            return super().forward(x * float(x.sum()))
        except Exception:
            raise ValueError("cannot scale this shape") from None

def raises():
    return Raising("own")

def not_written():
    return Raising("not written")

def hides():
    return Raising("hides")

class Pair(nn.Linear):
    def forward(self, image, mask, *, scale=1):
        raise RuntimeError("was run")

def pair():
    return Pair(3, 2)
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "looked_at.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "looked_at", raising=False)
    return tmp_path


def factory(name: str) -> ModelSource:
    return ModelSource(name, factory=f"looked_at:{name}", input_shape=(3,))


def look(source: ModelSource, quantized: bool = False) -> Look:
    return look_at_model((source, quantized), lambda message: None)


@pytest.mark.usefixtures("factories")
def test_a_factory_is_called_without_memory_for_weights() -> None:
    found = look(factory("huge"))
    assert found.prepared.specs == (TensorSpec("x", ("batch", 3), "float32"),)
    assert "without memory for weights" in found.seen
    assert f"{2**40:,} parameters" in found.seen
    assert "input x float32 [batch, 3]" in found.seen


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (
            (),
            r"TypeError: Pair.forward\(\) missing a required argument: 'mask'; forward takes image, mask, scale: give",
        ),
        (("image", "mask"), None),
        (("image", "mask", "scale"), None),
        (("image", "musk"), r"Pair.forward\(\) .*'mask'; given: .*, and forward takes image, mask"),
        (("image", "mask", "musk"), "got an unexpected keyword argument 'musk'; given:"),
    ],
)
def test_inputs_that_forward_does_not_take_are_said_without_running_it(
    inputs: tuple[str, ...], says: str | None
) -> None:
    declared = tuple(DeclaredInput((name,), (BATCH, 3), "float32") for name in inputs)
    source = replace(factory("pair"), inputs=declared, input_shape=None if declared else (3,))
    with pytest.raises(ModelError, match=says) if says else nullcontext():
        assert "forward has a place for each input" in look(source).seen


@pytest.mark.usefixtures("factories")
def test_a_shape_that_does_not_fit_is_said_without_computing_anything() -> None:
    assert (
        "forward has a place for each input and takes these shapes; input x float32 [batch, 3]"
        in look(factory("huge")).seen
    )
    why = (
        r"RuntimeError: .*\b2\].*4, 1\]; given: input x float32 \[batch, 3\], run with up to 8 items: "
        "correct the inputs in the job, or the model"
    )
    with pytest.raises(ModelError, match=why):
        look(factory("wide"))


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize("name", ["picky", "hides", "not_written"])
def test_a_forward_that_asks_for_values_is_left_to_a_run(name: str) -> None:
    """The second branch of `picky` would not fit; torch has no values there to choose by. What `hides` makes of that
    error is not the model's fault either."""
    found = look(factory(name)).seen
    assert "each input, but only a run shows whether it takes these shapes; input x" in found
    assert "raised" not in found


@pytest.mark.usefixtures("factories")
def test_what_else_forward_raises_without_values_is_quoted_and_no_failure() -> None:
    found = look(factory("raises"))
    quoted = (
        r"for each input, but on tensors without values it raised KeyError: 'no table' at \S*looked_at\.py"
        r':\d+ \(`raise KeyError\("no table"\)`\): a run shows whether it does with values; input x float32'
    )
    assert re.search(quoted, found.seen)
    assert not found.prepared.failures


@pytest.mark.parametrize(
    ("error", "is_of_types"),
    [
        (ValueError("temperature table missing"), False),
        (RuntimeError("the table is too long for a half"), False),
        (RuntimeError("expected m1 and m2 to have the same dtype, but got: float != signed char"), True),
        (RuntimeError("\"bitwise_and_cpu\" not implemented for 'Float'"), True),
        (IndexError("tensors used as indices must be long, int, byte or bool tensors"), True),
        (RuntimeError("one_hot is only applicable to index tensor of type LongTensor."), True),
    ],
)
def test_another_type_is_advised_only_where_the_error_is_of_types(error: Exception, is_of_types: bool) -> None:
    said = str(no_reference(factory("small"), error, [TensorSpec("x", ("batch", 3), "float32")]))
    given = "; given: input x float32 [batch, 3]"
    assert said.endswith(f"{given}: write `inputs` for another type" if is_of_types else given)


@pytest.mark.usefixtures("factories")
def test_a_factory_that_reads_values_is_called_as_in_a_run() -> None:
    assert look(factory("needs_values")).seen.startswith("its factory was called, 8 parameters")


@pytest.mark.parametrize(("shape", "hinted"), [((3, 8, 8), False), ((1, 3, 8, 8), True)])
def test_an_input_that_seems_to_include_the_batch_is_said(shape: tuple[int, ...], hinted: bool) -> None:
    error = no_reference(replace(factory("small"), input_shape=shape), ValueError("too many dimensions"))
    hint = "; `input: [1, 3, 8, 8]` must be the shape of one item, without the batch"
    assert str(error).endswith(f"ValueError: too many dimensions{hint if hinted else ''}")


@pytest.mark.usefixtures("factories")
def test_what_a_factory_raises_is_said_as_its_row_says_it(tmp_path: Path) -> None:
    source = factory("raising")
    with pytest.raises(ModelError, match=r"raised ValueError: no luck at .*looked_at\.py:19") as looked:
        look(source)
    with pytest.raises(ModelError) as prepared:
        prepare_model((source, ("cpu",), tmp_path / "cache"), lambda message: None)
    assert str(looked.value) == str(prepared.value)


def test_the_keys_of_weights_are_compared(factories: Path) -> None:
    path = factories / "weights.pt"
    torch.save(torch.nn.Linear(3, 2).state_dict(), path)
    assert "the keys of weights.pt fit" in look(replace(factory("small"), weights=path)).seen
    with pytest.raises(ModelError, match=r"weights\.pt: keys do not fit the model: .*conv1"):
        look(ModelSource("resnet18", weights=path))


def test_options_of_a_network_are_checked() -> None:
    with pytest.raises(ModelError, match="unknown option 'auxilary'"):
        look(ModelSource("googlenet", options={"auxilary": True}))


def test_calibration_data_that_do_not_fit_keep_only_int8_from_running(factories: Path) -> None:
    (factories / "images").mkdir()
    np.save(factories / "images" / "a.npy", np.ones((7,), np.float32))
    source = replace(factory("small"), calibration=factories / "images")
    assert look(source).prepared.failures == {}
    failures = look(source, quantized=True).prepared.failures
    assert failures.keys() == set(PLACEMENTS)
    assert "an item is float32 of shape (3,)" in str(failures["int8"].reason)


def write(path: Path, batch: int | str = "batch", length: int | str = 3, opset: int = 20) -> ModelSource:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, length]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return ModelSource("theirs", onnx=path)


def test_an_onnx_files_header_tells_its_inputs_and_opset(tmp_path: Path) -> None:
    found = look(write(tmp_path / "a.onnx", batch=4))
    assert found.prepared.specs == (TensorSpec("x", (4, 3), "float32"),)
    assert found.seen == "its header was read: opset ai.onnx 20; input x float32 [4, 3]"


def test_dimensions_without_a_size_are_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"dimensions of no fixed size: length"):
        look(write(tmp_path / "a.onnx", length="length"))


def test_dimensions_without_a_size_and_integers_without_values_are_told_at_once(tmp_path: Path) -> None:
    ids, length = (helper.make_tensor_value_info(n, TensorProto.INT64, ["n", "t"]) for n in ("ids", "y"))
    graph = helper.make_graph([helper.make_node("Identity", ["ids"], ["y"])], "graph", [ids], [length])
    onnx.save(helper.make_model(graph, ir_version=9), tmp_path / "a.onnx")
    with pytest.raises(ModelError, match=r"dimensions: \{t: 128\}\n    inputs: \{ids: \{range: \[0, 1000\]\}\}$"):
        look(ModelSource("theirs", onnx=tmp_path / "a.onnx"))


def test_an_opset_that_the_runtime_does_not_know_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnx may be newer than the runtime; the runtime is asked with a graph of these versions that does nothing."""
    opened = []

    def refuse(graph: bytes, providers: list[str]) -> None:
        opened.append(onnx.load_from_string(graph))
        raise RuntimeError("Opset 20 is under development")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(ModelError, match=r"model 'theirs': its reference outputs cannot be made: .* under development"):
        look(write(tmp_path / "a.onnx"))
    assert [(each.domain, each.version) for each in opened[0].opset_import] == [("", 20)]
    assert opened[0].ir_version == 9


def test_a_forward_that_takes_more_than_the_one_input_given_is_named_with_the_option() -> None:
    source = ModelSource("mine", factory="a:b", input_shape=(8,))
    error = no_reference(source, TypeError("forward() missing 1 required positional argument: 'y'"), taken=["x", "y"])
    ways = "give `inputs` for each (on the command line --input, once for each)"
    assert str(error).endswith(f"; forward takes x, y: {ways}")


@pytest.mark.parametrize(
    ("text", "is_of_values"),
    [
        ("index out of range in self", True),
        ("index 12 is out of bounds for dimension 0 with size 10", True),
        ("indices element out of data bounds, idx=1", True),
        ("Dimension out of range (expected to be in range of [-1, 0], but got 1)", False),
        ("mat1 and mat2 shapes cannot be multiplied (8x192 and 64x5)", False),
    ],
)
def test_what_integers_hold_is_said_only_of_errors_that_come_of_values(text: str, is_of_values: bool) -> None:
    source = ModelSource("mine", factory="a:b", inputs=declared_inputs({"ids": {"shape": [4], "dtype": "int64"}}))
    error = no_reference(source, IndexError(text), [TensorSpec("ids", (4,), "int64", range=(0, 9))])
    assert ("`ids` is drawn from 0" in str(error)) is is_of_values


@pytest.mark.parametrize("error", [IndexError("tuple index out of range"), RuntimeError("shapes do not fit")])
def test_a_model_that_fails_at_declared_inputs_without_a_batch_says_how_to_name_it(error: Exception) -> None:
    def of(*shape: str | int) -> str:
        source = ModelSource("mine", factory="a:b", inputs=declared_inputs({"x": {"shape": list(shape)}}))
        return str(no_reference(source, error, [TensorSpec("x", shape, "float32")]))

    named = "a dimension that is the batch goes by that name, as in shape: [batch, sequence]"
    assert of(3, 32, 32).endswith(named)
    assert named not in of(BATCH, 3, 32, 32)


def test_an_onnx_file_is_unsupported_where_what_makes_its_reference_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    why = "outputs of an ONNX file are checked against ONNX Runtime's: onnxruntime is not installed: pip install"
    with pytest.raises(Unsupported, match=why):
        check_source(ModelSource("theirs", onnx=write(tmp_path / "a.onnx").onnx))
