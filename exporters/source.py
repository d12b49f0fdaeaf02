"""Say where a model comes from and what it is: `ModelSource` and `Identity`, which need no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pprint
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from exporters.declared_inputs import DeclaredInput
from exporters.errors import sentence
from exporters.single_layers import Layer

WEIGHTS = (".pt", ".pth", ".safetensors")
"""How files of weights are named that PyTorch wrote."""
Kind = Literal["canonical", "factory", "onnx", "layer"]
_CHANGES = {
    "files": "its ONNX file, or the data next to that",
    "graphs": "its ONNX files for single precisions",
    "weights": "its weights file",
    "weights in the file": "which weights of their file are read",
    "code": "its source code",
    "state": "its parameters or buffers",
    "structure": "its modules",
    "outputs": "what it computes",
    "options": "its options",
    "step": "its step",
    "inputs": "its inputs: their shapes, or what they hold",
}
"""What the parts of an identity are called; any other is where the model comes from."""
_ORIGIN = "where it comes from"
MAY_COMPUTE_THE_SAME = (_CHANGES["code"], _ORIGIN)
"""How the changes begin that leave it open whether the network is another."""
TOO_LONG = "not computed: it takes too long"
"""In place of the hash of a factory's outputs."""
TRAINING_MODE = "in training mode (inference is measured in eval mode)"
"""Of a user's module."""
RANDOM_WEIGHTS = "some or all weights are random (another seed gives others)"
"""Of what a user's factory makes."""
_RANDOM = {"state", "outputs"}
"""Parts that are others every time, where a model is not repeatable."""


@dataclass(frozen=True)
class Identity:
    """What a model and its weights are made of, as far as JSON holds it: two that agree are one network.

    `repeatable` is False for a factory whose model differs each time it is made or run. Nothing that was derived from
    such a model may be used for it again. `remarks` are what a user should know of it.
    """

    parts: dict[str, Any]
    repeatable: bool = True
    remarks: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A sha256, in hexadecimal."""
        return digest(self.parts)

    def changes(self, now: Identity, *without: str) -> list[str]:
        """What differs between this and the same model now, in words; torch's version is no part of the network, nor
        are the parts `without` which to compare."""
        left_out = {"torch", *without} | (set() if self.repeatable and now.repeatable else _RANDOM)
        before, after = (json.loads(_json(each.parts)) for each in (self, now))
        if TOO_LONG in (before.get("outputs"), after.get("outputs")):  # On a busy machine, say.
            left_out.add("outputs")
        names = dict.fromkeys([*before, *after])
        differing = [name for name in names if name not in left_out and before.get(name) != after.get(name)]
        return list(dict.fromkeys(_change(name, before.get(name), after.get(name)) for name in differing))


def _change(name: str, before: object, now: object) -> str:
    what = _CHANGES.get(name, _ORIGIN)
    if not isinstance(before, dict) or not isinstance(now, dict):
        return what
    return f"{what} ({', '.join(key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key))})"


def digest(parts: Any) -> str:
    """The sha256, in hexadecimal, of what JSON makes of the parts."""
    return hashlib.sha256(_json(parts).encode()).hexdigest()


def plain(data: Any) -> Any:
    """The data where JSON keeps all of it, which has no keys that are numbers; else a text, the same for equal data."""
    is_kept = json.loads(json.dumps(data, default=repr, skipkeys=True)) == data
    return data if is_kept else pprint.pformat(_ordered(data))


def _ordered(data: Any) -> Any:
    """The data, each set as the sorted texts of what is in it, since every process lists a set of texts otherwise."""
    if isinstance(data, Mapping):
        return {_ordered(key): _ordered(value) for key, value in data.items()}
    if isinstance(data, set | frozenset):
        return ("set", *sorted(repr(_ordered(part)) for part in data))
    return type(data)(map(_ordered, data)) if type(data) in (list, tuple) else data


def _json(parts: Any) -> str:
    return json.dumps(parts, sort_keys=True, default=repr)


@dataclass(frozen=True)
class ModelSource:
    """Where a model is from: a canonical network of `exporters.catalog` (neither `factory` nor `onnx` nor `layer`), a
    user's `factory` ("package.module:function", which returns a torch.nn.Module) or one of a `library`, a user's ONNX
    file, or a single layer."""

    name: str
    factory: str | None = None
    library: str | None = None
    """Of a factory that is a library's model, such as "hf:BertModel": the row of exporters/libraries/catalog.py."""
    step: str | None = None
    """A part of a library's model that is measured in place of the whole, such as "decode"."""
    onnx: Path | None = None
    graphs: dict[str, Path] = field(default_factory=dict)
    """By precision a user's .onnx file that graph engines run at it, in place of one that is made; of a torch module
    "fp32" is the graph of which others are made."""
    weights: Path | None = None
    """A .safetensors or .pt state dict; None means seeded weights (canonical) or the factory's own."""
    key: str | None = None
    """Under which the weights file, a checkpoint, has the state dict."""
    prefix: str = ""
    """What the state dict's keys begin with and the model's do not, such as DataParallel's "module."."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one item, without the batch: given for a factory, None for the others, whose shape is known."""
    inputs: tuple[DeclaredInput, ...] = ()
    """What a job says of the inputs: of a torch module all of it, of an ONNX file what they hold."""
    outputs: tuple[str | int, ...] = ()
    """Names or places of the outputs that are compared, of which training takes the first; none means all."""
    dimensions: dict[str, int] = field(default_factory=dict)
    """Sizes of symbolic dimensions other than the batch, of an ONNX file or of `inputs`; height and width of images."""
    varied: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By dimension that a job measures at several sizes the least and the largest: one graph is exported for all."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the architecture or of the factory."""
    calibration: Path | None = None
    """A folder of .npy files with inputs, for int8's ranges; None means seeded inputs."""
    layer: Layer | None = None
    network: str | None = None
    """A canonical network's name in the catalog, where its `name` is another."""
    identity: Identity | None = None
    """What the model is, once it has been looked at: every stage of a run then names what it makes by the same key."""

    @property
    def kind(self) -> Kind:
        if self.layer is not None:
            return "layer"
        if self.onnx is not None:
            return "onnx"
        return "factory" if self.factory is not None else "canonical"

    @property
    def shape(self) -> dict[str, int]:
        """The sizes that it has here of the dimensions that the job varies."""
        return {name: self.dimensions[name] for name in self.varied}

    @property
    def subject(self) -> str:
        """What is prepared: the model, or the model at a shape, like "bert/sequence=128"."""
        return "/".join([self.name, *shape_words(self.shape)])

    @property
    def own_graph(self) -> Path | None:
        """The user's .onnx file at fp32, or as it is; None of a model whose graphs are exported."""
        return self.onnx or self.graphs.get("fp32")

    @property
    def catalog_name(self) -> str | None:
        """What the catalog calls the canonical network; None of another model."""
        return (self.network or self.name) if self.kind == "canonical" else None

    def error(self, text: str) -> ModelError:
        """What to raise of this model."""
        return ModelError(f"model {self.name!r}: {text}")

    @contextlib.contextmanager
    def failing(self, step: str, mend: str) -> Iterator[None]:
        """Raise what fails in a step as a ModelError, which says what mends it."""
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            raise self.error(f"{step} failed: {sentence(error)}; {mend}") from error


def shape_words(shape: Mapping[str, int]) -> list[str]:
    """Like ["height=224", "width=224"], as ids have them."""
    return [f"{name}={size}" for name, size in shape.items()]


class ModelError(Exception):
    """A model that cannot be had: the message says what is wrong, where, and how to mend it."""
