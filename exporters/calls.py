"""Call a module with its inputs, and name the tensors that it returns."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from exporters.declared_inputs import Place, name_of
from exporters.distance import Array
from exporters.errors import nearest
from exporters.inputs import TensorSpec, arguments
from exporters.source import ModelError


def call(model: Any, specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> Any:
    """What the module, or what has been compiled of it, returns for the tensors, each at its place."""
    positional, keywords = arguments(specs, tensors)
    return model(*positional, **keywords)


def typed(arrays: Iterable[Array], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tensors of the arrays, floats in the type."""
    tensors = map(torch.from_numpy, arrays)
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def named_outputs(result: Any) -> dict[str, Tensor]:
    """The tensors in what a module returned, in its order: a tensor is "y", a tuple's are "y0", "y1", a dict's or a
    dataclass's go by their keys, nested ones have a dot between. What is no tensor (None, a cache) is left out."""
    return {name_of(place, letter="y"): tensor for place, tensor in tensors_in(result)}


def tensors_in(result: Any, place: Place = ()) -> Iterator[tuple[Place, Tensor]]:
    """The tensors in nested lists, mappings and dataclasses, with their places."""
    if isinstance(result, Tensor):
        yield place, result
        return
    parts: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(result, Mapping):
        parts = ((str(key), part) for key, part in result.items())
    elif hasattr(result, "_fields"):
        parts = zip(result._fields, result, strict=True)
    elif isinstance(result, list | tuple):
        parts = enumerate(result)
    elif dataclasses.is_dataclass(result):
        parts = ((part.name, getattr(result, part.name)) for part in dataclasses.fields(result))
    for key, part in parts:
        yield from tensors_in(part, (*place, key))


def chosen(requested: Sequence[str | int], names: Collection[str]) -> list[int]:
    """The places of the requested outputs among the names, in that order; of all of them where none is requested. A
    dict's name stands for all that is in it. Raises ModelError for one that there is not."""
    known = list(names)
    places: list[int] = []
    for each in requested:
        if isinstance(each, int):
            found = [each] if 0 <= each < len(known) else []
        else:
            found = [place for place, name in enumerate(known) if name == each or name.startswith(f"{each}.")]
        if not found:
            there = f"; there are {len(known)}" if isinstance(each, int) else nearest(each, known)
            raise ModelError(f"outputs: the model has no output {each!r}{there}")
        places += found
    return places if requested else list(range(len(known)))


def trained_output(result: Any, requested: Sequence[str | int] = ()) -> Tensor:
    """The output from which the backward pass starts: the first, or the first requested. Raises ModelError where
    that one is not of floats, with what to write."""
    outputs = named_outputs(result)
    if not outputs:
        raise ModelError(f"the model returned {type(result).__qualname__}, in which there is no tensor; return tensors")
    place = chosen(requested, outputs)[0]
    name, tensor = list(outputs.items())[place]
    if not tensor.is_floating_point():
        floats = [each for each, value in outputs.items() if value.is_floating_point()]
        mend = f"write `outputs: [{floats[0]}]`" if floats else "no output is of floats"
        raise ModelError(f"training starts from output {name!r}, which is {tensor.dtype}: {mend}")
    return tensor


@contextlib.contextmanager
def flattened(model: nn.Module, specs: Sequence[TensorSpec]) -> Iterator[list[str]]:
    """Inside, the module takes its inputs by position and returns a tuple of tensors, as exporters want it.

    Yields a list that has the outputs' names once the module has run. Parameters keep their names, since it is only
    `forward` that is another function.
    """
    original, own, names = model.forward, vars(model).get("forward"), list[str]()

    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = named_outputs(call(original, specs, tensors))
        names[:] = outputs
        return tuple(outputs.values())

    model.forward = forward
    try:
        yield names
    finally:
        del model.forward  # The class has one.
        if own is not None:
            model.forward = own
