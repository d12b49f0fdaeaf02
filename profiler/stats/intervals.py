"""Make the 95 % intervals of figures, cells, ratios and losses, and read verdicts off them.

docs/method.md states the rules, with their sources. Answers read these intervals and make no others. Only losses are
not on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from exporters.python310 import StrEnum
from profiler.stats.samples import Floats, Interval, median_interval, student

MARGINS = {"event": 0.01, "host": 0.03}
"""Shares of the smallest differences that count, by headline clock: figures of a CPU vary more."""
CONTRADICTION = 1.1
"""Two figures of one call contradict each other if they differ by this ratio."""
_PRIOR_FREE = 4 / 3
"""Degrees of freedom of the prior for one configuration's variance. They suit spreads with a log-sd of 0.7 to 1.1; a
value fitted to a run's few configurations leaves out the noisiest fifth (docs/verdicts.md)."""
_PRIOR_SCALE = 0.634
"""Scale of that prior, as a share of the typical spread: exp((ψ(d/2) - ln(d/2)) / 2)."""
_FEWEST_CONFIGURATIONS = 5
"""Fewest replicated configurations that predict others."""
_LEAST_VARIANCE = 1e-8
"""Smallest variance: equal medians show the clock's resolution, not that there is no spread."""
_LEAST_ROUND = 0.002
"""Smallest spread of rounds: three may agree by luck."""
_MOST_REACH = math.log(1000)
"""Widest arm of an interval: processes that differ by more, beside heavy work, bound nothing."""
_TRIMMED = 0.2
"""Share of the rounds that is trimmed at either end."""
_LEVEL = 0.975
"""Quantile at the upper end of a 95 % interval."""
_MOST_OF_OTHERS = 0.25
"""The low end is open from this share of other work: threads that wait for each other took 1,000 times as long."""
_LEAST_ERROR = 0.1
"""Errors below this share of the largest count as this share of it."""
_PSEUDO_ITEMS = 4
"""Items added to a loss: half lose and half gain a whole score."""
_FEWEST = 3
"""Fewest samples with an interval: autocorrelation is estimated badly from fewer."""


class Verdict(StrEnum):
    """The conclusion from a ratio's interval, given the margin."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNCLEAR = "unclear"


def margin(clock: str | None) -> float:
    """Return the smallest difference that counts between figures of this headline clock."""
    return MARGINS.get(clock or "", MARGINS["host"])


def verdict(low: float, high: float, within: float) -> Verdict:
    """Read a ratio's interval; with `within` 0.01 differences up to 1 % do not count.

    A 95 % interval wholly inside the margin is two one-sided tests at 2.5 % each (Schuirmann 1987).
    """
    bottom, top = 1 / (1 + within), 1 + within
    if low > top:
        return Verdict.FASTER
    if high < bottom:
        return Verdict.SLOWER
    return Verdict.EQUIVALENT if bottom <= low and high <= top else Verdict.UNCLEAR


@dataclass(frozen=True)
class Spread:
    """Spread between processes of a configuration: the prior of their log medians' variance, a scaled inverse χ²
    distribution with scale sd² and `free` degrees of freedom."""

    sd: float
    free: float

    @classmethod
    def of_class(cls, typical: float, configurations: float) -> Spread | None:
        """Return the prior for a further configuration of a class, or None if the class has under five."""
        if configurations < _FEWEST_CONFIGURATIONS:
            return None
        return cls(_PRIOR_SCALE * typical, _PRIOR_FREE * configurations / (configurations + 1))


def typical_spread(variances: ArrayLike, free: ArrayLike) -> float:
    """Return the geometric mean of standard deviations, given variances and their degrees of freedom.

    The logarithm of a χ² variable lies ln(2) + ψ(d/2) above 0 on average (Smyth 2004, section 6.2), here by ψ's series.
    """
    squares, degrees = np.maximum(np.asarray(variances, dtype=float), _LEAST_VARIANCE), np.asarray(free, dtype=float)
    return math.exp(float((np.log(squares) + 1 / degrees + 1 / (3 * degrees**2)).mean()) / 2)


def spread_reach(sd: ArrayLike, free: ArrayLike) -> Floats:
    """Return the arm of one process's 95 % interval for each spread, on the log scale: at most a factor of 1000."""
    return np.asarray(np.minimum(student(_LEVEL, free) * np.asarray(sd, dtype=float), _MOST_REACH))


