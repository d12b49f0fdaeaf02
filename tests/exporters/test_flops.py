"""FLOPs and weights of modules and graphs, against published counts, counts by hand, and each other."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from matrix_product import write_text
from onnx import TensorProto, helper

from exporters import flops
from exporters.cache import Cache
from exporters.catalog import CATALOG
from exporters.flops import Cost, cached_cost, node_flops
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
import torch
import torch.nn.functional as F
from does import Does
from torch import nn

def linear(*sizes): return nn.Linear(*sizes, bias=False)
def zeros(*shape): return nn.Parameter(torch.zeros(*shape))

def plain():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 196, 5))

def grouped():
    return nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.ConvTranspose2d(8, 6, 3, groups=2))

def branching(model): return Does(lambda self, x: self.model(x if x.sum() > 0 else -x), model=model)
def branching_plain(): return branching(plain())
def branching_attending(): return branching(attending())
def branching_wasting(): return branching(wasting())
def branching_merging(): return branching(merging())

def recurrent(kind):
    layer = kind(6, 10, 2, batch_first=True, bidirectional=True)
    return Does(lambda self, x: self.layer(x)[0], layer=layer)

def lstm(): return recurrent(nn.LSTM)
def gru(): return recurrent(nn.GRU)
def rnn(): return recurrent(nn.RNN)

# Queries of four heads, keys and values of as many.
def attending(): return Does(lambda self, x: F.scaled_dot_product_attention(x, x[:, :, :5], x[:, :, :5]))
def written():
    def attend(self, x):
        scores = torch.einsum("bhqd,bhkd->bhqk", x, x[:, :, :5])
        return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), x[:, :, :5])
    return Does(attend)
def self_attention():
    layer = nn.MultiheadAttention(32, 4, batch_first=True)
    return Does(lambda self, x: self.layer(x, x, x, need_weights=False)[0], layer=layer)

class Words(nn.Module):
    # A table of 1,000 rows of 8, read in one of several ways, and a product.
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.table = nn.EmbeddingBag(1000, 8) if kind == "bag" else nn.Embedding(1000, 8)
        self.layer = nn.Linear(8, 3)
    def forward(self, ids):
        table = self.table.weight
        if self.kind in ("bag", "module"):
            return self.layer(self.table(ids))
        found = table[ids] if self.kind == "indexed" else F.embedding(ids, table)
        return F.linear(self.layer(found) @ self.layer.weight, table) if self.kind == "tied" else self.layer(found)

def words(kind): return Words(kind), torch.randint(1000, (2, 5))

# Reads few elements of 8,000 by way of a view, and adds them.
def reading(read, *shape):
    model = Does(lambda self, ids: read(self.table, ids).flatten(1).sum(1) + ids.sum(1), table=zeros(*shape))
    return model, torch.randint(1000, (2, 5))
def viewed(): return reading(lambda w, i: w.view(-1, 8)[i], 8000)
def detached(): return reading(lambda w, i: F.embedding(i, w.detach()), 1000, 8)
def renormed(): return reading(lambda w, i: F.embedding(i, w, max_norm=1.0), 1000, 8)
def sliced(): return reading(lambda w, i: w[:, :5].expand(len(i), 5, 8) * 2, 1, 1000, 8)
def taken(): return reading(lambda w, i: w.t().take(i), 1000, 8)
def searched(): return reading(lambda w, i: torch.bucketize(i.float(), w), 8000)
def sampled():
    def sample(w, i): return F.grid_sample(w.expand(len(i), -1, -1, -1), i[:, None, :, None].expand(-1, 1, 5, 2) / 1e3)
    return reading(sample, 1, 8, 25, 40)

# Two layers with one matrix, an expanded buffer and a bias.
def sharing():
    parts = {"first": nn.Linear(8, 8), "second": linear(8, 8), "shift": torch.zeros(1, 8).expand(100, 8)}
    parts["second"].weight = parts["first"].weight
    return Does(lambda self, x: self.second(self.first(x)) + self.shift.mean(0), **parts)

# A product of weights, which all items share.
def merging(): return Does(lambda self, x: x @ (self.down @ self.up), down=zeros(8, 64), up=zeros(64, 8))

# Returns an expensive tensor, or integers, before its loss.
def rebuilding(kind=None):
    def forward(self, x):
        codes = self.encode(x)
        first = {"rebuilt": self.decode(codes)} if kind is None else {"ids": codes.argmax(1)}
        return first | {"loss": codes.square().mean()}
    return Does(forward, encode=nn.Linear(8, 4), decode=nn.Linear(4, 8))

def choosing(): return rebuilding("ids")
def own_loss(result): return result["loss"] * 2

# Computes a product that reaches no output, and writes into it.
def wasting():
    return Does(lambda self, x: (F.relu_(self.unused(x)), self.used(x))[1], used=linear(8, 4), unused=linear(8, 1000))

# Updates a buffer by a product.
def keeping():
    def forward(self, x):
        y = self.layer(x)
        self.sums.add_(y.detach().T @ x.detach())
        return y
    return Does(forward, layer=linear(8, 4), sums=torch.zeros(4, 8))

class Passing(nn.Module):
    # Reads the last of an input's rows, and returns a product, and views of it, of a weight and of the input.
    def __init__(self):
        super().__init__()
        self.layer, self.shift = nn.Linear(8, 4), zeros(1, 4)
    def forward(self, rows, whole):
        y = self.layer(rows[:, -1]) + whole
        return {"y": y, "turned": y.unsqueeze(1), "wide": self.shift.expand(9, 4), "first": rows[:, 0]}

def passing(): return Passing(), {"rows": torch.zeros(2, 50, 8), "whole": torch.zeros(2, 4)}
"""


