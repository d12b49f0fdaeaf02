"""Declare the names, shapes and types of a model's inputs, and draw seeded arrays for them; imports no torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from exporters.catalog import LARGEST, network_of
from exporters.errors import nearest
from exporters.onnx_files import file_inputs
from exporters.source import ModelError, ModelSource

if TYPE_CHECKING:
    import onnx

SEED = 20240229
BATCH = "batch"
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
)
FILLS = ("lengths", "positions", "zeros", "ones")
"""Values along the last axis; lengths are ones up to a drawn length, then zeros: a mask of padding."""
KEYS = ("shape", "dtype", "range", "fill", "data")
SPACE = ("depth", "height", "width")
"""Names of the last axes of an image or a volume."""
HOW_SEEDED = "inputs are drawn at random; a job's `inputs` gives others (range, fill, data)"
Value = TypeVar("Value")


class InputMistake(ValueError):
    """Something in a job's `inputs` that cannot be used; `at` are the keys below `inputs`."""

    def __init__(self, message: str, at: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True)
class DeclaredInput:
    """One input as a job or a library declares it; the model must know itself what is None."""

    place: str | int
    """A keyword, or a position."""
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    range: tuple[float, float] | None = None
    """From the first number up to, but not including, the second."""
    fill: str | None = None
    data: Path | None = None
    """A .npy file, or an .npz file that has an array of the input's name."""


@dataclass(frozen=True)
class NamedAxis:
    """An axis that a job measures at several sizes, from the least to the largest."""

    axis: int
    name: str
    least: int
    largest: int


@dataclass(frozen=True)
class TensorSpec:
    """One input. Its shape holds integers and, for the batch size, the word "batch"; `dtype` is numpy's name
    ("float32", "int64", "bool"), or "bfloat16"."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    place: str | int = 0
    """Keyword or position in the module's call; a graph takes it by name."""
    range: tuple[float, float] | None = None
    fill: str | None = None
    data: NDArray[Any] | None = field(default=None, repr=False, compare=False)
    """Values to feed, where they are given: items that repeat."""
    digest: str = ""
    """The sha256 of `data`."""
    named: tuple[NamedAxis, ...] = field(default=(), repr=False)
    """Axes whose sizes differ between cases; in an export they stay free."""

    @property
    def free_axes(self) -> dict[int, str]:
        """Names of the axes that stay free in an export: the batch's, and those that the job varies."""
        batch = {} if self.batch_axis is None else {self.batch_axis: BATCH}
        return batch | {each.axis: each.name for each in self.named}

    @property
    def batch_axis(self) -> int | None:
        """Axis of the items; None where the batch is not free."""
        return self.shape.index(BATCH) if BATCH in self.shape else None

    def at(self, batch: int) -> tuple[int, ...]:
        """Return the shape at a batch size."""
        return tuple(batch if size == BATCH else int(size) for size in self.shape)

    def end(self, batch: int, largest: bool) -> tuple[int, ...]:
        """Return the shape at a batch size and the least, or the largest, size of each named axis."""
        ends = {each.axis: each.largest if largest else each.least for each in self.named}
        return tuple(ends.get(axis, size) for axis, size in enumerate(self.at(batch)))


def is_integer(dtype: str) -> bool:
    """Tell whether values of that type need a range: those of bool are 0 and 1 anyway."""
    return dtype.startswith(("int", "uint"))


def name_of(place: str | int, count: int = 2) -> str:
    """Return the name of an input of a model with `count` of them: "input_ids", "x0", or "x" for the only one."""
    return place if isinstance(place, str) else "x" if count == 1 else f"x{place}"


def no_values(name: str, dtype: str) -> str:
    """Return the error of an integer input whose values are unknown."""
    return (
        f"input {name!r} is {dtype}, and nothing says which values it may have: give `inputs: {{{name}: "
        f"{{range: [0, 100]}}}}`, the end excluded; or one of fill: {', '.join(FILLS)}; or data: FILE"
    )


