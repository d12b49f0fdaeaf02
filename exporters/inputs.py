"""Read the names, shapes and types of a model's inputs, and draw seeded arrays for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exporters.catalog import network_of
from exporters.source import WEIGHTS, ModelError, ModelSource

if TYPE_CHECKING:
    import onnx

BATCH = "batch"
SEED = 20240229


@dataclass(frozen=True)
class TensorSpec:
    """One input. Its shape holds integers and, for the batch size, the word "batch"; `dtype` is numpy's name
    ("float32", "int64", "bool"), or "bfloat16"."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def at(self, batch: int) -> tuple[int, ...]:
        """Its shape at a batch size."""
        return tuple(batch if size == BATCH else int(size) for size in self.shape)


def input_specs(source: ModelSource) -> list[TensorSpec]:
    """The model's inputs, in its own order.

    A torch model has one, named "x", of float32, whose batch is free. An ONNX file's inputs are read from the file: the
    leading dimension of the first input is the batch if it is symbolic, and every other symbolic dimension takes its
    size from `source.dimensions`. A static leading dimension stays a number: the batch is fixed.

    Raises ModelError for an unknown network, a factory without `input`, an unreadable file, and unnamed dimensions.
    """
    if source.onnx is not None:
        return graph_specs(source, source.onnx)
    shape = source.input_shape
    if source.layer is not None:
        shape = source.layer.input_shape
    elif network := network_of(source):
        shape = network.input_shape
    if shape is None:
        raise ModelError(
            f"model {source.name!r}: a factory needs the shape of one item; add `input: [3, 224, 224]` to it"
        )
    return [TensorSpec("x", (BATCH, *shape), "float32")]


def fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    """The only batch size that the model can run at, or None if the batch is free."""
    if any(BATCH in spec.shape for spec in specs) or not specs:
        return None
    leading = specs[0].shape[:1]
    return int(leading[0]) if leading else 1


def seeded_inputs(specs: Sequence[TensorSpec], batch: int) -> list[NDArray[Any]]:
    """One C-contiguous array per input; item i holds the same values in every batch size and floating-point type.

    Floats are standard normal, integers and bools 0 or 1. An input without a batch dimension is drawn as one item.

    Raises ModelError if the model's batch is fixed to another size.
    """
    fixed = fixed_batch(specs)
    if fixed is not None and batch != fixed:
        raise ModelError(f"the model's batch size is fixed to {fixed}; batch size {batch} cannot run")
    arrays = []
    for index, spec in enumerate(specs):
        dtype, item_shape = numpy_dtype(spec.dtype), list(spec.at(batch))
        leading = fixed is not None and spec.shape[:1] == (fixed,)
        axis = spec.shape.index(BATCH) if BATCH in spec.shape else 0 if leading else None
        if axis is None:
            arrays.append(seeded_item(item_shape, dtype, index, 0))
            continue
        del item_shape[axis]
        items = [seeded_item(item_shape, dtype, index, item) for item in range(batch)]
        arrays.append(np.ascontiguousarray(np.stack(items, axis=axis)))
    return arrays


def repeated_inputs(specs: Sequence[TensorSpec], batch: int, distinct: int) -> list[NDArray[Any]]:
    """As `seeded_inputs`, but item i is item i modulo `distinct`: drawing 10,000 images takes half a minute.

    Raises ModelError if the model's batch is fixed to another size.
    """
    if batch <= distinct or fixed_batch(specs) is not None:
        return seeded_inputs(specs, batch)
    few, order = seeded_inputs(specs, distinct), np.arange(batch) % distinct
    return [
        np.take(array, order, axis=spec.shape.index(BATCH)) if BATCH in spec.shape else array
        for spec, array in zip(specs, few, strict=True)
    ]


def seeded_item(shape: Sequence[int], dtype: np.dtype[Any], index: int, item: int) -> NDArray[Any]:
    generator = np.random.default_rng([SEED, index, item])
    if dtype.kind in "biu":
        return generator.integers(0, 2, size=shape).astype(dtype)
    # Drawn in fp32 whatever the type, so that a half-precision input is the rounded fp32 one. (The kind of ml_dtypes'
    # bfloat16 is "V".)
    return generator.standard_normal(shape, dtype=np.float32).astype(dtype)


