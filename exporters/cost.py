"""Hold what a model must compute and read at least, and say what that is at a batch size and a precision; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

WEIGHT_BYTES = {"fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}
"""Of a weight, at the precisions that do not hold it in four."""


class Flops(NamedTuple):
    """Of a call of b items: b times `item`, b times b times `pair`, and once `fixed`."""

    item: int
    pair: int = 0
    """Where every item meets every one, as CLIP's images and texts do."""
    fixed: int = 0
    """Whatever the batch, as of a position bias that is computed."""


@dataclass(frozen=True)
class Cost:
    """What a model must compute and read at least. None is unknown. Weights are parameters and buffers that an
    inference reads, tables of which it only looks up rows left out."""

    inference: Flops | None = None
    training: Flops | None = None
    """Forward and backward pass, with the gradient of a layer's input, of a network's only where it is computed."""
    float_weights: int | None = None
    """Elements that are held in the precision's type."""
    other_weight_bytes: int | None = None
    """Weights whose type no precision changes: integers, and everything in a user's ONNX file that runs as it is."""

    def flops(self, pass_: str, batch: int = 1) -> float | None:
        """FLOPs of one item in that pass, its share of what a call of this batch computes."""
        known = self.training if pass_ == "training" else self.inference
        return None if known is None else known.item + known.pair * batch + (known.fixed / batch if known.fixed else 0)

    def weight_bytes(self, precision: str) -> int | None:
        """Bytes of the weights that one call reads; under AMP they are fp32, in 8 bits all are counted as quantized."""
        if self.float_weights is None or self.other_weight_bytes is None:
            return None
        return self.float_weights * WEIGHT_BYTES.get(precision, 4) + self.other_weight_bytes
