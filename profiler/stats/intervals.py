"""Give figures, cells and ratios their 95 % intervals, and read verdicts off them.

docs/method.md states the rules; every answer reads the intervals that are made here, and none makes its own. All
arithmetic is on logarithms. scipy.special takes 0.2 s to import and memory that a row of the CPU would show, so it is
imported where it is needed, and no worker needs it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from exporters.python310 import StrEnum
from profiler.stats.samples import Floats, Interval, effective_size, median_interval, student

MARGINS = {"event": 0.01, "host": 0.03}
"""Differences of up to this share do not count, by headline clock: figures of a CPU differ more by themselves."""
CONTRADICTION = 1.1
"""Two figures of one call contradict each other from this ratio on."""
_KNOWN: dict[bytes, Interval | None] = {}
"""Sampling intervals by the samples' digest."""
_PRIOR_CONFIGURATIONS = 10
"""Fewest replicated configurations of a run from which their common spread is estimated."""
_PRIOR_MOST, _BASE_MOST = 5.0, 10.0
"""Most degrees of freedom that a common spread adds to one cell, and the machine's spread to a base."""
_LEAST_SPREAD = 1e-5
"""A variance counts as at least this share of the median one: equal medians are a clock's resolution, not exactness."""
_LEAST_ROUND = 0.002
"""Rounds differ by at least this share: three that agree by luck prove nothing."""
_MOST_REACH = math.log(1000)
"""Where processes differ by more, as two next to heavy work may, all that is known is that nothing is."""
_TRIMMED = 0.2
_MOST_OF_OTHERS = 0.99
"""Share of other work that still leaves a low end."""
_LEAST_ERROR = 0.1
"""Share of the largest error below which an error tells nothing of a further one's size."""
_FEWEST = 3
"""Least effective sample size: autocorrelation is estimated badly from a handful of samples."""


class Verdict(StrEnum):
    """The reading of a ratio's interval against the margin."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNCLEAR = "unclear"


def margin(clock: str | None) -> float:
    """Return the difference that does not count between figures of this headline clock."""
    return MARGINS.get(clock or "", MARGINS["host"])


def verdict(low: float, high: float, within: float) -> Verdict:
    """Read an interval of a ratio; with `within` 0.01 a difference of up to 1 % does not count.

    A 95 % interval wholly inside the margin is two one-sided tests at 2.5 % each (Schuirmann, "A comparison of the two
    one-sided tests procedure and the power approach for assessing the equivalence of average bioavailability", Journal
    of Pharmacokinetics and Biopharmaceutics 15, 1987).
    """
    least, most = 1 / (1 + within), 1 + within
    if low > most:
        return Verdict.FASTER
    if high < least:
        return Verdict.SLOWER
    return Verdict.EQUIVALENT if least <= low and high <= most else Verdict.UNCLEAR


@dataclass(frozen=True)
class Spread:
    """How far processes of one configuration differ: the standard deviation of their log medians, and how many degrees
    of freedom it is known with."""

    sd: float
    free: float

    @property
    def reach(self) -> float:
        """Half the 95 % interval of one process, on the log scale."""
        return float(spread_reach(self.sd, self.free))


@dataclass(frozen=True)
class Spreads:
    """The spread of figures that the host sets, and of those that the device sets."""

    host: Spread
    device: Spread


UNMEASURED = Spreads(Spread(0.10, 2.0), Spread(0.005, 2.0))
"""Assumed until a base was measured: what an H100 showed, known about as well as from three processes."""


def pooled(squares: float, free: float) -> Spread | None:
    """Make a spread of summed squared deviations of log medians, or None without any."""
    return Spread(math.sqrt(squares / free), free) if free > 0 else None


def deviations(processes: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Sum squared deviations of log medians from their cells' means, and the degrees of freedom they have."""
    logs = [np.log(values) for values in processes if len(values) > 1]
    return float(sum(each.var() * each.size for each in logs)), float(sum(each.size - 1 for each in logs))


def spread_reach(sd: ArrayLike, free: ArrayLike) -> Floats:
    """Return half the 95 % interval of one process for spreads, on the log scale: at most a factor of 1000."""
    return np.asarray(np.minimum(_t(free) * np.asarray(sd, dtype=float), _MOST_REACH))


