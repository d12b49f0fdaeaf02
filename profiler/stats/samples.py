"""Compute medians, their intervals, percentiles, outliers and drift from the samples of one process, and decide when
there are enough of them.

These samples are correlated, so an interval counts effective ones. The tests simulate how often it holds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PERCENTILE_NEEDS = {90: 64, 95: 130, 99: 662}
"""Fewest samples for a percentile: with fewer its 95 % interval reaches past the sample's maximum."""
EFFECTIVE_NEEDS = 30
"""Fewest effective samples that can stop the sampling: fewer estimate correlation too badly."""
_DRIFT_NEEDS, _DRIFT_BATCHES, _DRIFT_LEAST = 60, 6, 0.02
_JUMP_NEEDS, _JUMP_LEAST = 12, 0.1
_ANGLES, _MOST_FREE = 4097, 1000.0
"""Points of the grid on which Student's t is integrated; degrees of freedom beyond which it counts as normal."""
_CERTAIN = 0.9995
"""Level of a second interval that must be narrow before sampling stops for precision."""
_LEAST = 3
"""Fewest samples, however long they take."""


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, in its figure's unit."""

    low: float
    high: float


def median(samples: ArrayLike) -> float | None:
    """Return the median, or None without samples."""
    values = np.asarray(samples, dtype=float)
    return float(np.median(values)) if values.size else None


def percentile(samples: ArrayLike, q: int) -> float | None:
    """Return the q-th percentile (90, 95 or 99), or None with too few samples."""
    values = np.asarray(samples, dtype=float)
    return float(np.percentile(values, q)) if values.size >= PERCENTILE_NEEDS[q] else None


def outliers(samples: ArrayLike) -> int:
    """Count the samples outside Tukey's fences (1.5 interquartile ranges); they are never dropped."""
    values = np.asarray(samples, dtype=float)
    if values.size < 4:
        return 0
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return int(np.sum((values < low - reach) | (values > high + reach)))


def effective_size(samples: ArrayLike) -> float:
    """Return the equivalent number of independent samples: n over the integrated autocorrelation time, at most n.

    The sum of autocorrelations ends by the initial monotone sequence of Geyer (1992). Equal samples count as n.
    """
    rho = _autocorrelations(samples)
    pairs = rho[: rho.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if negative.size else pairs)
    return rho.size / max(1.0, 2 * float(pairs.sum()) - 1)


def median_interval(samples: ArrayLike, level: float = 0.975) -> Interval:
    """Return the interval of the median, by default of 95 %.

    By chance the share of samples below the true median differs from one half; the interval lies between the quantiles
    at the ends of that share's own interval (Woodruff 1952). The share's error follows from the effective samples. If
    these are too few for quantiles, Student's t of the logarithms gives the interval.
    """
    values = np.asarray(samples, dtype=float)
    size = effective_size(values)
    # Halve the degrees of freedom of correlated samples, whose effective size is itself an estimate.
    free = size - 1 if size == values.size else (size - 1) / 2
    reach = float(student(level, free)) / math.sqrt(max(size, 1.0))
    if reach < 1:
        low, high = np.quantile(values, [(1 - reach) / 2, (1 + reach) / 2])
        return Interval(float(low), float(high))
    middle, logs = float(np.median(values)), np.log(values[values > 0])
    # A median varies √(π/2) times as much as a mean.
    arm = reach * float(logs.std(ddof=1)) * math.sqrt(math.pi / 2) if logs.size > 1 else 0.0
    return Interval(middle * math.exp(-arm), middle * math.exp(arm))


def student(level: ArrayLike, free: ArrayLike) -> Floats:
    """Return Student's t quantiles at levels above one half, of at least one degree of freedom."""
    levels, degrees = np.broadcast_arrays(level, np.clip(np.asarray(free, dtype=float), 1.0, _MOST_FREE))
    pairs = zip(levels.ravel().tolist(), degrees.ravel().tolist(), strict=True)
    return np.array([_quantile(*pair) for pair in pairs]).reshape(degrees.shape)


