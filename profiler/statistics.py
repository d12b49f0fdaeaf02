"""What enters: samples. What leaves: medians, intervals, percentiles, outlier counts, and when to stop sampling.

Intervals are percentile intervals of a moving-block bootstrap (Künsch, "The jackknife and the bootstrap for general
stationary observations", Annals of Statistics 17, 1989), which keeps the correlation between neighbouring samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PERCENTILE_NEEDS = {90: 64, 95: 130, 99: 662}
"""Fewest samples from which a percentile is given: with fewer its 95 % interval reaches past the sample's maximum."""
_RESAMPLES = 1000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A 95 % interval; both ends in the unit of what it is an interval of."""

    low: float
    high: float


def median(samples: ArrayLike) -> float | None:
    """The median, or None without samples."""
    values = np.asarray(samples, dtype=float)
    return float(np.median(values)) if values.size else None


def percentile(samples: ArrayLike, q: int) -> float | None:
    """The q-th percentile (90, 95 or 99), or None where there are too few samples for it."""
    values = np.asarray(samples, dtype=float)
    return float(np.percentile(values, q)) if values.size >= PERCENTILE_NEEDS[q] else None


def bootstrap_medians(samples: ArrayLike, resamples: int = _RESAMPLES, seed: int = 0) -> Floats:
    """Medians of `resamples` moving-block resamples, shape (resamples,); blocks are about n^(1/3) long."""
    values = np.asarray(samples, dtype=float)
    n = values.size
    length = max(1, round(n ** (1 / 3)))
    blocks = -(-n // length)
    starts = np.random.default_rng(seed).integers(0, n - length + 1, size=(resamples, blocks))
    index = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :n]
    return np.asarray(np.median(values[index], axis=1))


def median_interval(samples: ArrayLike, resamples: int = _RESAMPLES) -> Interval | None:
    """The 95 % interval of the median, or None from fewer than three samples."""
    if np.size(samples) < 3:
        return None
    return _interval(bootstrap_medians(samples, resamples))


def ratio_interval(numerator: ArrayLike, denominator: ArrayLike) -> Interval | None:
    """The 95 % interval of the ratio of two medians, or None where either side has fewer than three samples."""
    if np.size(numerator) < 3 or np.size(denominator) < 3:
        return None
    return _interval(bootstrap_medians(numerator, seed=1) / bootstrap_medians(denominator, seed=2))


def outliers(samples: ArrayLike) -> int:
    """How many samples lie outside Tukey's fences (1.5 interquartile ranges); they are counted, never dropped."""
    values = np.asarray(samples, dtype=float)
    if values.size < 4:
        return 0
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return int(np.sum((values < low - reach) | (values > high + reach)))


@dataclass
class StopRule:
    """When to stop sampling one clock; the reason is kept in the row.

    `precision`: the median's interval is within ±`tolerance`. `plateau`: three checks in a row brought it less than 5 %
    closer, so more samples would not help. `max_samples` and `budget` are limits; the budget wins once three samples
    are there. Checks are spaced geometrically, so that a long series costs little.
    """

    min_samples: int
    max_samples: int
    seconds: float
    tolerance: float = 0.005
    _next_check: int = 0
    _widths: list[float] = field(default_factory=list)

    def reason(self, samples: list[float], elapsed: float) -> str | None:
        """Why to stop now, after `elapsed` seconds, or None to go on."""
        n = len(samples)
        if n >= self.max_samples:
            return "max_samples"
        if elapsed >= self.seconds and n >= 3:
            return "budget"
        if n < max(self.min_samples, self._next_check):
            return None
        self._next_check = int(n * 1.5) + 1
        interval = median_interval(samples, resamples=400)
        middle = median(samples)
        if interval is None or not middle:
            return None
        self._widths.append((interval.high - interval.low) / 2 / middle)
        if self._widths[-1] <= self.tolerance:
            return "precision"
        recent = self._widths[-4:]
        if len(recent) == 4 and all(after > 0.95 * before for before, after in pairwise(recent)):
            return "plateau"
        return None


def _interval(values: Floats) -> Interval:
    tail = 100 * (1 - _CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(float(low), float(high))
