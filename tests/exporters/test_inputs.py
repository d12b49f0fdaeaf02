"""Inputs have the declared shapes and values, in arrays that do not depend on the batch size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from matrix_product import write_text
from onnx import TensorProto, helper

from exporters.inputs import (
    TensorSpec,
    arguments,
    dimensions_of,
    distinct_items,
    first_items,
    fixed_batch,
    how_to_give,
    input_specs,
    seeded_inputs,
)
from exporters.onnx_files import file_inputs
from exporters.source import ModelError, ModelSource

SPECS = [
    TensorSpec("a", ("batch", 3, 5), "float32"),
    TensorSpec("b", (2, "batch"), "int64"),
    TensorSpec("c", ("batch",), "bool"),
    TensorSpec("d", ("batch", 50), "bfloat16"),
    TensorSpec("e", (6,), "float64"),
]


def save(path: Path, *shapes: list[int | str | None] | None, types: tuple[int, ...] = ()) -> ModelSource:
    kinds = types or (TensorProto.FLOAT,) * len(shapes)
    pairs = list(enumerate(zip(kinds, shapes, strict=True)))
    inputs, outputs = (
        [helper.make_tensor_value_info(f"{what}{index}", kind, shape) for index, (kind, shape) in pairs]
        for what in ("in", "out")
    )
    nodes = [helper.make_node("Identity", [f"in{index}"], [f"out{index}"]) for index, _ in pairs]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs)), path)
    return ModelSource("theirs", onnx=path)


def test_keywords_and_positions_have_places():
    specs = [TensorSpec("x0", ("batch", 2), "float32", 0), TensorSpec("x1", (3, "batch"), "float32", 1)]
    specs.append(TensorSpec("x2", (7,), "float32", 2))
    assert arguments(specs, ["a", "b", "c"]) == (("a", "b", "c"), {})
    assert [value.shape for value in first_items(specs, seeded_inputs(specs, 5), 2)] == [(2, 2), (3, 2), (7,)]
    specs = [TensorSpec(name, ("batch",), "float32", name) for name in ("image", "scale")]
    assert arguments(specs, ["a", "b"]) == ((), {"image": "a", "scale": "b"})
    assert arguments([], ["a", "b"]) == (("a", "b"), {})


def test_values_are_seeded_and_the_same_in_every_batch():
    specs = [
        TensorSpec("ids", ("batch", 9), "int64", range=(5, 30522)),
        TensorSpec("mask", ("batch", 9), "int64", is_mask=True),
        TensorSpec("bias", ("batch", 3), "float32", range=(2, 3)),
    ]
    small, large = seeded_inputs(specs, 2), seeded_inputs(specs, 40)
    for few, many in zip(small, large, strict=True):
        np.testing.assert_array_equal(few, many[:2])
    ids, mask, bias = large
    assert (ids.min() >= 5, ids.max() > 20000, ids.max() < 30522) == (True, True, True)
    assert (np.diff(mask, axis=1) <= 0).all()
    assert set(mask[:, 0]) == {1}
    assert len(set(mask.sum(axis=1))) > 4
    assert 2 <= bias.min() < bias.max() < 3
    np.testing.assert_array_equal(seeded_inputs(specs, 6, 2)[0], ids[[0, 1] * 3])


def test_data_are_measured_as_they_are_and_a_part_of_the_identity(tmp_path):
    theirs, ids = save(tmp_path / "m.onnx", ["N", 4], types=(TensorProto.INT64,)), np.arange(12).reshape(3, 4)

    def held(values: Any) -> TensorSpec:
        np.save(tmp_path / "ids.npy", values)
        (spec,) = input_specs(replace(theirs, inputs={"in0": tmp_path / "ids.npy"}))
        return spec

    whole = held(ids)
    np.testing.assert_array_equal(seeded_inputs([whole], 4)[0], ids[[0, 1, 2, 0]])
    np.testing.assert_array_equal(seeded_inputs([whole], 2, first=2)[0], ids[[2, 0]])
    longer = replace(whole, shape=("batch", 6))
    np.testing.assert_array_equal(seeded_inputs([longer], 1)[0], ids[:1, [0, 1, 2, 3, 0, 1]])
    assert [distinct_items(specs) for specs in ([whole], [whole, SPECS[0]])] == [3, None]
    assert held(ids) == whole != held(ids + 1)
    with pytest.raises(ModelError, match=r"\[batch, 4\] does not fit the array of shape \(4, 3\)"):
        held(ids.T)
    (tmp_path / "ids.npy").write_text("")
    with pytest.raises(ModelError, match="holds no array"):
        input_specs(replace(theirs, inputs={"in0": tmp_path / "ids.npy"}))


def test_a_graphs_inputs_are_its_own_with_the_values_of_the_job(tmp_path):
    types = (TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL)
    theirs = save(tmp_path / "m.onnx", ["N", 3, "H"], ["N", 4], ["H", "N"], types=types)
    theirs = replace(theirs, dimensions={"H": 8}, inputs={"in1": (0, 30522)})
    assert [(spec.name, spec.shape, spec.dtype, spec.range) for spec in input_specs(theirs)] == [
        ("in0", ("batch", 3, 8), "float16", None),
        ("in1", ("batch", 4), "int64", (0, 30522)),
        ("in2", (8, "batch"), "bool", None),
    ]
    for changes, says in (
        ({"inputs": {}}, r"'in1' \(int64\): give --input in1=0,100 .*`inputs: {in1: {range: \[0, 100\]}}`"),
        ({"inputs": {"ids": (0, 2)}}, "m.onnx has no input 'ids'"),
        ({"dimensions": {}}, r"dimensions: \{H: 256\}"),
        ({"dimensions": {"H": 8, "W": 8}}, "no free dimension 'W' beside the batch; free are: H"),
        ({"dimensions": {"H": 8, "in0[1]": 5}}, r"no free dimension 'in0\[1\]'"),
    ):
        with pytest.raises(ModelError, match=says):
            input_specs(replace(theirs, **changes))
    image = save(tmp_path / "u.onnx", ["N", 8], types=(TensorProto.UINT8,))
    with pytest.raises(ModelError, match=r"--input in0=0,256 "):
        input_specs(image)
    sized = input_specs(replace(theirs, dimensions={"H": 8, "N": 4}))
    assert [spec.shape for spec in sized] == [(4, 3, 8), (4, 4), (8, 4)], "a leading symbol with a size is no batch"
    numbered = save(tmp_path / "t.onnx", ["unk__10", 3], ["unk__11", "unk__12"])
    with pytest.raises(ModelError, match=r"dimensions: \{unk__12: 256\}"):
        input_specs(numbered)
    specs = input_specs(replace(numbered, dimensions={"unk__12": 5}))
    assert [spec.shape for spec in specs] == [("batch", 3), ("batch", 5)]
    unknown = save(tmp_path / "q.onnx", ["?", "?", 3])
    with pytest.raises(ModelError, match=r'"in0\[1\]": 256'):
        input_specs(unknown)
    assert input_specs(replace(unknown, dimensions={"in0[1]": 5}))[0].shape == ("batch", 5, 3)
    with pytest.raises(ModelError, match=r"input 'in1' is not a tensor of numbers with a shape"):
        input_specs(save(tmp_path / "n.onnx", [None, 3], None))
    anonymous = input_specs(save(tmp_path / "n.onnx", [None, 3], [None, 4]))
    assert [spec.shape for spec in anonymous] == [("batch", 3), ("batch", 4)]


def test_a_cache_may_be_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    theirs = replace(save(tmp_path / "c.onnx", [0, 0, 4], ["batch", "past", 4]), dimensions={"past": 0})
    specs = input_specs(theirs)
    assert [spec.shape for spec in specs] == [("batch", 0, 4), ("batch", 0, 4)], "a 0 in front is no size"
    assert [array.shape for array in seeded_inputs(specs, 3)] == [(3, 0, 4), (3, 0, 4)]
    (mask,) = seeded_inputs([TensorSpec("mask", ("batch", 0), "int64", is_mask=True)], 3)
    assert mask.shape == (3, 0)
    for items in (2, 0):
        np.save(tmp_path / "in1.npy", np.empty((items, 0, 4), np.float32))
        given = replace(theirs, inputs={"in1": tmp_path / "in1.npy"})
        if items:
            assert seeded_inputs(input_specs(given), 3)[1].shape == (3, 0, 4)
        else:
            with pytest.raises(ModelError, match=r"does not fit the array of shape \(0, 0, 4\)"):
                input_specs(given)


@pytest.mark.parametrize(
    ("shapes", "batch", "more", "expected"),
    [
        ([["N", 3], [2, None, 4]], {"in1": 1}, {}, [("batch", 3), (2, "batch", 4)]),
        ([["L", "n", 4]], {"in0": 1}, {"L": 5}, [(5, "batch", 4)]),
        ([["L", "L"], ["L", "n", 4]], {"in1": 1}, {"L": 5}, [(5, 5), (5, "batch", 4)]),
        ([["L", "L"], ["M", 4]], {"in0": None}, {"L": 5}, [(5, 5), ("batch", 4)]),
        ([["L", "batch_size", 4], ["unk__1"]], {}, {"L": 5}, [(5, "batch", 4), ("batch",)]),
        ([["a_dynamic_axes_1", 3], ["b_dynamic_axes_1", 4]], {}, {}, [("batch", 3), ("batch", 4)]),
        ([["DynamicDimension.0", 3], ["DynamicDimension.4", 4]], {}, {}, [("batch", 3), ("batch", 4)]),
        ([["p2o.DynamicDimension.0", 3], ["p2o.DynamicDimension.1"]], {}, {}, [("batch", 3), ("batch",)]),
        ([[], ["N", 3]], {}, {}, [(), ("batch", 3)]),
        ([["L", 3, 4], [7]], {"in0": 1, "in1": None}, {"L": 5}, [(5, 3, 4), (7,)]),
        ([["N", 3], [2, 1, 4]], {"in1": 1}, {}, "has a free batch, and fixes axis 1 of 'in1'"),
        ([["N", 3]], {"ino": 1}, {}, "batch: no input 'ino'; valid: in0"),
        ([["N", 3]], {"in0": 2}, {}, r"batch: 'in0' of shape \['N', 3\] has no axis 2"),
        ([["N", 3], [2, None, 4]], {}, {}, r"that is the batch:\n    batch: \{in1: 1\}"),
    ],
)
def test_the_batch_is_on_the_axis_that_the_job_names(tmp_path, shapes, batch, more, expected):
    theirs = replace(save(tmp_path / "b.onnx", *shapes), batch=batch, dimensions=more)
    if isinstance(expected, str):
        with pytest.raises(ModelError, match=expected):
            input_specs(theirs)
        return
    specs = input_specs(theirs)
    assert [spec.shape for spec in specs] == expected
    assert set(dimensions_of(theirs)) == set(more)
    if "batch" not in str(expected):
        assert fixed_batch(specs) == 3
        first, later = seeded_inputs(specs, 3), seeded_inputs(specs, 3, first=2)
        np.testing.assert_array_equal(first[0][:, 2], later[0][:, 0])
        np.testing.assert_array_equal(first[1], later[1])


def test_real_values_are_given_as_the_model_takes_them(tmp_path):
    state = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    np.save(tmp_path / "s.npy", state)
    for shape in ([2, "n", 4], [2, 3, 4]):
        theirs = replace(save(tmp_path / "s.onnx", shape), batch={"in0": 1}, inputs={"in0": tmp_path / "s.npy"})
        specs = input_specs(theirs)
        np.testing.assert_array_equal(seeded_inputs(specs, 3)[0], state)
        assert distinct_items(specs) == 3
    specs = input_specs(replace(theirs, onnx=save(tmp_path / "n.onnx", [2, "n", 4]).onnx))
    np.testing.assert_array_equal(seeded_inputs(specs, 5)[0], state[:, [0, 1, 2, 0, 1]])


@pytest.mark.parametrize(
    ("nodes", "values"),
    [
        ("i = Cast <to: int = 7> (a)  y = Gather (table, i)", (0, 5)),
        ("n = Add (a, rate)  c = Less (a, rate)  i = Where (c, n, a)  y = Gather (table, i)", (0, 5)),
        ("wide = DequantizeLinear (small, one)  y = Gather (wide, a)", (0, 3)),
        ("y = Equal (a, rate)", (16000, 16001)),
        ("y = Gather (a, a)", (0, 100)),
    ],
)
def test_an_option_for_integers_has_values_that_the_graph_takes(tmp_path, nodes, values):
    tables = "float[5, 2] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0}, int8[3, 2] small = {1, 2, 3, 4, 5, 6}"
    held = f"<{tables}, float one = {{1}}, int64 rate = {{16000}}>"
    write_text(tmp_path / "m.onnx", f"g (int32[n] a, int64[n] pad_mask) => (float[n, 2] y) {held} {{ {nodes} }}")
    says = rf"give --input a={values[0]},{values[1]} --input pad_mask=1,2 .*end.*a: {{range: \[{values[0]}, "
    with pytest.raises(ModelError, match=says):
        input_specs(ModelSource("theirs", onnx=tmp_path / "m.onnx"))


def test_fixed_batch(tmp_path):
    specs = input_specs(save(tmp_path / "m.onnx", [4, 3], [4, 2], [7]))
    assert fixed_batch(specs) == 4
    assert [array.shape for array in seeded_inputs(specs, 4)] == [(4, 3), (4, 2), (7,)]
    with pytest.raises(ModelError, match="fixed to 4"):
        seeded_inputs(specs, 2)
    first, later = seeded_inputs(specs, 4), seeded_inputs(specs, 4, first=4)
    assert [np.array_equal(*pair) for pair in zip(first, later, strict=True)] == [False, False, True]
    assert fixed_batch(input_specs(ModelSource("vgg16"))) is None
    constant = write_text(tmp_path / "c.onnx", "g () => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }")
    assert fixed_batch(input_specs(ModelSource("constant", onnx=constant))) == 1, "without inputs no batch can vary"


def test_items_are_the_same_in_every_batch_size():
    small, large, later = seeded_inputs(SPECS, 2), seeded_inputs(SPECS, 5), seeded_inputs(SPECS, 2, first=3)
    for index, axis in ((0, 0), (1, 1), (2, 0), (3, 0)):
        np.testing.assert_array_equal(small[index], large[index].take(range(2), axis=axis))
        np.testing.assert_array_equal(later[index], large[index].take(range(3, 5), axis=axis))
    np.testing.assert_array_equal(small[4], large[4])
    assert all(array.flags.c_contiguous for array in large)
    assert [str(array.dtype) for array in large] == [spec.dtype for spec in SPECS]
    half = seeded_inputs([replace(SPECS[0], dtype="float16")], 2)
    np.testing.assert_array_equal(half[0], small[0].astype(np.float16))


@pytest.mark.parametrize("name", [b"batch", b"x"])
def test_a_name_that_is_no_text_is_a_damaged_file(tmp_path, name):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    text = helper.make_model(graph).SerializeToString()
    (tmp_path / "damaged.onnx").write_bytes(text.replace(name, b"\xd1" * len(name)))
    with pytest.raises(ModelError, match=r"name is no text.*: the file is damaged"):
        file_inputs(tmp_path / "damaged.onnx")


@pytest.mark.parametrize(("name", "dimension"), [("x", "n"), ("y" * 1001, "n"), ("y", "n" * 1001)])
def test_a_name_that_is_too_long_or_used_twice_is_refused(tmp_path, name, dimension):
    write_text(tmp_path / "m.onnx", f"g (float[n] x, float[{dimension}] y) => (float[n] z) {{ z = Relu (x) }}")
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.input[1].name = name
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"too long or used twice \('"):
        file_inputs(tmp_path / "m.onnx")


def test_a_job_gets_a_name_as_the_file_has_it():
    assert 'inputs: {"état": {data: _tat.npy}, "a b": {data: a_b.npy}, x.1: ' in how_to_give(
        ["état", "a b", "x.1"], "onnx"
    )