def figure_interval(
    middle: float, samples: ArrayLike, others: Iterable[float] = (), beside_work: float | None = None
) -> Interval:
    """Return the interval that holds all of one process's evidence about its figure.

    `middle` is the median of `samples`, in their unit (empty for a figure without samples); `others` are contradictory
    figures of the same quantity. Other work only adds time, so `beside_work`, its share of the processors or the card
    (0 if unknown), lowers the low end.
    """
    values = np.asarray(samples, dtype=float)
    ends = [middle, *others]
    if values.size >= _FEWEST:
        sampling, third = median_interval(values), values.size // 3
        ends += [sampling.low, sampling.high, float(np.median(values[:third])), float(np.median(values[-third:]))]
        if beside_work is not None:
            ends.append(float(np.percentile(values, 10)))
    if beside_work is not None:
        ends.append(middle * (1 - beside_work if beside_work < _MOST_OF_OTHERS else math.exp(-_MOST_REACH)))
    return Interval(min(ends), max(ends))


@dataclass(frozen=True)
class Processes:
    """Figures of the processes of many cells, shape (cells,) each, on the log scale.

    `middle` is the median of `count` processes. `variance` (ddof 1, NaN for a single process) is over all `usable`
    processes, also those that chose the cell. `lowest` and `highest` are the first and last process without
    `processes_beyond`. `below` and `above` are the mean arms of the processes' intervals. `sd` and `free` are a
    `Spread`, 0 if unknown. `tests` is the number of confirmed cells among which the best is chosen.
    """

    middle: Floats
    count: Floats
    usable: Floats
    variance: Floats
    lowest: Floats
    highest: Floats
    below: Floats
    above: Floats
    sd: Floats
    free: Floats
    tests: Floats

    def interval(self) -> tuple[Floats, Floats]:
        """Return both ends of each cell's interval, on the log scale; NaN for a single process of unknown spread.

        A median of k processes varies up to √(π/2) times as much as their mean. The best of several confirmed cells is
        also the luckiest, so they share the level. If each process is either fast or slow, their median is one or the
        other: the middle ranks bound it, Student's t does not.
        """
        degrees = self.free + self.usable - 1
        with np.errstate(invalid="ignore", divide="ignore"):
            squares = self.free * self.sd**2 + (self.usable - 1) * np.nan_to_num(self.variance)
            share = np.where(self.count < 3, 1.0, math.pi / 2 - (math.pi / 2 - 1) / self.count) / self.count
            t = student(1 - (1 - _LEVEL) / self.tests, degrees)
            between = np.minimum(t * np.sqrt(squares / degrees * share), _MOST_REACH)
        between = np.where(degrees > 0, between, np.nan)
        low, high = self.middle - np.hypot(between, self.below), self.middle + np.hypot(between, self.above)
        return np.minimum(low, self.lowest), np.maximum(high, self.highest)


def processes_beyond(count: Any) -> Any:
    """Return the number of processes beyond either end of their median's distribution-free 95 % interval.

    It is the sign test's, in the normal approximation with correction for continuity (Conover). A fraction is a place
    between two processes: whole ranks would widen the interval from five processes to eight. The number is negative for
    up to five processes, whose extremes hold the median in 75 % of cases for three processes and in 94 % for five.
    """
    return count / 2 - 0.98 * count**0.5 - 0.5


def ratio_interval(
    above: tuple[ArrayLike, ArrayLike, ArrayLike], below: tuple[ArrayLike, ArrayLike, ArrayLike]
) -> tuple[Floats, Floats, Floats]:
    """Divide figures with intervals, as (middle, low, high), and return the ratios with theirs.

    The arms of both intervals are added in squares, on the log scale, which keeps their asymmetry (Zou, Donner 2008).
    """
    (a, a_low, a_high), (b, b_low, b_high) = (
        tuple(np.log(np.asarray(part, dtype=float)) for part in figure) for figure in (above, below)
    )
    ratio = a - b
    low, high = ratio - np.hypot(a - a_low, b_high - b), ratio + np.hypot(a_high - a, b - b_low)
    return np.exp(ratio), np.exp(low), np.exp(high)


