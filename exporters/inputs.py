"""Read the names, shapes and types of a model's inputs, draw seeded arrays for them, and arrange them for a call."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from exporters.cache import file_sha256
from exporters.catalog import network_of
from exporters.declared_inputs import BATCH as BATCH
from exporters.declared_inputs import (
    DeclaredInput,
    Place,
    arrays_of,
    is_integer,
    name_of,
    no_values,
    some_values,
    symbols,
)
from exporters.errors import nearest
from exporters.source import WEIGHTS, ModelError, ModelSource

if TYPE_CHECKING:
    import onnx

SEED = 20240229
MOST_BATCH = 2**20
"""Items of the largest batch that a graph may be fixed to: drawing them takes ten seconds."""
_MOST_INPUT = 2**40
"""Bytes of the largest input, by far more than any machine's memory is read in the time of a run."""
_MOST_BYTES = 2**31
SPACE = ("depth", "height", "width")
"""What the last axes of an image or a volume are called."""
Value = TypeVar("Value")


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
    place: Place = (0,)
    """Where in a call the module takes it; a graph takes it by name."""
    range: tuple[float, float] | None = None
    fill: str | None = None
    data: Path | None = field(default=None, repr=False)
    """What it holds, where that is not drawn from a normal distribution: as in exporters/declared_inputs.py."""
    digest: str = ""
    """The sha256 of `data`."""
    named: tuple[NamedAxis, ...] = field(default=(), repr=False)
    """The axes whose sizes are others in other cases; in an export they stay free."""

    @property
    def free_axes(self) -> dict[int, str]:
        """The names of the axes that stay free in an export: the batch's, and those that the job varies."""
        batch = {} if self.batch_axis is None else {self.batch_axis: BATCH}
        return batch | {each.axis: each.name for each in self.named}

    @property
    def batch_axis(self) -> int | None:
        """Along which its items are; None where the batch is not free."""
        return self.shape.index(BATCH) if BATCH in self.shape else None

    def at(self, batch: int) -> tuple[int, ...]:
        """Its shape at a batch size."""
        return tuple(batch if size == BATCH else int(size) for size in self.shape)

    def end(self, batch: int, largest: bool) -> tuple[int, ...]:
        """Its shape at a batch size and the least, or the largest, size of each named axis."""
        ends = {each.axis: each.largest if largest else each.least for each in self.named}
        return tuple(ends.get(axis, size) for axis, size in enumerate(self.at(batch)))


def input_specs(source: ModelSource) -> list[TensorSpec]:
    """The model's inputs, in its own order.

    A network of the catalog has one, named "x", of float32, whose batch is free; so has a factory with `input`. Of an
    ONNX file a static leading dimension stays a number: the batch is fixed. Raises ModelError for an unknown network, a
    factory without inputs, an unreadable file, unnamed dimensions, and integers of which nothing says what they are.
    """
    if source.onnx is not None:
        specs = _with_values(source, graph_specs(source, source.onnx))
    elif source.library is not None:
        specs = _library_specs(source)
    elif source.inputs:
        specs = _declared_specs(source, source.inputs)
    else:
        item = _item_shape(source)
        names = named_axes(item)
        sizes = (source.dimensions.get(str(name), size) for name, size in zip(names, item, strict=True))
        return [TensorSpec("x", (BATCH, *sizes), "float32", named=_named(source, (BATCH, *names)))]
    fixed = fixed_batch(specs)
    if fixed is not None and fixed > MOST_BATCH:
        raise source.error(
            f"its batch is fixed to {fixed:,}, and at most {MOST_BATCH:,} items are taken; export it with another one, "
            "or with a free one"
        )
    for spec in specs:
        if (size := math.prod(spec.at(1)) * numpy_dtype(spec.dtype).itemsize) > _MOST_INPUT:
            raise source.error(f"{described([spec])} takes {size / 2**40:.1e} TiB an item; correct its shape")
        if is_integer(spec.dtype) and not (spec.range or spec.fill or spec.data):
            raise source.error(no_values(spec.name, spec.dtype))
    return specs


