"""FLOPs and weights of modules and graphs, against published counts, counts by hand, and each other."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from exporters import cost
from exporters.cache import Cache
from exporters.catalog import CATALOG
from exporters.cost import Cost, cached_cost, count
from exporters.inputs import input_specs
from exporters.source import ModelSource
from exporters.to_onnx import export_onnx

FIRST_LAYERS = {
    "alexnet": (96, 11, 54),
    "overfeat": (96, 11, 56),
    "vgg16": (64, 3, 224),
    "googlenet": (64, 7, 112),
    "resnet18": (64, 7, 112),
    "resnet50": (64, 7, 112),
}
"""Output channels, kernel and output size of the convolution that sees the image; see the networks' papers."""

FACTORIES = """
import torch
from torch import nn

def plain():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 196, 5))

def grouped():
    return nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.ConvTranspose2d(8, 6, 3, groups=2))

class Branching(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, x):
        return self.model(x if x.sum() > 0 else -x)

class Raising(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
    def forward(self, x):
        raise ValueError("no luck")

class Mixing(nn.Module):
    def forward(self, x):
        x = x.flatten(1)
        return x @ x.T

class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.unused = nn.Embedding(1000, 16), nn.Linear(16, 1000)
        self.layer = nn.Linear(16, 4)
        self.register_buffer("scale", torch.tensor([1, 2, 3, 4]))
    def forward(self, x):
        return self.layer(x + self.table((x[..., 0] > 0).long()).mean()) * self.scale

def attention():
    return nn.Sequential(nn.Flatten(2), nn.TransformerEncoderLayer(256, 4, 512, batch_first=True))

def branching_plain():
    return Branching(plain())

def branching_attention():
    return Branching(attention())
"""


@pytest.fixture(autouse=True)
def _factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cost_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cost_factories", raising=False)


def of(factory: str, *shape: int) -> Cost:
    source = ModelSource(factory, factory=f"cost_factories:{factory}", input_shape=shape or (3, 16, 16))
    return count(source, input_specs(source))


@pytest.mark.parametrize("name", FIRST_LAYERS)
def test_canonical_network_costs_what_is_published(name: str) -> None:
    source = ModelSource(name)
    found = count(source, input_specs(source))
    assert found.inference_flops == 2 * CATALOG[name].multiply_adds
    assert found.parameters == CATALOG[name].parameters
    assert found.float_weights is not None
    assert CATALOG[name].parameters <= found.float_weights < 1.01 * CATALOG[name].parameters, "the statistics are read"


@pytest.mark.parametrize("name", FIRST_LAYERS)
def test_training_costs_three_times_as_much_but_for_the_images_gradient(name: str) -> None:
    """Each layer's gradients of its weights and of its input cost as much as its forward pass; the image has none."""
    source = ModelSource(name)
    found = count(source, input_specs(source))
    channels, kernel, size = FIRST_LAYERS[name]
    first = 2 * 3 * channels * kernel**2 * size**2
    assert found.training_flops == 3 * 2 * CATALOG[name].multiply_adds - first


def test_plain_network_by_hand() -> None:
    convolution, linear = 2 * 196 * 8 * 3 * 9, 2 * 8 * 196 * 5
    weights = (8 * 3 * 9 + 8) + 2 * 8 + (8 * 196 * 5 + 5)
    found = of("plain")
    assert found == Cost(
        inference_flops=convolution + linear,
        training_flops=2 * convolution + 3 * linear,
        parameters=weights,
        float_weights=weights + 2 * 8,
    )
    assert (found.flops("inference"), found.flops("training")) == (found.inference_flops, found.training_flops)
    assert [found.weight_bytes(p) for p in ("fp32", "tf32", "amp-fp16", "fp16", "bf16")] == [
        *[4 * (weights + 16)] * 3,
        *[2 * (weights + 16)] * 2,
    ]


def test_grouped_and_transposed_convolutions_by_hand() -> None:
    """torch's own formula takes their weights' gradient for that of one group."""
    pointwise, depthwise, transposed = 2 * 256 * 8 * 4, 2 * 196 * 8 * 9, 2 * 196 * 8 * 3 * 9
    found = of("grouped", 4, 16, 16)
    assert found.inference_flops == pointwise + depthwise + transposed
    assert found.training_flops == 2 * pointwise + 3 * (depthwise + transposed)


@pytest.mark.parametrize("factory", ["attention", "branching_attention"])
def test_attention_by_hand(factory: str) -> None:
    """On the CPU, where the branching one is counted, torch would run the layer or its attention as one kernel."""
    projections, products, feedforward = 4 * 256**2 * 3, 2 * 256 * 3**2, 2 * 256 * 512 * 3
    found = of(factory)
    assert found.inference_flops == 2 * (projections + products + feedforward)