def how_seeded(specs: Sequence[TensorSpec]) -> str:
    """What the inputs hold, and what a user can do who needs other values, as part of a sentence."""
    whole = ", ".join(f"`{spec.name}`" for spec in specs if numpy_dtype(spec.dtype).kind in "biu")
    integers = f", and 0 or 1 in the integer inputs {whole}" if whole else ""
    return (
        f"inputs are seeded with standard normal values{integers}, and no key of the job gives others; a factory's "
        "module can make them of its `x`, and an ONNX file can hold them as initializers in place of inputs"
    )


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # onnx depends on it

        name = ml_dtypes.bfloat16
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def read_onnx(path: Path) -> onnx.ModelProto:
    """The file's graph, without the data that lies in other files.

    Raises ModelError for a missing file and for one that is no ONNX model.
    """
    import onnx

    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    mend = "export or copy it again"
    if path.suffix in WEIGHTS:
        mend = f"{path.name} is a PyTorch file: give it as weights, with network or factory"
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's DecodeError has no common base with what onnx raises
        raise ModelError(f"{path}: no ONNX model, or a truncated one ({error}); {mend}") from error
    if not model.graph.node and not model.graph.output:
        # protobuf reads an empty file, and some garbage, as an empty message.
        raise ModelError(f"{path}: no ONNX model, or a truncated one (it holds no graph); {mend}")
    return model


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """What a caller gives the graph: files of IR version 3 list their initializers among the inputs."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def graph_specs(source: ModelSource, path: Path) -> list[TensorSpec]:
    """The inputs of a graph of the model: of the user's ONNX file or of an export. Raises as `input_specs`."""
    import onnx

    inputs = graph_inputs(read_onnx(path).graph)
    shapes = {value.name: symbolic_shape(value) for value in inputs}
    batches = batch_symbols(shapes)
    _check_dimensions(source, path, shapes, batches)
    specs, unnamed = [], set()
    for value, symbols in zip(inputs, shapes.values(), strict=True):
        shape: list[int | str] = []
        for size in symbols:
            if size in batches:
                shape.append(BATCH)
            elif isinstance(size, str) and size not in source.dimensions:
                unnamed.add(size)
            else:
                shape.append(source.dimensions[size] if isinstance(size, str) else size)
        kind = value.type.tensor_type.elem_type
        if kind in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
            raise ModelError(f"model {source.name!r}: input {value.name!r} of {path} is no tensor of numbers")
        specs.append(TensorSpec(value.name, tuple(shape), str(onnx.helper.tensor_dtype_to_np_dtype(kind))))
    if unnamed:
        names = sorted(unnamed)
        sizes = ", ".join(f"{name}: 1" if name.isidentifier() else f'"{name}": 1' for name in names)
        raise ModelError(
            f"model {source.name!r}: {path} has dimensions of no fixed size: {', '.join(names)}; "
            f"give their sizes next to `onnx`, for example:\n    dimensions: {{{sizes}}}"
        )
    return specs


def batch_symbols(shapes: Mapping[str, Sequence[int | str]]) -> set[str]:
    """What a graph calls its batch, by the shapes of its inputs: the leading dimension of the first, if it is symbolic,
    and then every leading dimension without a name. Empty where the batch is fixed."""
    first = next(iter(shapes.values()), ())
    if not first or isinstance(first[0], int):
        return set()
    return {first[0], *(f"{name}[0]" for name, shape in shapes.items() if f"{name}[0]" in shape[:1])}


def _check_dimensions(
    source: ModelSource, path: Path, shapes: Mapping[str, Sequence[int | str]], batches: Collection[str]
) -> None:
    """Raises ModelError for a size that `source.dimensions` gives to the batch, or that the graph has itself or lacks.

    `shapes` are the inputs', by name; `batches` what the graph calls the batch.
    """
    sizes = {f"{name}[{axis}]": size for name, shape in shapes.items() for axis, size in enumerate(shape)}
    free = list(dict.fromkeys(size for size in sizes.values() if isinstance(size, str) and size not in batches))
    for name, size in source.dimensions.items():
        own = sizes.get(name, name)
        if own == size or name in free:
            continue
        if isinstance(own, int):
            why = f"{name} is {own} in {path}, not {size}; leave it out, or export the file with that dimension free"
        elif name in batches:
            why = f"{name} is the batch of {path}, whose sizes are in batch_sizes; leave {name} out"
        else:
            listed = f"those without a fixed size are {', '.join(free)}" if free else "none needs a size: leave it out"
            why = f"{path} has no dimension {name!r}; {listed}"
        raise ModelError(f"model {source.name!r}: dimensions: {why}")


def symbolic_shape(value: Any) -> list[int | str]:
    """Sizes and symbols of an onnx.ValueInfoProto; a dimension without either is called "input[axis]"."""
    return [
        int(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or f"{value.name}[{axis}]"
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    ]
