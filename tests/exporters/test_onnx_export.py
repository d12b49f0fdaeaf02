"""Graphs compute what their models do at each precision, and files that no runtime could load are refused readably."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from matrix_product import write_product, write_text
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from thin_networks import thin_source

from exporters import onnx_export
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.int8 import quantize
from exporters.onnx_export import export_onnx, to_fp16
from exporters.onnx_files import check_onnx, external_tensors, graph_files, is_float32, not_made, precisions_of
from exporters.source import ModelError, ModelSource, TensorSpec
from exporters.weights import cached_state


def relative_error(source: ModelSource, path: Path, cache: Cache, dtype: str) -> float:
    """Relative L2 distance of ORT's outputs, at a batch size that was not exported, from fp32 eager's."""
    specs = input_specs(source)
    with torch.no_grad():
        expected = restore(source, cached_state(source, cache))(torch.from_numpy(seeded_inputs(specs, 3)[0])).numpy()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == ["x"]
    assert [node.name for node in session.get_outputs()] == ["y"]
    assert session.get_inputs()[0].shape[0] == "batch"
    actual = session.run(None, {"x": seeded_inputs(specs, 3)[0].astype(dtype)})[0].astype(np.float32)
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def float_types(path: Path) -> set[int]:
    floats: set[int] = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    graph = onnx.load(path).graph
    values: list[int] = [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)]
    return floats & {*values, *(tensor.data_type for tensor in graph.initializer)}


@pytest.mark.parametrize(("name", "norms"), [("googlenet", 2), ("resnet50", 0)])
def test_fp32_equals_eager(name, norms, cache):
    source = thin_source(name)
    export = export_onnx(source, "fp32", cache)
    assert relative_error(source, export.path, cache, "float32") < 1e-5
    operators = [node.op_type for node in onnx.load(export.path, load_external_data=False).graph.node]
    assert operators.count("LRN") == norms


RECURRENT = """
import torch
class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 4, batch_first=True, bidirectional=True)
    def forward(self, x, mask):
        return self.lstm(x)[0].masked_fill(~mask.bool()[..., None], -1.0).amax(1)
def make():
    free = {1: torch.export.Dim("sequence", min=2, max=64)}
    return Masked(), {"x": torch.rand(2, 8, 4), "mask": torch.ones(2, 8, dtype=torch.int64)}, {"x": free, "mask": free}
"""


def test_a_runtime_that_is_told_a_free_size_takes_the_graph_behind_an_lstm(tmp_path, cache, monkeypatch):
    (tmp_path / "recurrent.py").write_text(RECURRENT)
    monkeypatch.syspath_prepend(tmp_path)
    source = ModelSource("recurrent", factory="recurrent:make", varied={"sequence": (8, 16)})
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("sequence", 16)
    export = export_onnx(source, "fp32", cache)
    session = onnxruntime.InferenceSession(export.path, options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.ones((3, 16, 4), np.float32), "mask": np.ones((3, 16), np.int64)}
    assert session.run(None, feeds)[0].shape == (3, 8)


def test_factory_in_every_precision(small, cache):
    paths = {precision: export_onnx(small, precision, cache).path for precision in ("fp32", "fp16", "bf16", "tf32")}
    assert len(set(paths.values())) == 3
    assert paths["tf32"] == paths["fp32"]
    assert relative_error(small, paths["fp32"], cache, "float32") < 1e-5
    assert relative_error(small, paths["fp16"], cache, "float16") < 5e-3
    assert float_types(paths["bf16"]) == {TensorProto.BFLOAT16}
    # No CPU kernel convolves bf16, so the graph's types are checked, batch normalization's folded weights included.
    onnx.checker.check_model(str(paths["bf16"]), full_check=True)


def test_second_export_is_cached_and_silent_and_large_weights_go_beside_the_file(small, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(onnx_export, "INLINE_BYTES", 0)
    cache = Cache(tmp_path / "cache")
    export, second = export_onnx(small, "fp32", cache), export_onnx(small, "fp32", cache)
    assert (export.cached, second.cached) == (False, True)
    assert second.path == export.path
    assert capfd.readouterr() == ("", "")
    assert export.path.with_name(export.path.name + ".data").is_file()
    check_onnx(export.path)
    assert relative_error(small, export.path, cache, "float32") < 1e-5
    export.path.with_name(export.path.name + ".data").unlink()
    with pytest.raises(ModelError, match="missing"):
        check_onnx(export.path)
    assert not export_onnx(small, "fp32", cache).cached


HARD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.head, self.then = nn.Linear(4, 4), then

    def forward(self, x):
        return self.then(self.head(x))

def number():
    return Net(lambda y: y * float(y.mean()))

def branches():
    return Net(lambda y: y + 1 if y.sum() > 0 else y)

def bessel():
    return Net(lambda y: torch.special.bessel_j0(y))

def scripted():
    return nn.Sequential(torch.jit.script(nn.Linear(4, 4)))
"""


