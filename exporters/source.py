"""Define a model's origin, `ModelSource`, its `Identity` and its inputs, without torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from exporters.catalog import CATALOG, Architecture, Conv2d
from exporters.errors import ConfigError, nearest, sentence

BATCH = "batch"
WEIGHTS = (".pt", ".pth", ".safetensors")
"""Suffixes of PyTorch's files of weights."""
Kind = Literal["canonical", "factory", "onnx", "layer"]
COMPUTED = ("files", "graphs", "weights", "state", "options", "step", "inputs")
"""Prefixes of `Identity.changes` after which the network computes something else."""


@dataclass(frozen=True)
class Identity:
    """Everything that determines a model and its weights, as JSON holds it; equal identities are one network."""

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
class NamedAxis:
    """An axis that a job measures at several sizes."""

    axis: int
    name: str
    smallest: int
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
    """Range of values, the end excluded."""
    is_mask: bool = False
    """Mark a mask of padding: ones up to a drawn length, then zeros."""
    data: str = ""
    """The sha256 of real values in the cache; their items repeat."""
    fixed_axis: int | None = 0
    """Axis of the items if the batch is fixed; None for an input that all items share."""
    named: tuple[NamedAxis, ...] = field(default=(), repr=False)
    """Axes whose sizes differ between cases; an export leaves them free."""

    @property
    def free_axes(self) -> dict[int, str]:
        """Names of the axes that an export leaves free: the batch, and axes that the job varies."""
        batch = {} if self.batch_axis is None else {self.batch_axis: BATCH}
        return batch | {named_axis.axis: named_axis.name for named_axis in self.named}

    @property
    def batch_axis(self) -> int | None:
        """Axis of the items; None if the batch is fixed."""
        return self.shape.index(BATCH) if BATCH in self.shape else None

    def at(self, batch: int) -> tuple[int, ...]:
        """Return the shape at a batch size."""
        return tuple(batch if size == BATCH else int(size) for size in self.shape)

    def end(self, batch: int, largest: bool) -> tuple[int, ...]:
        """Return the shape at a batch size with every named axis at its smallest, or largest, size."""
        ends = {named_axis.axis: named_axis.largest if largest else named_axis.smallest for named_axis in self.named}
        return tuple(ends.get(axis, size) for axis, size in enumerate(self.at(batch)))


@dataclass(frozen=True)
class ModelSource:
    """A canonical network of `exporters.catalog`, a user's `factory` ("package.module:function"), a `library`'s model,
    a user's ONNX file, or a single layer."""

    name: str
    factory: str | None = None
    library: str | None = None
    """Key of LIBRARIES in exporters/libraries, if `factory` is a library's model such as "hf:BertModel"."""
    step: str | None = None
    """Part of a library's model to measure in place of the whole, such as "decode"."""
    onnx: Path | None = None
    graphs: dict[str, Path] = field(default_factory=dict)
    """User's .onnx files by precision; next to a torch module, others are made from "fp32"."""
    weights: Path | None = None
    """A .safetensors or .pt state dict; None means seeded weights (canonical) or the factory's own."""
    key: str | None = None
    """Key of the state dict in a checkpoint."""
    prefix: str = ""
    """Prefix to strip from the state dict's keys, such as DataParallel's "module."."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one item of a factory's only input, without the batch."""
    inputs: dict[str, tuple[float, float] | Path] = field(default_factory=dict)
    """Values of an ONNX file's inputs: a range, its end excluded, or a .npy file."""
    outputs: tuple[str, ...] = ()
    """Names of the compared outputs; training takes the first. Empty means all."""
    dimensions: dict[str, int] = field(default_factory=dict)
    """Sizes of named dimensions other than the batch."""
    batch: dict[str, int | None] = field(default_factory=dict)
    """Axis of the items by input, if it is not the first; None for an input that all items share."""
    varied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest size of every dimension that a job measures at several sizes: one export serves all."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the architecture or of the factory."""
    calibration: Path | None = None
    """A folder of .npy files with inputs, for int8's ranges; None means items of `data`, or seeded inputs."""
    data: str | None = None
    """The user's items: a .npz file, a folder of images, or "package.module:function"."""
    metric: str | None = None
    """Score of the outputs: a word of METRICS (profiler/worker/accuracy.py), or "package.module:function"."""
    layer: Conv2d | None = None
    network: str | None = None
    """The canonical network's name in the catalog, if `name` is another."""
    identity: Identity | None = None
    """The model's identity, computed once: every stage of a run then uses the same key."""
    specs: tuple[TensorSpec, ...] | None = field(default=None, compare=False, repr=False)
    """The inputs, computed once."""
    labels: str = field(default="", compare=False)
    """Key of the data's labels in the cache, computed with the inputs."""

    @property
    def kind(self) -> Kind:
        if self.layer is not None:
            return "layer"
        if self.onnx is not None:
            return "onnx"
        return "factory" if self.factory is not None else "canonical"

    @property
    def asks_code(self) -> bool:
        """True if only a library or the factory knows the inputs, so that finding them imports torch."""
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
        """Raise a step's errors as ModelError with the remedy."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            raise self.error(f"{step} failed: {sentence(error)}; {mend}") from error


def network_of(source: ModelSource) -> Architecture | None:
    """Return a canonical network's row, None for other models. Raises ModelError for an unknown name."""
    name = source.catalog_name
    if name is not None and name not in CATALOG:
        raise ModelError(f"unknown model {name!r}{nearest(name, CATALOG)}")
    return None if name is None else CATALOG[name]


def shape_words(shape: Mapping[str, int]) -> list[str]:
    """Write a shape as ids do, like ["height=224", "width=224"]."""
    return [f"{name}={size}" for name, size in shape.items()]


class ModelError(ConfigError):
    """A model that cannot be used: the message says why, where, and how to fix it."""
