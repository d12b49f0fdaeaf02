"""List the names, shapes and types of a model's inputs, and draw seeded arrays for them; imports no torch."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from exporters.cache import Cache
from exporters.errors import nearest
from exporters.libraries import DeclaredInputs, library_inputs
from exporters.onnx_files import file_inputs, graph_inputs, read_onnx, usual_range
from exporters.source import (
    BATCH,
    ModelError,
    ModelSource,
    NamedAxis,
    batch_axes,
    batch_hint,
    batch_symbols,
    network_of,
)
from exporters.source import TensorSpec as TensorSpec

if TYPE_CHECKING:
    import onnx

SEED = 20240229
SPACE = ("depth", "height", "width")
"""Names of the last axes of an image or a volume."""
_UNNAMED = ("", "?", "-1", "None", "none", "unk", "unknown")
"""Words that converters write for every unknown size; they name no dimension."""
Value = TypeVar("Value")


def store(array: NDArray[Any]) -> str:
    """Put real values into the cache, since specs travel with every case; return their sha256."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    key = hashlib.sha256(file.getvalue()).hexdigest()
    Cache().entry("inputs", key, ".npy", lambda path: path.write_bytes(file.getvalue()))
    return key


@lru_cache(maxsize=16)
def stored(key: str) -> NDArray[Any]:
    """Map an array of `store` from the disk."""
    array: NDArray[Any] = np.load(Cache().root / "inputs" / f"{key}.npy", mmap_mode="r")
    return array


def input_specs(source: ModelSource) -> list[TensorSpec]:
    """Return the model's inputs in its own order; in an ONNX file a static leading dimension fixes the batch.

    Raises ModelError for an unknown network, an unreadable file, and unknown sizes or integer values.
    """
    if source.specs is not None:
        return list(source.specs)
    if source.onnx is not None:
        values = ((spec, source.inputs.get(spec.name)) for spec in file_specs(source))
        return [_with_data(source, s, v) if isinstance(v, Path) else replace(s, range=v) for s, v in values]
    declared = _declared(source)
    if strays := [name for name in source.dimensions if name not in declared.sizes]:
        otherwise = None if declared.sizes else why_fixed(source)
        raise source.error(f"no dimension {strays[0]!r}{nearest(strays[0], declared.sizes, otherwise)}")
    sizes: dict[Any, int] = {**declared.sizes, **source.dimensions}
    return [
        replace(spec, shape=tuple(sizes.get(size, size) for size in spec.shape), named=_named(source, spec.shape))
        for spec in declared.inputs
    ]


def _declared(source: ModelSource) -> DeclaredInputs:
    """Return the inputs of a torch module, with names and usual sizes of their axes. Raises ModelError."""
    if source.library is not None:
        return library_inputs(source)
    if source.asks_code:
        return _of_examples(source)
    network = network_of(source)
    item = source.layer.input_shape if source.layer else network.input_shape if network else source.input_shape
    assert item is not None, "a factory without a shape is asked"
    # A plain network's classifier needs one image size; others average over positions.
    is_fixed = source.layer is not None or (network is not None and network.family == "plain")
    names = SPACE[-(len(item) - 1) :] if len(item) in (3, 4) and not is_fixed else ()
    fixed = len(item) - len(names)
    sizes = dict(zip(names, item[fixed:], strict=True))
    return DeclaredInputs((TensorSpec("x", (BATCH, *item[:fixed], *names), "float32"),), sizes)


def _of_examples(source: ModelSource) -> DeclaredInputs:
    from exporters.factories import examples  # Imports torch and the user's code.

    specs, sizes = list[TensorSpec](), dict[str, int]()
    for example in examples(source):
        array, axis = example.array, example.batch_axis
        axis_names = example.axes if axis is None else {**example.axes, axis: BATCH}
        shape = tuple(axis_names.get(number, size) for number, size in enumerate(array.shape))
        sizes |= {name: array.shape[number] for number, name in example.axes.items()}
        data = store(items_first(array, axis))
        specs.append(TensorSpec(example.name, shape, str(array.dtype), example.place, data=data, fixed_axis=axis))
    return DeclaredInputs(tuple(specs), sizes)


