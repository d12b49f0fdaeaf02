"""List libraries whose models can be named, as in timm:vit_base_patch16_224, without importing them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.errors import nearest, sentence
from exporters.named_files import is_file
from exporters.source import ModelError, ModelSource, TensorSpec

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Library:
    """A source of models by name.

    Its `module` has `build_PREFIX(name, options)`, which returns a torch.nn.Module, and `inputs_PREFIX(name, options)`,
    which returns `DeclaredInputs`. Both work offline, and may raise ModelError.
    """

    prefix: str
    """Also the name of this project's extra that installs it."""
    package: str
    """Package whose version is a part of the model's identity."""
    module: str
    folders: bool = False
    """Names may be local folders with a config.json and the model's weights."""
    steps: tuple[str, ...] = ()
    """Parts of its models to measure in place of the whole: a third argument of both functions."""


@dataclass(frozen=True)
class DeclaredInputs:
    """Inputs of a model, and the usual sizes of their named axes; a job's `dimensions` override them."""

    inputs: tuple[TensorSpec, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)


LIBRARIES = {
    row.prefix: row
    for row in (
        Library("timm", "timm", "exporters.libraries.image_models"),
        Library("torchvision", "torchvision", "exporters.libraries.image_models"),
        Library(
            "hf",
            "transformers",
            "exporters.libraries.transformers_models",
            folders=True,
            steps=("prefill", "decode", "encode"),
        ),
    )
}


def library_of(word: str) -> Library | None:
    """Return the library of a name such as timm:NAME, or None."""
    prefix, colon, name = word.partition(":")
    return LIBRARIES.get(prefix) if colon and name else None


def folder_of(word: str, base: Path | None = None) -> Path | None:
    """Return the local folder of a name such as hf:bert, relative to `base`, or None."""
    library, folder = library_of(word), (base or Path()) / word.partition(":")[2]
    return folder if library and library.folders and is_file(folder / "config.json") else None


def files_of(folder: Path) -> list[Path]:
    """List the files of a folder's model: configuration, weights and all files in an index of weights.

    Raises ModelError for an index that names files outside the folder; links may lead there, like Hugging Face's.
    """
    files = {folder / "config.json", *folder.glob("*.safetensors")}
    for index in folder.glob("*.safetensors.index.json"):
        try:
            named = {str(name) for name in json.loads(index.read_text())["weight_map"].values()}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ModelError(f"{index} is no index of weights: it has no weight_map of names and files") from None
        for name in named:
            shard = Path(os.path.normpath(folder / name))
            if not shard.is_relative_to(os.path.normpath(folder)):
                raise ModelError(f"{index} names {name}, which is outside its folder")
            if not shard.is_file():
                raise ModelError(f"{index} names {name}, and there is no such file")
            files.add(shard)
        files.add(index)
    if other := next((file for file in sorted(files) if not file.is_file()), None):
        raise ModelError(f"{other} is not a regular file")
    return sorted(files)


def model_entry(word: str, step: str | None = None) -> dict[str, str]:
    """Return a job's entry for a canonical network, a library's model (or a `step` of it), an .onnx file or
    package.module:function."""
    if library_of(word):
        name = Path(word.partition(":")[2]).name
        return {"name": f"{name}-{step}" if step else name, "network": word}
    if word.endswith(".onnx"):
        return {"name": Path(word).stem.replace(",", "-"), "onnx": word}
    if ":" in word:  # Two files may have a function of the same name.
        module, _, function = word.rpartition(":")
        return {"name": f"{module.rpartition('.')[2]}.{function}", "factory": word}
    return {"name": word}


def build_from_library(source: ModelSource) -> nn.Module:
    """Build the model with random weights from torch's current seed. Raises ModelError."""
    model: nn.Module = _call_library(source, "build")
    return model


def library_inputs(source: ModelSource) -> DeclaredInputs:
    """Return the inputs that the library declares for the model. Raises ModelError."""
    declared: DeclaredInputs = _call_library(source, "inputs")
    if not declared.inputs:
        raise source.error(
            f"the inputs of {source.factory} are not known; let a factory return (module, example_inputs)"
        )
    return declared


def _call_library(source: ModelSource, function: str) -> Any:
    assert source.library is not None
    library = LIBRARIES[source.library]
    name = (source.factory or "").partition(":")[2]
    if why := not_installed(library):
        raise source.error(f"{source.factory} {why}")
    try:
        call: Callable[..., Any] = getattr(importlib.import_module(library.module), f"{function}_{library.prefix}")
        return call(name, source.options, *([source.step] if source.step else []))
    except ModelError as error:
        raise source.error(f"{source.factory}: {error}") from error
    except Exception as error:
        raise source.error(f"{source.factory}: {library.package} raised {sentence(error)}") from error


def not_installed(library: Library) -> str | None:
    """Say how to install a missing library; None if it is installed."""
    if importlib.util.find_spec(library.package) is not None:
        return None
    return f"needs {library.package}, which is not installed: pip install {library.package}"


def similar(name: str, names: list[str], things: str = "models") -> str:
    """Suggest names of a library that were probably meant."""
    return nearest(name, names, f"it has {len(names)} {things}, such as {names[0]}", count=3)
