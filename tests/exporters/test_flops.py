"""FLOPs and weights of modules and graphs, against published counts, counts by hand, and each other."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from exporters import flops
from exporters.cache import Cache
from exporters.catalog import CATALOG
from exporters.cost import Cost, Flops
from exporters.declared_inputs import declared_inputs
from exporters.flops import cached_cost
from exporters.graph_flops import node_flops
from exporters.inputs import input_specs
from exporters.onnx_export import export_onnx
from exporters.source import ModelSource

pytestmark = pytest.mark.slow

FIRST_LAYERS = {
    "alexnet": (96, 11, 54),
    "vgg16": (64, 3, 224),
    "googlenet": (64, 7, 112),
    "resnet18": (64, 7, 112),
}
"""Output channels, kernel and output size of the convolution that sees the image; see the networks' papers."""

FACTORIES = """
import contextlib
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

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
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(32, 16), nn.Parameter(torch.ones(16, 16))
    def forward(self, x):
        x = self.layer(x.flatten(1))
        return x @ x.T + (self.weight @ self.weight).mean()

class Cubic(nn.Module):
    def forward(self, x):
        square = x @ x.T
        return square @ square

class Sequences(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = getattr(nn, kind)(6, 10, 2, batch_first=True, bidirectional=True, **options)
    def forward(self, x):
        return self.layer(x)[0]

def lstm(): return Sequences("LSTM")
def gru(): return Sequences("GRU")
def rnn(): return Sequences("RNN")

class Attending(nn.Module):
    # Queries of four heads, keys and values of as many.
    def __init__(self, kernel=None, **options):
        super().__init__()
        self.kernel, self.options = kernel, options
    def forward(self, x):
        with sdpa_kernel(self.kernel) if self.kernel else contextlib.nullcontext():
            return F.scaled_dot_product_attention(x, x[:, :, :5], x[:, :, :5], **self.options)

def attending(): return Attending()
def causal(): return Attending(is_causal=True)
def flash(): return Branching(Attending(SDPBackend.FLASH_ATTENTION))

class Written(nn.Module):
    def forward(self, x):
        scores = torch.einsum("bhqd,bhkd->bhqk", x, x[:, :, :5])
        return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), x[:, :, :5])

class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(32, 4, batch_first=True)
    def forward(self, x):
        return self.layer(x, x, x, need_weights=False)[0]

class WithoutGradients(nn.Module):
    # torch would run the whole layer as one kernel.
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    def forward(self, x):
        with torch.no_grad():
            return self.layer(x)

class Packed(nn.Module):
    def forward(self, x):
        return torch._weight_int8pack_mm(x, torch.ones(3, 8, dtype=torch.int8), torch.ones(3))

class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7))
    def forward(self, x):
        return x @ self.weight

class Pairing(nn.Module):
    def forward(self, x):
        return x @ x.transpose(2, 3)

class Auxiliary(nn.Module):
    # The second branch reaches no output.
    def __init__(self):
        super().__init__()
        self.layer, self.unread = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 200, 3)
    def forward(self, x):
        self.unread(x)
        return self.layer(x)

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


def from_factory(factory: str, *shape: int) -> ModelSource:
    return ModelSource(factory, factory=f"cost_factories:{factory}", input_shape=shape or (3, 16, 16))


def cost_of(source: ModelSource, graph: Path | None = None, trains: bool = True) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        return cached_cost(source, input_specs(source), Cache(Path(folder)), graph, trains)


def cost_with_inputs_gradient(source: ModelSource) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        return cached_cost(source, input_specs(source), Cache(Path(folder)), None, trains=True, of_input=True)


def of(factory: str, *shape: int) -> Cost:
    return cost_of(from_factory(factory, *shape))


@pytest.mark.parametrize("name", FIRST_LAYERS)
def test_canonical_network_costs_what_is_published(name: str) -> None:
    """A training step costs three times as much but for the image's gradient: each layer's gradients of its weights and
    of its input cost as much as its forward pass, and the image has none."""
    found = cost_of(ModelSource(name))
    channels, kernel, size = FIRST_LAYERS[name]
    first = 2 * 3 * channels * kernel**2 * size**2
    assert found.flops("inference") == 2 * CATALOG[name].multiply_adds
    assert found.flops("training") == 3 * 2 * CATALOG[name].multiply_adds - first
    assert found.float_weights is not None
    assert CATALOG[name].parameters <= found.float_weights < 1.01 * CATALOG[name].parameters, "the statistics are read"


def test_with_the_images_gradient_training_costs_three_times_as_much(tmp_path: Path) -> None:
    source = ModelSource("overfeat")
    without, with_it = (  # Both from one cache: neither is the other's.
        cached_cost(source, input_specs(source), Cache(tmp_path), trains=True, of_input=of_input).flops("training")
        for of_input in (False, True)
    )
    assert with_it == 3 * 2 * CATALOG["overfeat"].multiply_adds
    assert without == with_it - 2 * 3 * 96 * 11**2 * 56**2


def test_plain_network_by_hand() -> None:
    convolution, linear = 2 * 196 * 8 * 3 * 9, 2 * 8 * 196 * 5
    weights = (8 * 3 * 9 + 8) + 2 * 8 + (8 * 196 * 5 + 5)
    found = of("plain")
    assert found == Cost(
        Flops(convolution + linear),
        Flops(2 * convolution + 3 * linear),
        float_weights=weights + 2 * 8,
        other_weight_bytes=0,
    )
    assert [found.weight_bytes(p) for p in ("fp32", "tf32", "amp-fp16", "fp16", "bf16", "int8")] == [
        *[4 * (weights + 16)] * 3,
        *[2 * (weights + 16)] * 2,
        weights + 16,
    ]


def test_grouped_and_transposed_convolutions_by_hand() -> None:
    """torch's own formula takes their weights' gradient for that of one group."""
    pointwise, depthwise, transposed = 2 * 256 * 8 * 4, 2 * 196 * 8 * 9, 2 * 196 * 8 * 3 * 9
    found = of("grouped", 4, 16, 16)
    assert found.flops("inference") == pointwise + depthwise + transposed
    assert found.flops("training") == 2 * pointwise + 3 * (depthwise + transposed)


@pytest.mark.parametrize("factory", ["attention", "branching_attention"])
def test_attention_by_hand(factory: str) -> None:
    """On the CPU, where the branching one is counted, torch would run the layer or its attention as one kernel."""
    projections, products, feedforward = 4 * 256**2 * 3, 2 * 256 * 3**2, 2 * 256 * 512 * 3
    found = of(factory)
    assert found.flops("inference") == 2 * (projections + products + feedforward)


@pytest.mark.parametrize("factory", ["attending", "causal", "flash", "Written"])
def test_attention_costs_the_same_however_it_is_written(factory: str) -> None:
    """4 heads of size 8, 9 queries, 5 keys; a backward pass has two gradients of each product."""
    found = cost_of(from_factory(factory, 4, 9, 8), trains=factory != "Written")
    assert found.flops("inference") == 2 * 4 * 9 * 5 * (8 + 8)


def test_gradients_of_attention_by_hand() -> None:
    for kind in ("attending", "flash"):
        source = from_factory(kind, 4, 9, 8)
        assert cost_with_inputs_gradient(source).flops("training") == 3 * 2 * 4 * 9 * 5 * (8 + 8), kind


@pytest.mark.parametrize(("factory", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrent_layers_by_hand(factory: str, gates: int) -> None:
    """Two layers of two directions over 3 steps; the second sees both directions of the first."""
    weights = 2 * gates * 10 * ((6 + 10) + (20 + 10))
    found = of(factory, 3, 6)
    assert found.flops("inference") == 2 * 3 * weights
    forward, both = found.flops("inference"), found.flops("training")
    assert forward is not None and both is not None
    assert 2.5 * forward < both < 3 * forward


@pytest.mark.parametrize(("factory", "shape"), [("lstm", (3, 6)), ("SelfAttention", (6, 32)), ("Written", (4, 9, 8))])
def test_graph_of_attention_and_steps_costs_what_its_module_does(
    factory: str, shape: tuple[int, ...], cache: Cache
) -> None:
    source = from_factory(factory, *shape)
    graph = ModelSource("graph", onnx=export_onnx(source, "fp32", cache).path)
    assert cost_of(graph).flops("inference") == cost_of(source, trains=False).flops("inference")


def test_a_layer_that_torch_would_fuse_is_taken_apart() -> None:
    projections, products, feedforward = 4 * 32**2 * 6, 2 * 32 * 6**2, 2 * 32 * 64 * 6
    assert of("WithoutGradients", 6, 32).flops("inference") == 2 * (projections + products + feedforward)


def test_torchs_operators_without_a_formula_are_not_counted_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert of("Packed", 8).flops("inference") is None
    assert "no count of torch's operator aten._weight_int8pack_mm" in capsys.readouterr().err


def test_product_with_a_vector_of_a_module_by_hand() -> None:
    assert of("Vector", 5, 7).flops("inference") == 2 * 5 * 7


def test_what_cannot_run_on_the_meta_device_is_counted_on_the_cpu() -> None:
    assert of("branching_plain") == of("plain")


def test_what_cannot_be_counted_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert of("Raising") == Cost()
    assert "no luck" in capsys.readouterr().err
    assert of("Raising").weight_bytes("fp32") is None


def test_items_that_meet_cost_by_the_pair() -> None:
    """As CLIP's images and texts do: each item's features, each pair's product, and one product for all."""
    found = of("Mixing", 4, 8)
    assert found.inference == (2 * 32 * 16, 2 * 16, 2 * 16**3)
    assert found.flops("inference", 4) == 2 * 32 * 16 + 4 * 2 * 16 + 2 * 16**3 / 4
    assert found.training is not None
    assert found.training.pair == 3 * 2 * 16


