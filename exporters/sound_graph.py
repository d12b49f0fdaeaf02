"""Refuse an ONNX graph that would never end, or that unfolds to more nodes than anybody could run."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from exporters.source import ModelError

MOST_NODES = 1_000_000
"""Of a graph whose functions are unfolded, as runtimes do when they load it; large language models have some 10,000."""
MOST_ROUNDS = 2**32
"""Of a loop without another end: at a microsecond a round an hour."""


def check_sound(model: Any, path: Path) -> None:
    """Raise ModelError where functions call one another so often that no runtime could hold what they unfold to, and
    for a Loop that can be seen never to end.

    `model` is an onnx.ModelProto. Functions that call themselves are left to onnx.checker.
    """
    if (nodes := unfolded(model)) > MOST_NODES:
        raise ModelError(
            f"{path}: its functions unfold to {nodes:.1e} nodes, and at most {MOST_NODES:,} are taken; export it "
            "without functions that call others again and again"
        )
    for graph in graphs_in(model):
        if loop := endless_loop(graph, {}):
            raise ModelError(
                f"{path}: its Loop {loop.name!r} never ends: its condition stays true, and nothing else stops it "
                f"within {MOST_ROUNDS:,} rounds; export it with a condition that is computed, or with a trip count"
            )


def graphs_in(model: Any) -> list[Any]:
    """The model's graph, and its functions."""
    return [model.graph, *model.functions]


def loops(graph: Any) -> Iterator[Any]:
    """The Loop nodes of a graph or a function, and of the graphs in it."""
    return filter(_is_loop, every_node(graph))


def _is_loop(node: Any) -> bool:
    return node.op_type == "Loop" and node.domain in ("", "ai.onnx")


def every_graph(graph: Any) -> Iterator[Any]:
    """A graph or a function, and the graphs in it."""
    waiting = [graph]
    while waiting:
        yield (found := waiting.pop())
        waiting += (inner for node in found.node for inner in graphs_of(node))


def every_node(graph: Any) -> Iterator[Any]:
    """The nodes of a graph or a function, and of the graphs in it."""
    return (node for found in every_graph(graph) for node in found.node)


def graphs_of(node: Any) -> list[Any]:
    return [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) if graph.node]


def unfolded(model: Any) -> int:
    """How many nodes the graph has once each call of a function is what the function consists of."""
    if not model.functions:
        return 0
    functions = {(each.domain, each.name): each for each in model.functions}
    calls = {key: _calls(function) for key, function in functions.items()}
    sizes: dict[tuple[str, str], int] = {}

    def size(counted: Counter[tuple[str, str]]) -> int:
        return sum(sizes.get(key, 1) * times for key, times in counted.items())

    try:
        for key in TopologicalSorter({key: own.keys() & functions.keys() for key, own in calls.items()}).static_order():
            sizes[key] = size(calls[key])
    except CycleError:
        return 0
    return size(_calls(model.graph))


def _calls(graph: Any) -> Counter[tuple[str, str]]:
    return Counter((node.domain, node.op_type) for node in every_node(graph))


def endless_loop(graph: Any, outside: Mapping[str, Any]) -> Any | None:
    """A Loop of the graph, or of a graph in it, that has no end; `outside` are constants that are known around it."""
    known = ChainMap(_constants(graph), outside)  # type: ignore[arg-type] # Copies would be many: one for each graph.
    for node in graph.node:
        if _is_loop(node) and _is_endless(node, known):
            return node
        for inner in graphs_of(node):
            if found := endless_loop(inner, known):
                return found
    return None


def _is_endless(node: Any, known: Mapping[str, Any]) -> bool:
    """Whether neither its trip count nor its condition ends it: both are left out, or constants."""
    trips, condition = [*node.input, "", ""][:2]
    if trips and (trips not in known or known[trips] <= MOST_ROUNDS):
        return False
    if not condition:
        return True  # What the body says of it is ignored then.
    body = next((attribute.g for attribute in node.attribute if attribute.name == "body"), None)
    if body is None or len(body.input) < 2 or not body.output or not known.get(condition):
        return False
    copies = {copy.output[0]: copy.input[0] for copy in body.node if copy.op_type == "Identity" and copy.input}
    last = body.output[0].name
    for _ in range(len(copies)):
        last = copies.get(last, last)
    return last == body.input[1].name or bool(_constants(body).get(last, known.get(last)))


def _constants(graph: Any) -> dict[str, Any]:
    """The single numbers and truths that a graph holds, by name; other tensors are left out."""
    tensors = {tensor.name: tensor for tensor in getattr(graph, "initializer", ())}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensors.update((node.output[0], each.t) for each in node.attribute if each.name == "value")
    return {name: value for name, tensor in tensors.items() if (value := _number(tensor)) is not None}


def _number(tensor: Any) -> Any | None:
    """The value of a tensor of one element that is a whole number or a truth."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_type not in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL) or tensor.external_data:
        return None
    if any(size != 1 for size in tensor.dims):
        return None
    try:
        return numpy_helper.to_array(tensor).item()
    except (ValueError, TypeError):
        return None
