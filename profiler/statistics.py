"""What enters: samples. What leaves: medians, intervals, percentiles, outlier counts, and when to stop sampling.

Intervals are percentile intervals of a moving-block bootstrap (Künsch, "The jackknife and the bootstrap for general
stationary observations", Annals of Statistics 17, 1989), which keeps the correlation between neighbouring samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PERCENTILE_NEEDS = {90: 64, 95: 130, 99: 662}
"""Fewest samples from which a percentile is given: with fewer its 95 % interval reaches past the sample's maximum."""
INTERVAL_NEEDS = 6
"""Fewest samples whose range holds the median with 95 % probability: 1 - 2 / 2^n."""
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
    """The 95 % interval of the median, or None from fewer than six samples, whose whole range covers less than that."""
    if np.size(samples) < INTERVAL_NEEDS:
        return None
    return _interval(bootstrap_medians(samples, resamples))


def replicated_medians(series: Sequence[ArrayLike], seed: int = 0) -> Floats:
    """Bootstrap medians over replicates, shape (resamples,): processes are resampled first, then samples within each.

    With one replicate this is `bootstrap_medians`; with several, the spread between processes is in it.
    """
    within = np.stack([bootstrap_medians(samples, seed=seed + i) for i, samples in enumerate(series)])
    picks = np.random.default_rng(seed).integers(0, len(series), size=within.shape)
    return np.asarray(np.median(np.take_along_axis(within, picks, axis=0), axis=0))


def ratio_interval(numerator: Sequence[ArrayLike], denominator: Sequence[ArrayLike]) -> Interval | None:
    """The 95 % interval of the ratio of two medians, each side one series of samples a replicate.

    None where a replicate has fewer than six samples.
    """
    if any(np.size(samples) < INTERVAL_NEEDS for samples in (*numerator, *denominator)):
        return None
    return _interval(replicated_medians(numerator, seed=1) / replicated_medians(denominator, seed=1001))


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
    closer, so more samples would not help. Neither holds before `min_seconds`, which a drift needs to show.
    `max_samples` and `budget` are limits; the budget wins once three samples are there. Checks are spaced
    geometrically, so that a long series costs little.
    """

    min_samples: int
    max_samples: int
    seconds: float
    min_seconds: float = 0.0
    tolerance: float = 0.005
    _next_check: int = 0
    _ripe: bool = False
    _widths: list[float] = field(default_factory=list)

    def reason(self, samples: list[float], elapsed: float) -> str | None:
        """Why to stop now, after `elapsed` seconds, or None to go on."""
        n = len(samples)
        if n >= self.max_samples:
            return "max_samples"
        if elapsed >= self.seconds and n >= 3:
            return "budget"
        ripe = elapsed >= self.min_seconds
        if n < self.min_samples or (n < self._next_check and self._ripe == ripe):
            return None
        self._next_check, self._ripe = int(n * 1.5) + 1, ripe
        interval = median_interval(samples, resamples=400)
        middle = median(samples)
        if interval is None or not middle:
            return None
        self._widths.append((interval.high - interval.low) / 2 / middle)
        if not ripe:
            return None
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
