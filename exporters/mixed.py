"""Keep chosen parts of a 16-bit or an int8 graph in float32; imports no torch."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.int8 import DYNAMIC, PLACEMENTS, WEIGHTED, float_weights, pairs_of, write_dynamic
from exporters.onnx_export import INLINE_BYTES
from exporters.onnx_files import graphs_of, read_onnx, without_unread
from exporters.source import ModelSource

if TYPE_CHECKING:
    import onnx

Node = tuple[str, str, str]
"""Name, operator, and PyTorch module, if the exporter wrote it."""
_FLOAT, _NARROW = 1, (10, 16)
"""ONNX's element types float, and float16 and bfloat16."""
_TYPES = ("to", "dtype", "output_dtype")
"""Attributes that name a type."""
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_PRODUCT, _PRODUCT_ENDS = "MatMulInteger", ("_quant", "_MatMul")
"""ONNX Runtime's quantized product, and the ends that it adds to the name of a MatMul or Gemm."""
_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata of torch's exporter: a node's modules from the outermost inward, then its ATen operator."""


@dataclass(frozen=True)
class MixedGraph:
    """A `graph` of the source in 16 bits, or one of `exporters.int8`, made of the graph `fp32`; `kind` is its name.

    A part can stay in float32: a node, or in int8 a product and the nodes up to the next, since they share tensors.
    """

    source: ModelSource
    graph: Path
    kind: str
    fp32: Path | None = None

    @cached_property
    def parts(self) -> list[list[onnx.NodeProto]]:
        """Return the parts in the graph's order."""
        nodes = read_onnx(self.graph).graph.node
        if self.kind == DYNAMIC:
            return [[node] for node in nodes if node.op_type == _PRODUCT]
        if self.kind not in PLACEMENTS:
            return [[node] for node in nodes if _is_convertible(node, self._types)]
        parts: list[list[onnx.NodeProto]] = [[]]
        for node in (node for node in nodes if node.op_type not in _PAIR and not graphs_of(node)):
            parts += [[]] if node.op_type in WEIGHTED else []
            parts[-1].append(node)
        return list(filter(None, parts))

    @cached_property
    def feeders(self) -> list[frozenset[int]]:
        """Return the parts that each part reads from."""
        pairs, parts = pairs_of(read_onnx(self.graph).graph), list(enumerate(self.parts))
        makers = {name: number for number, part in parts for node in part for name in node.output}
        read = [{pairs.get(name, name) for node in part for name in node.input} for _, part in parts]
        return [frozenset(makers[name] for name in read[number] & makers.keys()) - {number} for number, _ in parts]

    def nodes(self, parts: Collection[int]) -> tuple[Node, ...]:
        """Describe these parts' nodes in the graph's order."""
        return tuple(_described(node) for part in sorted(parts) for node in self.parts[part])

    def write(self, parts: Collection[int], path: Path) -> None:
        """Write the graph with these parts in float32."""
        import onnx

        nodes = [node for part in parts for node in self.parts[part]]
        if self.kind == DYNAMIC:
            assert self.fp32 is not None, "a quantized graph is made of the fp32 one"
            names = [node.name.removesuffix(_PRODUCT_ENDS[0]) for node in nodes]
            write_dynamic(self.source, self.fp32, path, [*names, *(n.removesuffix(_PRODUCT_ENDS[1]) for n in names)])
            return
        model, outputs = onnx.load(self.graph), {node.output[0] for node in nodes}
        if self.kind in PLACEMENTS:
            _remove_pairs(model.graph, outputs, self._weights)
        else:
            _widen(model.graph, outputs, self._types)
        model = without_unread(model)
        size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
        onnx.save(model, path, save_as_external_data=size > INLINE_BYTES, location=f"{path.name}.data")

    @cached_property
    def _types(self) -> Mapping[str, int]:
        """Map values to ONNX's element types, declared or inferred."""
        import onnx

        graph = onnx.shape_inference.infer_shapes(read_onnx(self.graph)).graph
        types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
        return types | {tensor.name: tensor.data_type for tensor in graph.initializer}

    @cached_property
    def _weights(self) -> Mapping[str, onnx.TensorProto]:
        """Map names to the weights before quantization; empty for a user's int8 graph."""
        if self.fp32 is None or self.kind in self.source.graphs:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            return float_weights(self.source, self.fp32, Path(folder) / "graph.onnx")


