"""Exported graphs compute what their models do, and files that no runtime could load are refused readably."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from thin_networks import thin_source
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from exporters import onnx_export
from exporters.build_model import load, restore
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import attention_in_four_dimensions, check_onnx, export_onnx, to_program
from exporters.source import ModelError, ModelSource
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


@pytest.mark.parametrize(("name", "norms"), [("alexnet", 2), ("googlenet", 2), ("resnet50", 0)])
def test_fp32_equals_eager(name: str, norms: int, cache: Cache) -> None:
    source = thin_source(name)
    export = export_onnx(source, "fp32", cache)
    assert relative_error(source, export.path, cache, "float32") < 1e-5
    operators = [node.op_type for node in onnx.load(export.path, load_external_data=False).graph.node]
    assert operators.count("LRN") == norms


def test_fp16_equals_eager(cache: Cache) -> None:
    source = thin_source("resnet200")
    export = export_onnx(source, "fp16", cache)
    assert float_types(export.path) == {TensorProto.FLOAT16}
    assert 1e-6 < relative_error(source, export.path, cache, "float16") < 5e-3


def test_factory_in_every_precision(small: ModelSource, cache: Cache) -> None:
    paths = {precision: export_onnx(small, precision, cache).path for precision in ("fp32", "fp16", "bf16", "tf32")}
    assert len(set(paths.values())) == 3
    assert paths["tf32"] == paths["fp32"]
    assert relative_error(small, paths["fp32"], cache, "float32") < 1e-5
    assert relative_error(small, paths["fp16"], cache, "float16") < 5e-3
    assert float_types(paths["bf16"]) == {TensorProto.BFLOAT16}
    # No CPU kernel convolves bf16, so the graph's types are checked, batch normalization's folded weights included.
    onnx.checker.check_model(str(paths["bf16"]), full_check=True)


def test_second_export_is_cached_and_silent_and_large_weights_go_beside_the_file(
    small: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
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


def test_model_that_cannot_be_exported(factories: Path, cache: Cache, capfd: pytest.CaptureFixture[str]) -> None:
    source = ModelSource("mine", factory="small_factories:branching", input_shape=(3,))
    assert load(source) is not None
    line = re.escape(f"at {factories}:18 (`return x + 1 if x.sum() > 0 else x`)")
    mend = r"write it with torch\.where or torch\.cond or give a graph of your own \(`onnx: FILE`\)$"
    failed = rf"model 'mine': the export to ONNX in fp32 failed: GuardOnDataDependent[^\x1b]* {line}; .*{mend}"
    with pytest.raises(ModelError, match=failed):
        export_onnx(source, "fp32", cache)
    printed = capfd.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in printed if line.startswith("torch.export")] == [
        "torch.export, any batch",
        "torch.export (strict), any batch",
    ]


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

def bessel():
    return Net(lambda y: torch.special.bessel_j0(y))
"""


def test_the_row_knows_who_made_the_graph_or_which_operator_kept_it(tmp_path, monkeypatch, cache: Cache) -> None:
    (tmp_path / "hard_exports.py").write_text(HARD)
    monkeypatch.syspath_prepend(tmp_path)
    source = ModelSource("mine", factory="hard_exports:number", input_shape=(4,))
    export = export_onnx(source, "fp32", cache)
    # A number that is taken out of a tensor is followed by the strict way only, which does not run `forward`.
    assert export.how == "torch.export (strict), any batch"
    assert relative_error(source, export.path, cache, "float32") < 1e-5
    assert export_onnx(source, "fp32", cache, 2).how == "torch.export (strict), batch 2 only"
    at = re.escape(f"at {tmp_path / 'hard_exports.py'}:11 (`return self.then(self.head(x))`); write it with others or")
    with pytest.raises(ModelError, match=rf"failed: ONNX has no operator for prims\.bessel_j0 {at}"):
        export_onnx(replace(source, factory="hard_exports:bessel"), "fp32", cache)