def figure_interval(
    middle: float, samples: ArrayLike, between: float, others: Iterable[float] = (), beside_work: float | None = None
) -> Interval:
    """Return the hull of all that is known of one process's figure.

    `middle` is its median and `samples` what that is of, in one unit (empty for a figure without samples); `between`
    is the log-scale reach of `Spread`; `others` are figures of the same thing that contradict it. The hull also holds
    the medians of the first and the last third, which differ where the figure moved. Other work only adds time, so
    `beside_work`, the share of the processors or the card that it had (0 if unknown), takes the low end down by that
    share, and to the fastest decile.
    """
    values = np.asarray(samples, dtype=float)
    ends = [middle, middle * math.exp(-between), middle * math.exp(between), *others]
    if values.size >= _FEWEST:
        sampling = _known_interval(values) or _student(values, middle)
        third = values.size // 3
        ends += [sampling.low, sampling.high, float(np.median(values[:third])), float(np.median(values[-third:]))]
        if beside_work is not None:
            ends.append(float(np.percentile(values, 10)))
    if beside_work is not None:
        ends.append(middle * (1 - min(beside_work, _MOST_OF_OTHERS)))
    return Interval(min(ends), max(ends))


def _known_interval(values: Floats) -> Interval | None:
    """Bootstrap a series once: a run rebuilds its rows after every case."""
    key = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
    if key not in _KNOWN:
        _KNOWN[key] = median_interval(values)
    return _KNOWN[key]


@dataclass(frozen=True)
class Processes:
    """Figures of the processes of many cells, shape (cells,) each, on the log scale.

    `variance` (ddof 1) is of the medians of `count` processes (NaN of one), `lowest` and `highest` are their first and
    last without `processes_beyond`; `below` and `above` are the means of what their intervals reach beyond the spread
    between processes; `sd` and `free` are that `Spread`; `is_base` marks the cells that it was measured on; `common_sd`
    and `common_free` are what replicated configurations of their run have in common (`common_spread`), 0 for nothing.
    """

    middle: Floats
    count: Floats
    variance: Floats
    lowest: Floats
    highest: Floats
    below: Floats
    above: Floats
    sd: Floats
    free: Floats
    is_base: Floats
    common_sd: Floats
    common_free: Floats

    def interval(self) -> tuple[Floats, Floats]:
        """Return both ends of each cell's interval, on the log scale.

        One or two processes lean on the machine's spread. From three on their own counts, moderated by what the
        configurations of the run have in common (Smyth, "Linear models and empirical Bayes methods for assessing
        differential expression in microarray experiments", Statistical Applications in Genetics and Molecular Biology
        3, 2004); a base also leans on the machine's, which was measured on bases. Processes may be either fast or slow,
        and then so is their median. Student's t does not bound it; the ranks in the middle do.
        """
        several = (self.count >= 3) & (self.common_free > 0)
        own = (self.count >= 3) & ~several & (self.is_base == 0)
        weight = np.where(self.is_base > 0, np.minimum(self.free, _BASE_MOST), self.free)
        weight = np.select([several, own], [self.common_free, 0.0], np.where(self.count < 3, self.free, weight))
        prior = np.where(several, self.common_sd, self.sd)
        degrees = weight + self.count - 1
        squares = weight * prior**2 + (self.count - 1) * np.nan_to_num(self.variance)
        between = np.minimum(_t(degrees) * np.sqrt(squares / degrees / self.count), _MOST_REACH)
        low, high = self.middle - np.maximum(between, self.below), self.middle + np.maximum(between, self.above)
        return np.minimum(low, self.lowest), np.maximum(high, self.highest)


def processes_beyond(count: Any) -> Any:
    """Return how many of so many processes lie beyond either end of their median's distribution-free 95 % interval.

    It is the sign test's, in the normal approximation with correction for continuity (Conover, "Practical Nonparametric
    Statistics", section 3.2). A fraction stands for a place between two processes: whole ranks would widen from five
    processes to eight. Negative for up to five, whose extremes hold less: 75 % of medians of three, 94 % of five.
    """
    return count / 2 - 0.98 * count**0.5 - 0.5


def common_spread(variances: Floats, processes: Floats) -> tuple[float, float]:
    """Return the standard deviation and the degrees of freedom that a run's configurations lend to one cell.

    `variances` are of the configurations' log medians over so many `processes` each; 0 and 0 from under ten.
    They are taken for draws from a scaled inverse χ² distribution, which is fitted to the moments of their logarithms
    (Smyth 2004, section 6.2). Half of its degrees of freedom go to a cell, since both sides of a ratio lean on it, and
    at most five.
    """
    from scipy.special import digamma, polygamma

    if variances.size < _PRIOR_CONFIGURATIONS or not variances.any():
        return 0.0, 0.0
    free = processes - 1.0
    variances = np.maximum(variances, _LEAST_SPREAD * np.median(variances[variances > 0]))
    logs = np.log(variances) - digamma(free / 2) + np.log(free / 2)
    beyond_chance = float(logs.var(ddof=1) - polygamma(1, free / 2).mean())
    if beyond_chance <= 0:
        return math.exp(float(logs.mean()) / 2), _PRIOR_MOST
    half = _inverse_trigamma(beyond_chance)
    variance = math.exp(float(logs.mean()) + float(digamma(half)) - math.log(half))
    return math.sqrt(variance), min(half, _PRIOR_MOST)