def test_no_item_has_a_cost_where_the_batch_follows_no_law(capsys: pytest.CaptureFixture[str]) -> None:
    assert of("Cubic", 4).flops("inference") is None
    assert "batches of (2, 3, 4, 5) cost" in capsys.readouterr().err


def test_tables_and_unused_layers_are_not_read() -> None:
    found = of("Tables", 3, 16)
    assert (found.float_weights, found.other_weight_bytes) == (17 * 4, 4 * 8)
    assert found.weight_bytes("fp16") == 2 * 17 * 4 + 4 * 8


def test_models_without_gradients_have_no_training() -> None:
    found = of("Pairing")
    assert (found.flops("inference"), found.flops("training")) == (2 * 3 * 16**3, None)


def test_training_is_counted_only_where_it_is_planned() -> None:
    found = cost_of(from_factory("plain"), trains=False)
    assert (found.flops("inference"), found.flops("training")) == (of("plain").flops("inference"), None)


def test_work_that_reaches_no_output_is_left_out(cache: Cache) -> None:
    """Engines leave it out too: counted, it would put their rows far above the roofline."""
    source = from_factory("Auxiliary")
    found = cost_of(source, export_onnx(source, "fp16", cache).path)
    assert found.flops("inference") == 2 * 196 * 2 * 27
    assert found.float_weights == 2 * 27 + 2
    assert cost_of(source).flops("inference") == 2 * 196 * 202 * 27, "only a graph tells"