@cache
def _quantile(level: float, free: float) -> float:
    """Integrate Student's density, which with t = √f tan(a) is cos(a)^(f - 1).

    SciPy would add to the memory that a CPU's rows measure.
    """
    angles = np.linspace(0, math.pi / 2, _ANGLES)
    density = np.cos(angles) ** (free - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(free) * math.tan(np.interp(2 * level - 1, below / below[-1], angles))


def drift(samples: ArrayLike) -> float | None:
    """Return the relative change of the median from the first third to the last, or None without a drift.

    A drift is above 2 %, and the medians of six batches of either third hardly mix: a Mann-Whitney test of batches (U
    at most 1: p = 4 / 924), which a correlation shorter than a batch does not mislead. Under 60 samples the batches
    would be too short: from 12 samples on a drift is above 10 %, and the thirds do not meet.
    """
    values = np.asarray(samples, dtype=float)
    if values.size < _JUMP_NEEDS:
        return None
    third = values.size // 3
    first, last = values[:third], values[-third:]
    if not np.median(first):
        return None
    change = float(np.median(last) / np.median(first)) - 1
    if values.size < _DRIFT_NEEDS:
        are_disjoint = first.max() < last.min() or last.max() < first.min()
        return change if abs(change) > _JUMP_LEAST and are_disjoint else None
    before, after = (np.array([np.median(b) for b in np.array_split(t, _DRIFT_BATCHES)]) for t in (first, last))
    # The pairs with a slower later batch, minus those with a faster one.
    above = abs(float(np.sign(after[:, None] - before[None, :]).sum()))
    return change if abs(change) > _DRIFT_LEAST and above >= _DRIFT_BATCHES**2 - 2 else None


def _autocorrelations(samples: ArrayLike) -> Floats:
    """Autocorrelate the samples' ranks, shape (n,): lag 0 is 1, or 0 if all are equal.

    Without ranks a far outlier would hide the correlation (Vehtari et al., Bayesian Analysis 16, 2021).
    """
    values = np.asarray(samples, dtype=float)
    n = values.size
    if n == 0:
        return np.zeros(0)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse] - (n + 1) / 2
    spectrum = np.abs(np.fft.rfft(ranks, 1 << (2 * n - 1).bit_length())) ** 2
    covariances = np.fft.irfft(spectrum)[:n]
    return np.asarray(covariances / covariances[0] if counts.size > 1 else np.zeros(n))


@dataclass
class StopRule:
    """The rule to stop sampling one clock; the row names its reason.

    `precision`: the median's interval is within ±`tolerance`, and the 99.9 % interval within twice that, since one of
    two modes may lead by luck. `plateau`: more samples would not help, as independent ones would narrow the interval by
    some 40 % in three checks. `budget`: after `seconds` and `min_samples`, or `longest` seconds and three samples.
    """

    min_samples: int
    max_samples: int
    seconds: float
    min_seconds: float = 0.0
    longest: float = math.inf
    tolerance: float = 0.005
    _next_check: int = 0
    _ripe: bool = False
    _widths: list[float] = field(default_factory=list)

    def reason(self, samples: Sequence[float] | Floats, elapsed: float) -> str | None:
        """Return the reason to stop after `elapsed` seconds, or None to continue."""
        n = len(samples)
        if n >= self.max_samples:
            return "max_samples"
        if elapsed >= self.seconds and n >= (self.min_samples if elapsed < self.longest else _LEAST):
            return "budget"
        ripe = elapsed >= self.min_seconds
        if n < max(self.min_samples, EFFECTIVE_NEEDS) or (n < self._next_check and self._ripe == ripe):
            return None
        self._next_check, self._ripe = int(n * 1.5) + 1, ripe
        middle = median(samples)
        if not middle or effective_size(samples) < EFFECTIVE_NEEDS:
            return None
        interval, certain = median_interval(samples), median_interval(samples, _CERTAIN)
        self._widths.append((interval.high - interval.low) / 2 / middle)
        if not ripe:
            return None
        if self._widths[-1] <= self.tolerance and (certain.high - certain.low) / 2 / middle <= 2 * self.tolerance:
            return "precision"
        if len(self._widths) > 3 and self._widths[-1] > 0.85 * self._widths[-4]:
            return "plateau"
        return None