def declared_inputs(data: Any, folder: Path | None = None) -> tuple[DeclaredInput, ...]:
    """Read a job's `inputs`, a mapping of keywords or a list by position. Files are relative to `folder`. Raises
    InputMistake."""
    if not isinstance(data, Mapping | list | tuple) or not data:
        raise InputMistake(
            "must be the inputs by name, such as {input_ids: {shape: [batch, 128], dtype: int64, range: [0, 1000]}}, "
            "or a list of them by position"
        )
    pairs = ((str(key), part) for key, part in data.items()) if isinstance(data, Mapping) else enumerate(data)
    return tuple(_declared(part, key, folder or Path.cwd()) for key, part in pairs)


def _declared(data: Any, place: str | int, folder: Path) -> DeclaredInput:
    if not isinstance(data, Mapping) or not data:
        raise InputMistake("must be a tensor, such as {shape: [batch, 3, 224, 224]}", (place,))
    if strange := [key for key in data if key not in KEYS]:
        raise InputMistake(f"unknown key '{strange[0]}'{nearest(str(strange[0]), KEYS)}", (place,))
    shape, dtype, span, fill = (data.get(key) for key in ("shape", "dtype", "range", "fill"))
    for key, value, is_right, what in (
        ("shape", shape, _is_shape, "sizes and names of sizes, such as [batch, 128]"),
        ("dtype", dtype, DTYPES.__contains__, f"one of {', '.join(DTYPES)}"),
        ("fill", fill, FILLS.__contains__, f"one of {', '.join(FILLS)}"),
        ("range", span, _is_range, "two numbers, the first and the one after the last, such as [0, 30522]"),
    ):
        if value is not None and not is_right(value):
            raise InputMistake(f"must be {what}, got {value}", (place, key))
    if len(given := [key for key in ("range", "fill", "data") if data.get(key) is not None]) > 1:
        raise InputMistake(f"{' and '.join(given)} each say what the input holds; give one", (place,))
    path = None if data.get("data") is None else folder / str(data["data"])
    if path is not None:
        try:
            _array(path, name_of(place))
        except ModelError as error:
            raise InputMistake(str(error), (place, "data")) from None
    return DeclaredInput(
        place, None if shape is None else tuple(shape), dtype, None if span is None else tuple(span), fill, path
    )


def _is_shape(shape: object) -> bool:
    sizes = shape if isinstance(shape, list | tuple) else [None]
    return all(0 < s <= LARGEST if type(s) is int else isinstance(s, str) and s.isidentifier() for s in sizes)


def _is_range(span: object) -> bool:
    numbers = isinstance(span, list | tuple) and len(span) == 2 and all(type(n) in (int, float) for n in span)
    return numbers and -(2.0**64) <= span[0] < span[1] <= 2.0**64  # type: ignore[index]


def symbols(declared: Sequence[DeclaredInput]) -> list[str]:
    """Return the names of sizes in the shapes, the batch's left out."""
    sizes = (size for each in declared for size in each.shape or ())
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str) and size != BATCH))


@lru_cache(maxsize=64)
def _array(path: Path, name: str) -> NDArray[Any]:
    """Read the array of that name in an .npz file, or the one of a .npy file. Raises ModelError."""
    try:
        content = np.load(path)
        return content if isinstance(content, np.ndarray) else np.asarray(content[name])
    except KeyError:
        raise ModelError(f"input {name!r}: {path} has no such array; it has {', '.join(content.files)}") from None
    except Exception as error:  # Whatever the file holds.
        raise ModelError(f"input {name!r}: {path} holds no arrays ({error}); save them by numpy.savez") from None


