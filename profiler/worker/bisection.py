"""Find the fewest units of a graph to keep in float32, in few measurements; imports no torch."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exporters.mixed import Node

Units = frozenset[int]
Errors = dict[Units, float]
"""The relative error with these units in float32; infinity for outputs that are not finite."""
_NOISE = 1.0
"""A larger error counts as this one: the output is noise."""
_DROPS = 24
"""Measurements after which no smaller parts are dropped."""
_SPREAD = 4
"""If all of this many parts are needed, the error is spread over them."""


@dataclass(frozen=True)
class Explained:
    """The `nodes` of `count` of a graph's `units`, or none if no units help.

    `errors` has the error with nothing, with these nodes and with everything in float32; each of the `rounds` has a
    call's ms in this order.
    """

    nodes: tuple[Node, ...]
    count: int
    units: int
    errors: tuple[float, float, float]
    rounds: tuple[tuple[float, ...], ...] = ()
    accuracies: tuple[float, ...] = ()
    """On the user's data, in the same order."""


def bisect(feeders: Sequence[Units], measure: Callable[[Units], float]) -> tuple[Units, Errors]:
    """Find units that at least halve the error, none if all of them do not; return all errors, too.

    `feeders` has the units that each unit reads from. The last unit of the shortest sufficient start matters. A bad
    unit of n, alone or with its feeder, takes at most log2(n) + 4 measurements.
    """
    errors = Errors()

    def suffices(units: Units) -> bool:
        if units not in errors:
            error = measure(units)
            errors[units] = error if math.isfinite(error) else math.inf
        return errors[units] < min(errors[Units()], _NOISE) / 2

    suffices(Units())
    if not suffices(_range(0, len(feeders))):
        return Units(), errors
    end, size = _smallest(1, len(feeders), lambda end: suffices(_range(0, end))), 2
    first, units = end - 1, Units({end - 1})
    if not suffices(units) and not suffices(units := units | feeders[end - 1]):
        while size < end and not suffices(_range(end - size, end)):
            size *= 2
        first = end - _smallest(size // 2 + 1, min(size, end), lambda size: suffices(_range(end - size, end)))
        units = _range(first, end)
    needed, part, limit = Units({first, end - 1}), len(units), len(errors) + _DROPS
    while part > 1 and len(errors) < limit:  # Drop halves of the others, then quarters and so on.
        part, before = (part + 1) // 2, units
        others = sorted(units - needed)
        for start in range(0, len(others), part):
            fewer = units.difference(others[start : start + part])
            units = fewer if suffices(fewer) else units
        limit = len(errors) if units == before and len(others) >= _SPREAD * part else limit
    return units, errors


def _range(start: int, end: int) -> Units:
    return Units(range(start, end))


def _smallest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest number that `holds`, at most `high`."""
    return low + bisect_left(range(low, high), x=True, key=holds)