# ONNX files.

MS = "com.microsoft"
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]


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
    assert (found.flops("inference"), found.flops("training")) == (twin.flops("inference"), None)
    elements = 8 * 4 + 8 * 9 + 8 * 27
    assert found.weight_bytes("native") == 4 * elements


def test_exported_graph_costs_what_its_module_does(small: ModelSource, cache: Cache) -> None:
    found = cost_of(ModelSource("mine", onnx=export_onnx(small, "fp16", cache).path))
    module = cost_of(small)
    assert found.flops("inference") == module.flops("inference")
    assert module.float_weights
    assert found.weight_bytes("native") == pytest.approx(2 * module.float_weights, rel=0.05)


def test_products_of_a_graph_by_hand(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["1"]),
        helper.make_node("Flatten", ["1"], ["2"]),
        helper.make_node("Gemm", ["2", "b", "c"], ["y"], transB=1),
    ]
    weights = weight("a", 4, 6), weight("b", 7, 30), weight("c", 7)
    found = cost_of(write(tmp_path / "products.onnx", nodes, value("x", "n", 5, 4), *weights))
    assert found.flops("inference") == 2 * (5 * 6 * 4 + 7 * 30)
    assert found.weight_bytes("native") == 4 * (24 + 210 + 7)


def test_product_of_two_vectors_by_hand(tmp_path: Path) -> None:
    found = cost_of(write(tmp_path / "dot.onnx", [helper.make_node("MatMul", ["x", "x"], ["y"])], value("x", "n")))
    assert found.flops("inference") == 2


