"""Compute the ratio of two sides, its interval, and the verdict.

Within a process there are samples; between processes there are only their medians, so a ratio's interval is Student's.
The tests simulate how often it holds the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from profiler.stats.samples import (
    EFFECTIVE_NEEDS,
    Floats,
    Interval,
    block_count,
    effective_size,
    expanded_interval,
    replicated_medians,
)

Verdict = Literal["faster", "slower", "indistinguishable"]

REPLICATES_FOR_A_VERDICT = 3
"""Fewest processes a side from which the spread between processes is known well enough for a verdict."""


class Side:
    """One side of a ratio: a series of samples a process. It is bootstrapped once, however many ratios it stands in.

    The sides of one ratio need seeds of their own, or the same resamples would be drawn of both.
    """

    def __init__(self, series: Sequence[ArrayLike], seed: int) -> None:
        self._series = [np.asarray(samples, dtype=float) for samples in series]
        self._seed = seed

    def __len__(self) -> int:
        return len(self._series)

    @cached_property
    def log_medians(self) -> Floats | None:
        """One a process; None where one has no samples."""
        if not all(samples.size for samples in self._series):
            return None
        return np.asarray(np.log([np.median(samples) for samples in self._series]))

    @cached_property
    def resampled(self) -> Floats | None:
        """Bootstrap medians over the processes; None where one has fewer than 30 effective samples."""
        if any(effective_size(samples) < EFFECTIVE_NEEDS for samples in self._series):
            return None
        return replicated_medians(self._series, self._seed)

    @cached_property
    def blocks(self) -> float:
        """How many blocks a resample has, at the fewest of any process."""
        return min(map(block_count, self._series))


def ratio_between(numerator: Side, denominator: Side) -> float | None:
    """The ratio of the geometric means of the processes' medians: the middle of the interval between processes."""
    if numerator.log_medians is None or denominator.log_medians is None:
        return None
    return math.exp(numerator.log_medians.mean() - denominator.log_medians.mean())


def ratio_interval(numerator: Side, denominator: Side) -> Interval | None:
    """The 95 % interval of the ratio of two sides.

    From three processes a side it is between processes: Welch's t interval of the logarithms of the processes' medians.
    From fewer it is the bootstrap's, and None where a process has fewer than 30 effective samples.
    """
    if min(len(numerator), len(denominator)) >= REPLICATES_FOR_A_VERDICT:
        if numerator.log_medians is None or denominator.log_medians is None:
            return None
        return _welch(numerator.log_medians, denominator.log_medians)
    if numerator.resampled is None or denominator.resampled is None:
        return None
    return expanded_interval(numerator.resampled / denominator.resampled, min(numerator.blocks, denominator.blocks))


def verdict(interval: Interval, margin: float) -> Verdict:
    """What a speed-up's interval between processes says; differences of up to `margin` (0.01 is 1 %) do not count."""
    if interval.low > 1 + margin:
        return "faster"
    return "slower" if interval.high < 1 / (1 + margin) else "indistinguishable"


def _welch(numerator: Floats, denominator: Floats) -> Interval:
    """Welch's interval of the difference of two means of logarithms, as a ratio (Biometrika 34, 1947)."""
    # SciPy takes 0.2 s to import; a worker, whose samples are being taken, never comes here.
    from scipy.special import stdtrit

    middle = float(numerator.mean() - denominator.mean())
    parts = np.array([side.var(ddof=1) / side.size for side in (numerator, denominator)])
    error = math.sqrt(parts.sum())
    if error == 0:
        return Interval(math.exp(middle), math.exp(middle))
    free = parts.sum() ** 2 / float((parts**2 / [numerator.size - 1, denominator.size - 1]).sum())
    reach = float(stdtrit(free, 0.975)) * error
    return Interval(math.exp(middle - reach), math.exp(middle + reach))
