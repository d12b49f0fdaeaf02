"""Compare two configurations on the same items: the loss of a score from 0 to 1, with its 95 % interval."""

from __future__ import annotations

import math

import numpy as np

from profiler.stats.samples import Floats, Interval, student

_PSEUDO = 4
"""Pseudo-items: half lose and half gain a whole score."""
_LEVEL = 0.975


def mean_loss(base: Floats, ours: Floats, error: float | None = None) -> tuple[float, Interval]:
    """Return the mean of `base - ours`, scores of the same items in the same order, and its interval.

    It is Student's for the mean difference, with the spread of the items and four pseudo-items, so that it has a width
    even if all items agree, and covers rare large losses that few items show. After the adjusted intervals of Agresti
    and Coull (American Statistician 52, 1998) and, for pairs, of Agresti and Min (Statistics in Medicine 24, 2005).

    Assumes that a relative `error` e of the outputs costs at most 2e of the score: without losses the interval ends
    there.
    """
    losses = base - ours
    mean, items = float(losses.mean()), len(losses)
    squares = float(np.square(losses - mean).sum()) + _pseudo_items(items, error)
    reach = float(student(_LEVEL, items + _PSEUDO - 1)) * math.sqrt(squares) / items
    return mean, Interval(max(mean - reach, -1.0), min(mean + reach, 1.0))


def _pseudo_items(items: int, error: float | None) -> float:
    return _PSEUDO if error is None else min(math.sqrt(_PSEUDO), items * error) ** 2


def items_needed(items: int, loss: float, high: float, limit: float, error: float | None = None) -> int:
    """Return about how many items bring the interval's end to the limit, for a loss below it, to two digits."""
    deviation = ((high - loss) * items / float(student(_LEVEL, items + _PSEUDO - 1))) ** 2
    variance, quantile = max(deviation - _pseudo_items(items, error), 0.0) / items, float(student(_LEVEL, 1e9))
    # Solve quantile * sqrt(variance * n + _PSEUDO) / n = limit - loss for n.
    room = (limit - loss) ** 2
    linear = quantile**2 * variance
    needed = math.ceil((linear + math.sqrt(linear**2 + 4 * _PSEUDO * quantile**2 * room)) / (2 * room))
    unit = int(10 ** max(0, len(str(needed)) - 2))
    return -(-needed // unit) * unit
