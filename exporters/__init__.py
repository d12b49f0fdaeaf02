"""Make models and their weights, inputs, ONNX graphs, FLOP counts and references."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["load_model"]


def load_model(name: str, **options: Any) -> nn.Module:
    """Load a canonical network with seeded weights, or a state dict's: `load_model("resnet50", weights=path)`.

    Takes (batch, *CATALOG[name].input_shape), returns logits (batch, 1000). Raises ModelError.
    """
    from exporters.build_model import load
    from exporters.source import ModelSource

    weights = options.pop("weights", None)
    return load(ModelSource(name, weights=None if weights is None else Path(weights), options=options))
