"""Infer the shapes of an ONNX graph's tensors, through the operators of ONNX Runtime's own as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from exporters.inputs import TensorSpec, graph_inputs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

Shapes = dict[str, tuple[int, ...]]
"""By tensor; 0 is a size that is unknown."""

_SMALL = 1024
"""Elements of the largest initializer whose values shape inference may need: shapes, axes, paddings."""
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
Rule = Callable[["NodeProto", "GraphProto", Shapes], "list[NodeProto]"]
"""Nodes in place of one; none where its shapes stay unknown."""
_UNREGISTERED = ("SimplifiedLayerNormalization",)
"""Of ONNX Runtime's own, but in ONNX's domain."""


def graph_shapes(model: ModelProto, specs: Sequence[TensorSpec], batch: int) -> tuple[Sequence[NodeProto], Shapes]:
    """The nodes, functions inlined, and the tensors' shapes, but for those of which not even the rank is inferred."""
    import onnx
    from onnx.inliner import inline_local_functions

    inlined = inline_local_functions(model) if model.functions else model
    sized = onnx.ModelProto()
    sized.CopyFrom(inlined)
    symbols = set_input_sizes(sized.graph, specs, batch)
    for value in (*sized.graph.output, *sized.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
    replace_own_operators(sized.graph)
    graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):  # a scalar's is there, and empty
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return inlined.graph.node, shapes


def replace_own_operators(graph: GraphProto) -> None:
    """Put nodes of ONNX's in the place of ONNX Runtime's own, which onnx knows nothing of: their results have the same
    shapes, whatever they compute."""
    dims = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    for node in graph.node:
        rule = _LIKE.get(node.op_type) if node.domain == "com.microsoft" or node.op_type in _UNREGISTERED else None
        nodes += [node] if rule is None else rule(node, graph, dims) or [node]
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]  # clearing the list empties its nodes
    del graph.node[:]
    graph.node.extend(kept)


def _as_first_input(node: NodeProto, *_: Any) -> list[NodeProto]:
    """Output 3 of a SkipLayerNormalization is the sum of its inputs."""
    return [_made("Identity", node.input[:1], node.output[i]) for i in (0, 3) if i < len(node.output)]


def _as(operator: str, inputs: int, *dropped: str) -> Rule:
    def rule(node: NodeProto, *_: Any) -> list[NodeProto]:
        made = _made(operator, node.input[:inputs], node.output[0])
        made.attribute.extend(attribute for attribute in node.attribute if attribute.name not in dropped)
        return [made]

    return rule


def _as_product(node: NodeProto, _: Any, dims: Shapes) -> list[NodeProto]:
    """onnx infers nothing of an Einsum whose operands have ellipses of different ranks."""
    switches = {attribute.name for attribute in node.attribute if attribute.i}
    if switches & {"transBatchA", "transBatchB"}:
        return []
    if not switches & {"transA", "transB"}:
        return [_made("MatMul", node.input[:2], node.output[0])]
    first, second = "ji" if "transA" in switches else "ij", "kj" if "transB" in switches else "jk"
    stacked = "" if len(dims.get(node.input[1], ())) == 2 else "..."
    return [_made("Einsum", node.input[:2], node.output[0], equation=f"...{first},{stacked}{second}->...ik")]


def _as_packed_product(node: NodeProto, graph: GraphProto, _: Any) -> list[NodeProto]:
    sizes = {attribute.name: attribute.i for attribute in node.attribute}
    return [_made("MatMul", [node.input[0], _empty(graph, node, sizes["K"], sizes["N"])], node.output[0])]


def _as_projected_attention(node: NodeProto, graph: GraphProto, dims: Shapes) -> list[NodeProto]:
    if node.input[1] not in dims:
        return []
    inner, packed = dims[node.input[1]]
    sizes = [tuple(attribute.ints) for attribute in node.attribute if attribute.name == "qkv_hidden_sizes"]
    values = sizes[0][2] if sizes and sizes[0] else packed // 3
    return [_made("MatMul", [node.input[0], _empty(graph, node, inner, values)], node.output[0])]


def _as_attention(node: NodeProto, *_: Any) -> list[NodeProto]:
    """(items, length, heads x size of a value); packed heads stay unknown."""
    if len(node.input) < 3 or not node.input[2]:
        return []
    return [_made("Einsum", [node.input[0], node.input[2]], node.output[0], equation="bqd,bkv->bqv")]


def _as_embedding(node: NodeProto, *_: Any) -> list[NodeProto]:
    """Output 2 is the sum of the embeddings."""
    inputs = [node.input[2], node.input[0]]
    return [_made("Gather", inputs, node.output[i]) for i in (0, 2) if i < len(node.output)]


def _made(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    from onnx import helper

    return helper.make_node(operator, list(inputs), [output], **attributes)


def _empty(graph: GraphProto, node: NodeProto, *dims: int) -> str:
    """The name of a new initializer of these sizes, without data."""
    name = f"{node.output[0]}.weight"
    graph.initializer.add(name=name, data_type=1, dims=dims)
    return name


_LIKE: dict[str, Rule] = {
    **dict.fromkeys(("Gelu", "FastGelu", "BiasGelu", "QuickGelu", "BiasAdd", "BiasSoftmax"), _as_first_input),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _as_first_input),
    **dict.fromkeys(("SimplifiedLayerNormalization", "RotaryEmbedding", "GroupNorm"), _as_first_input),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _as_first_input),
    "FusedConv": _as("Conv", 3, "activation", "activation_params"),
    "FusedGemm": _as("Gemm", 3, "activation", "activation_alpha", "activation_beta", "activation_gamma"),
    "FusedMatMul": _as_product,
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), _as_product),
    "MatMulNBits": _as_packed_product,
    **dict.fromkeys(("Attention", "QAttention"), _as_projected_attention),
    "MultiHeadAttention": _as_attention,
    "EmbedLayerNormalization": _as_embedding,
}
"""See https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md for inputs and outputs."""


def drop_data(model: ModelProto) -> None:
    """Empty the large initializers: shape inference copies the model, and needs only their shapes."""
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) > _SMALL:
            for name in _DATA:
                tensor.ClearField(name)


def set_input_sizes(graph: GraphProto, specs: Sequence[TensorSpec], batch: int) -> dict[str, int]:
    """Give the graph's inputs the sizes of `specs`; returns the sizes of its symbols."""
    symbols = {}
    own = {spec.name: spec for spec in specs}
    for value in graph_inputs(graph):
        spec = own[value.name]
        for dim, size in zip(value.type.tensor_type.shape.dim, spec.at(batch), strict=True):
            if dim.dim_param:
                symbols[dim.dim_param] = size
            dim.dim_value = size
    return symbols