def _named(source: ModelSource, shape: Sequence[int | str]) -> tuple[NamedAxis, ...]:
    ranges = ((axis, size, *source.varied[size]) for axis, size in enumerate(shape) if size in source.varied)
    return tuple(NamedAxis(axis, name, low, high) for axis, name, low, high in ranges if low < high)


def file_specs(source: ModelSource) -> list[TensorSpec]:
    """Return the inputs of a user's ONNX file without values. Raises ModelError for missing sizes or ranges."""
    assert source.onnx is not None
    specs = graph_specs(source, source.onnx)
    names = [spec.name for spec in specs]
    if strays := [name for name in source.inputs if name not in names]:
        raise source.error(f"inputs: {source.onnx} has no input {strays[0]!r}{nearest(strays[0], names)}")
    _refuse_open_integers(source, specs)
    return specs


def _with_data(source: ModelSource, spec: TensorSpec, path: Path) -> TensorSpec:
    """Add the array of a .npy file. Raises ModelError if it does not fit."""
    try:
        array = np.load(path)
        items = tuple(size for axis, size in enumerate(array.shape) if axis != spec.batch_axis)
        is_empty = 0 in (size for axis, size in enumerate(array.shape) if axis == spec.batch_axis)
    except Exception as error:  # The file may hold anything.
        raise source.error(f"input {spec.name!r}: {path} holds no array ({error}); save it by numpy.save") from None
    if items != tuple(size for size in spec.shape if size != BATCH) or is_empty:
        raise source.error(f"{described([spec])} does not fit the array of shape {array.shape} in {path}")
    return replace(spec, data=store(items_first(array, spec.item_axis)))


def items_first(array: NDArray[Any], axis: int | None) -> NDArray[Any]:
    """Return a view of the array with the axis of its items first."""
    return np.moveaxis(array, axis, 0) if axis else array


def _refuse_open_integers(source: ModelSource, specs: Sequence[TensorSpec]) -> None:
    """Raise ModelError for integer inputs of an ONNX file without values in the job."""
    open_specs = [s for s in specs if s.dtype.startswith(("int", "uint")) and s.name not in source.inputs]
    if source.data or not open_specs:
        return
    assert source.onnx is not None, "only a file leaves values open"
    graph = read_onnx(source.onnx).graph
    ranges = {spec.name: usual_range(graph, spec.name) for spec in open_specs}
    named = ", ".join(f"{spec.name!r} ({spec.dtype})" for spec in open_specs)
    yaml = ", ".join(f"{_yaml_key(name)}: {{range: [{low}, {high}]}}" for name, (low, high) in ranges.items())
    raise source.error(
        f"no range of values for {'input' if len(ranges) == 1 else 'inputs'} {named}: give "
        f"{_value_options(ranges)} (the end is excluded; or NAME=FILE.npy), in a job `inputs: {{{yaml}}}`"
    )


def open_options(source: ModelSource) -> str:
    """Return command-line options with usual sizes and values for an ONNX file's open inputs."""
    assert source.onnx is not None, "only a file leaves sizes open"
    graph = read_onnx(source.onnx).graph
    inputs = graph_inputs(graph)
    shapes = symbolic_shapes(inputs)
    usual = _usual_sizes(inputs, batch_symbols(shapes, batch_axes(source, shapes)), source.dimensions)
    sizes = {name: size for name, size in usual.items() if name not in source.dimensions}
    integers = [value.name for value in inputs if _is_whole(value) and value.name not in source.inputs]
    ranges = _value_options({name: usual_range(graph, name) for name in integers})
    options = [f"--shapes {shlex.quote(f'{name}={size}')}" for name, size in sizes.items()]
    return " ".join(filter(None, [*options, "--batch 1" if 1 in sizes.values() else "", ranges]))


def _value_options(ranges: Mapping[str, tuple[int, int]]) -> str:
    return " ".join(f"--input {shlex.quote(f'{name}={low},{high}')}" for name, (low, high) in ranges.items())


