"""Define a model's origin, `ModelSource`, and its `Identity`, without torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from exporters.errors import ConfigError, sentence

if TYPE_CHECKING:
    from exporters.catalog import Conv2d
    from exporters.inputs import TensorSpec

WEIGHTS = (".pt", ".pth", ".safetensors")
"""Suffixes of PyTorch's files of weights."""
Kind = Literal["canonical", "factory", "onnx", "layer"]
COMPUTED = ("files", "graphs", "weights", "state", "options", "step", "inputs")
"""Beginnings of an identity's changes after which the network computes something else."""


@dataclass(frozen=True)
class Identity:
    """Everything that determines a model and its weights, as JSON holds it; two that agree are one network."""

    parts: dict[str, Any]

    @property
    def key(self) -> str:
        return digest(self.parts)

    def changes(self, now: Identity) -> list[str]:
        """Name the parts that differ in the same model now; torch's version is no part of the network."""
        before, after = (json.loads(_json(identity.parts)) for identity in (self, now))
        changed = []
        for name in dict.fromkeys([*before, *after]):
            old, new = before.get(name), after.get(name)
            if name != "torch" and old != new:
                both = isinstance(old, dict) and isinstance(new, dict)
                keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)] if both else []
                changed.append(f"{name} ({', '.join(keys)})" if keys else name)
        return changed


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
    """User's .onnx files by precision; next to a torch module, others are made from "fp32"."""
    weights: Path | None = None
    """A .safetensors or .pt state dict; None means seeded weights (canonical) or the factory's own."""
    key: str | None = None
    """Key of the state dict in a checkpoint."""
    prefix: str = ""
    """Beginning of the state dict's keys that the model lacks, such as DataParallel's "module."."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one item of a factory's only input, without the batch."""
    inputs: dict[str, tuple[float, float] | Path] = field(default_factory=dict)
    """Values of an ONNX file's inputs: a range, its end excluded, or a .npy file."""
    outputs: tuple[str, ...] = ()
    """Names of the compared outputs; training takes the first. Empty means all."""
    dimensions: dict[str, int] = field(default_factory=dict)
    """Sizes of named dimensions other than the batch."""
    batch: dict[str, int | None] = field(default_factory=dict)
    """Axis of the items by input, where it is not the first; None for an input that all items share."""
    varied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Least and largest size of each dimension that a job measures at several sizes: one graph is exported for all."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the architecture or of the factory."""
    calibration: Path | None = None
    """A folder of .npy files with inputs, for int8's ranges; None means seeded inputs."""
    layer: Conv2d | None = None
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
        return self.factory is not None and (self.library is not None or self.input_shape is None)

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
        """The user's .onnx file at fp32, or as given; None for models whose graphs are exported."""
        return self.onnx or self.graphs.get("fp32")

    @property
    def catalog_name(self) -> str | None:
        """The canonical network's name in the catalog; None for other models."""
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


class ModelError(ConfigError):
    """A model that cannot be used: the message says why, where, and how to fix it."""