@pytest.mark.parametrize(
    ("operator", "inputs", "expected"),
    [
        ("ConvInteger", "x w", 2 * 196 * 2 * 27),
        ("QLinearConv", "x s z w s z s z", 2 * 196 * 2 * 27),
        ("MatMulInteger", "x m", 2 * 3 * 16 * 5 * 16),
        ("QLinearMatMul", "x s z m s z s z", 2 * 3 * 16 * 5 * 16),
    ],
)
def test_integer_operators_by_hand(tmp_path: Path, operator: str, inputs: str, expected: int) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 3, 16, 16])
    integers = {"w": (2, 3, 3, 3), "m": (16, 5), "z": ()}
    weights = [weight("s"), *(weight(name, *shape, type_=TensorProto.UINT8) for name, shape in integers.items())]
    nodes = [helper.make_node(operator, inputs.split(), ["1"]), helper.make_node("Cast", ["1"], ["y"], to=1)]
    source = write(tmp_path / "q.onnx", nodes, x, *weights)
    found = cost_of(replace(source, inputs=declared_inputs({"x": {"range": [0, 256]}})))
    assert found.flops("inference") == expected


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes", "expected"),
    [
        ("FusedConv", ((4, 3, 16, 16), (2, 3, 3, 3), (4, 2, 14, 14)), {}, 4 * 2 * 196 * 2 * 27),
        ("NhwcConv", ((4, 16, 16, 3), (2, 3, 3, 3), (4, 14, 14, 2)), {}, 4 * 2 * 196 * 2 * 27),
        ("FusedGemm", ((4, 6), (6, 5), (4, 5)), {}, 2 * 4 * 6 * 5),
        ("FusedMatMul", ((4, 6, 7), (4, 6, 5), (4, 7, 5)), {"transA": 1}, 2 * 4 * 6 * 7 * 5),
        ("FusedMatMul", ((4, 6, 7), (4, 6, 5), (4, 7, 5)), {"transA": 1, "transBatchA": 1}, None),
    ],
)
def test_fused_operators_of_onnx_runtime(
    operator: str, shapes: tuple[tuple[int, ...], ...], attributes: dict[str, int], expected: int | None
) -> None:
    node = helper.make_node(operator, ["x", "w"], ["y"], domain="com.microsoft", **attributes)
    if expected is None:
        with pytest.raises(ValueError, match="no count"):
            node_flops(node, dict(zip("xwy", shapes, strict=True)))
    else:
        assert node_flops(node, dict(zip("xwy", shapes, strict=True))) == expected


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Einsum", ["x", "a", "x"], ["y"], equation="ij,jk,li->lk"),
        helper.make_node("GroupQueryAttention", ["x", "a", "a"], ["y"], domain="com.microsoft"),
        helper.make_node("MoE", ["x", "a"], ["y"], domain="com.microsoft"),
        helper.make_node("Conv", ["x", "a"], ["y"], domain="com.microsoft.nchwc"),
        helper.make_node("Own", ["x"], ["y"], domain="mine"),
    ],
)
def test_operators_without_a_formula_are_not_counted_as_nothing(node: onnx.NodeProto) -> None:
    with pytest.raises(ValueError, match=f"no count of .*{node.op_type}"):
        node_flops(node, {"x": (4, 6), "a": (6, 5), "y": (4, 5)})
    branch = helper.make_graph([node], "branch", [], [])
    with pytest.raises(ValueError, match=r"no count of .*If"):
        node_flops(helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch), {})


