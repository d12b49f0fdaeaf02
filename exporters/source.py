"""Say where a model comes from: `ModelSource`, which any process can hold without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from exporters.single_layers import Layer

Kind = Literal["canonical", "factory", "onnx", "layer"]


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Exactly one of four kinds: a canonical network of `exporters.catalog` (none of the following is set), a user's
    `factory` ("package.module:function", which returns a torch.nn.Module), a user's ONNX file, or a single layer.
    """

    name: str
    factory: str | None = None
    onnx: Path | None = None
    weights: Path | None = None
    """A .safetensors or .pt state dict; None means seeded weights (canonical) or the factory's own."""
    input_shape: tuple[int, ...] | None = None
    """Shape of one item, without the batch: given for a factory, None for the others, whose shape is known."""
    dimensions: dict[str, int] = field(default_factory=dict)
    """Sizes of an ONNX file's symbolic dimensions other than the batch."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the architecture or of the factory."""
    calibration: Path | None = None
    """A folder of .npy files with inputs, for int8's ranges; None means seeded inputs."""
    layer: Layer | None = None

    @property
    def kind(self) -> Kind:
        if self.layer is not None:
            return "layer"
        if self.onnx is not None:
            return "onnx"
        return "factory" if self.factory is not None else "canonical"


class ModelError(Exception):
    """A model that cannot be had: the message says what is wrong, where, and how to mend it."""


def one_line(error: Exception, characters: int = 600) -> str:
    """An error's message on one line of at most that many characters."""
    return " ".join(str(error).split())[:characters]
