"""Inputs have the declared shapes, and arrays that do not depend on the batch size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from exporters.declared_inputs import declared_inputs
from exporters.inputs import TensorSpec, fixed_batch, input_specs, seeded_inputs
from exporters.source import ModelError, ModelSource


def save(path: Path, *shapes: list[int | str | None], types: tuple[int, ...] = ()) -> ModelSource:
    """A file that passes its inputs through."""
    kinds = types or (TensorProto.FLOAT,) * len(shapes)
    inputs = [
        helper.make_tensor_value_info(f"in{index}", kind, shape)
        for index, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    ]
    outputs = [
        helper.make_tensor_value_info(f"out{index}", kind, shape)
        for index, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    ]
    nodes = [helper.make_node("Identity", [f"in{index}"], [f"out{index}"]) for index in range(len(shapes))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs)), path)
    return ModelSource("theirs", onnx=path)


def test_canonical_and_factory() -> None:
    assert input_specs(ModelSource("overfeat")) == [TensorSpec("x", ("batch", 3, 231, 231), "float32")]
    source = ModelSource("mine", factory="a:b", input_shape=(3, 8))
    assert input_specs(source) == [TensorSpec("x", ("batch", 3, 8), "float32")]
    with pytest.raises(ModelError, match="add `input:"):
        input_specs(ModelSource("mine", factory="a:b"))


def test_onnx_batch_symbol_is_renamed_in_every_input(tmp_path: Path) -> None:
    types = (TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL)
    source = save(tmp_path / "m.onnx", ["N", 3, "H"], ["N", 4], ["H", "N"], types=types)
    inputs = declared_inputs({"in1": {"range": [0, 30522]}})
    source = ModelSource(source.name, onnx=source.onnx, dimensions={"H": 8}, inputs=inputs)
    assert input_specs(source) == [
        TensorSpec("in0", ("batch", 3, 8), "float16"),
        TensorSpec("in1", ("batch", 4), "int64", range=(0, 30522)),
        TensorSpec("in2", (8, "batch"), "bool"),
    ]
    with pytest.raises(ModelError, match=r"'in1' is int64, .*: give `inputs: {in1: {range: \[0, 1000\]}}`"):
        input_specs(replace(source, inputs=()))
    with pytest.raises(ModelError, match=r"m.onnx has no input 'ids', but \['in0', 'in1', 'in2'\]"):
        input_specs(replace(source, inputs=declared_inputs({"ids": {"range": [0, 2]}})))


def test_onnx_anonymous_leading_dimension_is_the_batch(tmp_path: Path) -> None:
    specs = input_specs(save(tmp_path / "m.onnx", [None, 3], [None, 4]))
    assert [spec.shape for spec in specs] == [("batch", 3), ("batch", 4)]


def test_onnx_unnamed_dimensions_are_listed_with_the_line_to_add(tmp_path: Path) -> None:
    source = save(tmp_path / "m.onnx", ["N", "H", None])
    with pytest.raises(ModelError) as caught:
        input_specs(source)
    assert "H, in0[2]" in str(caught.value)
    assert 'dimensions: {H: 128, "in0[2]": 128}' in str(caught.value)


@pytest.mark.parametrize(
    ("dimensions", "says"),
    [
        ({"H": 8, "W": 8}, "m.onnx has no dimension 'W'; those without a fixed size are H"),
        ({"H": 8, "N": 4}, "N is the batch of {path}, whose sizes are in batch_sizes; leave N out"),
        ({"H": 8, "in1[0]": 4}, "in1[0] is the batch of {path}"),
        ({"H": 8, "in0[1]": 5}, "in0[1] is 3 in {path}, not 5; leave it out"),
    ],
)
def test_onnx_dimensions_that_the_graph_lacks_or_fixes_are_refused(
    tmp_path: Path, dimensions: dict[str, int], says: str
) -> None:
    source = save(tmp_path / "m.onnx", ["N", 3, "H"], [None, 2])
    with pytest.raises(ModelError) as caught:
        input_specs(replace(source, dimensions=dimensions))
    assert "model 'theirs': dimensions: " in str(caught.value)
    assert says.format(path=tmp_path / "m.onnx") in str(caught.value)
    assert input_specs(replace(source, dimensions={"H": 8, "in0[1]": 3}))[0].shape == ("batch", 3, 8)
    with pytest.raises(ModelError, match="no dimension 'H'; none needs a size: leave it out"):
        input_specs(replace(save(tmp_path / "fixed.onnx", ["N", 3]), dimensions={"H": 8}))


def test_onnx_initializers_are_no_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(path, ["N", 2])
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [0.0]))
    onnx.save(model, path)
    assert [spec.name for spec in input_specs(ModelSource("theirs", onnx=path))] == ["in0"]


def test_fixed_batch(tmp_path: Path) -> None:
    specs = input_specs(save(tmp_path / "m.onnx", [4, 3], [4, 2], [7]))
    assert fixed_batch(specs) == 4
    assert [array.shape for array in seeded_inputs(specs, 4)] == [(4, 3), (4, 2), (7,)]
    with pytest.raises(ModelError, match="fixed to 4"):
        seeded_inputs(specs, 2)
    first, later = seeded_inputs(specs, 4), seeded_inputs(specs, 4, first=4)
    assert [np.array_equal(*pair) for pair in zip(first, later, strict=True)] == [False, False, True]
    assert fixed_batch(input_specs(ModelSource("vgg16"))) is None


SPECS = [
    TensorSpec("a", ("batch", 3, 5), "float32"),
    TensorSpec("b", (2, "batch"), "int64"),
    TensorSpec("c", ("batch",), "bool"),
    TensorSpec("d", ("batch", 50), "bfloat16"),
    TensorSpec("e", (6,), "float64"),
]


def test_items_are_the_same_in_every_batch_size() -> None:
    small, large = seeded_inputs(SPECS, 2), seeded_inputs(SPECS, 5)
    for index, axis in ((0, 0), (1, 1), (2, 0), (3, 0)):
        np.testing.assert_array_equal(small[index], large[index].take(range(2), axis=axis))
    np.testing.assert_array_equal(small[4], large[4])
    later = seeded_inputs(SPECS, 2, first=3)
    for index, axis in ((0, 0), (1, 1), (2, 0), (3, 0)):
        np.testing.assert_array_equal(later[index], large[index].take(range(3, 5), axis=axis))
    np.testing.assert_array_equal(later[4], large[4])
    assert all(array.flags.c_contiguous for array in large)
    assert [str(array.dtype) for array in large] == [spec.dtype for spec in SPECS]


def test_items_and_inputs_differ() -> None:
    first, second = seeded_inputs([SPECS[0], SPECS[0]], 64)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, second)
    assert abs(float(first.mean())) < 0.2
    assert 0.8 < float(first.std()) < 1.2
    assert set(np.unique(seeded_inputs([SPECS[1]], 64)[0])) == {0, 1}


def test_half_precision_inputs_are_rounded_fp32_ones() -> None:
    full = seeded_inputs(SPECS[:2], 3)
    half = seeded_inputs([replace(SPECS[0], dtype="float16"), SPECS[1]], 3)
    np.testing.assert_array_equal(half[0], full[0].astype(np.float16))
    assert half[1].dtype == np.int64