def test_refusals(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no export in 'int4'"):
        export_onnx(ModelSource("resnet18"), "int4", cache)
    with pytest.raises(ModelError, match="is an ONNX file already"):
        export_onnx(ModelSource("theirs", onnx=tmp_path / "m.onnx"), "fp32", cache)


def save_linear(path: Path, location: str | None = None) -> None:
    """y = x + w; `location` makes w an external tensor."""
    weight = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    if location is not None:
        onnx.external_data_helper.set_external_data(weight, location)
        weight.ClearField("raw_data")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", [x], [y], [weight])
    path.write_bytes(helper.make_model(graph).SerializeToString())


def test_check_accepts_good_files(tmp_path: Path) -> None:
    save_linear(tmp_path / "m.onnx")
    check_onnx(tmp_path / "m.onnx")
    save_linear(tmp_path / "n.onnx", "w.bin")
    (tmp_path / "w.bin").write_bytes(np.ones(4, np.float32).tobytes())
    check_onnx(tmp_path / "n.onnx")


def test_check_refuses_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(ModelError, match="no such file"):
        check_onnx(path)
    save_linear(path)
    content = path.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"<html>not found</html>"):
        path.write_bytes(broken)
        with pytest.raises(ModelError, match="no ONNX model, or a truncated one"):
            check_onnx(path)
    weights = tmp_path / "own.pt"
    torch.save({"weight": torch.zeros(3)}, weights)
    with pytest.raises(ModelError, match=r"; own\.pt is a PyTorch file: give it as weights, with network or factory$"):
        check_onnx(weights)
    path.write_bytes(content.replace(b"Add", b"Axd"))
    with pytest.raises(ModelError, match=r"onnx\.checker refuses it .*Axd"):
        check_onnx(path)


@pytest.mark.parametrize("size", [0, 7])
def test_check_refuses_external_data_that_are_truncated(tmp_path: Path, size: int) -> None:
    save_linear(tmp_path / "m.onnx", "w.bin")
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    (weight,) = (tensor for tensor in model.graph.initializer if tensor.external_data)
    if size:
        weight.external_data.add(key="length", value="8")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").write_bytes(bytes(size))
    with pytest.raises(ModelError, match=rf"tensor 'w' keeps .* has {size}: it is empty or truncated; copy or save it"):
        check_onnx(tmp_path / "m.onnx")


def test_check_finds_external_data_in_subgraphs(tmp_path: Path) -> None:
    weight = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
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


class Seen(TorchFunctionMode):
    """Notes of how many dimensions the attention that is computed is."""

    def __init__(self) -> None:
        super().__init__()
        self.dimensions: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is functional.scaled_dot_product_attention:
            self.dimensions.append((args[0] if args else kwargs["query"]).dim())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        ((2, 6, 4), (2, 6, 6)),
        ((2, 3, 6, 4), (2, 3, 6, 6)),
        ((2, 3, 5, 6, 4), (2, 3, 5, 6, 6)),
        ((2, 3, 5, 6, 4), (3, 1, 6, 6)),
        ((2, 3, 5, 6, 4), (6, 6)),
        ((2, 3, 2, 5, 6, 4), (2, 1, 2, 5, 6, 6)),
    ],
)
def test_attention_is_exported_as_one_of_four_dimensions(shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    query, mask = torch.randn(shape), torch.randn(mask)
    plain = functional.scaled_dot_product_attention(query, query, query, mask)
    with Seen() as seen, attention_in_four_dimensions():
        positional = functional.scaled_dot_product_attention(query, query, query, mask)
        named = functional.scaled_dot_product_attention(query=query, key=query, value=query, attn_mask=mask)
    assert seen.dimensions == [4, 4]
    torch.testing.assert_close(positional, plain)
    torch.testing.assert_close(named, plain)


def test_a_graph_is_traced_without_gradients() -> None:
    seen: list[bool] = []

    class Net(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_grad_enabled())
            return super().forward(x)

    to_program(Net(2, 2).eval(), (torch.zeros(1, 2),), dynamo=True, verbose=False)
    assert seen
    assert not any(seen)