def named_axes(item: Sequence[int]) -> tuple[int | str, ...]:
    """The shape of an item with names for the sizes of an image, such as (3, "height", "width"), or of a volume."""
    names = SPACE[-(len(item) - 1) :] if len(item) in (3, 4) else ()
    return (*item[: len(item) - len(names)], *names)


def _named(source: ModelSource, shape: Sequence[int | str]) -> tuple[NamedAxis, ...]:
    """The axes that the job measures at several sizes."""
    ranges = {axis: (size, *source.varied[size]) for axis, size in enumerate(shape) if size in source.varied}
    return tuple(NamedAxis(axis, *each) for axis, each in ranges.items() if each[1] < each[2])


def _item_shape(source: ModelSource) -> tuple[int, ...]:
    if source.layer is not None:
        return source.layer.input_shape
    network = network_of(source)
    shape = network.input_shape if network else source.input_shape
    if shape is None:
        raise source.error(
            "a factory needs the shape of one item, or its inputs; add `input: [3, 224, 224]` "
            "to it, or `inputs: {input_ids: {shape: [batch, 128], dtype: int64, range: [0, 1000]}}`"
        )
    return shape


def _declared_specs(source: ModelSource, declared: Sequence[DeclaredInput]) -> list[TensorSpec]:
    """What a job says of a torch module's inputs. Raises ModelError for a shape or a size that nobody gives."""
    specs = []
    for each in declared:
        name = name_of(each.place, len(declared))
        found = None if each.data is None else _array(each.data, name)
        shape = each.shape if found is None or each.shape else (BATCH, *found.shape[1:])
        if shape is None:
            raise source.error(f"input {name!r} has no shape; add `shape: [batch, 3, 224, 224]` to it")
        lacking = {size: 1 for size in shape if isinstance(size, str) and size not in (BATCH, *source.dimensions)}
        if lacking:
            sizes = ", ".join(f"{size}: 128" for size in lacking)
            raise source.error(
                f"input {name!r} has sizes that nobody gives: {', '.join(lacking)}; add "
                f"`dimensions: {{{sizes}}}` next to inputs"
            )
        dtype = each.dtype or ("float32" if found is None or found.dtype.kind in "fV" else str(found.dtype))
        own = tuple(source.dimensions.get(size, size) if isinstance(size, str) else size for size in shape)
        spec = TensorSpec(name, own, dtype, each.place, each.range, each.fill, each.data, named=_named(source, shape))
        specs.append(_checked_data(source, spec))
    return specs


def _library_specs(source: ModelSource) -> list[TensorSpec]:
    """What a library's model takes: by itself, or as the job says where it says so. Raises ModelError."""
    from exporters.libraries.catalog import known_inputs

    known = known_inputs(source)
    own = {name_of(each.place, len(known.inputs)): each for each in known.inputs}
    if strays := [name for name in source.dimensions if name not in (*known.sizes, *symbols(source.inputs))]:
        raise source.error(f"no dimension {strays[0]!r}{nearest(strays[0], known.sizes)}")
    for name, most in known.limits.items():
        if (size := source.dimensions.get(name, 0)) > most:
            raise source.error(
                f"{name} is {size}, but {source.factory} has positions for {most}: "
                f"give at most {most}, or options that make it longer"
            )
    declared = [_completed(each, own.get(name_of(each.place, len(source.inputs)))) for each in source.inputs]
    taken = declared or list(known.inputs)
    if source.input_shape is not None and taken:
        taken[0] = replace(taken[0], shape=(BATCH, *source.input_shape))
    if not taken:
        raise source.error(
            f"what {source.factory} takes is not known; write it down, for example "
            "`inputs: {input_ids: {shape: [batch, 128], dtype: int64, range: [0, 1000]}}`"
        )
    return _declared_specs(replace(source, dimensions={**known.sizes, **source.dimensions}), taken)