@pytest.fixture(autouse=True)
def _factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cost_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cost_factories", raising=False)


def from_factory(factory: str, *shape: int) -> ModelSource:
    return ModelSource(factory, factory=f"cost_factories:{factory}", input_shape=shape or (3, 16, 16))


def cost_of(source: ModelSource, graph: Path | None = None, trains: bool = True, of_input: bool = False) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        return cached_cost(source, input_specs(source), Cache(Path(folder)), graph, trains, of_input=of_input)


@pytest.mark.parametrize("name", FIRST_LAYERS)
def test_canonical_network_costs_what_is_published(name):
    """A training step costs three times as much but for the image's gradient: each layer's gradients of its weights and
    of its input cost as much as its forward pass, and the image has none."""
    found = cost_of(ModelSource(name))
    channels, kernel, size = FIRST_LAYERS[name]
    first = 2 * 3 * channels * kernel**2 * size**2
    assert found.flops("inference") == 2 * CATALOG[name].multiply_adds
    assert found.flops("training") == 3 * 2 * CATALOG[name].multiply_adds - first
    assert found.float_weights is not None
    assert CATALOG[name].parameters <= found.float_weights < 1.01 * CATALOG[name].parameters, "the statistics are read"


def test_plain_network_by_hand():
    convolution, linear = 2 * 196 * 8 * 3 * 9, 2 * 8 * 196 * 5
    weights = (8 * 3 * 9 + 8) + 2 * 8 + (8 * 196 * 5 + 5) + 2 * 8
    found = cost_of(from_factory("plain"))
    assert found == Cost(convolution + linear, 2 * convolution + 3 * linear, weights, 0, moved=("x", "y"))
    bytes_ = [found.weight_bytes(bits) for bits in (32, 16, 8)]
    assert bytes_ == [size * weights for size in (4, 2, 1)]
    assert cost_of(from_factory("branching_plain")) == found, "on the CPU, where the meta device does not suffice"


@pytest.mark.parametrize("kind", ["bag", "module", "indexed", "functional", "tied"])
def test_a_table_counts_only_where_it_is_read_whole(kind):
    found = cost_of(ModelSource("words", factory="cost_factories:words", options={"kind": kind}))
    assert found.float_weights == 8 * 3 + 3 + (8000 if kind == "tied" else 0)


@pytest.mark.parametrize(
    ("factory", "head", "outputs", "layers"),
    [
        ("rebuilding", "cross-entropy", (), (2,)),
        ("choosing", "cross-entropy", (), (2,)),
        ("rebuilding", "cost_factories:own_loss", ("rebuilt",), (2,)),
        ("rebuilding", "mean-square", ("rebuilt",), (2, 3)),
    ],
)
def test_a_step_differentiates_what_its_head_does(factory, head, outputs, layers, cache):
    """The times that each layer's products are computed; the first has no gradient of its input."""
    source = replace(from_factory(factory, 8), outputs=outputs)
    found = cached_cost(source, input_specs(source), cache, trains=True, head=head)
    assert found.training == 2 * 8 * 4 * sum(layers)


@pytest.mark.parametrize(
    ("factory", "width", "times"),
    [
        *((factory, 4, (1, 2)) for factory in ("wasting", "branching_wasting")),
        ("keeping", 4, (2, 3)),
        *((factory, 8, (1, 2)) for factory in ("merging", "branching_merging")),
    ],
)
def test_work_that_reaches_no_result_or_that_the_batch_shares_counts_nothing(factory, width, times):
    found, forward = cost_of(from_factory(factory, 8)), 2 * 8 * width
    assert (found.flops("inference"), found.flops("training")) == tuple(time * forward for time in times)
    assert width == 8 or found.float_weights == 8 * 4 * times[0]


