"""Compute medians, their intervals, percentiles, outliers and drift from the samples of one process, and decide when
there are enough of them.

These samples are correlated, so an interval comes from a bootstrap of blocks and needs enough effective samples. The
tests simulate how often an interval holds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PERCENTILE_NEEDS = {90: 64, 95: 130, 99: 662}
"""Fewest samples from which a percentile is given: with fewer its 95 % interval reaches past the sample's maximum."""
EFFECTIVE_NEEDS = 30
"""Fewest effective samples from which an interval is given: below, correlation is estimated too badly to trust it."""
_DRIFT_NEEDS, _DRIFT_BATCHES, _DRIFT_LEAST = 60, 6, 0.02
_JUMP_NEEDS, _JUMP_LEAST = 12, 0.1
_RESAMPLES = 1000
_AT_ONCE = 1_000_000
"""Samples drawn at once, so that the bootstrap of a long series needs some 4 MB."""
_LEAST = 3
"""Samples that are taken however long they take."""


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


def outliers(samples: ArrayLike) -> int:
    """How many samples lie outside Tukey's fences (1.5 interquartile ranges); they are counted, never dropped."""
    values = np.asarray(samples, dtype=float)
    if values.size < 4:
        return 0
    low, high = np.percentile(values, [25, 75])
    reach = 1.5 * (high - low)
    return int(np.sum((values < low - reach) | (values > high + reach)))


def effective_size(samples: ArrayLike) -> float:
    """How many independent samples tell as much: n over the integrated autocorrelation time, at most n.

    The sum of autocorrelations ends by the initial monotone sequence of Geyer ("Practical Markov chain Monte Carlo",
    Statistical Science 7, 1992). Equal samples are n.
    """
    rho = _autocorrelations(samples)
    pairs = rho[: rho.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if negative.size else pairs)
    return rho.size / max(1.0, 2 * float(pairs.sum()) - 1)


