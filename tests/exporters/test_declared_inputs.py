"""What a job says of inputs becomes tensors with places, values and sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.declared_inputs import DeclaredInput, InputMistake, declared_inputs, name_of
from exporters.inputs import TensorSpec, arguments, distinct_items, first_items, input_specs, seeded_inputs
from exporters.source import ModelError, ModelSource

BERT = {
    "input_ids": {"shape": ["batch", "sequence"], "dtype": "int64", "range": [5, 30522]},
    "attention_mask": {"shape": ["batch", "sequence"], "dtype": "int64", "fill": "lengths"},
}


def source(inputs: Any, **more: Any) -> ModelSource:
    return ModelSource("mine", factory="a:b", inputs=declared_inputs(inputs), **more)


def test_keywords_positions_and_nested_parts_have_places() -> None:
    named = declared_inputs({"images": [{"image": {"shape": ["batch", 3]}}, {"shape": [4]}], "t": {"shape": ["batch"]}})
    assert [each.place for each in named] == [("images", 0, "image"), ("images", 1), ("t",)]
    assert [name_of(each.place) for each in named] == ["images.0.image", "images.1", "t"]
    assert [name_of(each.place, 2) for each in declared_inputs([{"shape": [1]}, {"shape": [2]}])] == ["x0", "x1"]
    assert name_of((0,), 1) == "x"
    args, keywords = arguments(input_specs(source([{"shape": [2]}, [{"shape": [3]}, {"shape": [4]}]])), ["a", "b", "c"])
    assert (args, keywords) == (("a", ["b", "c"]), {})
    specs = input_specs(source({"images": [{"image": {"shape": ["batch", 3]}}, {"shape": [4]}]}))
    assert arguments(specs, ["a", "b"]) == ((), {"images": [{"image": "a"}, "b"]})
    assert arguments([], ["a", "b"]) == (("a", "b"), {})


@pytest.mark.parametrize(
    ("inputs", "at", "says"),
    [
        ({}, (), "must be the inputs by name"),
        ({"x": [3, 224]}, ("x",), r"a shape goes under a key: {shape: \['batch', 3, 224\]}"),
        ({"x": {"shape": ["batch"], "dtyp": "int64"}}, ("x",), "unknown key 'dtyp' next to 'shape'"),
        ({"x": {"shape": [0]}}, ("x", "shape"), "must be sizes and names of sizes"),
        ({"x": {"shape": [1], "dtype": "int"}}, ("x", "dtype"), "unknown type 'int'; valid: float32"),
        ({"x": {"shape": [1], "fill": "ramp"}}, ("x", "fill"), "unknown fill 'ramp'; valid: lengths"),
        ({"x": {"shape": [1], "range": [3, 3]}}, ("x", "range"), "must be two numbers"),
        ({"x": {"shape": [1], "range": [0, 3], "fill": "ones"}}, ("x",), "range and fill each say"),
        ({"x": {"data": "none.npz"}}, ("x", "data"), "there is no file"),
        ("none.npz", (), "there is no file"),
    ],
)
def test_a_mistake_names_its_place_and_what_to_write(inputs: Any, at: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputMistake, match=says) as caught:
        declared_inputs(inputs)
    assert caught.value.at == at


def test_integers_without_values_and_sizes_without_numbers_are_errors() -> None:
    with pytest.raises(ModelError, match=r"'ids' is int64, and nothing says .* `inputs: {ids: {range: \[0, 1000\]}}`"):
        input_specs(source({"ids": {"shape": ["batch", 4], "dtype": "int64"}}))
    with pytest.raises(ModelError, match=r"`inputs: {attention_mask: {fill: lengths}}`"):
        input_specs(source({"attention_mask": {"shape": ["batch", 4], "dtype": "int32"}}))
    with pytest.raises(ModelError, match=r"nobody gives: sequence; add `dimensions: {sequence: 128}`"):
        input_specs(source(BERT))
    with pytest.raises(ModelError, match="input 'x' has no shape"):
        input_specs(source([{"dtype": "float32"}]))
    assert input_specs(source({"flag": {"shape": ["batch"], "dtype": "bool"}}))[0].dtype == "bool"


def test_values_are_seeded_and_the_same_in_every_batch() -> None:
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
    repeated = seeded_inputs(specs, 6, 2)
    np.testing.assert_array_equal(repeated[0], ids[[0, 1] * 3])


def test_data_are_measured_as_they_are_and_a_part_of_the_identity(tmp_path: Path) -> None:
    ids = np.arange(12).reshape(3, 4)
    np.savez(tmp_path / "real.npz", ids=ids, mask=np.ones((3, 4), np.bool_))
    np.save(tmp_path / "one.npy", ids)
    whole = input_specs(ModelSource("m", factory="a:b", inputs=declared_inputs("real.npz", tmp_path)))
    assert [(spec.name, spec.shape, spec.dtype) for spec in whole] == [
        ("ids", ("batch", 4), "int64"),
        ("mask", ("batch", 4), "bool"),
    ]
    np.testing.assert_array_equal(seeded_inputs(whole, 4)[0], ids[[0, 1, 2, 0]])
    np.testing.assert_array_equal(seeded_inputs(whole, 2, first=2)[0], ids[[2, 0]])
    seeded = TensorSpec("x", ("batch", 4), "float32")
    same = TensorSpec("p", ("batch", 4), "int64", fill="positions")
    assert [distinct_items(specs) for specs in (whole, [same], [*whole, seeded])] == [3, 1, None]
    single = declared_inputs([{"data": "one.npy", "shape": ["batch", "length"]}], tmp_path)
    (spec,) = input_specs(ModelSource("m", factory="a:b", inputs=single, dimensions={"length": 4}))
    assert (spec.shape, len(spec.digest)) == (("batch", 4), 64)
    with pytest.raises(ModelError, match=r"has the shape \[batch, 5\], which the array of shape \(3, 4\)"):
        input_specs(ModelSource("m", factory="a:b", inputs=single, dimensions={"length": 5}))
    with pytest.raises(InputMistake, match="has no array 'other'; it has ids, mask"):
        declared_inputs({"other": {"data": "real.npz"}}, tmp_path)
    assert repr(replace(spec, data=tmp_path)) == repr(spec)  # What a key is made of: the content, not the path.


def test_first_items_are_taken_along_the_batch() -> None:
    specs = input_specs(source([{"shape": ["batch", 2]}, {"shape": [3, "batch"]}, {"shape": [7]}]))
    values = seeded_inputs(specs, 5)
    assert [value.shape for value in first_items(specs, values, 2)] == [(2, 2), (3, 2), (7,)]


def test_an_empty_place_is_a_tensor_of_its_own() -> None:
    assert declared_inputs({"x": {"shape": []}}) == (DeclaredInput(("x",), ()),)
