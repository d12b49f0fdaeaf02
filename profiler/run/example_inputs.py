"""Make a job's entry of a model that is given by a name, in Python or on the command line, and of its inputs: words,
shapes, tensors and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

from exporters.declared_inputs import BATCH, name_of
from exporters.libraries.catalog import model_entry
from exporters.source import ModelError
from profiler.errors import ConfigError, nearest

DATA = "inputs.npz"
"""The file of the examples' integers, in the folder of what a run measures."""
_VALUES = ("range", "fill", "data")


@dataclass(frozen=True)
class Example:
    """One input: the shape of an item, and of an example how many items it has and numpy's name of their type.

    On the command line shape and type may be left out, where the model knows them."""

    item: tuple[int | str, ...] | None
    batch: int | None = None
    dtype: str = "float32"
    values: Any = field(default=None, compare=False, repr=False)
    """The example itself."""
    held: Mapping[str, Any] = field(default_factory=dict)
    """What a job says that it holds: a range, a fill or data."""

    @property
    def is_plain(self) -> bool:
        """Whether a job says it by `input`: floats, and nothing of what they hold."""
        return (not self.dtype or self.dtype.startswith("float")) and not self.held


Inputs = Mapping[str | int, Example]


def examples(inputs: Any) -> dict[str | int, Example]:
    """The inputs by name, or by position, from a shape, an example, or several of them. Raises ConfigError."""
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        return {str(name): _example(value) for name, value in inputs.items()}
    several = isinstance(inputs, tuple | list) and inputs and not isinstance(inputs[0], Integral)
    return dict(enumerate(map(_example, inputs if several else [inputs])))


def _example(value: Any) -> Example:
    if isinstance(value, tuple | list) and value and all(isinstance(size, Integral) for size in value):
        return Example(tuple(map(int, value)))
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise ConfigError(
            "inputs: expected the shape of one item, such as (3, 224, 224), or a tensor or an array whose first "
            f"dimension is the batch, got {type(value).__name__}"
        )
    shape = tuple(map(int, value.shape))
    if not shape or 0 in shape:
        raise ConfigError(f"inputs: the first dimension of an example is the batch, and this one has the shape {shape}")
    return Example(shape[1:], shape[0], str(value.dtype).removeprefix("torch."), value)


def declared(given: Mapping[str | int, Example], names: Sequence[str], folder: Path) -> dict[str, Any] | list[Any]:
    """A job's `inputs` with the shapes and types of the examples: by keyword, or in the order of positions.

    Of integers and bools, which cannot be drawn without knowing what they mean, the examples' values are saved into
    `folder`, under `names`, and measured; floats are seeded.
    """
    import numpy as np

    arrays, tensors = {}, []
    for name, example in zip(names, given.values(), strict=True):
        tensor: dict[str, Any] = {} if example.item is None else {"shape": [BATCH, *example.item]}
        tensor |= ({"dtype": example.dtype} if example.dtype else {}) | dict(example.held)
        if example.values is not None and not example.dtype.startswith(("float", "bfloat")):
            arrays[name] = np.asarray(getattr(example.values, "cpu", lambda e=example: e.values)())
            tensor["data"] = str(folder / DATA)
        tensors.append(tensor)
    if arrays:
        folder.mkdir(exist_ok=True)
        np.savez(folder / DATA, **arrays)  # type: ignore[arg-type]
    return tensors if 0 in given else {str(key): tensor for key, tensor in zip(given, tensors, strict=True)}


def named_entry(word: str | Path, given: Inputs, folder: Path, option: str = "inputs") -> dict[str, Any]:
    """The entry of an .onnx file, a function's name "package.module:function", a network or a library's model.

    Examples' integers are saved into `folder`. `option` is how `given` was given, for errors, which are ConfigErrors.
    """
    if str(word).endswith(".onnx"):
        path = Path(word).resolve()
        if not path.is_file():
            there = sorted(each.name for each in path.parent.glob("*.onnx"))
            raise ConfigError(f"there is no file {word}{nearest(path.name, there, 'give its path')}")
        return {"name": path.stem, "onnx": path, **_taken_by_graph(path, given, folder, option)}
    named: dict[str, Any] = dict(model_entry(str(word)))
    if "factory" not in named:
        named = {"network": str(word), **named}
        if not given:
            return named
    return named | taken_by_module(given, folder)


def taken_by_module(given: Inputs, folder: Path) -> dict[str, Any]:
    """A job's keys for the inputs of a torch module. Raises ConfigError where there is none."""
    if not given:
        raise ConfigError(
            "inputs: give the shape of one item, such as (3, 224, 224), or an example: torch.randn(8, 3, 224, 224)"
        )
    if list(given) == [0] and given[0].is_plain:
        return {"input": given[0].item}
    names = [name_of((key,), len(given)) for key in given]
    return {"inputs": declared(given, names, folder)}


def _taken_by_graph(path: Path, given: Inputs, folder: Path, option: str) -> dict[str, Any]:
    """A job's keys for an ONNX file's inputs: the sizes that its symbolic dimensions have in the examples, and what
    those hold. Raises ConfigError where one does not fit."""
    if not given:
        return {}
    from exporters.inputs import batch_symbols, file_inputs, symbolic_shapes

    try:
        known = symbolic_shapes(file_inputs(path))
    except ModelError as error:
        raise ConfigError(str(error)) from None
    by_name = zip(known, given.values(), strict=False) if 0 in given else given.items()
    named = {str(name): example for name, example in by_name}
    if len(named) != len(given) or (0 in given and len(given) != len(known)) or not set(named) <= set(known):
        raise ConfigError(f"{option}: {path.name} has the inputs {', '.join(known)}: give an example of each, or none")
    batches = batch_symbols(known)
    sizes: dict[str, int] = {}
    for name, example in named.items():
        if example.item is None:
            continue
        symbols, item = known[name], example.item
        shape = (example.batch, *item) if example.batch else (*symbols[:1], *item)
        fits = len(shape) == len(symbols)
        for symbol, size in zip(symbols, shape, strict=False):
            if isinstance(symbol, int):
                fits &= symbol == size
            elif symbol not in batches and isinstance(size, int):
                fits &= sizes.setdefault(symbol, size) == size
        if not fits:
            own = ", ".join(map(str, symbols))
            raise ConfigError(f"{option}: {name} of {path.name} has the shape ({own}), which {shape} does not fit")
    tensors: Any = declared(dict(enumerate(named.values())), list(named), folder)
    values = [{key: tensor[key] for key in _VALUES if key in tensor} for tensor in tensors]
    held = {name: each for name, each in zip(named, values, strict=True) if each}
    return {"dimensions": sizes, **({"inputs": held} if held else {})}