def block_length(samples: ArrayLike) -> int:
    """How long the bootstrap's blocks must be; 1 where no autocorrelation is significant.

    The automatic choice of Politis and White ("Automatic block-length selection for the dependent bootstrap",
    Econometric Reviews 23, 2004) for circular blocks, as corrected by Patton, Politis and White (28, 2009).
    """
    rho = _autocorrelations(samples)
    n = rho.size
    if n < 9:
        return 1
    # The last lag before a run of insignificant ones; constants as recommended in the paper.
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    most = min(math.ceil(math.sqrt(n)) + run, n - 1)
    significant = np.flatnonzero(np.abs(rho[1 : most + 1]) > 2 * math.sqrt(math.log10(n) / n)) + 1
    last = 0
    for lag in significant:
        if lag > last + run:
            break
        last = int(lag)
    if last == 0:
        return 1
    width = min(2 * last, most)
    lags = np.arange(1, width + 1)
    weighted = np.minimum(1.0, 2 * (1 - lags / width)) * rho[1 : width + 1]
    spectrum = 1 + 2 * float(weighted.sum())
    if spectrum <= 1:
        return 1  # Alternating samples would give a narrower interval than independent ones; none relies on that.
    length: float = (1.5 * n * (2 * float((lags * weighted).sum()) / spectrum) ** 2) ** (1 / 3)
    return max(1, min(round(length), math.ceil(3 * math.sqrt(n)), n // 3))


def bootstrap_medians(samples: ArrayLike, resamples: int = _RESAMPLES, seed: int = 0) -> Floats:
    """Medians of `resamples` circular-block resamples, shape (resamples,); blocks of `block_length`."""
    values = np.asarray(samples, dtype=float)
    n, length = values.size, block_length(values)
    rng = np.random.default_rng(seed)
    if length == 1:
        return _independent_medians(values, resamples, rng)
    # The places of ranks of two bytes are found in a third of the time that those of floats take.
    order, half = np.argsort(values), n // 2
    ordered, ranks = values[order], np.empty(n, np.min_scalar_type(n))
    ranks[order] = np.arange(n)
    blocks = np.lib.stride_tricks.sliding_window_view(np.concatenate([ranks, ranks[: length - 1]]), length)
    medians = []
    rows = max(1, _AT_ONCE // n)
    for first in range(0, resamples, rows):
        starts = rng.integers(0, n, size=(min(rows, resamples - first), -(-n // length)), dtype=np.int32)
        drawn = blocks[starts].reshape(len(starts), -1)[:, :n]
        # NumPy's median partitions by two places, which takes 2.5 times as long as by one.
        drawn.partition(half, axis=1)
        upper = ordered[drawn[:, half]]
        medians.append(upper if n % 2 else (ordered[drawn[:, :half].max(axis=1)] + upper) / 2)
    return np.concatenate(medians)


def median_interval(samples: ArrayLike, resamples: int = _RESAMPLES) -> Interval | None:
    """The 95 % interval of the median, or None from fewer than 30 effective samples."""
    if effective_size(samples) < EFFECTIVE_NEEDS:
        return None
    return expanded_interval(bootstrap_medians(samples, resamples), block_count(samples))


def drift(samples: ArrayLike) -> float | None:
    """How much the median of the last third lies above that of the first, as a share of it; None without a drift.

    It counts above 2 %, and where the medians of six batches of either third hardly mix: a Mann-Whitney test of batches
    (U at most 1: p = 4 / 924), which a correlation shorter than a batch does not mislead. Under 60 samples the batches
    would be too short for that: from 12 on it counts above 10 %, and where the thirds do not meet.
    """
    values = np.asarray(samples, dtype=float)
    if values.size < _JUMP_NEEDS:
        return None
    third = values.size // 3
    first, last = values[:third], values[-third:]
    change = float(np.median(last) / np.median(first)) - 1
    if values.size < _DRIFT_NEEDS:
        apart = first.max() < last.min() or last.max() < first.min()
        return change if abs(change) > _JUMP_LEAST and apart else None
    before, after = (np.array([np.median(b) for b in np.array_split(t, _DRIFT_BATCHES)]) for t in (first, last))
    # Of all pairs, those in which the later batch is the slower less those in which it is the faster.
    above = abs(float(np.sign(after[:, None] - before[None, :]).sum()))
    return change if abs(change) > _DRIFT_LEAST and above >= _DRIFT_BATCHES**2 - 2 else None


def _autocorrelations(samples: ArrayLike) -> Floats:
    """Autocorrelate the samples' ranks, shape (n,): lag 0 is 1, or 0 where all are equal. One far outlier among
    correlated samples would hide their correlation (Vehtari et al., Bayesian Analysis 16, 2021)."""
    values = np.asarray(samples, dtype=float)
    n = values.size
    if n == 0:
        return np.zeros(0)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse] - (n + 1) / 2
    spectrum = np.abs(np.fft.rfft(ranks, 1 << (2 * n - 1).bit_length())) ** 2
    covariances = np.fft.irfft(spectrum)[:n]
    return np.asarray(covariances / covariances[0] if counts.size > 1 else np.zeros(n))


def _independent_medians(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Bootstrap medians with blocks of one, drawn from their exact distribution without drawing the resamples.

    A resample's ranks are n uniform numbers, so its middle ranks are the middle of n sorted uniform numbers, which are
    Beta distributed (David and Nagaraja, "Order Statistics", 2003, section 2).
    """
    n = values.size
    half = (n + 1) // 2
    low = rng.beta(half, n + 1 - half, resamples)
    # With an even n the next uniform number is the least of the n / 2 above `low`.
    high = low if n % 2 else low + (1 - low) * (1 - rng.random(resamples) ** (2 / n))
    ordered = np.sort(values)
    return np.asarray((ordered[(n * low).astype(int)] + ordered[(n * high).astype(int)]) / 2)


def block_count(samples: ArrayLike) -> float:
    """How many blocks a resample has."""
    return np.size(samples) / block_length(samples)


def expanded_interval(values: Floats, blocks: float) -> Interval:
    """The expanded percentile interval of bootstrapped `values`: percentiles as far out as Student's t with one degree
    of freedom less than there are blocks (Hesterberg, "What teachers should know about the bootstrap", The American
    Statistician 69, 2015)."""
    free = max(blocks - 1, 1.0)
    t = student(1.959964, free)
    tail = 50 * math.erfc(t * math.sqrt((free + 1) / free) / math.sqrt(2))
    # Weibull's percentiles leave the right share outside with few resamples too; NumPy's default leaves too much.
    low, high = np.percentile(values, [tail, 100 - tail], method="weibull")
    return Interval(float(low), float(high))


def student(z: float, free: float) -> float:
    """Return Student's t quantile for the normal quantile `z`, by Cornish and Fisher's series.

    SciPy would weigh on the memory of a CPU's row.
    """
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


@dataclass
class StopRule:
    """When to stop sampling one clock; the reason is kept in the row.

    `precision`: the median's interval is within ±`tolerance`, and all its resamples within twice that, since one of two
    modes may lead by luck. There is no precision without an interval, so not below 30 effective samples. `plateau`:
    three checks, each after 50 % more samples, brought the interval less than 15 % closer (independent samples:
    some 40 %), so more would not help. Neither holds before `min_seconds`, which a drift needs to show. `max_samples`
    and `budget` are limits: the budget is spent after `seconds`, or where `min_samples` take longer, with those, but
    after `longest` seconds with three.
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
        """Why to stop now, after `elapsed` seconds, or None to go on."""
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
        medians = bootstrap_medians(samples, resamples=400)
        interval = expanded_interval(medians, block_count(samples))
        self._widths.append((interval.high - interval.low) / 2 / middle)
        if not ripe:
            return None
        if self._widths[-1] <= self.tolerance and float(np.ptp(medians)) / 2 / middle <= 2 * self.tolerance:
            return "precision"
        if len(self._widths) > 3 and self._widths[-1] > 0.85 * self._widths[-4]:
            return "plateau"
        return None