def ratio_interval(
    base: tuple[ArrayLike, ArrayLike, ArrayLike], own: tuple[ArrayLike, ArrayLike, ArrayLike]
) -> tuple[Floats, Floats, Floats]:
    """Divide figures with their ends, (middle, low, high) each, and return the ratios with theirs.

    The arms of both intervals are added in squares, on the log scale, which keeps their asymmetry (Zou and Donner,
    "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008).
    """
    (a, a_low, a_high), (b, b_low, b_high) = (
        tuple(np.log(np.asarray(part, dtype=float)) for part in figure) for figure in (base, own)
    )
    ratio = a - b
    low, high = ratio - np.hypot(a - a_low, b_high - b), ratio + np.hypot(a_high - a, b - b_low)
    return np.exp(ratio), np.exp(low), np.exp(high)


def upper_bound(errors: ArrayLike) -> float:
    """Return a 95 % upper bound for the error of a further item.

    It is the one-sided prediction limit of log-normal errors, and no less than the largest one seen. Of fewer than five
    errors it is that one: their spread would be known too badly. Errors far below the largest count as a tenth of it:
    a quantized model is either exact or a step off, and exact items say nothing about the size of a step.
    """
    values = np.asarray(errors, dtype=float)
    most = float(values.max())
    if values.size < 5 or most <= 0:
        return most
    logs = np.log(np.maximum(values, _LEAST_ERROR * most))
    n = logs.size
    # Workers come here, so SciPy's t, which would weigh on their memory, does not do.
    reach = student(1.644854, n - 1) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / n)
    return max(most, math.exp(float(logs.mean()) + reach))


def _student(values: Floats, middle: float) -> Interval:
    """Student's t of log samples around the median, for too few effective samples to bootstrap."""
    logs = np.log(values[values > 0])
    if logs.size < 2:
        return Interval(middle, middle)
    size = max(effective_size(values), _FEWEST)
    # A median varies √(π/2) times as much as a mean.
    reach = float(_t(size - 1)) * float(logs.std(ddof=1)) * math.sqrt(math.pi / 2 / size)
    return Interval(middle * math.exp(-reach), middle * math.exp(reach))


def rounds_interval(logs: Sequence[float], tests: int = 1) -> Interval:
    """Return the interval of a ratio from rounds in which both sides were measured next to each other.

    `logs` has the logarithm of each round's ratio. It is looked at after 3, 4, 5, 6, 7, 8, 10, 12, 15 rounds and so on,
    and stays between looks. All intervals of an experiment hold the ratio at once in 95 % of experiments, whenever it
    is stopped: the k-th look has a level of 0.05 / k / (k + 1), which add up to 0.05 (Bonferroni), and `tests` ratios
    share that. It is the interval of the 20 % trimmed mean, since a burst of other work may fall on one side of a round
    (Tukey and McLaughlin, Sankhya A 25, 1963). Below three rounds it holds everything.
    """
    looks = [_FEWEST]
    while (following := looks[-1] + max(1, looks[-1] // 4)) <= len(logs):
        looks.append(following)
    if len(logs) < _FEWEST:
        return Interval(0.0, math.inf)
    n, k = looks[-1], len(looks)
    cut, ordered = int(_TRIMMED * n), np.sort(logs[:n])
    kept, inner = n - 2 * cut, np.clip(ordered, ordered[cut], ordered[n - cut - 1])
    error = float(inner.std(ddof=1)) * math.sqrt((n - 1) / (kept * (kept - 1)))
    reach = float(_t(kept - 1, 1 - 0.025 / k / (k + 1) / tests)) * max(error, _LEAST_ROUND / math.sqrt(n))
    middle = float(ordered[cut : n - cut].mean())
    return Interval(math.exp(middle - reach), math.exp(middle + reach))


def _t(free: ArrayLike, level: float = 0.975) -> Floats:
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.maximum(np.asarray(free, dtype=float), 1.0), level))


def _inverse_trigamma(value: float) -> float:
    """Find the x at which trigamma is `value` by bisection of its logarithm: trigamma falls from infinity to 0."""
    from scipy.special import polygamma

    low, high = -12.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if polygamma(1, math.exp(middle)) > value else (low, middle)
    return math.exp(low)
