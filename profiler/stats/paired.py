"""Compare two configurations on the same items: the loss of a score from 0 to 1, with its 95 % interval."""

from __future__ import annotations

import math

import numpy as np

from profiler.stats.samples import Floats, Interval, student

_Z = 1.959964
"""The normal quantile at 0.975."""
_STEPS = 40
"""Halvings in the search for an end: to 1e-12."""


def mean_loss(base: Floats, ours: Floats) -> tuple[float, Interval]:
    """Return the mean of `base - ours`, scores of the same items in the same order, and its interval.

    Hits and misses (0 and 1) have Tango's score interval for paired proportions, which has a width even if all items
    agree (Statistics in Medicine 17, 1998, 891-908); other scores have Student's for the mean difference.
    """
    losses = base - ours
    mean, items = float(losses.mean()), len(losses)
    if np.isin(losses, (-1.0, 0.0, 1.0)).all():
        lost, gained = int((losses > 0).sum()), int((losses < 0).sum())
        return mean, Interval(-_end(gained, lost, items), _end(lost, gained, items))
    reach = float(student(0.975, items - 1)) * float(losses.std(ddof=1)) / math.sqrt(items) if items > 1 else 1.0
    return mean, Interval(max(mean - reach, -1.0), min(mean + reach, 1.0))


def _end(lost: int, gained: int, items: int) -> float:
    """Return the upper end of the loss: the largest whose score statistic is within the normal quantile."""
    low, high = (lost - gained) / items, 1.0
    for _ in range(_STEPS):
        loss = (low + high) / 2
        linear = (2 * items - lost + gained) * loss - lost - gained
        root = linear**2 + 8 * items * gained * loss * (1 - loss)
        share = (math.sqrt(root) - linear) / (4 * items)  # The most likely share of gained items at this loss.
        deviation = math.sqrt(max(items * (2 * share + loss * (1 - loss)), 1e-300))
        inside = (items * loss - lost + gained) / deviation < _Z
        low, high = (loss, high) if inside else (low, loss)
    return low


def items_needed(items: int, loss: float, high: float, limit: float) -> int:
    """Return about how many items bring the interval's end below the limit, for a loss below it, to two digits."""
    needed = math.ceil(items * ((high - loss) / (limit - loss)) ** 2)
    unit = int(10 ** max(0, len(str(needed)) - 2))
    return -(-needed // unit) * unit
