"""Count the FLOPs of one call of an ONNX graph, and the weights that it reads."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from exporters.graph_shapes import Shapes, graph_shapes
from exporters.inputs import TensorSpec
from exporters.sound_graph import every_node, graphs_of

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto

_COMPUTES = re.compile("Conv|Gemm|MatMul|Attention|Einsum|LSTM|GRU|RNN|MoE|Search|EPContext")
"""Parts of the names of operators that multiply matrices, those of ONNX Runtime's own included."""
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Whose operators the pattern tells apart; any other's may do anything."""
_TABLES = {"EmbedLayerNormalization": range(2, 5)}
"""Inputs of which a node only looks up rows; of one whose name starts with Gather it is the first."""


def graph_weights(model: ModelProto) -> Counter[np.dtype[Any]]:
    """By type, the elements of the initializers that are read as a whole: no tables of which nodes only gather rows."""
    import onnx

    read = set[str]()
    for node in model.graph.node:
        of_rows = _TABLES.get(node.op_type, range(node.op_type.startswith("Gather")))
        read.update(name for place, name in enumerate(node.input) if place not in of_rows)
    elements: Counter[np.dtype[Any]] = Counter()
    for tensor in model.graph.initializer:
        if tensor.name in read:
            elements[onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)] += math.prod(tensor.dims)
    return elements