def _completed(each: DeclaredInput, known: DeclaredInput | None) -> DeclaredInput:
    """What a job says of an input, and what it leaves open as the model knows it."""
    if known is None or each.data is not None:
        return each
    typed = replace(each, shape=each.shape or known.shape, dtype=each.dtype or known.dtype)
    has_values = each.range is not None or each.fill is not None
    return typed if has_values else replace(typed, range=known.range, fill=known.fill)


def _with_values(source: ModelSource, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """A graph's inputs with what the job says that they hold. Raises ModelError for an input that it does not have."""
    declared = {name_of(each.place): each for each in source.inputs}
    names = [spec.name for spec in specs]
    if strays := [name for name in declared if name not in names]:
        raise source.error(f"inputs: {source.onnx} has no input {strays[0]!r}, but {names}")
    held = []
    for spec in specs:
        each = declared.get(spec.name, DeclaredInput(()))
        own = replace(spec, range=each.range, fill=each.fill, data=each.data)
        for what, theirs, its in (("shape", each.shape, spec.shape), ("dtype", each.dtype, spec.dtype)):
            if theirs is not None and theirs != its:
                raise source.error(
                    f"inputs: {spec.name}'s {what} in {source.onnx} is {its}, not {theirs}; leave {what} out"
                )
        held.append(_checked_data(source, own))
    return held


def _checked_data(source: ModelSource, spec: TensorSpec) -> TensorSpec:
    """The input with the hash of its file. Raises ModelError for an array that does not fit."""
    if spec.data is None:
        return spec
    array = _array(spec.data, spec.name)
    items = array.shape[1:] if spec.shape[:1] == (BATCH,) else array.shape
    if items != tuple(size for size in spec.shape if size != BATCH) or not array.size:
        shape = str(list(spec.shape)).replace("'", "")
        raise source.error(
            f"input {spec.name!r} has the shape {shape}, which the array of shape "
            f"{array.shape} in {spec.data} does not fit"
        )
    return replace(spec, digest=file_sha256(spec.data))


@lru_cache(maxsize=64)
def _array(path: Path, name: str) -> NDArray[Any]:
    """The array of that name in an .npz file, or the one of a .npy file. Raises ModelError."""
    try:
        if arrays_of(path) == [""]:
            array: NDArray[Any] = np.load(path, mmap_mode="r")
            return array
        with np.load(path) as file:
            return np.asarray(file[name])
    except (ValueError, KeyError, OSError) as error:
        raise ModelError(f"input {name!r}: {error}") from None


def arguments(specs: Sequence[TensorSpec], values: Sequence[Value]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a module's call, of values in the order of `specs`; nested lists and mappings
    are made again. Without specs all are positional."""
    tree: dict[str | int, Any] = {}
    places = [spec.place for spec in specs] or [(number,) for number in range(len(values))]
    for place, value in zip(places, values, strict=True):
        node = tree
        for key in place[:-1]:
            node = node.setdefault(key, {})
        node[place[-1]] = value
    positions = sorted(key for key in tree if isinstance(key, int))
    keywords = {key: _built(part) for key, part in tree.items() if isinstance(key, str)}
    return tuple(_built(tree[key]) for key in positions), keywords


def _built(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if all(isinstance(key, int) for key in part):
        return [_built(part[key]) for key in sorted(part)]
    return {key: _built(inner) for key, inner in part.items()}


def first_items(specs: Sequence[TensorSpec], values: Sequence[Any], items: int) -> list[Any]:
    """The first items of each input, a view; what has no batch dimension stays as it is."""
    if not specs:
        return [value[:items] for value in values]
    return [
        value if spec.batch_axis is None else value[(slice(None),) * spec.batch_axis + (slice(items),)]
        for spec, value in zip(specs, values, strict=True)
    ]


def fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    """The only batch size that the model can run at, or None if the batch is free."""
    if any(BATCH in spec.shape for spec in specs) or not specs:
        return None
    leading = specs[0].shape[:1]
    return int(leading[0]) if leading else 1


def seeded_inputs(
    specs: Sequence[TensorSpec], batch: int, distinct: int | None = None, first: int = 0
) -> list[NDArray[Any]]:
    """Draw one C-contiguous array per input, of the items from `first` on.

    Item i holds the same values in every batch size and floating-point type.

    Floats are standard normal, bools 0 or 1, integers in their range, or what the input's `fill` or `data` says; items
    of `data` repeat. An input without a batch dimension is drawn as one item. Of a free batch item i is item i modulo
    `distinct`, if given: drawing 10,000 images takes half a minute. Raises ModelError for another than a fixed batch.
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
            array = _array(spec.data, spec.name)
            counts.append(len(array) if array.ndim == len(spec.shape) else 1)
        elif spec.fill in (None, "lengths"):
            return None
    return max(counts)


def seeded_item(spec: TensorSpec, shape: Sequence[int], index: int, item: int) -> NDArray[Any]:
    """An item of the input, which is the model's `index`th; `shape` is without the batch."""
    dtype, generator = numpy_dtype(spec.dtype), np.random.default_rng([SEED, index, item])
    if spec.data is not None:
        array = _array(spec.data, spec.name)
        found = array[item % len(array)] if array.ndim > len(shape) else array
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
    """Values along the last axis, as `fill` says."""
    positions = np.arange(shape[-1] if shape else 1).reshape(shape[-1:] if shape else ())
    if fill == "lengths":
        return positions < generator.integers(1, positions.size + 1)
    return {"positions": positions, "zeros": np.zeros_like(positions), "ones": np.ones_like(positions)}[fill]


def padding(specs: Sequence[TensorSpec], shape: Sequence[int]) -> NDArray[np.bool_]:
    """Which tokens of an output [items, tokens, ...] are padding: those that all masks (`fill: lengths`) leave out."""
    found = [
        np.stack([seeded_item(spec, shape[1:2], index, item) == 0 for item in range(shape[0])])
        for index, spec in enumerate(specs)
        if spec.fill == "lengths" and spec.batch_axis == 0 and spec.shape[1:] == tuple(shape[1:2])
    ]
    return np.logical_and.reduce(found) if found and len(shape) > 2 else np.zeros(shape[:2], bool)


def described(specs: Sequence[TensorSpec]) -> str:
    """The inputs in words, like "input x float32 [batch, 3, 224, 224]"."""
    inputs = [f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]" for spec in specs]
    return f"{'input' if len(inputs) == 1 else 'inputs'} {', '.join(inputs)}"


def how_seeded(specs: Sequence[TensorSpec]) -> str:
    """What the inputs hold, and what a user can do who needs other values, as part of a sentence."""
    held = [f"`{spec.name}` {_held(spec)}" for spec in specs if _held(spec)]
    others = "inputs are seeded with standard normal values" if len(held) < len(specs) else ""
    return f"{'; '.join(filter(None, [others, *held]))}; in a job `inputs` gives others (range, fill, data)"


def _held(spec: TensorSpec) -> str:
    """What it holds, where that is not drawn from a normal distribution."""
    if spec.data is not None:
        return f"holds what is in {spec.data.name}"
    if spec.fill is not None:
        return f"holds {spec.fill}"
    if spec.range is not None:
        return f"is drawn from {spec.range[0]} to below {spec.range[1]}"
    return "is 0 or 1" if spec.dtype == "bool" else ""


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401 -- Tells NumPy of it; onnx depends on it.
    return np.dtype(name)


def read_onnx(path: Path) -> onnx.ModelProto:
    """The file's graph, without data in other files. Raises ModelError for a missing file and for no ONNX model."""
    import onnx

    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if path.stat().st_size >= _MOST_BYTES:
        raise ModelError(f"{path}: larger than protobuf's limit of 2 GiB; save it with its weights in other files")
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
    values = (*model.graph.input, *model.graph.output)
    names = [dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim]
    names += [each.name for each in (*values, *model.graph.initializer)]
    if not all(isinstance(name, str) for name in names):  # protobuf gives bytes then, which no code expects.
        raise ModelError(f"{path}: damaged: a name in it is not UTF-8; {mend}")
    return model


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """What a caller gives the graph: files of IR version 3 list their initializers among the inputs."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def file_inputs(path: Path) -> list[onnx.ValueInfoProto]:
    """The same of a file. Raises ModelError where it cannot be read."""
    return graph_inputs(read_onnx(path).graph)


def graph_dtype(model: str, value: onnx.ValueInfoProto, path: Path) -> str:
    """The type of a graph's input. Raises ModelError for what is no tensor of numbers, and for a negative size."""
    import onnx

    tensor, types = value.type.tensor_type, onnx.TensorProto
    if tensor.elem_type not in set(types.DataType.values()) - {types.UNDEFINED, types.STRING}:
        raise ModelError(f"model {model!r}: input {value.name!r} of {path} is no tensor of numbers")
    if strange := [dim.dim_value for dim in tensor.shape.dim if dim.dim_value < -1]:  # -1 is free, of old exporters.
        raise ModelError(f"model {model!r}: input {value.name!r} of {path} has the size {strange[0]}; export it again")
    return str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def graph_specs(source: ModelSource, path: Path) -> list[TensorSpec]:
    """The inputs of a graph of the model: of the user's ONNX file or of an export, without what they hold. Raises
    ModelError for an unreadable file and for dimensions without a size."""
    inputs = file_inputs(path)
    shapes = symbolic_shapes(inputs)
    batches = batch_symbols(shapes)
    if source.onnx is not None:
        _check_dimensions(source, path, shapes, batches)
    dtypes = [graph_dtype(source.name, value, path) for value in inputs]
    known: dict[Any, int | str] = {**source.dimensions, **dict.fromkeys(batches, BATCH)}
    unnamed = {size for sizes in shapes.values() for size in sizes if isinstance(size, str) and size not in known}
    if names := sorted(unnamed):
        example = ", ".join(f"{name}: 128" if name.isidentifier() else f'"{name}": 128' for name in names)
        given = {name_of(each.place) for each in source.inputs}
        lacking = [each for each in zip(shapes, dtypes, strict=True) if is_integer(each[1]) and each[0] not in given]
        held = ", ".join(f"{name}: {{{some_values(name, dtype)}}}" for name, dtype in lacking)
        values = f"\n    inputs: {{{held}}}" if held else ""
        raise source.error(
            f"{path} has dimensions of no fixed size: {', '.join(names)}; "
            f"give their sizes{' and what integers hold' * bool(values)} next to `onnx`, for example:\n"
            f"    dimensions: {{{example}}}{values}"
        )
    return [
        TensorSpec(name, tuple(known.get(size, size) for size in sizes), dtype, named=_named(source, sizes))
        for (name, sizes), dtype in zip(shapes.items(), dtypes, strict=True)
    ]


def batch_symbols(shapes: Mapping[str, Sequence[int | str]]) -> set[str]:
    """What a graph calls its batch, by the shapes of its inputs: the leading dimension of the first, if it is symbolic,
    and then every leading dimension without a name; else "batch", as exports do. Empty where the batch is fixed."""
    first = next(iter(shapes.values()), ())
    if not first or isinstance(first[0], int):
        return {BATCH} if any(BATCH in shape for shape in shapes.values()) else set()
    return {first[0], *(f"{name}[0]" for name, shape in shapes.items() if f"{name}[0]" in shape[:1])}


def _check_dimensions(
    source: ModelSource, path: Path, shapes: Mapping[str, Sequence[int | str]], batches: Collection[str]
) -> None:
    """Raises ModelError for a size that `source.dimensions` gives to the batch, or that the graph has itself or lacks.
    `shapes` are the inputs', by name; `batches` what the graph calls the batch."""
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
        raise source.error(f"dimensions: {why}")


def symbolic_shapes(inputs: Iterable[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    """Sizes and symbols of a graph's inputs, by their names; a dimension without either is called "input[axis]"."""
    return {
        value.name: [
            int(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or f"{value.name}[{axis}]"
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        ]
        for value in inputs
    }
