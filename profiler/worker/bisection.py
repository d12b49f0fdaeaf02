"""Find the fewest parts of a graph to keep in float32, in few measurements; imports no torch."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exporters.mixed import Node

Parts = frozenset[int]
Errors = dict[Parts, float]
"""The relative error with these parts in float32; infinity for outputs that are not finite."""
_NOISE = 1.0
"""A larger error counts as this one: the output is noise."""
_DROPS = 24
"""Measurements after which no smaller parts are dropped."""
_SPREAD = 4
"""If all of this many parts are needed, the error is spread over them."""


@dataclass(frozen=True)
class Explained:
    """The `nodes` of `count` of a graph's `parts`, or none if no parts help.

    `errors` has the error with nothing, with these nodes and with everything in float32; each of the `rounds` has a
    call's ms in this order.
    """

    nodes: tuple[Node, ...]
    count: int
    parts: int
    errors: tuple[float, float, float]
    rounds: tuple[tuple[float, ...], ...] = ()
    scores: tuple[tuple[float, ...], ...] = ()
    """Scores of the user's items, in the same order."""


def bisect(feeders: Sequence[Parts], measure: Callable[[Parts], float]) -> tuple[Parts, Errors]:
    """Find parts that at least halve the error, none if all of them do not; return all errors, too.

    `feeders` has the parts that each part reads from. The last part of the shortest sufficient start matters. A bad
    part of n, alone or with its feeder, takes at most log2(n) + 4 measurements.
    """
    errors = Errors()

    def suffices(parts: Parts) -> bool:
        if parts not in errors:
            error = measure(parts)
            errors[parts] = error if math.isfinite(error) else math.inf
        return errors[parts] < min(errors[Parts()], _NOISE) / 2

    suffices(Parts())
    if not suffices(_range(0, len(feeders))):
        return Parts(), errors
    end, size = _smallest(1, len(feeders), lambda end: suffices(_range(0, end))), 2
    first, parts = end - 1, Parts({end - 1})
    if not suffices(parts) and not suffices(parts := parts | feeders[end - 1]):
        while size < end and not suffices(_range(end - size, end)):
            size *= 2
        first = end - _smallest(size // 2 + 1, min(size, end), lambda size: suffices(_range(end - size, end)))
        parts = _range(first, end)
    needed, step, limit = Parts({first, end - 1}), len(parts), len(errors) + _DROPS
    while step > 1 and len(errors) < limit:  # Drop halves of the others, then quarters and so on.
        step, before = (step + 1) // 2, parts
        others = sorted(parts - needed)
        for start in range(0, len(others), step):
            fewer = parts.difference(others[start : start + step])
            parts = fewer if suffices(fewer) else parts
        limit = len(errors) if parts == before and len(others) >= _SPREAD * step else limit
    return parts, errors


def _range(start: int, end: int) -> Parts:
    return Parts(range(start, end))


def _smallest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number that `holds`, at most `high`."""
    return low + bisect_left(range(low, high), x=True, key=holds)
