"""Measure how far an array is from a reference, places that are not finite first; the data, without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_KINDS = ("a number", "NaN", "+inf", "−inf")


def is_exact(reference: Array) -> bool:
    """Whether values name something, as token ids and classes do, so that one that is close is as wrong as any other.
    Integers of 8 bits are quantities: images, quantized tensors."""
    return reference.dtype.kind in "biu" and (reference.dtype.kind == "b" or reference.dtype.itemsize > 1)


def unlike(ours: Array, reference: Array) -> dict[tuple[str, str], int]:
    """In how many places one side is not finite and the other is, or is so in another way; by what ours and the
    reference have there: "a number", "NaN", "+inf" or "−inf"."""
    kinds, expected = _kinds(ours), _kinds(reference)
    pairs, counts = np.unique((kinds * len(_KINDS) + expected)[kinds != expected], return_counts=True)
    named = ((_KINDS[pair // len(_KINDS)], _KINDS[pair % len(_KINDS)]) for pair in pairs.tolist())
    return dict(zip(named, counts.tolist(), strict=True))


def relative_l2(ours: Array, reference: Array) -> float:
    """L2 distance over the reference's norm, in the places where both are finite; the distance itself where the norm is
    0, and NaN where one side is not finite and the other is not the same."""
    if unlike(ours, reference):
        return float("nan")
    ours, reference = finite(ours, reference)
    distance, norm = float(np.linalg.norm(ours - reference)), float(np.linalg.norm(reference))
    return distance / norm if norm else distance


def finite(ours: Array, reference: Array) -> tuple[Array, Array]:
    """Both in fp64, flattened, without the places where one of them is not finite."""
    ours, reference = (side.astype(np.float64).ravel() for side in (ours, reference))
    keep = np.isfinite(ours) & np.isfinite(reference)
    return (ours, reference) if keep.all() else (ours[keep], reference[keep])


def _kinds(array: Array) -> NDArray[np.int8]:
    """By place the index of what it has in `_KINDS`."""
    kinds = np.zeros(array.shape, np.int8)
    if array.dtype.kind not in "biu":
        kinds[np.isnan(array)], kinds[array == np.inf], kinds[array == -np.inf] = 1, 2, 3
    return kinds