B, S, K, H, D = 2, 6, 9, 4, 8
HIDDEN = H * D
PRODUCTS = 2 * 2 * B * HIDDEN * S * K
"""Of B items' S queries with K keys, of H heads of size D: scores, and their sums of values."""
NONE: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("operator", "domain", "inputs", "y", "attributes", "expected"),
    [
        ("Attention", "", [(B, H, S, D), (B, H, K, D), (B, H, K, D)], (B, H, S, D), {}, PRODUCTS),
        ("Attention", "", [(B, S, HIDDEN), (B, K, 16), (B, K, 16)], (B, S, HIDDEN), {"kv_num_heads": 2}, PRODUCTS),
        (
            "Attention",  # one new key after eight
            "",
            [(B, H, S, D), (B, H, 1, D), (B, H, 1, D), NONE, (B, H, 8, D), (B, H, 8, D)],
            (B, H, S, D),
            {"is_causal": 1},
            PRODUCTS,
        ),
        ("MultiHeadAttention", MS, [(B, S, HIDDEN), (B, K, HIDDEN), (B, K, HIDDEN)], (B, S, HIDDEN), {}, PRODUCTS),
        ("MultiHeadAttention", MS, [(B, S, HIDDEN), (B, H, K, D), (B, H, K, D)], (B, S, HIDDEN), {}, PRODUCTS),
        ("MultiHeadAttention", MS, [(B, S, H, 3, D)], (B, S, HIDDEN), {}, PRODUCTS * S // K),
        (
            "Attention",
            MS,
            [(B, S, 20), (20, 3 * HIDDEN)],
            (B, S, HIDDEN),
            {"num_heads": H},
            2 * B * S * 20 * 3 * HIDDEN + PRODUCTS * S // K,
        ),
        (
            "Attention",
            MS,
            [(B, S, 20), (20, 2 * 16 + HIDDEN)],
            (B, S, HIDDEN),
            {"qkv_hidden_sizes": [16, 16, HIDDEN]},
            2 * B * S * 20 * (32 + HIDDEN) + 2 * B * S * S * (16 + HIDDEN),
        ),
        ("LSTM", "", [(7, B, 6), (2, 40, 6), (2, 40, 10)], (7, 2, B, 10), {}, 2 * 7 * B * 2 * 40 * 16),
        ("GRU", "", [(7, B, 6), (1, 30, 6), (1, 30, 10)], (7, 1, B, 10), {}, 2 * 7 * B * 30 * 16),
        ("Einsum", "", [(B, 3, 4), (B, 4, 5)], (B, 3, 5), {"equation": "bij,bjk->bik"}, 2 * B * 3 * 4 * 5),
        ("Einsum", "", [(B, 1, 3, 4), (4, 5)], (B, 1, 3, 5), {"equation": "...j, jk -> ...k"}, 2 * B * 3 * 4 * 5),
        ("Einsum", "", [(3, 4), (4, 5)], (3, 5), {"equation": "ij,jk"}, 2 * 3 * 4 * 5),
        ("Einsum", "", [(3, 4), (4, 5)], (3,), {"equation": "ij,jk->i"}, 2 * 3 * 4),
        ("Einsum", "", [(3,), (4,)], (3, 4), {"equation": "i,j->ij"}, 0),
        ("Einsum", "", [(3, 3)], (3,), {"equation": "ii->i"}, 0),
        ("MatMulNBits", MS, [(B, S, 32), (16, 1, 16), (16,)], (B, S, 16), {"K": 32, "N": 16}, 2 * B * S * 32 * 16),
    ],
)
def test_operators_of_transformers_and_sequences_by_hand(
    operator: str,
    domain: str,
    inputs: list[tuple[int, ...]],
    y: tuple[int, ...],
    attributes: dict[str, Any],
    expected: int,
) -> None:
    names = [f"i{i}" if shape else "" for i, shape in enumerate(inputs)]
    node = helper.make_node(operator, names, ["y"], domain=domain, **attributes)
    assert node_flops(node, {**dict(zip(names, inputs, strict=True)), "y": y}) == expected


def test_graph_of_onnx_runtimes_own_operators_by_hand(tmp_path: Path) -> None:
    """As its optimizer makes of BERT: shapes are inferred through operators that onnx does not know, and an embedding's
    tables are not read as a whole."""
    made = partial(helper.make_node, domain=MS)
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        made("EmbedLayerNormalization", ["i", "", "words", "places", "", "g", "g"], ["e", "m"]),
        made("Attention", ["e", "qkv", "b"], ["a"], num_heads=4),
        made("SkipLayerNormalization", ["a", "e", "g", "g"], ["n", "", "", "sum"]),
        made("FusedMatMul", ["sum", "up"], ["f"], transB=1),
        made("BiasGelu", ["f", "up_b"], ["h"]),
        made("MultiHeadAttention", ["h", "h", "h"], ["y"], num_heads=4),
    ]
    sizes = {"words": (5000, 32), "places": (512, 32), "g": (32,), "qkv": (32, 96), "b": (96,), "up": (64, 32)}
    weights = [weight(name, *shape) for name, shape in {**sizes, "up_b": (64,)}.items()]
    found = cost_of(write(tmp_path / "own.onnx", nodes, value("x", "n", 6), *weights))
    first, second = 6 * 32 * 96 + 2 * 6 * 6 * 32, 6 * 32 * 64 + 2 * 6 * 6 * 64
    assert found.flops("inference") == 2 * (first + second)
    assert found.weight_bytes("native") == 4 * (32 + 32 * 96 + 96 + 64 * 32 + 64)


def test_other_operators_cost_nothing() -> None:
    assert node_flops(helper.make_node("Relu", ["x"], ["y"]), {}) == 0
    assert node_flops(helper.make_node("BiasGelu", ["x"], ["y"], domain="com.microsoft"), {}) == 0


