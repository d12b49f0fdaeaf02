"""Define a model's origin, `ModelSource`, its `Identity`, its inputs and their batch axes, without torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from exporters.catalog import CATALOG, Architecture, Conv2d
from exporters.errors import ConfigError, nearest, sentence

BATCH = "batch"
LABELS = "labels"
WEIGHTS = (".pt", ".pth", ".safetensors")
"""Suffixes of PyTorch's files of weights."""
Kind = Literal["canonical", "factory", "onnx", "layer"]
COMPUTED = ("files", "graphs", "weights", "state", "options", "step", "inputs", "labels")
"""Prefixes of `Identity.changes` after which the network computes something else."""
Shapes = Mapping[str, Sequence[int | str]]
"""Sizes and symbols of inputs, by name."""
_NUMBERED = re.compile(r"(unk__|unk_|dim_|.+_dynamic_axes_|(p2o\.)?DynamicDimension\.|[a-z]?)\d+", re.IGNORECASE)
"""Symbols that converters number, such as tf2onnx's unk__10 and Paddle's DynamicDimension.1: they have no meaning."""
_BATCH_WORDS = ("batch", "batch_size", "batchsize")


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

    @property
    def item_axis(self) -> int | None:
        """Axis of the items, in a free or a fixed batch; None for an input that all items share."""
        return self.fixed_axis if self.batch_axis is None else self.batch_axis

    def at(self, batch: int) -> tuple[int, ...]:
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
    """Score of the outputs: a word of METRICS in exporters/metrics.py, or "package.module:function"."""
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

    def without_module(self, name: str) -> ModelError:
        why = f"there is no module {name!r}; add its folder to import_from, or install it"
        return self.error(f"factory {self.factory!r}: {why}")

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


def batch_axes(source: ModelSource, shapes: Shapes) -> dict[str, int | None]:
    """Return the job's batch axes for the inputs with these shapes. Raises ModelError for axes that a file lacks."""
    if source.onnx is not None:  # A module's graph may give inputs other names.
        check_batch(source, shapes)
    return {name: axis for name, axis in source.batch.items() if name in shapes}


def check_batch(source: ModelSource, shapes: Shapes) -> None:
    """Raise ModelError if the job names an input or axis that the model lacks."""
    for name, axis in source.batch.items():
        if name not in shapes:
            raise source.error(f"batch: no input {name!r}{nearest(name, shapes)}")
        if axis is not None and axis >= len(shapes[name]):
            raise source.error(f"batch: {name!r} of shape {list(shapes[name])} has no axis {axis}; the first is 0")


def batch_symbols(shapes: Shapes, axes: Mapping[str, int | None] = MappingProxyType({})) -> set[str]:
    """Return the symbols for the batch in the shapes of a model's inputs; a fixed batch has none.

    They are the symbols at the job's `axes`, and "batch"; if the first input with axes has neither, its leading symbol;
    then all leading symbols without a meaning. Other axes of the inputs in `axes` are never the batch.
    """
    at = {shapes[name][axis] for name, axis in axes.items() if axis is not None}
    others = {size for name, item_axis in axes.items() for axis, size in enumerate(shapes[name]) if axis != item_axis}
    words = {size for shape in shapes.values() for size in shape if str(size).lower() in _BATCH_WORDS}
    symbols = {size for size in at | (words - others) if isinstance(size, str)}
    leading = {name: shape[0] for name, shape in shapes.items() if shape and isinstance(shape[0], str)}
    first = next((name for name, shape in shapes.items() if shape and axes.get(name, 0) is not None), None)
    if first in leading.keys() - axes.keys() and not symbols.intersection(shapes[first]):
        symbols |= {leading[first]} - others
    meaningless = {size for size in leading.values() if size.endswith("[0]") or _NUMBERED.fullmatch(size)}
    return symbols | (meaningless - others) if symbols else symbols


def batch_hint(shapes: Shapes, batch: Collection[str], names: Collection[str]) -> str:
    """Say how to name a free dimension as the batch, in a job and on the command line."""
    unbatched = [(name, shape) for name, shape in shapes.items() if not set(shape) & set(batch)]
    places = ((name, axis) for name, shape in unbatched for axis, size in enumerate(shape) if size in names)
    texts = (f"batch: {{{name}: {axis}}}    # or --batch-axis {name}={axis}" for name, axis in places)
    return next((f"\n  or, if that is the batch:\n    {text}" for text in texts), "")