def test_an_input_barely_read_and_an_output_that_is_a_view_need_not_move(cache):
    source = ModelSource("passing", factory="cost_factories:passing")
    graph = export_onnx(source, "fp32", cache).path
    for found in cost_of(source, trains=False), cost_of(source, graph, trains=False):
        assert found.moved == ("whole", "y")


def test_a_size_of_minus_one_is_free(tmp_path):
    source = write(tmp_path / "old.onnx", "y = MatMul (x, w)", ["n", 8], weight("w", 8, 4))
    assert source.onnx
    model = onnx.load(source.onnx)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [-1, 4]))
    onnx.save(model, source.onnx)
    assert cost_of(source).flops("inference") == 2 * 8 * 4


@pytest.mark.parametrize("batch", ["batch", 4])
@pytest.mark.parametrize(
    ("nodes", "rows", "expected"),
    [
        ("unused = MatMul (x, b)  y = MatMul (x, a)", 8, (2 * 8 * 8, 8 * 8)),
        ("t = Transpose (a)  w = MatMul (t, a)  y = MatMul (x, w)", 64, (2 * 8 * 8, 0)),
    ],
)
def test_unused_work_and_work_on_constants_count_nothing_in_a_graph(tmp_path, batch, nodes, rows, expected):
    found = cost_of(write(tmp_path / "g.onnx", nodes, [batch, 8], weight("a", rows, 8), weight("b", 8, 1000)))
    assert (found.flops("inference"), found.float_weights) == expected


@pytest.mark.parametrize(
    ("factory", "elements"),
    [*dict.fromkeys(["viewed", "detached", "renormed", "taken", "searched", "sampled"], 0).items(), ("sliced", 5 * 8)],
)
def test_a_table_read_through_a_view_counts_what_is_read(factory, elements):
    found = cost_of(ModelSource(factory, factory=f"cost_factories:{factory}"), trains=False)
    assert (found.float_weights, found.other_weight_bytes) == (elements, 0)


def test_shared_storage_counts_once():
    assert cost_of(from_factory("sharing", 8), trains=False).float_weights == 8 * 8 + 8 + 8


@pytest.mark.parametrize("factory", ["attending", "branching_attending", "written"])
def test_attention_costs_the_same_however_it_is_written(factory):
    """4 heads of size 8, 9 queries, 5 keys; a backward pass has two gradients of each product."""
    found, forward = cost_of(from_factory(factory, 4, 9, 8), of_input=True), 2 * 4 * 9 * 5 * (8 + 8)
    assert (found.flops("inference"), found.flops("training")) == (forward, 3 * forward)