def _usual_sizes(
    inputs: Sequence[onnx.ValueInfoProto], batch: Collection[str], dimensions: Mapping[str, int]
) -> dict[str, int]:
    """Choose a size that most models can run for every free dimension but the batch; keep the sizes in `dimensions`.

    A symbol such as "past_length + length" or "past_length + 1" has the sum of its terms.
    """
    shapes, sizes = symbolic_shapes(inputs), dict(dimensions)
    for value in inputs:
        shape, usual = shapes[value.name], 128 if _is_whole(value) else 256
        for axis, name in enumerate(shape):
            if isinstance(name, str) and name not in batch:
                # A recurrent state without names, such as [2, ?, 128], holds one item.
                is_state = batch and axis == 1 and name.endswith("[1]") and isinstance(shape[0], int)
                sizes.setdefault(name, 1 if is_state else 16000 if "sample" in name else usual)
    for name in sizes.keys() - dimensions.keys():
        terms = re.split(r"\s*\+\s*", name)
        values = {**sizes, **{term: int(term) for term in terms if term.isdecimal()}}
        if len(terms) > 1 and values.keys() >= {*terms}:
            sizes[name] = sum(values[term] for term in terms)
    return sizes


def _is_whole(value: onnx.ValueInfoProto) -> bool:
    from onnx import TensorProto

    kind: str = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    return kind.startswith(("INT", "UINT"))


def arguments(specs: Sequence[TensorSpec], values: Sequence[Value]) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """Return positional and keyword arguments of a module's call; without specs all values are positional."""
    pairs = list(zip([spec.place for spec in specs] or range(len(values)), values, strict=True))
    positional = sorted((place, number) for number, (place, _) in enumerate(pairs) if isinstance(place, int))
    return tuple(values[n] for _, n in positional), {place: value for place, value in pairs if isinstance(place, str)}


def first_items(specs: Sequence[TensorSpec], values: Sequence[Any], items: int, start: int = 0) -> list[Any]:
    """Return views of `items` items of each input from `start` on; inputs without a batch dimension stay whole."""
    axes = [spec.batch_axis for spec in specs] or [0] * len(values)
    part = slice(start, start + items)
    return [v if axis is None else v[(slice(None),) * axis + (part,)] for axis, v in zip(axes, values, strict=True)]


def drawn_inputs(specs: Sequence[TensorSpec]) -> list[str]:
    """Name the inputs that are drawn at random."""
    return [spec.name for spec in specs if not spec.data]


def how_drawn(source: ModelSource, specs: Sequence[TensorSpec]) -> str:
    """Return a hint like "; x is drawn at random: …", or "" if no input is drawn."""
    names = drawn_inputs(specs)
    return f"; {how_to_give(names, source.kind)}" if names else ""


def how_to_give(names: Sequence[str], kind: str) -> str:
    """Say that inputs are drawn at random, and how to give real ones, ready to copy."""
    drawn = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} drawn at random"
    if kind != "onnx":
        return f"{drawn}: real ones come from a factory that returns (module, example_inputs)"
    files = {name: f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.npy" for name in names}
    options = " ".join(f"--input {shlex.quote(f'{name}={file}')}" for name, file in files.items())
    data = ", ".join(f"{_yaml_key(name)}: {{data: {file}}}" for name, file in files.items())
    return f"{drawn}: give data, {options} (in a job `inputs: {{{data}}}`)"


def _yaml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][\w.]*", name) else json.dumps(name, ensure_ascii=False)


def fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    """Return the model's only batch size, or None if the batch is free."""
    if any(BATCH in spec.shape for spec in specs):
        return None
    axes = ((spec.shape, spec.fixed_axis) for spec in specs if spec.fixed_axis is not None)
    return next((int(shape[axis]) for shape, axis in axes if axis < len(shape)), 1)


def item_axes(specs: Sequence[TensorSpec]) -> list[int | None]:
    """Return each input's axis of items; None for an input that all items share."""
    if (fixed := fixed_batch(specs)) is None:
        return [spec.batch_axis for spec in specs]
    axes = ((spec.shape, spec.fixed_axis) for spec in specs)
    return [axis if axis is not None and shape[axis : axis + 1] == (fixed,) else None for shape, axis in axes]


