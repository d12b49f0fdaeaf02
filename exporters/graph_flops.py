"""Count the FLOPs of one call of an ONNX graph, and the weights that it reads."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from exporters.inputs import TensorSpec, graph_inputs

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto

_SMALL = 1024
"""Elements of the largest initializer whose values shape inference may need: shapes, axes, paddings."""
_CONVOLUTIONS = ("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvInteger", "QLinearConv")
_PRODUCTS = ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul")
_COMPUTES = re.compile("Conv|Gemm|MatMul|Attention|Einsum|LSTM|GRU|RNN|MoE|Search|EPContext")
"""Parts of the names of operators that multiply matrices, those of ONNX Runtime's own included."""
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Whose operators the pattern tells apart; any other's may do anything."""
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def graph_weights(model: ModelProto) -> Counter[np.dtype[Any]]:
    """By type, the elements of the initializers that are read as a whole: no tables of which nodes only gather rows."""
    import onnx

    read = {name for node in model.graph.node for name in node.input[node.op_type.startswith("Gather") :]}
    elements: Counter[np.dtype[Any]] = Counter()
    for tensor in model.graph.initializer:
        if tensor.name in read:
            elements[onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)] += math.prod(tensor.dims)
    return elements


def quantized_products(graph: GraphProto) -> tuple[int, int]:
    """How many convolutions and products a Q/DQ graph has, and how many of them have two operands that are dequantized.

    The graphs inside control flow are left out.
    """
    source = {name: node.op_type for node in graph.node for name in node.output}
    found = [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    quantized = [node for node in found if all(source.get(n) == "DequantizeLinear" for n in node.input[:2])]
    return len(found), len(quantized)


def graph_flops(model: ModelProto, specs: Sequence[TensorSpec], batch: int) -> int:
    """Count from shapes that onnx infers.

    Raises ValueError if the shape of a convolution or product does not follow from the inputs' shapes, and for an
    operator that computes and for which there is no formula.
    """
    graph, shapes = graph_shapes(model, specs, batch)
    return sum(node_flops(node, shapes) for node in graph.node)


def node_flops(node: NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    """Two per multiply-add: the result's elements times the length of the sum that makes one of them; of a transposed
    convolution, the input's elements times the weights that each one meets."""
    if not computes(node):
        return 0
    switches = {attribute.name for attribute in node.attribute if attribute.i}
    transposed = node.op_type == "ConvTranspose"
    known = transposed or node.op_type in (*_CONVOLUTIONS, *_PRODUCTS)
    if node.domain not in _DOMAINS or not known or "transBatchA" in switches:
        raise ValueError(f"there is no count of {node.domain or 'ai.onnx'}'s {node.op_type} {node.name!r}")
    second = 3 if node.op_type.startswith("QLinear") else 1  # after the first operand's scale and zero point
    x, weight, y = (shapes.get(name) for name in (node.input[0], node.input[second], node.output[0]))
    if x is None or weight is None or y is None or 0 in (*x, *weight, *y):
        raise ValueError(f"the shapes of {node.op_type} {node.name!r} are unknown")
    if transposed:
        return 2 * math.prod(x) * math.prod(weight[1:])
    if node.op_type in _CONVOLUTIONS:
        return 2 * math.prod(y) * math.prod(weight[1:])
    return 2 * math.prod(y) * (x[-2] if "transA" in switches and len(x) > 1 else x[-1])


def computes(node: NodeProto) -> bool:
    """Whether the node, or one in a branch or a loop of it, may multiply matrices."""
    if node.domain not in _DOMAINS or _COMPUTES.search(node.op_type):
        return True
    subgraphs = (graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs))
    return any(computes(inner) for graph in subgraphs for inner in graph.node)


def graph_shapes(
    model: ModelProto, specs: Sequence[TensorSpec], batch: int
) -> tuple[GraphProto, dict[str, tuple[int, ...]]]:
    """The graph, its functions inlined, and the tensors' shapes; 0 is a size that cannot be inferred, and a tensor of
    which not even the rank can is left out."""
    import onnx
    from onnx.inliner import inline_local_functions

    sized = onnx.ModelProto()
    sized.CopyFrom(inline_local_functions(model) if model.functions else model)
    symbols = set_input_sizes(sized.graph, specs, batch)
    for value in (*sized.graph.output, *sized.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
    graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):  # a scalar's is there, and empty
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return graph, shapes


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
