"""Read what a job says of a model's inputs: names or places, shapes, types, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporters.bounds import LARGEST

BATCH = "batch"
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "bool"),
    *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
)
FILLS = {
    "lengths": "ones for a drawn length, then zeros, along the last axis: a mask of padding",
    "positions": "0, 1, 2, … along the last axis",
    "zeros": "zeros",
    "ones": "ones",
}
_FARTHEST = 2**64
"""From 0: what the types of inputs hold, so that no range ends at infinity."""
KEYS = ("shape", "dtype", "range", "fill", "data")
Place = tuple[str | int, ...]
"""Where a value is in a call: keywords and keys are words, positions numbers; so of the outputs' parts."""


class InputMistake(ValueError):
    """Something in a job's `inputs` that cannot be used; `at` are the keys below `inputs` that it is about."""

    def __init__(self, message: str, at: Place = ()) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True)
class DeclaredInput:
    """One tensor of a model's call, as far as the job says what it is; what is None the model must know itself."""

    place: Place
    shape: tuple[int | str, ...] | None = None
    dtype: str | None = None
    range: tuple[float, float] | None = None
    """From the first number up to, but not including, the second."""
    fill: str | None = None
    data: Path | None = field(default=None)
    """A .npy file, or an .npz file that has an array of the input's name."""


def is_integer(dtype: str) -> bool:
    """Whether values of that type need a range: those of bool are 0 and 1 anyway."""
    return dtype.startswith(("int", "uint"))


def name_of(place: Place, count: int = 2, letter: str = "x") -> str:
    """What an input at that place is called, of a model with `count` of them: "input_ids", "x0", "x0.1.image"; the only
    one is "x" if it is given by position. So are outputs, with another letter."""
    first, *rest = place or (letter,)
    own = letter if count == 1 else f"{letter}{first}"
    return ".".join([first if isinstance(first, str) else own, *map(str, rest)])


def some_values(name: str, dtype: str) -> str:
    """An example of what says what an integer input holds, for errors."""
    largest = {"int8": 128, "uint8": 256}.get(dtype, 1000)
    return "fill: lengths" if "mask" in name else f"range: [0, {largest}]"


def no_values(name: str, dtype: str) -> str:
    """The error of an integer input of which nothing says what it holds."""
    example = f"inputs: {{{name}: {{{some_values(name, dtype)}}}}}"
    return (
        f"input {name!r} is {dtype}, and nothing says which values it may have: give `{example}`, where a range goes "
        f"up to, but not including, its second number; or one of fill: {', '.join(FILLS)}; or data: a .npy or .npz file"
    )


def declared_inputs(data: Any, folder: Path | None = None) -> tuple[DeclaredInput, ...]:
    """The tensors that a job's `inputs` describe, in their order. Files are relative to `folder`.

    A mapping is of keyword arguments, a list of positional ones; each is a tensor's description, or a list or a mapping
    of such again. The name of an .npz file stands for all of its arrays, as keyword arguments. Raises InputMistake.
    """
    base = folder or Path.cwd()
    if isinstance(data, str | Path):
        path = base / data
        return tuple(DeclaredInput((name,), data=path) for name in arrays_of(path))
    if not isinstance(data, Mapping | list | tuple) or not data:
        raise InputMistake(
            "must be the inputs by name, such as {input_ids: {shape: [batch, 128], dtype: int64, range: [0, 1000]}}, "
            "or a list of them by position"
        )
    return tuple(each for key, part in _parts(data) for each in _tensors(part, (key,), base))


def arrays_of(path: Path) -> list[str]:
    """The names of an .npz file's arrays; of a .npy file one without a name. Raises InputMistake."""
    import numpy as np

    try:
        if not path.is_file():
            raise InputMistake(f"there is no file {path}; paths are relative to the YAML")
        content = np.load(path, mmap_mode="r")
        return list(content.files) if hasattr(content, "files") else [""]
    except InputMistake:
        raise
    except Exception as error:  # Whatever the file holds.
        raise InputMistake(f"{path} holds no arrays ({error}); save them by numpy.savez") from None


def _tensors(data: Any, place: Place, folder: Path) -> Iterator[DeclaredInput]:
    if isinstance(data, Mapping) and data and all(key in KEYS for key in data):
        yield _tensor(data, place, folder)
        return
    if isinstance(data, list | tuple) and data and all(isinstance(size, int) for size in data):
        raise InputMistake(f"a shape goes under a key: {{shape: {[BATCH, *data]}}}", place)
    if not isinstance(data, Mapping | list | tuple) or not data:
        raise InputMistake("must be a tensor, such as {shape: [batch, 3, 224, 224]}", place)
    if isinstance(data, Mapping) and (known := [key for key in data if key in KEYS]):
        strange = next(key for key in data if key not in KEYS)
        raise InputMistake(f"unknown key '{strange}' next to '{known[0]}'; valid: {', '.join(KEYS)}", place)
    for key, part in _parts(data):
        yield from _tensors(part, (*place, key), folder)


def _parts(data: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str | int, Any]]:
    if not isinstance(data, Mapping):
        return enumerate(data)
    return ((str(key), part) for key, part in data.items())


def _tensor(data: Mapping[str, Any], place: Place, folder: Path) -> DeclaredInput:
    shape, dtype, span, fill = (data.get(key) for key in ("shape", "dtype", "range", "fill"))
    if shape is not None and not (isinstance(shape, list | tuple) and all(map(_is_size, shape))):
        what = "must be sizes and names of sizes, such as [batch, 128]"
        raise InputMistake(f"{what}, got {shape}", (*place, "shape"))
    if dtype is not None and dtype not in DTYPES:
        raise InputMistake(f"unknown type '{dtype}'; valid: {', '.join(DTYPES)}", (*place, "dtype"))
    if fill is not None and fill not in FILLS:
        raise InputMistake(f"unknown fill '{fill}'; valid: {', '.join(FILLS)}", (*place, "fill"))
    if span is not None and not _is_range(span):
        what = "must be two numbers, the first and the one after the last, such as [0, 30522]"
        raise InputMistake(f"{what}, got {span}", (*place, "range"))
    if len(given := [key for key in ("range", "fill", "data") if data.get(key) is not None]) > 1:
        raise InputMistake(f"{' and '.join(given)} each say what the input holds; give one", place)
    path = None if data.get("data") is None else folder / str(data["data"])
    if path is not None:
        try:
            names = arrays_of(path)
        except InputMistake as error:
            raise InputMistake(str(error), (*place, "data")) from None
        if names != [""] and name_of(place) not in names:
            raise InputMistake(f"{path} has no array {name_of(place)!r}; it has {', '.join(names)}", (*place, "data"))
    return DeclaredInput(
        place, None if shape is None else tuple(shape), dtype, None if span is None else tuple(span), fill, path
    )


def _is_size(size: object) -> bool:
    return (type(size) is int and 0 < size <= LARGEST) or (isinstance(size, str) and size.isidentifier())


def _is_range(span: object) -> bool:
    numbers = isinstance(span, list | tuple) and len(span) == 2 and all(type(n) in (int, float) for n in span)
    return numbers and -_FARTHEST <= span[0] < span[1] <= _FARTHEST  # type: ignore[index]


def symbols(declared: Sequence[DeclaredInput]) -> list[str]:
    """The names of sizes in the shapes, the batch's left out."""
    sizes = (size for each in declared for size in each.shape or ())
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str) and size != BATCH))