def seeded_inputs(
    specs: Sequence[TensorSpec], batch: int, distinct: int | None = None, first: int = 0
) -> list[NDArray[Any]]:
    """Draw one C-contiguous array per input, with the items from `first` on.

    Item i holds the same values in every batch size and floating-point type. Floats are standard normal, bools 0 or 1,
    integers in their range; real values stay. In a free batch item i repeats item i modulo `distinct`, if that is set:
    drawing 10,000 images takes half a minute. Raises ModelError if the model's batch is fixed to another size.
    """
    fixed = fixed_batch(specs)
    if fixed is not None and batch != fixed:
        raise ModelError(f"the model's batch size is fixed to {fixed}; batch size {batch} cannot run")
    arrays = []
    for index, (spec, axis) in enumerate(zip(specs, item_axes(specs), strict=True)):
        item_shape = list(spec.at(batch))
        if axis is None:
            arrays.append(seeded_item(spec, item_shape, index, 0))
            continue
        del item_shape[axis]
        drawn = min(batch, distinct or batch) if fixed is None else batch
        items = np.stack([seeded_item(spec, item_shape, index, first + item) for item in range(drawn)], axis=axis)
        arrays.append(np.ascontiguousarray(items if drawn == batch else items.take(np.arange(batch) % drawn, axis)))
    return arrays


def distinct_items(specs: Sequence[TensorSpec]) -> int | None:
    """Return after how many items the seeded inputs repeat, or None if they never do."""
    counts = [1]
    for spec in (spec for spec, axis in zip(specs, item_axes(specs), strict=True) if axis is not None):
        if not spec.data:
            return None
        array = stored(spec.data)
        counts.append(len(array) if array.ndim == len(spec.shape) else 1)
    return max(counts)


def seeded_item(spec: TensorSpec, shape: Sequence[int], index: int, item: int) -> NDArray[Any]:
    """Draw an item of the model's `index`th input; `shape` is without the batch."""
    dtype, generator = numpy_dtype(spec.dtype), np.random.default_rng([SEED, index, item])
    if spec.data:
        array = stored(spec.data)
        values = array[item % len(array)] if array.ndim > len(shape) else array
        for axis, size in enumerate(shape):  # At other sizes of a named axis repeat or cut the values.
            values = values if values.shape[axis] == size else values.take(np.arange(size) % values.shape[axis], axis)
        return np.array(values, dtype)
    if spec.is_mask:
        return np.array(np.arange(shape[-1]) < generator.integers(1, max(shape[-1], 1) + 1), dtype)
    if spec.range is not None and dtype.kind in "iu":
        first, last = map(math.ceil, spec.range)
        return generator.integers(first, max(last, first + 1), size=shape).astype(dtype)
    if spec.range is not None and dtype.kind != "b":
        return generator.uniform(*spec.range, size=shape).astype(np.float32).astype(dtype)
    if dtype.kind in "biu":
        return generator.integers(0, 2, size=shape).astype(dtype)
    # Drawn in fp32 whatever the type, so that a half-precision input is the rounded fp32 one. (The kind of ml_dtypes'
    # bfloat16 is "V".)
    return generator.standard_normal(shape, dtype=np.float32).astype(dtype)