def test_the_row_knows_who_made_the_graph_or_which_line_kept_it(tmp_path, monkeypatch, cache):
    (tmp_path / "hard_exports.py").write_text(HARD)
    monkeypatch.syspath_prepend(tmp_path)
    source = ModelSource("mine", factory="hard_exports:number", input_shape=(4,))
    export = export_onnx(source, "fp32", cache)
    assert export.origin == "torch.export, any batch"
    assert relative_error(source, export.path, cache, "float32") < 1e-5
    assert export_onnx(source, "fp32", cache, 2).origin == "torch.export, batch 2 only"
    for factory, says in (
        ("branches", r"failed: GuardOnDataDependentSymNode: .*hard_exports.py:17 "),
        ("bessel", r"failed: .*hard_exports.py:11 "),
        ("scripted", r"torch.jit modules cannot be exported to ONNX; return the plain module"),
    ):
        with pytest.raises(ModelError, match=rf"{says}.*`onnx: FILE`"):
            export_onnx(replace(source, factory=f"hard_exports:{factory}"), "fp32", cache)


WEIGHT = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)


def write(path: Path, kind: int = TensorProto.FLOAT, name: str = "x") -> Path:
    """max(x W, 0) W and the cumulative sum of it, which ONNX Runtime's converter leaves in float32."""
    word = {TensorProto.FLOAT: "float", TensorProto.FLOAT16: "float16"}[kind]
    nodes = f"a = MatMul ({name}, w)  b = Relu (a)  c = CumSum (b, axis)  y = MatMul (c, w)"
    weight = WEIGHT.astype(helper.tensor_dtype_to_np_dtype(kind))
    text = f"g ({word}[n, 16] {name}) => ({word}[n, 16] y) {{ {nodes} }}"
    return write_text(path, text, w=weight, axis=np.array(1))


