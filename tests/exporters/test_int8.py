"""Int8 graphs, which ONNX Runtime runs and TensorRT takes, and calibration data that are refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from matrix_product import write_text
from onnx import TensorProto, numpy_helper
from onnx.checker import check_model
from thin_networks import thin_source

from exporters import onnx_export
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.int8 import PLACEMENTS, WEIGHTED, quantize
from exporters.onnx_export import Export, export_onnx
from exporters.source import ModelError, ModelSource

pytestmark = pytest.mark.slow

RESNET = thin_source("resnet50")
SHAPE = (3, 16, 16)
"""Shape of an item of the fixture `small`."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "images"
    path.mkdir()
    return path


def outputs(export: Export, source: ModelSource, batch: int = 3) -> np.ndarray:
    """Run ORT's CPU provider, at a batch size of neither the export nor the calibration."""
    options = onnxruntime.SessionOptions()
    # Else sums saturate in 16 bits on processors without VNNI, and the error is the processor's.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(export.path, options, providers=["CPUExecutionProvider"])
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, x.shape[0], y.name, y.type) == ("x", "tensor(float)", "batch", "y", "tensor(float)")
    return session.run(None, {"x": seeded_inputs(input_specs(source), batch)[0]})[0]


def input_scale(export: Export) -> float:
    graph = onnx.load(export.path).graph
    (node,) = (node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x")
    return next(float(numpy_helper.to_array(t)) for t in graph.initializer if t.name == node.input[1])


@pytest.mark.parametrize("graph", PLACEMENTS)
def test_int8_is_close_to_fp32_and_not_equal(graph, exports):
    expected, found = (
        outputs(e, RESNET) for e in (export_onnx(RESNET, "fp32", exports), quantize(RESNET, exports, graph))
    )
    assert is_close(found, expected)


def is_close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(1e-3 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.1)


def test_graph_is_what_tensorrt_and_onnx_runtime_both_take(cache):
    graph = onnx.load(quantize(RESNET, cache).path).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    quantizers = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    dequantizers = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    for node in (*quantizers, *dequantizers):
        zero = constants[node.input[2]]
        assert zero.data_type == TensorProto.INT8
        assert not numpy_helper.to_array(zero).any(), "symmetric"
    read = [name for node in graph.node for name in node.input]
    assert all(read.count(node.output[0]) <= 1 for node in (*quantizers, *dequantizers)), "a pair for each reader"
    made_by = {node.output[0]: node for node in graph.node}
    products = [node for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert len(products) == 13
    for node in products:
        weight, bias = made_by[node.input[1]], constants[node.input[2]]
        assert constants[weight.input[0]].data_type == TensorProto.INT8
        channels = constants[weight.input[0]].dims[0]
        assert list(constants[weight.input[1]].dims) == [channels], "a scale for each channel"
        assert bias.data_type == TensorProto.FLOAT
        assert made_by[node.input[0]].op_type == "DequantizeLinear"


def test_ranges_are_those_of_the_calibration_data(small, folder, cache):
    item = np.zeros(SHAPE, dtype=np.float32)
    np.save(folder / "a.npy", item)
    np.save(folder / "b.npy", np.asfortranarray(np.stack([item, item + 2.54, item - 1])))
    calibrated = quantize(replace(small, calibration=folder), cache)
    assert input_scale(calibrated) == pytest.approx(2.54 / 127, rel=1e-2)
    seeded = quantize(small, cache)
    assert seeded.path != calibrated.path
    largest = np.abs(seeded_inputs(input_specs(small), 8)[0]).max()
    assert input_scale(seeded) == pytest.approx(largest / 127, rel=1e-2)


GOOD = np.ones(SHAPE, dtype=np.float32)


@pytest.mark.parametrize("graph", PLACEMENTS)
@pytest.mark.parametrize("bias", ["float[1, 3] b = {0.5, -1.0, 2.0}", "float[1] b = {0.5}"])
def test_a_bias_that_is_no_row_of_channels_is_quantized_around(graph, bias, tmp_path, cache):
    """As scikit-learn's perceptrons have it, with a label that is computed in whole numbers."""
    text = f"""
    mlp (float[N, 2] x) => (int64[N] label, float[N, 3] y)
    <float[2, 3] w = {{1.0, -2.0, 0.5, 0.25, 1.5, -1.0}}, {bias}, int64[1] flat = {{-1}}> {{
        product = MatMul (x, w)
        sum = Add (product, b)
        y = Softmax <axis = 1> (sum)
        best = ArgMax <axis = 1> (y)
        label = Reshape (best, flat)
    }}"""
    source = ModelSource("mlp", onnx=write_text(tmp_path / "mlp.onnx", text))
    x = {"x": np.array([[1.0, 0.5], [-0.5, 1.0], [0.25, 0.75]], np.float32)}
    found, expected = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, x)
        for path in (quantize(source, cache, graph).path, source.onnx)
    )
    assert found[0].tolist() == expected[0].tolist()
    assert 1e-5 < np.linalg.norm(found[1] - expected[1]) / np.linalg.norm(expected[1]) < 0.1