def padding(specs: Sequence[TensorSpec], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Return True for the tokens of an output [items, tokens, ...] that every mask excludes."""
    masks = [
        np.stack([seeded_item(spec, shape[1:2], index, item) == 0 for item in range(shape[0])])
        for index, spec in enumerate(specs)
        if spec.is_mask and spec.batch_axis == 0 and spec.shape[1:] == tuple(shape[1:2])
    ]
    return np.logical_and.reduce(masks) if masks and len(shape) > 2 else np.zeros(shape[:2], bool)


def described(specs: Sequence[TensorSpec]) -> str:
    """Describe the inputs, like "input x float32 [batch, 3, 224, 224]"."""
    inputs = [f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]" for spec in specs]
    return f"{'input' if len(inputs) == 1 else 'inputs'} {', '.join(inputs)}"


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401 -- Tells NumPy of it; onnx depends on it.
    return np.dtype(name)


def graph_specs(source: ModelSource, path: Path) -> list[TensorSpec]:
    """Return the inputs of a user's ONNX file or an export, without values. Raises ModelError."""
    from onnx.helper import tensor_dtype_to_np_dtype

    inputs = file_inputs(path)
    shapes = symbolic_shapes(inputs)
    axes = batch_axes(source, shapes)
    batch = batch_symbols(shapes, axes) - source.dimensions.keys()  # A leading symbol with a size is no batch.
    free = _free(shapes, batch)
    if strays := [name for name in source.dimensions if source.onnx is not None and name not in free]:
        raise source.error(
            f"dimensions: {path} has no free dimension {strays[0]!r} beside the batch; free are: "
            f"{', '.join(free) or 'none'}"
        )
    if names := sorted(set(free) - source.dimensions.keys()):
        sizes = _usual_sizes(inputs, batch, source.dimensions)
        example = ", ".join(f"{_yaml_key(name)}: {sizes[name]}" for name in names)
        raise source.error(
            f"{path} has dimensions of no fixed size: {', '.join(names)}; give their sizes next to `onnx`, for "
            f"example:\n    dimensions: {{{example}}}{batch_hint(shapes, batch, names)}"
        )
    fixed = [name for name, axis in axes.items() if axis is not None and isinstance(shapes[name][axis], int)]
    if batch and fixed:
        raise source.error(
            f"batch: {path} has a free batch, and fixes axis {axes[fixed[0]]} of {fixed[0]!r}; export it again with "
            "both free, or both fixed"
        )
    dtypes = [str(tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)) for value in inputs]
    assigned: dict[Any, int | str] = {**source.dimensions, **dict.fromkeys(batch, BATCH)}
    return [
        TensorSpec(
            name,
            tuple(assigned.get(size, size) for size in sizes),
            dtype,
            fixed_axis=axes.get(name, 0),
            named=_named(source, sizes),
        )
        for (name, sizes), dtype in zip(shapes.items(), dtypes, strict=True)
    ]


def _free(shapes: Mapping[str, Sequence[int | str]], batch: Collection[str]) -> list[str]:
    """Return the symbols in the shapes of a graph's inputs, except the batch."""
    return list(dict.fromkeys(s for shape in shapes.values() for s in shape if isinstance(s, str) and s not in batch))


def symbolic_shapes(inputs: Iterable[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    """Return sizes and symbols of a graph's inputs, by name; a dimension without either is called "input[axis]".

    A size of 0 is an empty cache's, except in front, where converters write it for an unknown batch.
    """
    return {
        value.name: [
            int(dim.dim_value)
            if dim.HasField("dim_value") and dim.dim_value >= (0 if axis else 1)
            else (f"{value.name}[{axis}]" if dim.dim_param.strip() in _UNNAMED else dim.dim_param)
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        ]
        for value in inputs
    }


def dimensions_of(source: ModelSource) -> list[str]:
    """Return the names of sizes in the model's inputs, except the batch. Raises ModelError."""
    if source.onnx is not None:
        shapes = symbolic_shapes(file_inputs(source.onnx))
        return _free(shapes, batch_symbols(shapes, batch_axes(source, shapes)))
    if source.library is None and source.asks_code:
        from exporters.factories import examples

        # Not `_declared`, which caches values: a dry run writes nothing.
        return list(dict.fromkeys(name for example in examples(source) for name in example.axes.values()))
    return list(_declared(source).sizes)


def why_fixed(source: ModelSource) -> str:
    """Say why no dimension of the model can have another size."""
    mend = (
        f"export {source.onnx.name} with free dimensions"
        if source.onnx
        else 'return dynamic_shapes from its factory, such as (model, inputs, {"x": {1: "length"}})'
    )
    if source.catalog_name:
        mend = "its fully connected layers take images of one size"
    return f"{source.name} is fixed to one shape: {mend}"


def at_shape(source: ModelSource, shape: Mapping[str, int], sizes: Mapping[str, Sequence[int]]) -> ModelSource:
    """Return the model at one shape; `sizes` lists every size of each varied dimension."""
    ranges = {name: (min(sizes[name]), max(sizes[name])) for name in shape}
    return replace(source, dimensions={**source.dimensions, **shape}, varied=ranges)