def test_rows_of_a_table_and_integers_of_a_graph(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "i"], ["e"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    weights = weight("table", 5000, 4), weight("q", 4, 3, type_=TensorProto.INT8), weight("s")
    found = cost_of(write(tmp_path / "table.onnx", nodes, value("x", "n", 2), *weights))
    assert found.flops("inference") == 2 * 2 * 3 * 4
    assert found.weight_bytes("native") == 12 + 4


@pytest.mark.parametrize(("operator", "domain"), [("NonZero", ""), ("Inverse", "com.microsoft")])
def test_graph_whose_shapes_cannot_be_inferred_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], operator: str, domain: str
) -> None:
    """Of the first one's result a size is unknown, of the other's even the rank."""
    nodes = [helper.make_node(operator, ["x"], ["1"], domain=domain), helper.make_node("MatMul", ["a", "1"], ["y"])]
    source = write(tmp_path / "own.onnx", nodes, value("x", "n", 4), weight("a", 4, 2))
    found = cost_of(source)
    assert found == Cost()
    assert "MatMul" in capsys.readouterr().err


def test_result_of_unknown_rank_is_no_scalar(tmp_path: Path) -> None:
    node = helper.make_node("FusedMatMul", ["x", "a"], ["y"], domain="com.microsoft", transBatchA=1)
    assert cost_of(write(tmp_path / "fused.onnx", [node], value("x", 3, 4), weight("a", 4, 2))) == Cost()


def test_cost_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, expected = from_factory("plain"), of("plain")
    first = cached_cost(source, input_specs(source), Cache(tmp_path / "cache"), trains=True)
    monkeypatch.setattr(flops, "count_module", lambda *_: pytest.fail("counted again"))
    second = cached_cost(source, input_specs(source), Cache(tmp_path / "cache"), trains=True)
    assert first == second == expected


def test_cost_is_counted_again_after_a_change_of_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, code = from_factory("plain"), tmp_path / "graph_flops.py"
    code.write_text("one")
    monkeypatch.setattr(flops, "_CODE", (str(code),))
    cached_cost(source, input_specs(source), Cache(tmp_path / "cache"))
    code.write_text("another")
    monkeypatch.setattr(flops, "inference_part", lambda model, specs: {"inference": Flops(1)})
    assert cached_cost(source, input_specs(source), Cache(tmp_path / "cache")).flops("inference") == 1


def test_failure_is_told_every_time_and_kept_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_memory(*_: object) -> dict[str, Flops]:
        raise MemoryError("no room")

    source = from_factory("plain")
    with monkeypatch.context() as patch:
        patch.setattr(flops, "training_part", no_memory)
        for _ in range(2):
            found = cached_cost(source, input_specs(source), Cache(tmp_path / "cache"), trains=True)
            assert found.flops("inference")
            assert found.flops("training") is None
            assert "training not counted: MemoryError: no room" in capsys.readouterr().err
    assert cached_cost(source, input_specs(source), Cache(tmp_path / "cache"), trains=True) == of("plain")


def test_inference_is_known_before_training_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is not lost where training takes too long."""
    known: list[Cost] = []

    def training(*_: object) -> dict[str, Flops]:
        assert known[-1].flops("inference")
        return {"training": Flops(7)}

    monkeypatch.setattr(flops, "training_part", training)
    source = from_factory("plain")
    found = cached_cost(source, input_specs(source), Cache(tmp_path), None, True, known.append)
    assert known[-1] == found
    assert found.flops("training") == 7


def test_a_mask_that_the_model_looks_at_is_counted_on_the_meta_device() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 8)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            mask = mask.to(device=x.device, dtype=torch.bool)
            hidden = None if mask.all() else mask[:, None, :] & (torch.arange(6, device=x.device) < 6)
            return self.out(nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=hidden))

    declared = {name: {"shape": ["batch", 6], "dtype": "int64", **more} for name, more in MASKED.items()}
    specs = input_specs(ModelSource("m", factory="m:m", inputs=declared_inputs(declared)))
    counts = [flops.inference_part(Masked().to(device), specs) for device in ("meta", "cpu")]
    assert counts[0] == counts[1]
    assert counts[0]["inference"].item == 2 * 6 * (2 * 6 * 4 + 4 * 8)
    trained = [flops.training_part(Masked().to(device), specs, False, ()) for device in ("meta", "cpu")]
    assert trained[0] == trained[1]


MASKED = {"ids": {"range": [0, 10]}, "mask": {"fill": "lengths"}}