def run(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (node,) = session.get_inputs()
    dtype = {"tensor(float16)": np.float16, "tensor(float)": np.float32}[node.type]
    return np.asarray(session.run(None, {node.name: x.astype(dtype)})[0], np.float32)


def test_a_file_of_floats_has_the_jobs_precisions_and_any_other_its_own(tmp_path):
    floats, halves = write(tmp_path / "a.onnx"), write(tmp_path / "b.onnx", TensorProto.FLOAT16)
    source, quantized = ModelSource("a", onnx=floats), quantize(ModelSource("a", onnx=floats), Cache(tmp_path)).path
    assert is_float32(floats)
    assert not any(map(is_float32, (halves, quantized, tmp_path / "no.onnx")))
    assert precisions_of(source, ["fp32", "fp16"]) == ["fp32", "fp16"]
    assert precisions_of(ModelSource("b", onnx=halves), ["fp32", "fp16"]) == ["native"]
    assert precisions_of(ModelSource("a", onnx=floats, graphs={"int8": quantized}), ["fp32"]) == ["fp32", "int8"]
    assert [not_made(source, each) is None for each in ("fp32", "tf32", "fp16", "int8", "bf16")] == [True] * 4 + [False]
    assert not_made(ModelSource("resnet18"), "bf16") is None, "it is exported"


class Stateful(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("table", torch.ones(200, 3), persistent=False)

    def get_extra_state(self):
        return {"calls": 1}

    def forward(self, x):
        return super().forward(x) @ self.table.T


def test_only_tensors_count_as_weights_also_those_outside_the_state(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "INLINE_BYTES", 1000)
    path = tmp_path / "m.onnx"
    onnx_export.write_onnx(Stateful().eval(), [TensorSpec("x", ("batch", 3), "float32")], "fp32", path)
    assert path.with_name("m.onnx.data").stat().st_size >= 2400


def test_complex_inputs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no runtime takes complex inputs"):
        onnx_export.write_onnx(
            torch.nn.Identity(), [TensorSpec("x", ("batch", 3), "complex64")], "fp32", tmp_path / "m"
        )


@pytest.mark.parametrize(
    ("operator", "quantizes"),
    [("MatMulNBits", True), ("GatherBlockQuantized", True), ("QAttention", True), ("QOrderedMatMul", True),
     ("MatMulBnb4", True), ("ConvInteger", True), ("DequantizeLinear", True), ("QuickGelu", False), ("Gelu", False)],
)  # fmt: skip
def test_a_file_whose_operators_take_quantized_weights_has_its_own_precision(tmp_path, operator, quantizes):
    path = write(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.node[-1].op_type = operator
    onnx.save(model, path)
    assert is_float32(path) is not quantizes


def test_half_precision_names_what_stays_float(tmp_path):
    source, cache = ModelSource("a", onnx=write(tmp_path / "a.onnx")), Cache(tmp_path / "cache")
    made = to_fp16(source, cache)
    assert (made.in_float32, made.cached, to_fp16(source, cache).cached) == ("CumSum (1×)", False, True)
    graph = onnx.load(made.path).graph
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {TensorProto.FLOAT16}
    (x,) = seeded_inputs(input_specs(source), 4)
    exact, half = run(tmp_path / "a.onnx", x), run(made.path, x)
    assert 1e-5 < np.linalg.norm(half - exact) / np.linalg.norm(exact) < 1e-2
    write(tmp_path / "a.onnx", name="other")
    assert to_fp16(source, cache).path != made.path, "the file is another"


def test_a_graph_that_cannot_be_converted_says_what_to_give(tmp_path):
    graph = onnx.load(write(tmp_path / "a.onnx"))
    graph.graph.node[1].op_type = "Wobble"
    onnx.save(graph, tmp_path / "a.onnx")
    with pytest.raises(ModelError, match=r"a\.onnx to fp16 failed: .*Wobble.*variants: \{fp16: FILE\}"):
        to_fp16(ModelSource("a", onnx=tmp_path / "a.onnx"), Cache(tmp_path / "cache"))


def test_half_precision_of_data_in_another_file_is_that_of_data_in_the_file(tmp_path):
    write(tmp_path / "a.onnx")
    onnx.save(
        onnx.load(tmp_path / "a.onnx"),
        tmp_path / "b.onnx",
        save_as_external_data=True,
        location="b.bin",
        size_threshold=0,
    )
    inside, outside = (to_fp16(ModelSource("m", onnx=tmp_path / f"{n}.onnx"), Cache(tmp_path / n)).path for n in "ab")
    assert outside.with_name(f"{outside.name}.data").stat().st_size == 2 * 16 * 16
    x = np.random.default_rng(1).standard_normal((4, 16))
    assert np.array_equal(run(inside, x), run(outside, x))


def test_check_tells_good_files_from_others(tmp_path):
    path, beside = write(tmp_path / "m.onnx"), tmp_path / "n.onnx"
    check_onnx(path)
    onnx.save(onnx.load(path), beside, save_as_external_data=True, location="w.bin", size_threshold=0)
    check_onnx(beside)
    torch.save({"weight": torch.zeros(3)}, tmp_path / "own.pt")
    (tmp_path / "operator.onnx").write_bytes(path.read_bytes().replace(b"Relu", b"Rexu"))
    for name, says in (
        ("absent.onnx", "no such file"),
        ("own.pt", "own.pt is a PyTorch file: give it as weights"),
        ("operator.onnx", r"onnx\.checker refuses it .*Rexu"),
    ):
        with pytest.raises(ModelError, match=says):
            check_onnx(tmp_path / name)


CHECK = """
import sys
from pathlib import Path
import onnx_ir
from exporters.onnx_files import check_onnx
def peak():  # Of this program; getrusage's may be its parent's.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before = peak()
check_onnx(Path(sys.argv[1]))
print(peak() - before)
"""


def test_a_check_holds_a_large_weight_twice_and_sees_what_it_lacks(tmp_path):
    weight = np.zeros((4096, 4096), np.float32)
    path = write_product(tmp_path / "m.onnx", weight)
    run = subprocess.run([sys.executable, "-c", CHECK, path], capture_output=True, text=True, check=True)
    assert 1024 * int(run.stdout) < 2.5 * weight.nbytes
    model = onnx.load(path)
    model.graph.initializer[0].dims[:] = [4096, 4097]
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"onnx\.checker refuses it .*too small"):
        check_onnx(path)


@pytest.mark.parametrize("lacks", ["type", "shape"])
@pytest.mark.parametrize("beside", [False, True])
def test_an_output_needs_no_declaration(tmp_path, lacks, beside):
    model = onnx.load(write(tmp_path / "m.onnx"))
    for value in model.graph.output:
        (value if lacks == "type" else value.type.tensor_type).ClearField(lacks)
    place = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if beside else {}
    onnx.save(model, tmp_path / "m.onnx", **place)
    check_onnx(tmp_path / "m.onnx")
    assert is_float32(tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((4, 16))
    half, full = to_fp16(ModelSource("m", onnx=tmp_path / "m.onnx"), Cache(tmp_path)).path, run(tmp_path / "m.onnx", x)
    assert float_types(half) == {TensorProto.FLOAT16}
    assert np.linalg.norm(run(half, x) - full) < 0.01 * np.linalg.norm(full)


@pytest.mark.parametrize(("kind", "size"), [(TensorProto.INT4, 8), (TensorProto.FLOAT8E4M3FN, 16)])
def test_data_of_narrow_types_are_cut_off_below_their_size(kind, size, tmp_path):
    weight = helper.make_tensor("w", kind, [4, 4], bytes(size), raw=True)
    onnx.external_data_helper.set_external_data(weight, "w.bin")
    weight.ClearField("raw_data")
    graph = onnx.load(write_text(tmp_path / "m.onnx", "g (float[n] x) => (float[4, 4] y) { y = Cast <to = 1> (w) }"))
    graph.graph.initializer.append(weight)
    onnx.save(graph, tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(bytes(size))
    check_onnx(tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(bytes(size - 1))
    with pytest.raises(ModelError, match=f"up to byte {size}, and that file has {size - 1}"):
        check_onnx(tmp_path / "m.onnx")


def test_nodes_may_be_in_any_order_without_a_cycle(tmp_path):
    half = convert_float_to_float16(onnx.load(write(tmp_path / "a.onnx")), keep_io_types=True)
    onnx.save(half, tmp_path / "half.onnx")
    nodes = half.graph.node
    (cast,) = (node for node in nodes if "x" in node.input)
    assert list(nodes).index(cast) > 0
    check_onnx(tmp_path / "half.onnx")
    cast.input[0] = nodes[0].output[0]
    onnx.save(half, tmp_path / "half.onnx")
    with pytest.raises(ModelError, match="cycle"):
        check_onnx(tmp_path / "half.onnx")


def test_check_finds_external_data_in_subgraphs(tmp_path):
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, "../secret.bin")
    weight.ClearField("raw_data")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    branch = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "branch", [], [y], [weight])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "graph", [condition], [y])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ModelError, match="outside"):
        check_onnx(tmp_path / "m.onnx")


def sparse(path: Path, **place: str) -> Path:
    values = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in place.items():
        values.external_data.add(key=key, value=value)
    indices = numpy_helper.from_array(np.array([0, 2]), "w_indices")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_data_of_sparse_tensors_are_files_of_the_graph(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    assert list(graph_files(sparse(tmp_path / "m.onnx", location="w.bin"))) == ["m.onnx", "w.bin"]


@pytest.mark.parametrize(
    "place", [{"location": "a\0b"}, {"location": "a" * 5000}, {"location": "w", "offset": "abc"}, {"offset": "-1"}]
)
def test_a_place_that_no_data_can_have_is_an_error(tmp_path, place):
    path = sparse(tmp_path / "m.onnx", **place)
    for reads in (check_onnx, graph_files, external_tensors):
        with pytest.raises(ModelError, match=r"tensor 'w' has no place for its data \(.{,210}\); save it again"):
            reads(path)