@pytest.mark.parametrize(("factory", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrent_layers_by_hand(factory, gates):
    """Two layers of two directions over 3 steps; the second sees both directions of the first."""
    found, forward = cost_of(from_factory(factory, 3, 6)), 2 * 3 * 2 * gates * 10 * ((6 + 10) + (20 + 10))
    assert found.flops("inference") == forward
    assert found.training is not None
    assert 2.5 * forward < found.training < 3 * forward


@pytest.mark.parametrize(("factory", "shape"), [("self_attention", (6, 32)), ("plain", (3, 16, 16))])
def test_a_graph_costs_what_its_module_does(factory, shape, cache):
    source = from_factory(factory, *shape)
    path = export_onnx(source, "fp16", cache).path
    module, graph = cost_of(source, trains=False), cost_of(ModelSource("graph", onnx=path))
    assert graph.flops("inference") == module.flops("inference")
    if factory == "plain":
        assert graph.weight_bytes(32) == pytest.approx(2 * (module.float_weights or 0), rel=0.05)


def test_cost_is_counted_once_and_a_failure_never_kept(tmp_path, monkeypatch, capsys):
    source = from_factory("plain")

    def cost() -> Cost:
        return cached_cost(source, input_specs(source), Cache(tmp_path / "cache"), None, True)

    count = flops._count_module

    def no_memory(source: ModelSource, specs: Any, pass_: str = "inference", *more: Any) -> dict[str, int]:
        if pass_ == "inference":
            return count(source, specs)
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(flops, "_count_module", no_memory)
        for _ in range(2):
            assert cost().flops("training") is None
            assert "training not counted: MemoryError: no room" in capsys.readouterr().err
    whole = cost()
    monkeypatch.setattr(flops, "_count_module", lambda *_: pytest.fail("counted again"))
    assert cost() == whole
    assert whole.flops("training")


def weight(name: str, *shape: int, type_: int = TensorProto.FLOAT) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=type_, dims=shape)
    tensor.raw_data = bytes(helper.tensor_dtype_to_np_dtype(type_).itemsize * int(onnx.numpy_helper.np.prod(shape)))
    return tensor


def write(path: Path, nodes: str, shape: list[int | str], *weights: Any) -> ModelSource:
    """Write a graph with an output of unknown shape; text has no weights without their values."""
    model = onnx.load(write_text(path, f"g (float[{', '.join(map(str, shape))}] x) => (float y) {{ {nodes} }}"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(weights)
    onnx.save(model, path)
    return ModelSource(path.stem, onnx=path)


@pytest.mark.parametrize("batch", ["batch", 4])
def test_onnx_file_costs_what_its_torch_twin_does(tmp_path, batch):
    nodes = "p = Conv (x, a)  q = Conv <group = 8> (p, b)  y = ConvTranspose <group = 2> (q, c)"
    weights = weight("a", 8, 4, 1, 1), weight("b", 8, 1, 3, 3), weight("c", 8, 3, 3, 3)
    found = cost_of(write(tmp_path / "twin.onnx", nodes, [batch, 4, 16, 16], *weights))
    twin = cost_of(from_factory("grouped", 4, 16, 16))
    assert (found.flops("inference"), found.flops("training")) == (twin.flops("inference"), None)
    assert found.weight_bytes(32) == 4 * (8 * 4 + 8 * 9 + 8 * 27)


def test_products_tables_and_integers_of_a_graph_by_hand(tmp_path):
    nodes = "i = Cast <to = 7> (x)  e = Gather (table, i)  w = DequantizeLinear (q, s)  m = MatMul (e, w)"
    nodes += "  f = Flatten (m)  y = Gemm <transB = 1> (f, b, c)"
    weights = weight("table", 5000, 4), weight("q", 4, 6, type_=TensorProto.INT8), weight("s")
    more = weight("b", 7, 30), weight("c", 7)
    found = cost_of(write(tmp_path / "products.onnx", nodes, ["n", 5], *weights, *more))
    assert found.flops("inference") == 2 * (5 * 6 * 4 + 7 * 30)
    assert found.weight_bytes(32) == 24 + 4 * (1 + 210 + 7)


def test_a_graph_counts_what_is_read_of_a_table(tmp_path):
    nodes = "i = Cast <to = 7> (x)  t = Transpose (rows)  a = Gather (t, i)  b = Slice (part, zero, five)"
    nodes += "  w = Reshape (whole, shape)  c = Gather (w, i)  y = Sum (a, b, w, c)"
    tables = [weight(name, 5, 1000) for name in ("rows", "part", "whole")]
    numbers = [helper.make_tensor(name, TensorProto.INT64, [1], [n]) for name, n in (("zero", 0), ("five", 5))]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1000, 5])
    found = cost_of(write(tmp_path / "tables.onnx", nodes, ["n", 5], *tables, *numbers, shape))
    assert (found.float_weights, found.other_weight_bytes) == (5000, 2 * 8)


@pytest.mark.parametrize(
    ("operator", "inputs", "y", "attributes", "expected"),
    [
        ("Gemm", [(5, 4), (5, 6)], (4, 6), {"transA": 1}, 2 * 4 * 5 * 6),
        ("MatMul", [(4,), (4,)], (), {}, 2 * 4),
        ("MatMulInteger", [(3, 16, 16), (16, 5)], (3, 16, 5), {}, 2 * 3 * 16 * 5 * 16),
        ("ConvInteger", [(1, 3, 16, 16), (2, 3, 3, 3)], (1, 2, 14, 14), {}, 2 * 196 * 2 * 27),
        ("Relu", [(4,)], (4,), {}, 0),
    ],
)
def test_operators_by_hand(operator, inputs, y, attributes, expected):
    names = [f"i{i}" if shape else "" for i, shape in enumerate(inputs)]
    node = helper.make_node(operator, names, ["y"], **attributes)
    assert node_flops(node, {**dict(zip(names, inputs, strict=True)), "y": y}) == expected


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Einsum", ["x", "a", "x"], ["y"], equation="ij,jk,li->lk"),
        helper.make_node("FusedMatMul", ["x", "a"], ["y"], domain="com.microsoft"),
        helper.make_node("Conv", ["x", "a"], ["y"], domain="com.microsoft.nchwc"),
        helper.make_node("Own", ["x"], ["y"], domain="mine"),
        helper.make_node("MatMul", ["x", "unknown"], ["unknown"]),
    ],
)
def test_what_has_no_count_is_not_counted_as_nothing(node):
    with pytest.raises(ValueError, match=node.op_type):
        node_flops(node, {"x": (4, 6), "a": (6, 5), "y": (4, 5)})
    branch = helper.make_graph([node], "branch", [], [])
    with pytest.raises(ValueError, match="If"):
        node_flops(helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch), {})