def upper_bound(errors: ArrayLike) -> float:
    """Return a 95 % upper bound for the error of a further item.

    It is the one-sided prediction limit of log-normal errors, and at least the largest error. Fewer than five errors
    give the largest: their spread is too uncertain. Errors far below the largest count as a tenth of it: a quantized
    model is either exact or a step off, and exact items say nothing about the size of a step.
    """
    values = np.asarray(errors, dtype=float)
    largest = float(values.max())
    if values.size < 5 or largest <= 0:
        return largest
    logs = np.log(np.maximum(values, _LEAST_ERROR * largest))
    n = logs.size
    reach = float(student(0.95, n - 1)) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / n)
    return max(largest, math.exp(float(logs.mean()) + reach))


def mean_loss(base: Floats, ours: Floats, error: float | None = None) -> tuple[float, Interval]:
    """Return the mean of `base - ours`, scores of the same items in the same order, and its interval.

    Four pseudo-items give it a width even if all items agree. It assumes that a relative `error` e of the outputs costs
    at most 2e of the score: without losses the interval ends there.
    """
    losses = base - ours
    mean, items = float(losses.mean()), len(losses)
    squares = float(np.square(losses - mean).sum()) + _pseudo_items(items, error)
    reach = float(student(_LEVEL, items + _PSEUDO_ITEMS - 1)) * math.sqrt(squares) / items
    return mean, Interval(max(mean - reach, -1.0), min(mean + reach, 1.0))


def _pseudo_items(items: int, error: float | None) -> float:
    return _PSEUDO_ITEMS if error is None else min(math.sqrt(_PSEUDO_ITEMS), items * error) ** 2


def items_needed(items: int, loss: float, high: float, limit: float, error: float | None = None) -> int:
    """Return about how many items bring the interval's end to the limit, for a loss below it, to two digits."""
    deviation = ((high - loss) * items / float(student(_LEVEL, items + _PSEUDO_ITEMS - 1))) ** 2
    variance, quantile = max(deviation - _pseudo_items(items, error), 0.0) / items, float(student(_LEVEL, 1e9))
    # Solve quantile * sqrt(variance * n + _PSEUDO_ITEMS) / n = limit - loss for n.
    room = (limit - loss) ** 2
    linear = quantile**2 * variance
    needed = math.ceil((linear + math.sqrt(linear**2 + 4 * _PSEUDO_ITEMS * quantile**2 * room)) / (2 * room))
    unit = int(10 ** max(0, len(str(needed)) - 2))
    return -(-needed // unit) * unit


def holm(chances: ArrayLike, level: float = 0.025) -> list[bool]:
    """Reject tests so that at most `level` of families have a false rejection; NaN is no test.

    Compare the smallest chance with `level` over their number, the next over one less, until one fails (Holm 1979).
    """
    values = np.asarray(chances, dtype=float)
    rejected, order = [False] * values.size, np.argsort(values)[: np.isfinite(values).sum()]
    for rank, place in enumerate(order):
        if values[place] > level / (order.size - rank):
            break
        rejected[place] = True
    return rejected


def rounds_interval(logs: Sequence[float], tests: int = 1) -> Interval:
    """Return the interval of a ratio from rounds that measured both sides next to each other.

    `logs` has the logarithm of each round's ratio; `tests` ratios share the level. All looks hold the ratio at once in
    95 % of experiments, whenever they are stopped, so their intersection does, and no further round widens it; if it is
    empty, the last interval counts. It is infinite below three rounds.
    """
    low, high, last, k, n = -math.inf, math.inf, (-math.inf, math.inf), 0, _FEWEST
    while n <= len(logs):
        k, last = k + 1, _trimmed(np.sort(logs[:n]), 1 - 0.025 / (k + 1) / (k + 2) / tests)
        low, high, n = max(low, last[0]), min(high, last[1]), n + max(1, n // 4)
    ends = (low, high) if low <= high else last
    return Interval(math.exp(ends[0]), math.exp(ends[1]))


def _trimmed(ordered: Floats, level: float) -> tuple[float, float]:
    n = ordered.size
    cut = int(_TRIMMED * n)
    inner, winsorized = n - 2 * cut, np.clip(ordered, ordered[cut], ordered[n - cut - 1])
    error = float(winsorized.std(ddof=1)) * math.sqrt((n - 1) / (inner * (inner - 1)))
    reach = float(student(level, inner - 1)) * max(error, _LEAST_ROUND / math.sqrt(n))
    middle = float(ordered[cut : n - cut].mean())
    return middle - reach, middle + reach
