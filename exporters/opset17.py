"""Rewrite a graph, operator by operator, for a parser of 2022, which knows opset 17.

PyTorch's exporter leaves operators of opset 18 if its converter gives up (torch 2.13); onnx's converter refuses the
whole graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exporters.onnx_files import every_graph, read_onnx
from exporters.source import ModelError

if TYPE_CHECKING:
    import onnx

OPSET = 17
"""Newest opset that TensorRT 8.5's parser reads (github.com/onnx/onnx-tensorrt, release/8.5-GA)."""
_REDUCES = [f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")]
"""Operators with their axes as the second input since opset 18 (https://onnx.ai/onnx/operators/)."""


def lowered(path: Path, knows: Callable[[str], bool]) -> onnx.ModelProto:
    """Return the file's graph in operators of opset 17; external data stays in its files.

    An operator that the parser does not know, such as LayerNormalization, is replaced by its parts in ONNX's
    definition; one without parts stays, for the parser to refuse. Raises ModelError for computed axes.
    """
    from onnx.inliner import inline_selected_functions

    model = read_onnx(path)
    tried: set[str] = set()
    # Parts may be unknown, too, such as CastLike.
    while unknown := {node.op_type for node in model.graph.node if not node.domain and not knows(node.op_type)} - tried:
        model = inline_selected_functions(_typed(model), [("", name) for name in unknown], inline_schema_functions=True)
        tried |= unknown
    for graph in every_graph(model.graph):
        _lower(graph, path)
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = min(opset.version, OPSET)
    return model


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write every tensor's type into the graph, constants' too: the parts of an operator depend on them."""
    from onnx import helper, shape_inference

    model = shape_inference.infer_shapes(model)
    declared = {value.name for value in (*model.graph.input, *model.graph.value_info)}
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in declared]
    infos = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in constants]
    model.graph.value_info.extend(infos)
    return model


def _lower(graph: Any, path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    constant_nodes = [node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]
    constants |= {node.output[0]: node.attribute[0].t for node in constant_nodes}
    for at, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "Split":  # Opset 17's divides evenly by its number of outputs.
            _forget(node, "num_outputs")
        if node.op_type == "Shape":
            _slice_shape(graph, at)
        if node.op_type not in _REDUCES or len(node.input) < 2:
            continue
        axes = node.input.pop(1)
        if axes not in constants:
            raise ModelError(f"{path}: node '{node.name}' ({node.op_type}) computes its axes, which opset 17 cannot")
        values = numpy_helper.to_array(constants[axes], str(path.parent)).tolist()
        _forget(node, "noop_with_empty_axes")
        if values:
            node.attribute.append(onnx.helper.make_attribute("axes", values))


def _slice_shape(graph: Any, at: int) -> None:
    """Replace `start` and `end` of the Shape at that place by a Slice: TensorRT 8.5's parser ignores both."""
    from onnx import helper, numpy_helper

    node = graph.node[at]
    whole_range = {"start": 0, "end": np.iinfo(np.int64).max}
    ends = whole_range | {attribute.name: attribute.i for attribute in node.attribute}
    del node.attribute[:]
    if ends == whole_range:
        return
    name = node.output[0]
    whole, named = f"{name}_whole", {f"{name}_{word}": end for word, end in ends.items()}
    node.output[0] = whole
    graph.initializer.extend(numpy_helper.from_array(np.array([end]), word) for word, end in named.items())
    graph.node.insert(at + 1, helper.make_node("Slice", [whole, *named], [name], f"{name}_slice"))


def _forget(node: Any, name: str) -> None:
    attributes = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(attributes)
