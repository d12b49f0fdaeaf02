"""Inputs have the declared shapes and values, in arrays that do not depend on the batch size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from exporters.inputs import (
    InputMistake,
    TensorSpec,
    arguments,
    declared_inputs,
    distinct_items,
    first_items,
    fixed_batch,
    input_specs,
    seeded_inputs,
)
from exporters.source import ModelError, ModelSource

BERT = {
    "input_ids": {"shape": ["batch", "sequence"], "dtype": "int64", "range": [5, 30522]},
    "attention_mask": {"shape": ["batch", "sequence"], "dtype": "int64", "fill": "lengths"},
}
SPECS = [
    TensorSpec("a", ("batch", 3, 5), "float32"),
    TensorSpec("b", (2, "batch"), "int64"),
    TensorSpec("c", ("batch",), "bool"),
    TensorSpec("d", ("batch", 50), "bfloat16"),
    TensorSpec("e", (6,), "float64"),
]


def source(inputs: Any, **more: Any) -> ModelSource:
    return ModelSource("mine", factory="a:b", inputs=declared_inputs(inputs), **more)


def save(path: Path, *shapes: list[int | str | None], types: tuple[int, ...] = ()) -> ModelSource:
    """A file that passes its inputs through."""
    kinds = types or (TensorProto.FLOAT,) * len(shapes)
    pairs = list(enumerate(zip(kinds, shapes, strict=True)))
    inputs, outputs = (
        [helper.make_tensor_value_info(f"{what}{index}", kind, shape) for index, (kind, shape) in pairs]
        for what in ("in", "out")
    )
    nodes = [helper.make_node("Identity", [f"in{index}"], [f"out{index}"]) for index, _ in pairs]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs)), path)
    return ModelSource("theirs", onnx=path)


def test_keywords_and_positions_have_places() -> None:
    specs = input_specs(source([{"shape": ["batch", 2]}, {"shape": [3, "batch"]}, {"shape": [7]}]))
    assert [spec.name for spec in specs] == ["x0", "x1", "x2"]
    assert arguments(specs, ["a", "b", "c"]) == (("a", "b", "c"), {})
    assert [value.shape for value in first_items(specs, seeded_inputs(specs, 5), 2)] == [(2, 2), (3, 2), (7,)]
    specs = input_specs(source({"image": {"shape": ["batch", 3]}, "scale": {"shape": []}}))
    assert arguments(specs, ["a", "b"]) == ((), {"image": "a", "scale": "b"})
    assert arguments([], ["a", "b"]) == (("a", "b"), {})


@pytest.mark.parametrize(
    ("inputs", "at"),
    [
        ({}, ()),
        ("none.npz", ()),
        ({"x": [3, 224]}, ("x",)),
        ({"x": [{"shape": [1]}]}, ("x",)),
        ({"x": {"shape": ["batch"], "dtyp": "int64"}}, ("x",)),
        ({"x": {"shape": [0]}}, ("x", "shape")),
        ({"x": {"shape": [1], "dtype": "int"}}, ("x", "dtype")),
        ({"x": {"shape": [1], "fill": "ramp"}}, ("x", "fill")),
        ({"x": {"shape": [1], "range": [3, 3]}}, ("x", "range")),
        ({"x": {"shape": [1], "range": [0, 3], "fill": "ones"}}, ("x",)),
        ({"x": {"data": "none.npz"}}, ("x", "data")),
    ],
)
def test_a_mistake_names_its_place(inputs: Any, at: tuple[str, ...]) -> None:
    with pytest.raises(InputMistake) as caught:
        declared_inputs(inputs)
    assert caught.value.at == at


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"ids": {"shape": ["batch", 4], "dtype": "int64"}}, r"`inputs: {ids: {range: \[0, 100\]}}`"),
        ({"attention_mask": {"shape": ["batch"], "dtype": "int32"}}, "one of fill: lengths"),
        (BERT, "add `dimensions: {sequence: 128}`"),
        ([{"dtype": "float32"}], "add `shape: "),
    ],
)
def test_integers_without_values_and_sizes_without_numbers_are_errors(inputs: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        input_specs(source(inputs))


def test_declared_values_are_seeded_and_the_same_in_every_batch() -> None:
    extra = {
        "bias": {"shape": ["batch", 3], "range": [2, 3]},
        "places": {"shape": ["batch", 4], "dtype": "int64", "fill": "positions"},
        "zeros": {"shape": [2, 2], "dtype": "int32", "fill": "zeros"},
        "ones": {"shape": ["batch"], "fill": "ones"},
    }
    specs = input_specs(source({**BERT, **extra}, dimensions={"sequence": 9}))
    small, large = seeded_inputs(specs, 2), seeded_inputs(specs, 40)
    for few, many in zip(small, large, strict=True):
        np.testing.assert_array_equal(few, many[:2])
    ids, mask, bias, places, zeros, ones = large
    assert (ids.min() >= 5, ids.max() > 20000, ids.max() < 30522) == (True, True, True)
    assert (np.diff(mask, axis=1) <= 0).all()
    assert set(mask[:, 0]) == {1}
    assert len(set(mask.sum(axis=1))) > 4
    assert 2 <= bias.min() < bias.max() < 3
    assert places[7].tolist() == [0, 1, 2, 3]
    assert (zeros.tolist(), zeros.dtype, ones.tolist()) == ([[0, 0], [0, 0]], np.int32, [1.0] * 40)
    np.testing.assert_array_equal(seeded_inputs(specs, 6, 2)[0], ids[[0, 1] * 3])


def test_data_are_measured_as_they_are_and_a_part_of_the_identity(tmp_path: Path) -> None:
    ids = np.arange(12).reshape(3, 4)
    np.savez(tmp_path / "real.npz", ids=ids, mask=np.ones((3, 4), np.bool_))
    declared = {"ids": {"data": "real.npz"}, "mask": {"data": "real.npz"}}
    whole = input_specs(ModelSource("m", factory="a:b", inputs=declared_inputs(declared, tmp_path)))
    assert [(s.name, s.shape, s.dtype) for s in whole] == [
        ("ids", ("batch", 4), "int64"),
        ("mask", ("batch", 4), "bool"),
    ]
    np.testing.assert_array_equal(seeded_inputs(whole, 4)[0], ids[[0, 1, 2, 0]])
    np.testing.assert_array_equal(seeded_inputs(whole, 2, first=2)[0], ids[[2, 0]])
    longer = replace(whole[0], shape=("batch", 6))
    np.testing.assert_array_equal(seeded_inputs([longer], 1)[0], ids[:1, [0, 1, 2, 3, 0, 1]])
    same = TensorSpec("p", ("batch", 4), "int64", fill="positions")
    assert [distinct_items(specs) for specs in (whole, [same], [*whole, SPECS[0]])] == [3, 1, None]
    assert repr(replace(whole[0], data=ids + 1)) == repr(whole[0])
    ids[0] = 7
    np.savez(tmp_path / "other.npz", ids=ids)
    (other,) = input_specs(source({"ids": {"data": str(tmp_path / "other.npz")}}))
    assert other.digest != whole[0].digest
    with pytest.raises(ModelError, match=r"\[batch, 5\] does not fit the array of shape \(3, 4\)"):
        input_specs(source({"ids": {"data": str(tmp_path / "real.npz"), "shape": ["batch", 5]}}))
    with pytest.raises(InputMistake, match="no such array; it has ids, mask"):
        declared_inputs({"other": {"data": "real.npz"}}, tmp_path)


def test_a_graphs_inputs_are_its_own_with_the_values_of_the_job(tmp_path: Path) -> None:
    types = (TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL)
    theirs = save(tmp_path / "m.onnx", ["N", 3, "H"], ["N", 4], ["H", "N"], types=types)
    theirs = replace(theirs, dimensions={"H": 8}, inputs=declared_inputs({"in1": {"range": [0, 30522]}}))
    assert [(spec.name, spec.shape, spec.dtype, spec.range) for spec in input_specs(theirs)] == [
        ("in0", ("batch", 3, 8), "float16", None),
        ("in1", ("batch", 4), "int64", (0, 30522)),
        ("in2", (8, "batch"), "bool", None),
    ]
    for changes, says in (
        ({"inputs": ()}, r"`inputs: {in1: {range: \[0, 100\]}}`"),
        ({"inputs": declared_inputs({"ids": {"range": [0, 2]}})}, "m.onnx has no input 'ids'"),
        ({"dimensions": {}}, r"dimensions: \{H: 128\}"),
        ({"dimensions": {"H": 8, "W": 8}}, "no free dimension 'W' beside the batch; free are: H"),
        ({"dimensions": {"H": 8, "N": 4}}, "no free dimension 'N' beside the batch"),
        ({"dimensions": {"H": 8, "in0[1]": 5}}, r"no free dimension 'in0\[1\]'"),
    ):
        with pytest.raises(ModelError, match=says):
            input_specs(replace(theirs, **changes))  # type: ignore[arg-type]
    anonymous = input_specs(save(tmp_path / "n.onnx", [None, 3], [None, 4]))
    assert [spec.shape for spec in anonymous] == [("batch", 3), ("batch", 4)]


def test_fixed_batch(tmp_path: Path) -> None:
    specs = input_specs(save(tmp_path / "m.onnx", [4, 3], [4, 2], [7]))
    assert fixed_batch(specs) == 4
    assert [array.shape for array in seeded_inputs(specs, 4)] == [(4, 3), (4, 2), (7,)]
    with pytest.raises(ModelError, match="fixed to 4"):
        seeded_inputs(specs, 2)
    first, later = seeded_inputs(specs, 4), seeded_inputs(specs, 4, first=4)
    assert [np.array_equal(*pair) for pair in zip(first, later, strict=True)] == [False, False, True]
    assert fixed_batch(input_specs(ModelSource("vgg16"))) is None


def test_items_are_the_same_in_every_batch_size() -> None:
    small, large, later = seeded_inputs(SPECS, 2), seeded_inputs(SPECS, 5), seeded_inputs(SPECS, 2, first=3)
    for index, axis in ((0, 0), (1, 1), (2, 0), (3, 0)):
        np.testing.assert_array_equal(small[index], large[index].take(range(2), axis=axis))
        np.testing.assert_array_equal(later[index], large[index].take(range(3, 5), axis=axis))
    np.testing.assert_array_equal(small[4], large[4])
    assert all(array.flags.c_contiguous for array in large)
    assert [str(array.dtype) for array in large] == [spec.dtype for spec in SPECS]
    half = seeded_inputs([replace(SPECS[0], dtype="float16")], 2)
    np.testing.assert_array_equal(half[0], small[0].astype(np.float16))
