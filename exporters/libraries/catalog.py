"""List the libraries that models are taken from by name, and read such names; imports none of them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.declared_inputs import DeclaredInput
from exporters.errors import message, nearest, sentence
from exporters.source import ModelError, ModelSource

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Library:
    """A source of models by name.

    `module` offers `build(name, options)`, which returns a torch.nn.Module with random weights (or a local folder's),
    and `inputs(name, options)`, which returns a `Known`. Both work offline, and may raise ModelError.
    """

    prefix: str
    """Also the extra of this project that installs it."""
    package: str
    """What is imported, whose version is a part of the model's identity."""
    module: str
    folders: bool = False
    """Whether a name may be that of a local folder with a config.json, which has the model's weights."""
    steps: tuple[str, ...] = ()
    """Parts of its models that can be measured in place of the whole, which both functions take as a third argument."""


@dataclass(frozen=True)
class Known:
    """What a library's model takes, and the sizes that are usual where a job's `dimensions` give no other."""

    inputs: tuple[DeclaredInput, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    """The largest size that the model takes, where it is known."""


LIBRARIES = {
    row.prefix: row
    for row in (
        Library("timm", "timm", "exporters.libraries.timm_models"),
        Library("torchvision", "torchvision", "exporters.libraries.torchvision_models"),
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
    """The library that a name such as timm:NAME is of; None of any other name."""
    prefix, colon, name = word.partition(":")
    return LIBRARIES.get(prefix) if colon and name else None


def folder_of(word: str, base: Path | None = None) -> Path | None:
    """The local folder that a library's name such as hf:bert stands for, relative to `base`; None of any other name."""
    library, folder = library_of(word), (base or Path()) / word.partition(":")[2]
    return folder if library and library.folders and (folder / "config.json").is_file() else None


def model_entry(word: str, step: str | None = None) -> dict[str, str]:
    """The entry of a job's `models` that a single word stands for: a canonical network, a library's model or a `step`
    of it, an .onnx file or package.module:function. What is wrong with it the job's own checks say."""
    if library_of(word):
        name = Path(word.partition(":")[2]).name
        return {"name": name, "network": word} if step is None else {"name": f"{name}-{step}", "network": word}
    if word.endswith(".onnx"):
        return {"name": Path(word).stem, "onnx": word}
    if ":" in word:  # With the module, since functions of several files are called alike.
        module, _, function = word.rpartition(":")
        return {"name": f"{module.rpartition('.')[2]}.{function}", "factory": word}
    return {"name": word}


def build_from_library(source: ModelSource) -> nn.Module:
    """The model with random weights, of torch's current seed. Raises ModelError."""
    model: nn.Module = _asked(source, "build")
    return model


def known_inputs(source: ModelSource) -> Known:
    """What the model takes by itself. Raises ModelError."""
    known: Known = _asked(source, "inputs")
    return known


def _asked(source: ModelSource, function: str) -> Any:
    assert source.library is not None
    library = LIBRARIES[source.library]
    name = (source.factory or "").partition(":")[2]
    if why := not_installed(library):
        raise source.error(f"{source.factory} {why}")
    try:
        call: Callable[..., Any] = getattr(importlib.import_module(library.module), function)
        return call(name, source.options, *([source.step] if source.step else []))
    except ModelError as error:
        raise source.error(f"{source.factory}: {error}") from error
    except Exception as error:
        # What torchvision's import says where its compiled operators do not load (0.28).
        unfit = "operator torchvision::" in message(error)
        hint = "; this torchvision was built for another torch: install the two from one place" if unfit else ""
        raise source.error(f"{source.factory}: {library.package} raised {sentence(error)}{hint}") from error


def not_installed(library: Library) -> str | None:
    """What a model of the library needs and how to install it; None where it is there."""
    if importlib.util.find_spec(library.package) is not None:
        return None
    return f"needs {library.package}, which is not installed: pip install 'runtime-profiler[{library.prefix}]'"


def similar(name: str, names: list[str], what: str = "models") -> str:
    """A hint at the names of a library, or of `what` else there is, that were probably meant."""
    return nearest(name, names, f"it has {len(names)} {what}, {names[0]} for one", count=3)