def _described(node: onnx.NodeProto) -> Node:
    scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
    return node.name or node.output[0], node.op_type, next(iter(ast.literal_eval(scopes)[-2:-1]), "")


def _is_convertible(node: onnx.NodeProto, types: Mapping[str, int]) -> bool:
    """Return whether a standard operator has 16-bit values, and only values of known types."""
    elements = [types.get(name, 0) for name in (*node.input, *node.output) if name]
    is_standard = node.domain in ("", "ai.onnx") and not graphs_of(node)
    return is_standard and all(elements) and any(element in _NARROW for element in elements)


def _widen(graph: onnx.GraphProto, outputs: Collection[str], types: Mapping[str, int]) -> None:
    """Compute the nodes with these first outputs in float32.

    Values between them stay in float32: a cast would let them overflow again. Weights stay rounded to 16 bits.
    """
    from onnx import helper, numpy_helper

    constants, wide, nodes = {tensor.name: tensor for tensor in graph.initializer}, dict[str, str](), list[Any]()

    def widen(name: str) -> str:
        if types.get(name) in _NARROW and name not in wide:
            wide[name] = _unused(name, types)
            if name in constants:
                array = numpy_helper.to_array(constants[name]).astype("float32")
                graph.initializer.append(numpy_helper.from_array(array, wide[name]))
            else:
                nodes.append(helper.make_node("Cast", [name], [wide[name]], to=_FLOAT))
        return wide.get(name, name)

    for node in graph.node:
        if not node.output or node.output[0] not in outputs:
            if node.op_type == "Cast":  # It may be one to float32.
                node.input[:] = [wide.get(name, name) for name in node.input]
            nodes.append(node)
            continue
        node.input[:] = map(widen, node.input)
        results = {name: _unused(name, types) for name in node.output if types.get(name) in _NARROW}
        wide |= results
        node.output[:] = [results.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in _NARROW:
                attribute.i = _FLOAT
            if attribute.t.data_type in _NARROW:
                array = numpy_helper.to_array(attribute.t).astype("float32")
                attribute.t.CopyFrom(numpy_helper.from_array(array))
        nodes += [node, *(helper.make_node("Cast", [new], [old], to=types[old]) for old, new in results.items())]
    del graph.node[:]
    graph.node.extend(nodes)


def _unused(name: str, types: Mapping[str, int]) -> str:
    return name if name not in types else _unused(f"{name}.float32", types)


def _remove_pairs(graph: onnx.GraphProto, outputs: Collection[str], weights: Mapping[str, onnx.TensorProto]) -> None:
    """Let the nodes with these first outputs read and write values, and read `weights`, without rounding."""
    pairs = pairs_of(graph)
    stored = {n.output[0]: n.input[0].removesuffix("_quantized") for n in graph.node if n.op_type == _PAIR[1]}
    ends, results, constants = {value.name for value in graph.output}, set[str](), {t.name for t in graph.initializer}
    for node in (node for node in graph.node if node.output[0] in outputs):
        results |= {*node.output}
        for place, name in enumerate(node.input):
            node.input[place] = pairs.get(name, name)
            if weight := weights.get(stored.get(name, "")):
                node.input[place] = weight.name
                graph.initializer.extend([weight] if weight.name not in constants else [])
                constants.add(weight.name)
    for node in graph.node:
        if node.output[0] in ends and pairs.get(node.output[0]) in results:
            node.op_type, node.input[:] = "Identity", [pairs[node.output[0]]]
            del node.attribute[:]