@pytest.mark.parametrize("graph", PLACEMENTS)
@pytest.mark.parametrize(("opset", "ir"), [(7, 3), (9, 4), (11, 6), (13, 3)])
def test_an_old_file_is_quantized_in_an_opset_with_scales_per_channel(graph, opset, ir, tmp_path, cache):
    """Until IR version 4 weights are inputs, too; ONNX Runtime's own converter fails at Upsample."""
    grown = "Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (wide)" if opset < 9 else "Upsample (wide, scales)"
    grown = grown if opset < 11 else 'Resize <mode = "nearest"> (wide, scales, scales)'
    path = write_text(
        tmp_path / "old.onnx",
        f"""
    old (float[N, 3, 8, 8] x) => (float[N, 4, 12, 12] y) {{
        wide = Conv (x, w)
        y = {grown}
    }}""",
        w=np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32),
        scales=np.float32([1, 1, 2, 2]),
    )
    model = onnx.load(path)
    model.ir_version, model.opset_import[0].version = ir, opset
    if ir < 4:
        weights = model.graph.initializer
        model.graph.input.extend(onnx.helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights)
    onnx.save(model, path)
    source = ModelSource("old", onnx=path)
    x = {"x": seeded_inputs(input_specs(source), 2)[0]}
    (found,), (expected,) = (
        onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, x)
        for file in (quantize(source, cache, graph).path, path)
    )
    assert 1e-5 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.1


@pytest.mark.parametrize("graph", PLACEMENTS)
def test_a_graph_without_anything_to_quantize_is_refused(graph, tmp_path, cache):
    write_text(tmp_path / "exp.onnx", "exp (float[batch, 4] x) => (float[batch, 4] y) { y = Exp(x) }")
    with pytest.raises(ModelError, match="no operators that are computed in int8"):
        quantize(ModelSource("exp", onnx=tmp_path / "exp.onnx"), cache, graph)


@pytest.mark.parametrize("graph", PLACEMENTS)
def test_a_branch_may_read_what_a_product_before_it_computes(graph, tmp_path, cache):
    """As merged decoders do; ONNX Runtime's quantizer moves the branches to the front."""
    text = """
    merged (float[N, 4] x, bool cached) => (float[N, 4] y) {
        h = MatMul (x, w)
        y = If (cached) <then_branch = a () => (float[N, 4] b) { b = Relu (h) },
                         else_branch = c () => (float[N, 4] d) { d = Neg (h) }>
    }"""
    weight = np.random.default_rng(0).standard_normal((4, 4), np.float32)
    path = write_text(tmp_path / "merged.onnx", text, w=weight)
    check_model(str(quantize(ModelSource("merged", onnx=path), cache, graph).path))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (GOOD.astype(np.uint8), r"uint8 of shape \(3, 16, 16\), but an item is float32 of shape \(3, 16, 16\)"),
        (GOOD.astype(np.float64), "float64"),
        (GOOD.transpose(1, 2, 0), r"float32 of shape \(16, 16, 3\)"),
        (GOOD[None, None], r"\(1, 1, 3, 16, 16\)"),
        (np.empty((0, *SHAPE), dtype=np.float32), r"\(0, 3, 16, 16\)"),
        (np.array([{}]), "no .npy array"),
        (np.stack([GOOD, GOOD * math.nan]), "NaN or infinity"),
        (GOOD * math.inf, "NaN or infinity"),
    ],
    ids=["bytes", "double", "channels last", "too many dimensions", "empty", "objects", "nan", "infinity"],
)
def test_data_that_do_not_fit_are_refused(small, folder, cache, array, words):
    np.save(folder / "a.npy", GOOD)
    np.save(folder / "b.npy", array)
    with pytest.raises(ModelError, match=rf"calibration .*b\.npy: .*{words}"):
        quantize(replace(small, calibration=folder), cache)


def test_second_time_comes_from_the_cache_and_so_do_weights_beside_the_graph(small, cache, tmp_path, monkeypatch):
    inline = outputs(quantize(small, cache), small)
    assert is_close(inline, outputs(export_onnx(small, "fp32", cache), small)), "with a local normalization"
    monkeypatch.setattr(onnx_export, "INLINE_BYTES", 0)
    cache = Cache(tmp_path / "another")
    export, second = quantize(small, cache), quantize(small, cache)
    assert (export.cached, second.cached) == (False, True)
    assert (second.path, second.seconds) == (export.path, export.seconds)
    fp32 = export_onnx(small, "fp32", cache)
    assert fp32.cached
    assert export.seconds > fp32.seconds, "the fp32 export's seconds are among them"
    assert export.path != fp32.path
    data = export.path.with_name(export.path.name + ".data")
    assert data.is_file()
    np.testing.assert_allclose(outputs(export, small), inline)
    data.unlink()
    assert not quantize(small, cache).cached, "the data belong to the entry"


@pytest.fixture(scope="module")
def path(exports: Cache) -> Path:
    return quantize(RESNET, exports, "int8-operands").path


def test_a_pair_an_operand_and_one_a_residual(path):
    graph = onnx.load(path).graph
    count = Counter(node.op_type for node in graph.node)
    assert (count["Conv"], count["Gemm"], count["Add"]) == (12, 1, 3)
    # The weights are stored in int8, with nothing to quantize.
    assert (count["QuantizeLinear"], count["DequantizeLinear"]) == (12 + 1 + 3, 2 * (12 + 1) + 3)
    maker = {name: node.op_type for node in graph.node for name in node.output}
    for node in graph.node:
        of = [maker.get(name) for name in node.input]
        if node.op_type in WEIGHTED:
            assert of[:2] == ["DequantizeLinear"] * 2
        elif node.op_type == "Add":
            assert sorted(map(str, of)) == ["Conv", "DequantizeLinear"]
        elif node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            assert "DequantizeLinear" not in of
    (output,) = graph.output
    assert maker[output.name] == "Gemm"
    names = Counter(name for node in graph.node for name in node.input)
    assert all(names[tensor.name] for tensor in graph.initializer), "what the removed pairs had is gone"
