"""Say which dimensions of a model's inputs have names, so that a job may measure several sizes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from exporters.catalog import network_of
from exporters.declared_inputs import symbols
from exporters.inputs import batch_symbols, file_inputs, named_axes, symbolic_shapes
from exporters.source import ModelSource


def dimensions_of(source: ModelSource) -> list[str]:
    """The names of sizes in the model's inputs, the batch's left out; none of a model that is fixed to one shape. Of a
    library's model this imports the library. Raises ModelError for a model or a file that cannot be had."""
    if source.onnx is not None:
        shapes = symbolic_shapes(file_inputs(source.onnx))
        fixed = batch_symbols(shapes)
        return list(dict.fromkeys(s for own in shapes.values() for s in own if isinstance(s, str) and s not in fixed))
    if source.library is not None:
        from exporters.libraries.catalog import known_inputs

        return list(dict.fromkeys([*known_inputs(source).sizes, *symbols(source.inputs)]))
    if source.inputs:
        return symbols(source.inputs)
    network = network_of(source)
    # A plain network's classifier takes features of one size, the others' takes averages.
    if source.layer is not None or (network is not None and network.family == "plain"):
        return []
    shape = network.input_shape if network else source.input_shape or ()
    return [name for name in named_axes(shape) if isinstance(name, str)]


def why_fixed(source: ModelSource) -> str:
    """Why a model has no dimension whose size may be another, in words."""
    if network := network_of(source):
        shape = " × ".join(map(str, network.input_shape[1:]))
        return f"{source.name} is fixed to images of {shape}, by its fully connected layers"
    if source.onnx is not None:
        return f"{source.name} is fixed to one shape: export {source.onnx.name} with free dimensions"
    return f"{source.name} is fixed to one shape: give names to sizes in its inputs, as in shape: [batch, sequence]"


def at_shape(source: ModelSource, shape: Mapping[str, int], sizes: Mapping[str, Sequence[int]]) -> ModelSource:
    """The model with these sizes of the dimensions that the job varies, of which `sizes` has all."""
    ranges = {name: (min(sizes[name]), max(sizes[name])) for name in shape}
    return replace(source, dimensions={**source.dimensions, **shape}, varied=ranges)
