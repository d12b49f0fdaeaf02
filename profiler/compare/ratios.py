"""What enters: logarithms of medians, a column a side. What leaves: the ratios' 95 % intervals, all cells at once.

profiler/stats/ratios.py has the same for one ratio from its samples; the tests hold the two against each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from profiler.stats.ratios import REPLICATES_FOR_A_VERDICT
from profiler.stats.samples import Floats

_Z = 1.959964
PRIOR_CELLS = 10
"""Fewest cells from which the spread between processes that cells have in common is estimated."""
PRIOR_MOST = 10.0
"""Most degrees of freedom that the other cells give to one: with more, one odd process of six would make a verdict."""
_LEAST_SPREAD = 1e-5
"""A variance counts as at least this share of the median one: equal medians are a clock's resolution, not certainty."""


@dataclass(frozen=True)
class Means:
    """One side of many ratios, shape (cells,) each: mean and variance (ddof 1) of the processes' log medians, how many
    processes there are, and the ends of the interval within the processes, as logarithms (NaN where there is none)."""

    mean: Floats
    variance: Floats
    processes: Floats
    low: Floats
    high: Floats


def intervals(numerator: Means, denominator: Means) -> tuple[Floats, Floats]:
    """Both ends of each ratio's 95 % interval, shape (cells,), NaN where there is none.

    Between processes from three a side, else within them.
    """
    low, high = _within(numerator, denominator)
    replicated = np.minimum(numerator.processes, denominator.processes) >= REPLICATES_FOR_A_VERDICT
    if replicated.any():
        chosen = [_rows(side, replicated) for side in (numerator, denominator)]
        middle = chosen[0].mean - chosen[1].mean
        reach = _reach(*chosen)
        low[replicated], high[replicated] = middle - reach, middle + reach
    return np.exp(low), np.exp(high)


def _within(numerator: Means, denominator: Means) -> tuple[Floats, Floats]:
    """Of the log ratio: the arms of the two sides' own intervals, added in squares.

    This is the method of variance estimates recovery, which keeps the arms' asymmetry (Zou and Donner, "Construction of
    confidence limits about effect measures", Statistics in Medicine 27, 2008).
    """
    (below_a, above_a), (below_b, above_b) = _arms(numerator), _arms(denominator)
    middle = numerator.mean - denominator.mean
    return middle - np.hypot(below_a, above_b), middle + np.hypot(above_a, below_b)


def _arms(side: Means) -> tuple[Floats, Floats]:
    """How far a side's interval reaches below and above its mean, with what two processes differ by in it."""
    below, above = np.maximum(side.mean - side.low, 0), np.maximum(side.high - side.mean, 0)
    # Their own noise is in the difference once more, as it is in a bootstrap that resamples both.
    two = np.where(side.processes == 2, _Z * np.sqrt(np.nan_to_num(side.variance) / 2), 0.0)
    return np.hypot(below, two), np.hypot(above, two)


def _reach(numerator: Means, denominator: Means) -> Floats:
    """Half the width of the interval between processes of the log ratio.

    Three processes tell their spread badly, and hundreds of cells measured alike tell it well: a cell's variance is
    drawn towards what the cells have in common, by the moderated t of Smyth ("Linear models and empirical Bayes methods
    for assessing differential expression in microarray experiments", Statistical Applications in Genetics and Molecular
    Biology 3, 2004). With fewer than ten cells it is Welch's t (Biometrika 34, 1947).
    """
    from scipy.special import stdtrit  # It takes 0.2 s to import.

    parts = [side.variance / side.processes for side in (numerator, denominator)]
    frees = [side.processes - 1 for side in (numerator, denominator)]
    squared_error = parts[0] + parts[1]
    weight = 1 / numerator.processes + 1 / denominator.processes
    if squared_error.size < PRIOR_CELLS or not squared_error.any():
        free = _satterthwaite(parts, frees)
    else:
        # One side may be noisier than the other: in what the cells have in common, or a cell's own would be guessed.
        common = [np.full_like(part, np.median(part[part > 0])) if part.any() else part for part in parts]
        own = _satterthwaite(common, frees)
        spread = squared_error / weight
        spread = np.maximum(spread, _LEAST_SPREAD * np.median(spread[spread > 0]))
        prior_free, prior_spread = common_spread(spread, own)
        free = own + prior_free
        squared_error = weight * (prior_free * prior_spread + own * spread) / free
    return np.asarray(stdtrit(free, 0.975) * np.sqrt(squared_error))


def common_spread(variances: Floats, free: Floats) -> tuple[float, float]:
    """Degrees of freedom, at most ten, and variance of the prior that cells' variances, each with `free`, share.

    Fits the moments of their logarithms (Smyth 2004, section 6.2).
    """
    from scipy.special import digamma, polygamma

    logs = np.log(variances) - digamma(free / 2) + np.log(free / 2)
    beyond_chance = float(logs.var(ddof=1) - polygamma(1, free / 2).mean())
    half = _inverse_trigamma(beyond_chance) if beyond_chance > 0 else math.inf
    prior_free = min(2 * half, PRIOR_MOST)
    if math.isinf(half):
        return prior_free, math.exp(float(logs.mean()))
    return prior_free, math.exp(float(logs.mean()) + float(digamma(half)) - math.log(half))


def _inverse_trigamma(value: float) -> float:
    """The x at which trigamma is `value`, by bisection of its logarithm: trigamma falls from infinity to 0."""
    from scipy.special import polygamma

    low, high = -12.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if polygamma(1, math.exp(middle)) > value else (low, middle)
    return math.exp(low)


def _satterthwaite(parts: list[Floats], frees: list[Floats]) -> Floats:
    """Degrees of freedom of the sum of two estimated variances; those of both together where both are 0."""
    total = parts[0] + parts[1]
    squares = parts[0] ** 2 / frees[0] + parts[1] ** 2 / frees[1]
    known = squares > 0
    return np.where(known, total**2 / np.where(known, squares, 1.0), frees[0] + frees[1])


def _rows(side: Means, chosen: np.ndarray) -> Means:
    return Means(*(getattr(side, name)[chosen] for name in ("mean", "variance", "processes", "low", "high")))
