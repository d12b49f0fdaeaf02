"""Make a job's entry of a model that is given by a name and some inputs, in Python or on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporters.declared_inputs import name_of
from exporters.libraries.catalog import model_entry
from exporters.source import ModelError
from profiler.errors import ConfigError, nearest
from profiler.run.example_inputs import Example, declared, onnx_dimensions

_VALUES = ("range", "fill", "data")
Inputs = Mapping[str | int, Example]


def named_entry(word: str | Path, given: Inputs, folder: Path, option: str = "inputs") -> dict[str, Any]:
    """The entry of an .onnx file, a function's name "package.module:function", a network or a library's model.

    Examples' integers are saved into `folder`. `option` is how `given` was given, for errors, which are ConfigErrors.
    """
    if str(word).endswith(".onnx"):
        path = Path(word).resolve()
        if not path.is_file():
            there = sorted(each.name for each in path.parent.glob("*.onnx"))
            raise ConfigError(f"there is no file {word}{nearest(path.name, there, 'give its path')}")
        entry = {"name": path.stem, "onnx": path, "dimensions": onnx_dimensions(path, given, option)}
        return entry | _held(path, given, folder)
    named: dict[str, Any] = dict(model_entry(str(word)))
    if "factory" in named:
        return {**named, **taken_by_module(given, folder)}
    if not given or (list(given) == [0] and given[0].is_plain):
        first = next(iter(given.values()), Example(None))
        return {"network": str(word), **named, "input": first.item}
    return {"network": str(word), **named, **taken_by_module(given, folder)}


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


def _held(path: Path, given: Inputs, folder: Path) -> dict[str, Any]:
    """A job's `inputs` for an ONNX file: what they hold."""
    from exporters.inputs import graph_inputs, read_onnx

    if not given:
        return {}
    try:
        names = [value.name for value in graph_inputs(read_onnx(path).graph)] if 0 in given else list(map(str, given))
    except ModelError as error:
        raise ConfigError(str(error)) from None
    tensors = declared(dict(zip(names, given.values(), strict=True)), names, folder)
    assert isinstance(tensors, dict)
    held = {name: {key: tensor[key] for key in _VALUES if key in tensor} for name, tensor in tensors.items()}
    known = {name: values for name, values in held.items() if values}
    return {"inputs": known} if known else {}