def quantized_products(graph: GraphProto) -> tuple[int, int]:
    """How many convolutions and products a Q/DQ graph has, and how many of them have two operands that are dequantized.
    The graphs inside control flow are left out."""
    source = {name: node.op_type for node in graph.node for name in node.output}
    found = [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    quantized = [node for node in found if all(source.get(n) == "DequantizeLinear" for n in node.input[:2])]
    return len(found), len(quantized)


def graph_flops(model: ModelProto, specs: Sequence[TensorSpec], batch: int) -> int:
    """Count from shapes that onnx infers. Raises ValueError if the shape of a convolution or product does not follow
    from the inputs' shapes, and for an operator that computes and for which there is no formula."""
    nodes, shapes = graph_shapes(model, specs, batch)
    return sum(node_flops(node, shapes) for node in nodes)


def node_flops(node: NodeProto, shapes: Shapes) -> int:
    """Two per multiply-add of the products that a node computes; what follows from them (a softmax, gates) counts 0."""
    if not computes(node):
        return 0
    formula = _FORMULAS.get(node.op_type) if node.domain in _DOMAINS else None
    if formula is None:
        raise ValueError(f"there is no count of {named(node)}")
    return formula(node, shapes)


def named(node: NodeProto) -> str:
    return f"{node.domain or 'ai.onnx'}'s {node.op_type} {node.name!r}"


def shape_of(node: NodeProto, tensor: str, shapes: Shapes) -> tuple[int, ...]:
    """Raises ValueError where a size is unknown."""
    shape = shapes.get(tensor)
    if shape is None or 0 in shape:
        raise ValueError(f"the shapes of {named(node)} are unknown")
    return shape


def inputs_of(node: NodeProto, shapes: Shapes, *positions: int) -> list[tuple[int, ...]]:
    """Shapes of the inputs at these positions, of one that is left out ()."""
    names = [node.input[i] if i < len(node.input) else "" for i in positions]
    return [shape_of(node, name, shapes) if name else () for name in names]


def attributes_of(node: NodeProto) -> dict[str, Any]:
    import onnx

    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def _second(node: NodeProto) -> int:
    """Position of the second operand: in a QLinear node it follows the first one's scale and zero point."""
    return 3 if node.op_type.startswith("QLinear") else 1


def convolution(node: NodeProto, shapes: Shapes) -> int:
    """The result's elements times the length of the sum that makes one of them."""
    (weight,) = inputs_of(node, shapes, _second(node))
    return 2 * math.prod(shape_of(node, node.output[0], shapes)) * math.prod(weight[1:])


def transposed_convolution(node: NodeProto, shapes: Shapes) -> int:
    """The input's elements times the weights that each one meets."""
    x, weight = inputs_of(node, shapes, 0, 1)
    return 2 * math.prod(x) * math.prod(weight[1:])


def product(node: NodeProto, shapes: Shapes) -> int:
    """The result's elements times the length of the sum that makes one of them."""
    attributes = attributes_of(node)
    if attributes.get("transBatchA"):
        raise ValueError(f"there is no count of {named(node)} with transBatchA")
    x, _ = inputs_of(node, shapes, 0, _second(node))
    summed = x[-2] if attributes.get("transA") and len(x) > 1 else x[-1]
    return 2 * math.prod(shape_of(node, node.output[0], shapes)) * summed


def packed_product(node: NodeProto, shapes: Shapes) -> int:
    """MatMulNBits, whose weights are packed: their true sizes are its attributes K and N."""
    attributes, (x,) = attributes_of(node), inputs_of(node, shapes, 0)
    return 2 * math.prod(x[:-1]) * int(attributes["K"] * attributes["N"])


def recurrent(node: NodeProto, shapes: Shapes) -> int:
    """Each item of each step meets every weight of both matrices, W and R, of each direction once; x is (steps, items,
    size), of which the size, often computed in the graph, need not be known."""
    w, r = inputs_of(node, shapes, 1, 2)
    positions = math.prod(shapes.get(node.input[0], (0,))[:2])
    if not positions:
        raise ValueError(f"the shapes of {named(node)} are unknown")
    return 2 * positions * (math.prod(w) + math.prod(r))


def einsum(node: NodeProto, shapes: Shapes) -> int:
    """A product over every label that is left once each operand's own sums are taken, as torch and ONNX Runtime do.

    With one operand, or without a sum over a label of both, nothing is multiplied and added. How more than two
    operands are paired is up to the runtime.
    """
    if len(node.input) > 2:
        raise ValueError(f"there is no count of {named(node)} with more than two operands")
    if len(node.input) < 2:
        return 0
    operands, result = einsum_labels(attributes_of(node)["equation"].decode(), inputs_of(node, shapes, 0, 1))
    first, second = operands
    both = first.keys() & second.keys()
    if both <= result:
        return 0
    return 2 * math.prod(max(first.get(label, 1), second.get(label, 1)) for label in both | result)


def einsum_labels(equation: str, operands: Sequence[tuple[int, ...]]) -> tuple[list[dict[str, int]], set[str]]:
    """Each operand's sizes by label, and the result's labels; the sizes behind an ellipsis are "-1", "-2", ..."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    sized = []
    for term, shape in zip(left.split(","), operands, strict=True):
        before, ellipsis, after = term.partition("...")
        hidden = len(shape) - len(before) - len(after) if ellipsis else 0
        labels = [*before, *(str(i - hidden) for i in range(hidden)), *after]
        sized.append(dict(zip(labels, shape, strict=True)))
    used = left.replace(",", "").replace(".", "")
    result = set(right if arrow else (label for label in used if used.count(label) == 1)) - {"."}
    if "..." in (right if arrow else left):
        result |= {label for sizes in sized for label in sizes if label.startswith("-")}
    return sized, result


def attention(node: NodeProto, shapes: Shapes) -> int:
    """Queries times keys, and weights times values, as two products, with or without a mask.

    Each element of the queries meets every key, each of the result every value, in whatever layout: of ai.onnx
    (items, heads, length, size) or (items, length, heads x size), of com.microsoft also heads packed together.
    """
    past = {"": 4, "ai.onnx": 4}.get(node.domain, 6)
    q, k, cached = inputs_of(node, shapes, 0, 1, past)
    if not k:
        k, q = q, (*q[:3], q[4])  # (items, length, heads, 3, size): queries, keys and values in one
    keys = k[2] if len(k) == 4 else k[1]
    y = shape_of(node, node.output[0], shapes)
    return 2 * (keys + (cached[2] if cached else 0)) * (math.prod(q) + math.prod(y))


def projected_attention(node: NodeProto, shapes: Shapes) -> int:
    """com.microsoft's Attention and QAttention: x (items, length, size) times the weights of queries, keys and values,
    then attention; the past is (2, items, heads, length, size)."""
    x, weight, cached = inputs_of(node, shapes, 0, 1, 8 if node.op_type == "QAttention" else 4)
    queries, _, values = attributes_of(node).get("qkv_hidden_sizes") or [weight[1] // 3] * 3
    positions, keys = math.prod(x[:2]), x[1] + (cached[3] if cached else 0)
    return 2 * positions * (math.prod(weight) + keys * int(queries + values))


_FORMULAS: dict[str, Callable[[NodeProto, Shapes], int]] = {
    **dict.fromkeys(
        ("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "ConvInteger", "QLinearConv", "DeformConv"), convolution
    ),
    "ConvTranspose": transposed_convolution,
    **dict.fromkeys(("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul"), product),
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), product),
    "MatMulNBits": packed_product,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), recurrent),
    "Einsum": einsum,
    # Two domains have an operator of this name.
    "Attention": lambda node, shapes: (projected_attention if node.domain == "com.microsoft" else attention)(
        node, shapes
    ),
    "QAttention": projected_attention,
    "MultiHeadAttention": attention,
}
"""Of an operator that multiplies matrices, its count. See https://onnx.ai/onnx/operators and
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md for the order of their inputs."""


def computes(node: NodeProto) -> bool:
    """Whether the node, or one in a branch or a loop of it, may multiply matrices."""
    nodes = (node, *(inner for graph in graphs_of(node) for inner in every_node(graph)))
    return any(each.domain not in _DOMAINS or _COMPUTES.search(each.op_type) for each in nodes)
