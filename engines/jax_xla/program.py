"""Trace a torch module with torch.export and run its graph in JAX.

A small interpreter and no dependency: the graph is walked once, while JAX traces it; what XLA compiles is all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from engines.base import Array, Unsupported
from engines.jax_xla.aten import OPERATORS
from exporters.calls import flattened, typed
from exporters.inputs import TensorSpec
from exporters.onnx_export import quiet


@dataclass(frozen=True)
class Program:
    """A traced module: what it computes of its weights, buffers and inputs.

    `weights` and `buffers` are torch's tensors by name, one name for those that modules share.
    """

    graph: torch.fx.Graph
    weights: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    trained: frozenset[str]
    """The weights that have gradients."""
    placeholders: Sequence[tuple[InputKind, str]]
    """What each argument of the graph is, and its name."""
    results: Sequence[tuple[OutputKind, str | None]]
    names: Sequence[str]
    """Of the outputs."""

    def __call__(self, weights: Mapping[str, Any], buffers: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        """The list of outputs, and the buffers after the call."""
        given = iter(inputs)
        arguments = iter(
            next(given) if kind is InputKind.USER_INPUT else weights[name] if name in weights else buffers[name]
            for kind, name in self.placeholders
        )
        values: dict[Node, Any] = {}

        def of(thing: Any) -> Any:
            return torch.fx.node.map_arg(thing, values.__getitem__)

        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(arguments)
            elif node.op == "call_function":
                values[node] = OPERATORS[_name(node)](*of(node.args), **of(node.kwargs))
        last = [of(result) for node in self.graph.nodes if node.op == "output" for result in node.args[0]]
        outputs, changed = [], dict(buffers)
        for (kind, name), value in zip(self.results, last, strict=True):
            if kind is OutputKind.BUFFER_MUTATION:
                changed[name or ""] = value.astype(buffers[name or ""].dtype)
            elif value is not None:
                outputs.append(value)
        return outputs, changed


def trace(model: torch.nn.Module, inputs: Sequence[Array], specs: Sequence[TensorSpec] = ()) -> Program:
    """Trace `model` for inputs of these shapes, at the places in its call that `specs` say.

    Raises Unsupported for an operator that is not in OPERATORS.
    """
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    example = typed(inputs, dtype)
    with quiet(), flattened(model, specs) as names:
        # Functional: statistics that are updated in place become results.
        table = torch.export.default_decompositions()
        for packet in [key for key in table if key._schema.name.removeprefix("aten::") in OPERATORS]:
            table.pop(packet)
        exported = torch.export.export(model, example).run_decompositions(table)
    names_called = {_name(node) for node in exported.graph.nodes if node.op == "call_function"}
    if lacking := sorted(names_called - OPERATORS.keys()):
        raise Unsupported(f"not translated to JAX: {', '.join(lacking)}")
    signature, state = exported.graph_signature, {**exported.state_dict, **exported.constants}
    shared = {id(tensor): name for name, tensor in reversed(list(model.named_parameters(remove_duplicate=False)))}
    own = {name: shared.get(id(tensor), name) for name, tensor in model.named_parameters(remove_duplicate=False)}
    weights, buffers = {}, {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.PARAMETER:
            weights[own[spec.target]] = state[spec.target]
        elif spec.kind is not InputKind.USER_INPUT:
            buffers[spec.target] = state[spec.target]
    return Program(
        exported.graph,
        weights,
        buffers,
        frozenset(own[name] for name, parameter in model.named_parameters() if parameter.requires_grad),
        [(spec.kind, own.get(spec.target or "", spec.target or "")) for spec in signature.input_specs],
        [(spec.kind, spec.target) for spec in signature.output_specs],
        names,
    )


def _name(node: Node) -> str:
    """ATen's name of what a node calls; that of a function of Python's otherwise."""
    schema: Any = getattr(node.target, "_schema", None)
    return getattr(node.target, "__name__", "?") if schema is None else str(schema.name.removeprefix("aten::"))