def input_specs(source: ModelSource) -> list[TensorSpec]:
    """Return the model's inputs, in its own order; in an ONNX file a static leading dimension fixes the batch.

    Raises ModelError for an unknown network, an unreadable file, and sizes or values of integers that are unknown.
    """
    if source.specs is not None:
        return list(source.specs)
    if source.onnx is not None:
        specs = _with_values(source, graph_specs(source, source.onnx))
    elif source.library is not None:
        specs = _library_specs(source)
    elif source.inputs:
        specs = _declared_specs(source, source.inputs)
    elif source.asks_code:
        specs = _example_specs(source)
    else:
        item = _item_shape(source)
        names = named_axes(item)
        sizes = (source.dimensions.get(str(name), size) for name, size in zip(names, item, strict=True))
        return [TensorSpec("x", (BATCH, *sizes), "float32", named=_named(source, (BATCH, *names)))]
    for spec in specs:
        if is_integer(spec.dtype) and spec.range is None and spec.fill is None and spec.data is None:
            raise source.error(no_values(spec.name, spec.dtype))
    return specs


def named_axes(item: Sequence[int]) -> tuple[int | str, ...]:
    """Return an item's shape with names for the sizes of an image, such as (3, "height", "width"), or of a volume."""
    names = SPACE[-(len(item) - 1) :] if len(item) in (3, 4) else ()
    return (*item[: len(item) - len(names)], *names)


def _named(source: ModelSource, shape: Sequence[int | str]) -> tuple[NamedAxis, ...]:
    ranges = {axis: (size, *source.varied[size]) for axis, size in enumerate(shape) if size in source.varied}
    return tuple(NamedAxis(axis, *each) for axis, each in ranges.items() if each[1] < each[2])


def _item_shape(source: ModelSource) -> tuple[int, ...]:
    if source.layer is not None:
        return source.layer.input_shape
    network = network_of(source)
    shape = network.input_shape if network else source.input_shape
    assert shape is not None, "another factory is asked"
    return shape


def _example_specs(source: ModelSource) -> list[TensorSpec]:
    from exporters.factories import examples  # Imports torch and the user's code.

    specs = []
    for each in examples(source):
        shape = (BATCH, *(each.axes.get(axis, size) for axis, size in enumerate(each.array.shape) if axis))
        sizes = [source.dimensions.get(each.axes.get(axis, ""), size) for axis, size in enumerate(each.array.shape)]
        named, dtype = _named(source, shape), str(each.array.dtype)
        spec = TensorSpec(each.name, (BATCH, *sizes[1:]), dtype, each.place, named=named)
        specs.append(_holding(spec, each.array))
    return specs


def _holding(spec: TensorSpec, array: NDArray[Any]) -> TensorSpec:
    return replace(spec, data=array, digest=hashlib.sha256(np.ascontiguousarray(array).data).hexdigest())


def _declared_specs(source: ModelSource, declared: Sequence[DeclaredInput]) -> list[TensorSpec]:
    """Complete what a job says about a torch module's inputs. Raises ModelError for a missing shape or size."""
    specs = []
    for each in declared:
        name = name_of(each.place, len(declared))
        found = None if each.data is None else _array(each.data, name)
        shape = each.shape if found is None or each.shape else (BATCH, *found.shape[1:])
        if shape is None:
            raise source.error(f"input {name!r} has no shape; add `shape: [batch, 3, 224, 224]` to it")
        if lacking := [size for size in symbols([replace(each, shape=shape)]) if size not in source.dimensions]:
            sizes = ", ".join(f"{size}: 128" for size in lacking)
            raise source.error(
                f"input {name!r} has sizes without a number; add `dimensions: {{{sizes}}}` next to inputs"
            )
        dtype = each.dtype or ("float32" if found is None or found.dtype.kind in "fV" else str(found.dtype))
        own = tuple(source.dimensions.get(size, size) if isinstance(size, str) else size for size in shape)
        spec = TensorSpec(name, own, dtype, each.place, each.range, each.fill, named=_named(source, shape))
        specs.append(_with_data(source, spec, each.data))
    return specs


