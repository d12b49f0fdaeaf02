"""What ONNX Runtime loads is run: wrong ranks, outputs that are empty or no tensors, and data under links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from able_engines import if_able, needs
from matrix_product import write_product, write_text
from onnx import TensorProto, helper

import engines
from engines.base import Job, Unsupported, ignore
from engines.catalog import ENGINES
from engines.openvino_cpu import cpu_properties
from engines.ort import OrtSession, deploy, open_session
from exporters.inputs import input_specs, numpy_dtype, seeded_inputs
from exporters.onnx_files import check_onnx
from exporters.source import ModelError, ModelSource

pytestmark = pytest.mark.slow


def job_of(path: Path, batch: int = 2, engine: str = "ort", **of_source: Any) -> Job[Any]:
    source = ModelSource("net", onnx=path, **of_source)
    inputs, options = tuple(seeded_inputs(input_specs(source), batch)), ENGINES[engine].options()
    return Job(source, "inference", "native", batch, "cpu", options, inputs, onnx=path, engine=engine)


def opened(path: Path, batch: int = 2) -> OrtSession:
    return open_session(job_of(path, batch))


def run(path: Path, batch: int = 2) -> tuple[list[np.ndarray], list[str], list[str]]:
    session = opened(path, batch)
    for _ in range(3):
        session.run(ignore)
    found = [array.copy() for array in session.outputs()]
    warnings = [str(warning) for warning in session.proof().warnings or []]
    names = session.output_names()
    session.close()
    return found, names, warnings


BRANCHES = "then_branch = t () => (float[n, k, 4] a) { a = Unsqueeze (x, one) }"
BRANCHES += ", else_branch = e () => (float[n, m] b) { b = Identity (x) }"
EMPTY = "y = Abs (x)  m = Less (y, x)  t = NonZero (m)  z = Transpose (t)"
DECLARED = {
    "another rank": (
        "float[n, 4] y) <float big = {1000000000}, int64[1] one = {1}> "
        f"{{ s = ReduceSum <keepdims = 0> (x)  c = Less (s, big)  y = If (c) <{BRANCHES}> }}",
        lambda x: {"y": x[:, None]},
    ),
    # As before the batch was made free.
    "another size": ("float[n, 4] y) <float[1, 4] h> { h = Abs (x)  y = Neg (h) }", lambda x: {"y": -np.abs(x)}),
    "no elements": (f"float[n, 4] y, int64[k, 2] z) {{ {EMPTY} }}", lambda x: {"y": np.abs(x), "z": np.zeros((0, 2))}),
    "an input": ("float[n, 4] y, float[n, 4] x) { y = Abs (x) }", lambda x: {"y": np.abs(x), "x": x}),
    "twice": ("float[n, 4] y, float[n, 4] y) { y = Abs (x) }", lambda x: {"y": np.abs(x)}),
}


@pytest.mark.parametrize("declared", DECLARED)
def test_outputs_are_what_the_run_gives_whatever_the_file_declares(tmp_path, declared):
    text, expected = DECLARED[declared]
    write_text(tmp_path / "g.onnx", f"g (float[n, 4] x) => ({text}")
    found, names, _ = run(tmp_path / "g.onnx", batch=3)
    truth = expected(*job_of(tmp_path / "g.onnx", batch=3).inputs)
    assert names == list(truth)
    for array, values in zip(found, truth.values(), strict=True):
        np.testing.assert_array_equal(array, values)


def test_an_output_that_a_file_lists_twice_is_deployed_once(tmp_path):
    write_text(tmp_path / "g.onnx", "g (float[n, 4] x) => (float[n, 4] y, float[n, 4] y) { y = Abs (x) }")
    session = opened(tmp_path / "g.onnx")
    (tmp_path / "out").mkdir()
    assert deploy(session.job, tmp_path / "out", None).config["outputs"] == ["y"]


@pytest.mark.parametrize("kind", ["int16", "uint16", "uint32", "uint64"])
def test_every_whole_number_is_an_input_and_an_output(tmp_path, kind):
    write_text(tmp_path / "g.onnx", f"g ({kind}[n, 4] x) => ({kind}[n, 4] y) {{ y = Identity (x) }}")
    session = open_session(job := job_of(tmp_path / "g.onnx", inputs={"x": (40, 30_000)}))
    session.run(ignore)
    (found,) = session.outputs()
    assert found.dtype == kind
    np.testing.assert_array_equal(found, job.inputs[0])


@pytest.mark.parametrize("engine", ["ort", if_able("openvino")])
@pytest.mark.parametrize("kind", ["bfloat16", "float"])
def test_bfloat16_is_an_input_and_an_output(tmp_path, engine, kind):
    nodes = "b = Cast <to = 16> (x)  h = Cast <to = 1> (b)  d = Add (h, h)  y = Cast <to = 16> (d)"
    write_text(tmp_path / "g.onnx", f"g ({kind}[n, 4] x) => (bfloat16[n, 4] y) {{ {nodes} }}")
    session = engines.open_session(engine, job := job_of(tmp_path / "g.onnx", engine=engine))
    session.feed(job.inputs)
    session.run(ignore)
    truth = 2 * job.inputs[0].astype(numpy_dtype("bfloat16")).astype(np.float32)
    np.testing.assert_array_equal(session.outputs()[0], truth)
    assert session.proof().device == "cpu"


@pytest.mark.parametrize("size", ["0", "past"])
def test_a_cache_may_be_empty(tmp_path, size):
    graph = f"g (float[n, 3, 4] x, float[n, {size}, 4] c) => (float[n, t, 4] y) {{ y = Concat <axis = 1> (c, x) }}"
    write_text(tmp_path / "g.onnx", graph)
    session = open_session(job := job_of(tmp_path / "g.onnx", dimensions={} if size == "0" else {size: 0}))
    session.feed(job.inputs)
    session.run(ignore)
    np.testing.assert_array_equal(session.outputs()[0], job.inputs[0])


def test_products_in_a_branch_are_proven(tmp_path):
    branches = "then_branch = t () => (float[n, 1] a) { a = MatMul (x, w) }, else_branch = e () => (float[n, 1] b) "
    nodes = f"s = ReduceSum <keepdims = 0> (x)  c = Less (s, zero)  y = If (c) <{branches} {{ b = MatMul (x, w) }}>"
    held = "<float[4, 1] w = {1, 2, 3, 4}, float zero = {0}>"
    write_text(tmp_path / "g.onnx", f"g (float[n, 4] x) => (float[n, 1] y) {held} {{ {nodes} }}")
    proof = opened(tmp_path / "g.onnx").proof()
    assert proof.compute_types == {"float32": 2}


def test_what_is_no_tensor_is_left_out_with_a_word(tmp_path):
    classifier = helper.make_node(
        "LinearClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", coefficients=np.ones(12).tolist(),
        intercepts=[0.0, 0.0, 0.0], classlabels_ints=[0, 1, 2], post_transform="SOFTMAX", multi_class=1,
    )  # fmt: skip
    pairs = helper.make_node("ZipMap", ["p"], ["prob"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    of_pairs = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])
    outputs = [label, helper.make_value_info("prob", helper.make_sequence_type_proto(of_pairs))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    sequence = "float[n, 4] x) => (seq(float[n, 2]) s) { s = SplitToSequence <axis = 1> (x) }"
    with pytest.raises(RuntimeError, match=r"no output is a tensor of numbers: s \(seq\(tensor\(float\)\)\)$"):
        run(write_text(tmp_path / "g.onnx", f"g ({sequence}"))
    for kept in (outputs, outputs[1:]):
        graph = helper.make_graph([classifier, pairs], "g", [x], kept)
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "g.onnx")
        if kept is outputs:
            (found,), names, warnings = run(tmp_path / "g.onnx")
            assert (found.shape, names) == ((2,), ["label"])
            assert any("prob (seq(map(int64,tensor(float))))" in each and "zipmap=False" in each for each in warnings)
        else:
            with pytest.raises(RuntimeError, match=r"no output is a tensor of numbers: prob .*zipmap=False"):
                run(tmp_path / "g.onnx")


@pytest.mark.parametrize(
    ("ir", "opset", "says"),
    [
        (14, 17, r"too new for onnxruntime \S+ \(max supported IR version: \d+\)"),
        (99, 17, rf"too new for onnx \S+ \(max supported IR version: {onnx.IR_VERSION}\)"),
        (10, 27, r"too new for onnxruntime \S+ \(official support for domain ai.onnx is till opset \d+\)"),
    ],
)
def test_a_file_that_is_too_new_says_what_its_taker_supports(tmp_path, ir, opset, says):
    head = f'<ir_version: {ir}, opset_import: ["" : {opset}]>'
    model = onnx.parser.parse_model(f"{head} g (float[n, 4] x) => (float[n, 4] y) {{ y = Relu (x) }}")
    onnx.save(model, tmp_path / "g.onnx")
    with pytest.raises(ModelError, match=says):
        check_onnx(tmp_path / "g.onnx")
        run(tmp_path / "g.onnx")


@needs("openvino")
@pytest.mark.parametrize(("node", "why"), [("acme.First", "convert acme.First$"), ("Upsample", "convert Upsample-20$")])
def test_what_openvino_cannot_read_is_unsupported(tmp_path, node, why):
    path = write_text(tmp_path / "g.onnx", f"g (float[n, 4] x) => (float[n, 4] y) {{ y = {node} (x) }}")
    with pytest.raises(Unsupported, match=f"^OpenVINO cannot {why}"):
        engines.open_session("openvino", job_of(path, engine="openvino"))


def test_data_may_lie_under_links_as_in_a_cache_of_hugging_face(tmp_path):
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    for each in (blobs, folder):
        each.mkdir(parents=True)
    write_product(blobs / "1", np.eye(8, dtype=np.float32), beside="data")
    (blobs / "data").rename(blobs / "2")
    (folder / "model.onnx").symlink_to("../../blobs/1")
    (folder / "data").symlink_to("../../blobs/2")
    check_onnx(folder / "model.onnx")
    (found,), _, _ = run(folder / "model.onnx")
    assert found.shape == (2, 8)
    (folder / "data").unlink()
    (tmp_path / "secret").write_bytes(bytes(256))
    (folder / "data").symlink_to("../../secret")
    with pytest.raises(ModelError, match="outside the model's folder"):
        check_onnx(folder / "model.onnx")


QUANTIZE = "<float by = {0.125}> { q = QuantizeLinear (x, by)  d = DequantizeLinear (q, by)  y = MatMul (d, w) }"
PRODUCT = "{ y = MatMul (x, w) }"


@needs("openvino")
@pytest.mark.parametrize(
    ("kind", "body", "hint"),
    [("double", PRODUCT, "f32"), ("float", QUANTIZE, "f32"), ("float16", PRODUCT, None), ("bfloat16", PRODUCT, None)],
)
def test_openvino_rounds_a_file_to_16_bits_only_if_the_file_does(tmp_path, kind, body, hint):
    path = write_text(tmp_path / "g.onnx", f"g ({kind}[n, 4] x, {kind}[4, 2] w) => ({kind}[n, 2] y) {body}")
    job = job_of(path, engine="openvino")
    assert cpu_properties(job).get("INFERENCE_PRECISION_HINT") == hint
    session = engines.open_session("openvino", job)
    assert hint in (None, session.proof().details["inference_precision"])


def test_a_file_may_leave_out_the_domains_of_fused_operators(tmp_path):
    """As ONNX Runtime's optimizer for transformers leaves it, whose `model` a user saves by onnx.save."""
    path = write_text(tmp_path / "g.onnx", "g (float[n, 4] x) => (float[n, 4] y) { y = com.microsoft.Gelu (x) }")
    check_onnx(path)
    (found,), *_ = run(path)
    assert found.shape == (2, 4)
    acme = write_text(tmp_path / "acme.onnx", "g (float[n, 4] x) => (float[n, 4] y) { y = acme.First (x) }")
    with pytest.raises(Exception, match="acme"):
        check_onnx(acme)
        run(acme)
