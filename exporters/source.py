"""Say where a model comes from and what it is: `ModelSource` and `Identity`, which need no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from exporters.errors import sentence

if TYPE_CHECKING:
    from exporters.catalog import Layer
    from exporters.inputs import DeclaredInput, TensorSpec

WEIGHTS = (".pt", ".pth", ".safetensors")
"""Suffixes of PyTorch's files of weights."""
Kind = Literal["canonical", "factory", "onnx", "layer"]
_CHANGES = {
    "files": "its ONNX file, or the data next to that",
    "graphs": "its ONNX files for single precisions",
    "weights": "its weights file",
    "weights in the file": "which weights of their file are read",
    "code": "its source code",
    "state": "its parameters or buffers",
    "options": "its options",
    "step": "its step",
    "inputs": "its inputs: their shapes, or what they hold",
}
"""Names of an identity's parts; any other part is where the model comes from."""
_ORIGIN = "where it comes from"
MAY_COMPUTE_THE_SAME = (_CHANGES["code"], _ORIGIN)
"""Beginnings of the changes after which the network may still be the same."""
TRAINING_MODE = "in training mode (inference is measured in eval mode)"


@dataclass(frozen=True)
class Identity:
    """Everything that determines a model and its weights, as JSON holds it; two that agree are one network."""

    parts: dict[str, Any]
    remarks: tuple[str, ...] = ()
    """Sentences that a user should read about the model."""

    @property
    def key(self) -> str:
        return digest(self.parts)

    def changes(self, now: Identity) -> list[str]:
        """Name what differs between this and the same model now; torch's version is no part of the network."""
        before, after = (json.loads(_json(each.parts)) for each in (self, now))
        names = [name for name in dict.fromkeys([*before, *after]) if name != "torch"]
        differing = [name for name in names if before.get(name) != after.get(name)]
        return list(dict.fromkeys(_change(name, before.get(name), after.get(name)) for name in differing))


def _change(name: str, before: object, now: object) -> str:
    what = _CHANGES.get(name, _ORIGIN)
    if not isinstance(before, dict) or not isinstance(now, dict):
        return what
    return f"{what} ({', '.join(key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key))})"


def digest(parts: Any) -> str:
    """Return the sha256, in hexadecimal, of the parts as JSON."""
    return hashlib.sha256(_json(parts).encode()).hexdigest()


def _json(parts: Any) -> str:
    return json.dumps(parts, sort_keys=True, default=repr)


@dataclass(frozen=True)
class ModelSource:
    """A canonical network of `exporters.catalog`, a user's `factory` ("package.module:function"), a `library`'s model,
    a user's ONNX file, or a single layer."""

    name: str
    factory: str | None = None
    library: str | None = None
    """Row of exporters/libraries, where `factory` is a library's model such as "hf:BertModel"."""
    step: str | None = None
    """Part of a library's model that is measured in place of the whole, such as "decode"."""
    onnx: Path | None = None
    graphs: dict[str, Path] = field(default_factory=dict)
    """User's .onnx files by precision; next to a torch module "fp32" is the graph from which others are made."""
    weights: Path | None = None
    """A .safetensors or .pt state dict; None means seeded weights (canonical) or the factory's own."""
    key: str | None = None
    """Key of the state dict in a checkpoint."""
    prefix: str = ""
    """Beginning of the state dict's keys that the model lacks, such as DataParallel's "module."."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one item of a factory's only input, without the batch."""
    inputs: tuple[DeclaredInput, ...] = ()
    """Inputs as a job declares them; for an ONNX file what they hold."""
    outputs: tuple[str | int, ...] = ()
    """Names or places of the compared outputs; training takes the first. Empty means all."""
    dimensions: dict[str, int] = field(default_factory=dict)
    """Sizes of named dimensions other than the batch."""
    varied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Least and largest size of each dimension that a job measures at several sizes: one graph is exported for all."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the architecture or of the factory."""
    calibration: Path | None = None
    """A folder of .npy files with inputs, for int8's ranges; None means seeded inputs."""
    layer: Layer | None = None
    network: str | None = None
    """The canonical network's name in the catalog, where `name` is another."""
    identity: Identity | None = None
    """The model's identity, once it was looked at: every stage of a run then uses the same key."""
    specs: tuple[TensorSpec, ...] | None = field(default=None, compare=False, repr=False)
    """The inputs, once they are known."""

    @property
    def kind(self) -> Kind:
        if self.layer is not None:
            return "layer"
        if self.onnx is not None:
            return "onnx"
        return "factory" if self.factory is not None else "canonical"

    @property
    def asks_code(self) -> bool:
        """Tell whether only a library or the factory knows the inputs, so that finding them imports torch."""
        return self.factory is not None and (self.library is not None or not (self.inputs or self.input_shape))

    @property
    def shape(self) -> dict[str, int]:
        """Sizes of the dimensions that the job varies."""
        return {name: self.dimensions[name] for name in self.varied}

    @property
    def subject(self) -> str:
        """The model, or the model at a shape, like "bert/sequence=128"."""
        return "/".join([self.name, *shape_words(self.shape)])

    @property
    def own_graph(self) -> Path | None:
        """The user's .onnx file at fp32, or as it is; None of a model whose graphs are exported."""
        return self.onnx or self.graphs.get("fp32")

    @property
    def catalog_name(self) -> str | None:
        """The canonical network's name in the catalog; None of another model."""
        return (self.network or self.name) if self.kind == "canonical" else None

    def error(self, text: str) -> ModelError:
        return ModelError(f"model {self.name!r}: {text}")

    @contextlib.contextmanager
    def failing(self, step: str, mend: str) -> Iterator[None]:
        """Raise what fails in a step as a ModelError that says how to mend it."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            raise self.error(f"{step} failed: {sentence(error)}; {mend}") from error


def shape_words(shape: Mapping[str, int]) -> list[str]:
    """Return words like ["height=224", "width=224"], as ids have them."""
    return [f"{name}={size}" for name, size in shape.items()]


class ModelError(Exception):
    """A model that cannot be had: the message says what is wrong, where, and how to mend it."""
