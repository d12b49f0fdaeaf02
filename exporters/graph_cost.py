"""What enters: an ONNX graph and its inputs' sizes. What leaves: the FLOPs of one call, and the weights it reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exporters.inputs import BATCH, TensorSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_SMALL = 1024
"""Elements of the largest initializer whose values shape inference may need: shapes, axes, paddings."""
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def graph_weights(model: ModelProto) -> tuple[int, int]:
    """Elements of the floating-point initializers, and bytes of those that are read as a whole.

    Tables of which nodes only gather rows are left out of the bytes.
    """
    import onnx

    read = {name for node in model.graph.node for name in node.input[node.op_type.startswith("Gather") :]}
    parameters = weight_bytes = 0
    for tensor in model.graph.initializer:
        dtype, size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), math.prod(tensor.dims)
        parameters += size * (dtype.kind not in "biu")
        weight_bytes += size * dtype.itemsize * (tensor.name in read)
    return parameters, weight_bytes


def graph_flops(model: ModelProto, specs: Sequence[TensorSpec], batch: int) -> int:
    """Counts from shapes that onnx infers; nodes inside a branch or a loop count 0.

    Raises ValueError if the shape of a convolution or product does not follow from the inputs' shapes.
    """
    graph, shapes = graph_shapes(model, specs, batch)
    return sum(node_flops(node, shapes) for node in graph.node if node.domain in ("", "ai.onnx"))


def node_flops(node: NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    """Two per multiply-add: the result's elements times the length of the sum that makes one of them; of a transposed
    convolution, the input's elements times the weights that each one meets."""
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    x, weight, y = (shapes.get(name, ()) for name in (*node.input[:2], node.output[0]))
    if not (x and weight and y) or 0 in (*x, *weight, *y):
        raise ValueError(f"the shapes of {node.op_type} {node.name!r} are unknown")
    if node.op_type == "Conv":
        return 2 * math.prod(y) * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return 2 * math.prod(x) * math.prod(weight[1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return 2 * math.prod(y) * (x[0] if transposed else x[-1])


def graph_shapes(
    model: ModelProto, specs: Sequence[TensorSpec], batch: int
) -> tuple[GraphProto, dict[str, tuple[int, ...]]]:
    """The graph, its functions inlined, and every tensor's shape; 0 is a size that cannot be inferred."""
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
        shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return graph, shapes


def drop_data(model: ModelProto) -> None:
    """Empties the large initializers: shape inference copies the model, and needs their shapes alone."""
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) > _SMALL:
            for name in _DATA:
                tensor.ClearField(name)


def set_input_sizes(graph: GraphProto, specs: Sequence[TensorSpec], batch: int) -> dict[str, int]:
    """Gives the graph's inputs the sizes of `specs`; returns the sizes of its symbols."""
    constants = {tensor.name for tensor in graph.initializer}
    symbols = {}
    inputs = [value for value in graph.input if value.name not in constants]
    for value, spec in zip(inputs, specs, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, spec.shape, strict=True):
            number = batch if size == BATCH else int(size)
            if dim.dim_param:
                symbols[dim.dim_param] = number
            dim.dim_value = number
    return symbols