def test_what_cannot_run_on_the_meta_device_is_counted_on_the_cpu() -> None:
    assert of("branching_plain") == of("plain")


def test_what_cannot_be_counted_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert of("Raising") == Cost(parameters=16 * 16 + 16)
    assert "no luck" in capsys.readouterr().err
    assert of("Raising").weight_bytes("fp32") is None


def test_no_item_has_a_cost_where_items_meet() -> None:
    assert of("Mixing").inference_flops is None


def test_tables_and_unused_layers_are_not_read() -> None:
    found = of("Tables", 3, 16)
    assert found.parameters == 1000 * 16 + 17 * 1000 + 17 * 4
    assert (found.float_weights, found.other_weight_bytes) == (17 * 4, 4 * 8)
    assert found.weight_bytes("fp16") == 2 * 17 * 4 + 4 * 8


def test_models_without_gradients_have_no_training() -> None:
    assert of("Mixing").training_flops is None


# ONNX files.

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]


def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def weight(name: str, *shape: int, type_: int = TensorProto.FLOAT) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=type_, dims=shape)
    tensor.raw_data = bytes(helper.tensor_dtype_to_np_dtype(type_).itemsize * int(onnx.numpy_helper.np.prod(shape)))
    return tensor


def write(path: Path, nodes: list[onnx.NodeProto], x: onnx.ValueInfoProto, *weights: onnx.TensorProto) -> ModelSource:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "tiny", [x], [output], list(weights))
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=9), path)
    return ModelSource(path.stem, onnx=path)


def cost_of(source: ModelSource) -> Cost:
    return count(source, input_specs(source))


@pytest.mark.parametrize("batch", ["batch", 4])
def test_onnx_file_costs_what_its_torch_twin_does(tmp_path: Path, batch: int | str) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"]),
        helper.make_node("Conv", ["1", "b"], ["2"], group=8),
        helper.make_node("ConvTranspose", ["2", "c"], ["y"], group=2),
    ]
    weights = weight("a", 8, 4, 1, 1), weight("b", 8, 1, 3, 3), weight("c", 8, 3, 3, 3)
    found = cost_of(write(tmp_path / "twin.onnx", nodes, value("x", batch, 4, 16, 16), *weights))
    twin = of("grouped", 4, 16, 16)
    assert (found.inference_flops, found.training_flops) == (twin.inference_flops, None)
    elements = 8 * 4 + 8 * 9 + 8 * 27
    assert (found.parameters, found.weight_bytes("native")) == (elements, 4 * elements)


def test_exported_graph_costs_what_its_module_does(small: ModelSource, cache: Cache) -> None:
    found = cost_of(ModelSource("mine", onnx=export_onnx(small, "fp16", cache).path))
    assert found.inference_flops == count(small, input_specs(small)).inference_flops
    assert found.parameters is not None
    assert found.weight_bytes("native") == pytest.approx(2 * found.parameters, rel=0.05)


def test_products_of_a_graph_by_hand(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["1"]),
        helper.make_node("Flatten", ["1"], ["2"]),
        helper.make_node("Gemm", ["2", "b", "c"], ["y"], transB=1),
    ]
    weights = weight("a", 4, 6), weight("b", 7, 30), weight("c", 7)
    found = cost_of(write(tmp_path / "products.onnx", nodes, value("x", "n", 5, 4), *weights))
    assert found.inference_flops == 2 * (5 * 6 * 4 + 7 * 30)
    assert found.parameters == 24 + 210 + 7


def test_rows_of_a_table_and_integers_of_a_graph(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "i"], ["e"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    weights = weight("table", 5000, 4), weight("q", 4, 3, type_=TensorProto.INT8), weight("s")
    found = cost_of(write(tmp_path / "table.onnx", nodes, value("x", "n", 2), *weights))
    assert found.inference_flops == 2 * 2 * 3 * 4
    assert (found.parameters, found.weight_bytes("native")) == (5000 * 4 + 1, 12 + 4)


def test_graph_whose_shapes_cannot_be_inferred_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("Own", ["x"], ["1"], domain="mine"), helper.make_node("MatMul", ["1", "a"], ["y"])]
    found = cost_of(write(tmp_path / "own.onnx", nodes, value("x", "n", 4), weight("a", 4, 6)))
    assert found == Cost(parameters=24)
    assert "MatMul" in capsys.readouterr().err


def test_cost_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ModelSource("plain", factory="cost_factories:plain", input_shape=(3, 16, 16))
    first = cached_cost(source, input_specs(source), Cache(tmp_path / "cache"))
    monkeypatch.setattr(cost, "count", None)
    assert cached_cost(source, input_specs(source), Cache(tmp_path / "cache")) == first == of("plain")