def _library_specs(source: ModelSource) -> list[TensorSpec]:
    """Return what a library's model takes: by itself, or as the job says. Raises ModelError."""
    from exporters.libraries import known_inputs

    known = known_inputs(source)
    if strays := [name for name in source.dimensions if name not in (*known.sizes, *symbols(source.inputs))]:
        raise source.error(f"no dimension {strays[0]!r}{nearest(strays[0], known.sizes)}")
    taken = list(source.inputs or known.inputs)
    if source.input_shape is not None and taken:
        taken[0] = replace(taken[0], shape=(BATCH, *source.input_shape))
    if not taken:
        raise source.error(
            f"what {source.factory} takes is not known; write it down, for example "
            "`inputs: {input_ids: {shape: [batch, 128], dtype: int64, range: [0, 1000]}}`"
        )
    return _declared_specs(replace(source, dimensions={**known.sizes, **source.dimensions}), taken)


def _with_values(source: ModelSource, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Add what the job says that a graph's inputs hold. Raises ModelError for an input that the graph lacks."""
    declared = {name_of(each.place): each for each in source.inputs}
    names = [spec.name for spec in specs]
    if strays := [name for name in declared if name not in names]:
        raise source.error(f"inputs: {source.onnx} has no input {strays[0]!r}{nearest(strays[0], names)}")
    held = []
    for spec in specs:
        each = declared.get(spec.name, DeclaredInput(spec.name))
        if each.shape not in (None, spec.shape) or each.dtype not in (None, spec.dtype):
            raise source.error(f"inputs: {spec.name} is {described([spec])} in the file; leave out shape and dtype")
        held.append(_with_data(source, replace(spec, range=each.range, fill=each.fill), each.data))
    return held


def _with_data(source: ModelSource, spec: TensorSpec, path: Path | None) -> TensorSpec:
    """Add the array of a file. Raises ModelError for one that does not fit."""
    if path is None:
        return spec
    array = _array(path, spec.name)
    items = array.shape[1:] if spec.shape[:1] == (BATCH,) else array.shape
    if items != tuple(size for size in spec.shape if size != BATCH) or not array.size:
        raise source.error(f"{described([spec])} does not fit the array of shape {array.shape} in {path}")
    return _holding(spec, array)


def arguments(specs: Sequence[TensorSpec], values: Sequence[Value]) -> tuple[tuple[Value, ...], dict[str, Value]]:
    """Return positional and keyword arguments of a module's call; without specs all values are positional."""
    pairs = list(zip([spec.place for spec in specs] or range(len(values)), values, strict=True))
    positional = sorted((place, number) for number, (place, _) in enumerate(pairs) if isinstance(place, int))
    return tuple(values[n] for _, n in positional), {place: value for place, value in pairs if isinstance(place, str)}


def first_items(specs: Sequence[TensorSpec], values: Sequence[Any], items: int) -> list[Any]:
    """Return views of each input's first items; one without a batch dimension stays as it is."""
    if not specs:
        return [value[:items] for value in values]
    return [
        value if spec.batch_axis is None else value[(slice(None),) * spec.batch_axis + (slice(items),)]
        for spec, value in zip(specs, values, strict=True)
    ]


def fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    """Return the only batch size that the model can run at, or None if the batch is free."""
    if any(BATCH in spec.shape for spec in specs) or not specs:
        return None
    leading = specs[0].shape[:1]
    return int(leading[0]) if leading else 1


def seeded_inputs(
    specs: Sequence[TensorSpec], batch: int, distinct: int | None = None, first: int = 0
) -> list[NDArray[Any]]:
    """Draw one C-contiguous array per input, of the items from `first` on.

    Item i holds the same values in every batch size and floating-point type. Floats are standard normal, bools 0 or 1,
    integers in their range, or as `fill` or `data` says. With a free batch item i is item i modulo `distinct`, if
    given: drawing 10,000 images takes half a minute. Raises ModelError for another than a fixed batch.
    """
    fixed = fixed_batch(specs)
    if fixed is not None and batch != fixed:
        raise ModelError(f"the model's batch size is fixed to {fixed}; batch size {batch} cannot run")
    arrays = []
    for index, spec in enumerate(specs):
        item_shape = list(spec.at(batch))
        leading = fixed is not None and spec.shape[:1] == (fixed,)
        axis = 0 if leading else spec.batch_axis
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
    fixed, counts = fixed_batch(specs), [1]
    for spec in specs:
        if spec.batch_axis is None and (fixed is None or spec.shape[:1] != (fixed,)):
            continue
        if spec.data is not None:
            counts.append(len(spec.data) if spec.data.ndim == len(spec.shape) else 1)
        elif spec.fill in (None, "lengths"):
            return None
    return max(counts)


def seeded_item(spec: TensorSpec, shape: Sequence[int], index: int, item: int) -> NDArray[Any]:
    """Draw an item of the model's `index`th input; `shape` is without the batch."""
    dtype, generator = numpy_dtype(spec.dtype), np.random.default_rng([SEED, index, item])
    if spec.data is not None:
        found = spec.data[item % len(spec.data)] if spec.data.ndim > len(shape) else spec.data
        for axis, size in enumerate(shape):  # At other sizes of named axes the values repeat, or end earlier.
            found = found if found.shape[axis] == size else found.take(np.arange(size) % found.shape[axis], axis)
        return np.array(found, dtype)
    if spec.fill is not None:
        return np.array(np.broadcast_to(_filled(spec.fill, shape, generator), shape), dtype)
    if spec.range is not None and is_integer(spec.dtype):
        first, last = map(math.ceil, spec.range)
        return generator.integers(first, max(last, first + 1), size=shape).astype(dtype)
    if spec.range is not None and dtype.kind != "b":
        return generator.uniform(*spec.range, size=shape).astype(np.float32).astype(dtype)
    if dtype.kind in "biu":
        return generator.integers(0, 2, size=shape).astype(dtype)
    # Drawn in fp32 whatever the type, so that a half-precision input is the rounded fp32 one. (The kind of ml_dtypes'
    # bfloat16 is "V".)
    return generator.standard_normal(shape, dtype=np.float32).astype(dtype)


def _filled(fill: str, shape: Sequence[int], generator: np.random.Generator) -> NDArray[Any]:
    positions = np.arange(shape[-1] if shape else 1).reshape(shape[-1:] if shape else ())
    if fill == "lengths":
        return positions < generator.integers(1, positions.size + 1)
    return {"positions": positions, "zeros": np.zeros_like(positions), "ones": np.ones_like(positions)}[fill]


def padding(specs: Sequence[TensorSpec], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Tell which tokens of an output [items, tokens, ...] all masks (`fill: lengths`) leave out."""
    found = [
        np.stack([seeded_item(spec, shape[1:2], index, item) == 0 for item in range(shape[0])])
        for index, spec in enumerate(specs)
        if spec.fill == "lengths" and spec.batch_axis == 0 and spec.shape[1:] == tuple(shape[1:2])
    ]
    return np.logical_and.reduce(found) if found and len(shape) > 2 else np.zeros(shape[:2], bool)


def described(specs: Sequence[TensorSpec]) -> str:
    """Return the inputs in words, like "input x float32 [batch, 3, 224, 224]"."""
    inputs = [f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]" for spec in specs]
    return f"{'input' if len(inputs) == 1 else 'inputs'} {', '.join(inputs)}"


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401 -- Tells NumPy of it; onnx depends on it.
    return np.dtype(name)


def graph_specs(source: ModelSource, path: Path) -> list[TensorSpec]:
    """Return the inputs of a user's ONNX file or of an export, without what they hold. Raises ModelError."""
    from onnx.helper import tensor_dtype_to_np_dtype

    inputs = file_inputs(path)
    shapes = symbolic_shapes(inputs)
    batches = batch_symbols(shapes)
    if source.onnx is not None:
        _check_dimensions(source, path, shapes, batches)
    kinds = [value.type.tensor_type.elem_type for value in inputs]
    if strange := [v.name for v, kind in zip(inputs, kinds, strict=True) if kind in (0, 8)]:  # Undefined, and strings.
        raise source.error(f"input {strange[0]!r} of {path} is no tensor of numbers")
    dtypes = [str(tensor_dtype_to_np_dtype(kind)) for kind in kinds]
    known: dict[Any, int | str] = {**source.dimensions, **dict.fromkeys(batches, BATCH)}
    unnamed = {size for sizes in shapes.values() for size in sizes if isinstance(size, str) and size not in known}
    if names := sorted(unnamed):
        example = ", ".join(f"{name}: 128" if name.isidentifier() else f'"{name}": 128' for name in names)
        raise source.error(
            f"{path} has dimensions of no fixed size: {', '.join(names)}; give their sizes next to `onnx`, for "
            f"example:\n    dimensions: {{{example}}}"
        )
    return [
        TensorSpec(name, tuple(known.get(size, size) for size in sizes), dtype, named=_named(source, sizes))
        for (name, sizes), dtype in zip(shapes.items(), dtypes, strict=True)
    ]


def batch_symbols(shapes: Mapping[str, Sequence[int | str]]) -> set[str]:
    """Return what a graph calls its batch, by the shapes of its inputs: the leading dimension of the first, if it is
    symbolic, and then every leading dimension without a name; else "batch". Empty where the batch is fixed."""
    first = next(iter(shapes.values()), ())
    if not first or isinstance(first[0], int):
        return {BATCH} if any(BATCH in shape for shape in shapes.values()) else set()
    return {first[0], *(f"{name}[0]" for name, shape in shapes.items() if f"{name}[0]" in shape[:1])}


def _check_dimensions(
    source: ModelSource, path: Path, shapes: Mapping[str, Sequence[int | str]], batches: Collection[str]
) -> None:
    """Raise ModelError for a size in `source.dimensions` that the graph fixes otherwise or lacks."""
    sizes = {f"{name}[{axis}]": size for name, shape in shapes.items() for axis, size in enumerate(shape)}
    free = {size: None for size in sizes.values() if isinstance(size, str) and size not in batches}
    for name, size in source.dimensions.items():
        if name not in free and sizes.get(name) != size:
            listed = ", ".join(free) or "none"
            raise source.error(
                f"dimensions: {path} has no free dimension {name!r} beside the batch; free are: {listed}"
            )


def symbolic_shapes(inputs: Iterable[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    """Return sizes and symbols of a graph's inputs, by name; a dimension without either is called "input[axis]"."""
    return {
        value.name: [
            int(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or f"{value.name}[{axis}]"
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        ]
        for value in inputs
    }


def dimensions_of(source: ModelSource) -> list[str]:
    """Return the names of sizes in the model's inputs, the batch's left out. Raises ModelError."""
    if source.onnx is not None:
        shapes = symbolic_shapes(file_inputs(source.onnx))
        fixed = batch_symbols(shapes)
        return list(dict.fromkeys(s for own in shapes.values() for s in own if isinstance(s, str) and s not in fixed))
    if source.library is not None:
        from exporters.libraries import known_inputs

        return list(dict.fromkeys([*known_inputs(source).sizes, *symbols(source.inputs)]))
    if source.asks_code:
        from exporters.factories import examples

        return list(dict.fromkeys(name for each in examples(source) for name in each.axes.values()))
    if source.inputs:
        return symbols(source.inputs)
    network = network_of(source)
    # A plain network's classifier takes features of one size, the others' takes averages.
    if source.layer is not None or (network is not None and network.family == "plain"):
        return []
    return [name for name in named_axes(_item_shape(source)) if isinstance(name, str)]


def why_fixed(source: ModelSource) -> str:
    """Say why no dimension of the model may have another size."""
    mend = f"export {source.onnx.name} with free dimensions" if source.onnx else "give names to sizes in its inputs"
    if source.catalog_name:
        mend = "its fully connected layers take images of one size"
    return f"{source.name} is fixed to one shape: {mend}"


def at_shape(source: ModelSource, shape: Mapping[str, int], sizes: Mapping[str, Sequence[int]]) -> ModelSource:
    """Return the model with these sizes of the dimensions that the job varies, all of which are in `sizes`."""
    ranges = {name: (min(sizes[name]), max(sizes[name])) for name in shape}
    return replace(source, dimensions={**source.dimensions, **shape}, varied=ranges)
