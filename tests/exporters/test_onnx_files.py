"""Which precisions an .onnx file has, and its half-precision graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.int8 import quantize
from exporters.onnx_files import is_float32, not_made, precisions_of, refused_graphs, to_fp16
from exporters.source import ModelError, ModelSource

WEIGHT = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)


def write(path: Path, kind: int = TensorProto.FLOAT, name: str = "x", size: int = 3) -> Path:
    """max(x W, 0) W and the cumulative sum of it, which ONNX Runtime's converter leaves in float32."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        helper.make_node("MatMul", [name, "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("CumSum", ["b", "axis"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(each, kind, ["n", size]) for each in (name, "y"))
    held = [numpy_helper.from_array(WEIGHT.astype(dtype), "w"), numpy_helper.from_array(np.array(1), "axis")]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def run(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (node,) = session.get_inputs()
    dtype = {"tensor(float16)": np.float16, "tensor(float)": np.float32}[node.type]
    return np.asarray(session.run(None, {node.name: x.astype(dtype)})[0], np.float32)


def test_a_file_of_floats_has_the_jobs_precisions_and_any_other_its_own(tmp_path: Path) -> None:
    floats, halves = write(tmp_path / "a.onnx"), write(tmp_path / "b.onnx", TensorProto.FLOAT16)
    source, quantized = ModelSource("a", onnx=floats), quantize(ModelSource("a", onnx=floats), Cache(tmp_path)).path
    assert is_float32(floats)
    assert not any(map(is_float32, (halves, quantized, tmp_path / "no.onnx")))
    assert precisions_of(source, ["fp32", "fp16"]) == ["fp32", "fp16"]
    assert precisions_of(ModelSource("b", onnx=halves), ["fp32", "fp16"]) == ["native"]
    assert precisions_of(ModelSource("a", onnx=floats, graphs={"int8": quantized}), ["fp32"]) == ["fp32", "int8"]
    assert [not_made(source, each) is None for each in ("fp32", "tf32", "fp16", "int8", "bf16")] == [True] * 4 + [False]
    assert not_made(ModelSource("resnet18"), "bf16") is None, "it is exported"


def test_half_precision_names_what_stays_float(tmp_path: Path) -> None:
    source, cache = ModelSource("a", onnx=write(tmp_path / "a.onnx")), Cache(tmp_path / "cache")
    made = to_fp16(source, cache)
    assert (made.kept, made.cached, to_fp16(source, cache).cached) == ("CumSum (1×)", False, True)
    graph = onnx.load(made.path).graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {TensorProto.FLOAT16}
    (x,) = seeded_inputs(input_specs(source), 4)
    exact, half = run(tmp_path / "a.onnx", x), run(made.path, x)
    assert 1e-5 < np.linalg.norm(half - exact) / np.linalg.norm(exact) < 1e-2
    write(tmp_path / "a.onnx", name="other")
    assert to_fp16(source, cache).path != made.path, "the file is another"


def test_a_graph_that_cannot_be_converted_says_what_to_give(tmp_path: Path) -> None:
    graph = onnx.load(write(tmp_path / "a.onnx"))
    graph.graph.node[1].op_type = "Wobble"
    onnx.save(graph, tmp_path / "a.onnx")
    with pytest.raises(ModelError, match=r"a\.onnx to fp16 failed: .*Wobble.*variants: \{fp16: FILE\}"):
        to_fp16(ModelSource("a", onnx=tmp_path / "a.onnx"), Cache(tmp_path / "cache"))


def test_a_file_with_other_inputs_cannot_stand_for_the_model(tmp_path: Path) -> None:
    floats, renamed = write(tmp_path / "a.onnx"), write(tmp_path / "b.onnx", name="other")
    wide = write(tmp_path / "c.onnx", size=4)
    source = ModelSource("a", onnx=floats, graphs={"fp16": renamed, "int8": wide, "bf16": tmp_path / "no.onnx"})
    found = refused_graphs(source, input_specs(source))
    assert set(found) == {"int8", "bf16"}
    assert found["int8"].endswith("its input x has the shape [batch, 4], and the model's x [batch, 3]")
    assert "no such file" in found["bf16"]


def test_half_precision_of_data_in_another_file_is_that_of_data_in_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx")
    onnx.save(
        onnx.load(tmp_path / "a.onnx"),
        tmp_path / "b.onnx",
        save_as_external_data=True,
        location="b.bin",
        size_threshold=0,
    )
    inside, outside = (to_fp16(ModelSource("m", onnx=tmp_path / f"{n}.onnx"), Cache(tmp_path / n)).path for n in "ab")
    assert outside.with_name(f"{outside.name}.data").stat().st_size == 9 * 2 + 8, "nine halves and the axis"
    x = np.random.default_rng(1).standard_normal((4, 3))
    assert np.array_equal(run(inside, x), run(outside, x))
