"""Compute ratios of times, their 95 % intervals, and verdicts.

Every command asks `compare`, so that two of them cannot judge the same processes differently. docs/method.md states the
rules, and tests/profiler/stats/test_ratios.py simulates how often intervals and verdicts are right.

scipy.special takes 0.2 s to import and memory that a row of the CPU would show: it is imported where it is needed, and
workers never come here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from profiler.stats.samples import Floats

REPLICATES_FOR_A_VERDICT = 3
"""Fewest processes a side from which the spread between processes is known well enough for a verdict."""
MOST_REPLICATES = 100
"""Beyond so many processes a side nobody is told how many would settle a comparison."""
BETWEEN, WITHIN = "between processes", "within process"
"""What an interval covers: the spread between processes, or only the noise inside each."""

JUDGED_ON = {"event": "gpu", "host": "host"}
"""The clock of verdicts by headline clock: on CUDA device time, which the host's launches do not blur."""
MARGINS = {"gpu": 0.01, "host": 0.03, "latency": 0.03}
"""Differences of up to so much do not count, by the clock that is judged; a CPU's figures differ more by themselves.

`latency` is each side's headline clock, where they are not the same (a GPU's and a CPU's) or not known (published
figures)."""
MARGIN_WORDS = f"{100 * MARGINS['gpu']:.0f} % (CPU: {100 * MARGINS['host']:.0f} %)"

_Z = 1.959964
PRIOR_CONFIGURATIONS = 10
"""Fewest configurations of a run from which the spread that they have in common is estimated."""
PRIOR_MOST = 10.0
"""Most degrees of freedom that the common spread gives to one ratio: with more, one odd process of six would make a
verdict."""
_LEAST_SPREAD = 1e-5
"""A variance counts as at least this share of the median one: equal medians are a clock's resolution, not certainty."""


class Verdict(StrEnum):
    """What an interval between processes says of a speed-up."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNCLEAR = "unclear"

    @property
    def differs(self) -> bool:
        """Whether the two are told apart."""
        return self in (Verdict.FASTER, Verdict.SLOWER)

    @property
    def ties(self) -> bool:
        """Whether something else than time may decide between the two: it takes proof that they are equally fast."""
        return self is Verdict.EQUIVALENT

    @property
    def relation(self) -> str:
        """What a sentence says, before the other configuration's name."""
        return _RELATIONS[self]


_RELATIONS = {
    Verdict.FASTER: "faster than",
    Verdict.SLOWER: "slower than",
    Verdict.EQUIVALENT: "equivalent to",
    Verdict.UNCLEAR: "not clearly different from",
}
_TIE = "tie"
"""What a table calls an equivalent one."""
_MEANINGS = {
    _TIE: "equivalent, the whole interval between processes lies within a margin of {margin}",
    Verdict.UNCLEAR: "the interval shows neither a difference beyond the margin nor a tie",
}


def verdict(low: float, high: float, within: float) -> Verdict:
    """What an interval between processes says; `within` 0.01 a difference of up to 1 % does not count.

    A 95 % interval wholly within the margin is two one-sided tests at 2.5 % each (Schuirmann, "A comparison of the two
    one-sided tests procedure and the power approach for assessing the equivalence of average bioavailability", Journal
    of Pharmacokinetics and Biopharmaceutics 15, 1987).
    """
    least, most = 1 / (1 + within), 1 + within
    if low > most:
        return Verdict.FASTER
    if high < least:
        return Verdict.SLOWER
    return Verdict.EQUIVALENT if least <= low and high <= most else Verdict.UNCLEAR


def margin(clock: str | None) -> float:
    """The difference that does not count between two sides with this headline clock."""
    return MARGINS[JUDGED_ON.get(clock or "", "latency")]


def overall(found: Iterable[Verdict | None]) -> Verdict | None:
    """What the verdicts on several clocks say together: a difference on any tells them apart, and doubt is doubt."""
    known = [one for one in found if one is not None]
    doubtful = Verdict.UNCLEAR if Verdict.UNCLEAR in known else next(iter(known), None)
    return next((one for one in known if one.differs), doubtful)


def label(verdict: str | None) -> str:
    """A verdict's word in a table; empty without one."""
    return _TIE if verdict == Verdict.EQUIVALENT else verdict or ""


def legend(within: str = MARGIN_WORDS) -> str:
    """The words in tables that need an explanation, like "tie: indistinguishable within …"; `within` is the margin."""
    return "; ".join(f"{word}: {meaning.format(margin=within)}" for word, meaning in _MEANINGS.items())


def outlook(replicates: int | None) -> str:
    """What would settle an unclear verdict, in words."""
    if replicates is None:
        return f"{MOST_REPLICATES} replicates would not settle it"
    return f"about {replicates} replicates would settle it"


@dataclass(frozen=True, kw_only=True)
class Times:
    """One side of many ratios on one clock, shape (cells,) each, in logarithms.

    `median`, `mean` and `variance` (ddof 1) are of the medians of so many `processes`; `below` and `above` say how far
    the interval within the processes reaches from the mean (NaN where there is none). `prior_free` degrees of freedom
    and `prior_variance` are what the configurations of the processes' run have in common (`common_spread`).
    """

    median: Floats
    mean: Floats
    variance: Floats
    processes: Floats
    below: Floats
    above: Floats
    prior_free: Floats
    prior_variance: Floats

    def where(self, chosen: NDArray[np.bool_]) -> Times:
        return Times(**{name: values[chosen] for name, values in vars(self).items()})

    def or_where(self, chosen: NDArray[np.bool_], other: Times) -> Times:
        return Times(**{name: np.where(chosen, vars(other)[name], values) for name, values in vars(self).items()})

    @property
    def free(self) -> Floats:
        """Degrees of freedom of the spread between processes."""
        return self.processes - 1 + self.prior_free

    @property
    def spread(self) -> Floats:
        """The variance of one process, drawn towards what the run's configurations have in common."""
        own = self.processes - 1
        return np.asarray((self.prior_free * self.prior_variance + own * self.variance) / self.free)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of many comparisons: each cell's headline clock, the times on it, and device times.

    Where there is no device, device times are those of the headline clock.
    """

    clock: Sequence[str | None]
    latency: Times
    device: Times


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratios of the sides' median times and their 95 % intervals, shape (cells,) each, NaN where there is none.

    `between`: whether both sides have three processes, so that the interval is between processes.
    """

    base: Times
    side: Times
    ratio: Floats
    low: Floats
    high: Floats
    between: NDArray[np.bool_]

    def verdicts(self, margins: Sequence[float]) -> list[Verdict | None]:
        """Of each cell; None where its interval is not between processes."""
        known = self.between & ~np.isnan(self.low)
        cells = zip(known, self.low, self.high, margins, strict=True)
        return [verdict(low, high, within) if judged else None for judged, low, high, within in cells]

    def replicates_to_settle(self, margins: Sequence[float]) -> list[int | None]:
        """About how many replicates a side would settle each UNCLEAR cell; None of others, and beyond MOST_REPLICATES.

        It is the smallest number at which half the interval's width falls below the distance from the ratio to the
        nearer end of the margin, with the spread that the processes showed so far: a ratio outside the margin would
        then be a difference, one inside it a tie. (Planning by the interval's half-width: Beal, "Sample size
        determination for confidence intervals on the population mean and on the difference between two population
        means", Biometrics 45, 1989.) The next processes will differ by more or by less, and the ratio will move.
        """
        verdicts = self.verdicts(margins)
        unclear = np.array([one is Verdict.UNCLEAR for one in verdicts], dtype=bool)
        found: list[int | None] = [None] * len(verdicts)
        if not unclear.any():
            return found
        base, side = self.base.where(unclear), self.side.where(unclear)
        distance = np.abs(np.abs(np.log(self.ratio[unclear])) - np.log1p(np.array(margins)[unclear]))
        enough = np.full(distance.size, MOST_REPLICATES + 1.0)
        short = np.maximum(base.processes, side.processes)
        while (enough - short > 1).any():
            tried = np.ceil((short + enough) / 2)
            settles = _reach(replace(base, processes=tried), replace(side, processes=tried)) < distance
            enough, short = np.where(settles, tried, enough), np.where(settles, short, tried)
        for place, number in zip(np.flatnonzero(unclear), enough, strict=True):
            found[place] = int(number) if number <= MOST_REPLICATES else None
        return found


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How many times faster each cell is on one side than on the base.

    `latency` is on the headline clock, `device` on the clock `judged_on`; the verdict is on that one. `interval` says
    which kind the intervals are of (None without one), and `why_no_verdict` is None where there is one, or no ratio.
    `replicates_to_settle` is `Ratio`'s.
    """

    latency: Ratio
    device: Ratio
    judged_on: list[str]
    interval: list[str | None]
    verdict: list[Verdict | None]
    replicates_to_settle: list[int | None]
    why_no_verdict: list[str | None]


def compare(base: Side, side: Side) -> Comparison:
    """The base's times over the side's: above 1 the side is faster."""
    clocks = zip(base.clock, side.clock, strict=True)
    judged_on = [JUDGED_ON.get(one or "", "latency") if one == other else "latency" for one, other in clocks]
    headline = np.array([clock == "latency" for clock in judged_on], dtype=bool)
    latency = ratio_of(base.latency, side.latency)
    device = ratio_of(*(one.device.or_where(headline, one.latency) for one in (base, side)))
    margins = [MARGINS[clock] for clock in judged_on]
    found = device.verdicts(margins)
    known = ~np.isnan(latency.low) | ~np.isnan(device.low)
    kinds = [(BETWEEN if b else WITHIN) if k else None for b, k in zip(latency.between, known, strict=True)]
    return Comparison(
        latency=latency,
        device=device,
        judged_on=judged_on,
        interval=kinds,
        verdict=found,
        replicates_to_settle=device.replicates_to_settle(margins),
        why_no_verdict=[
            None if found[i] or np.isnan(latency.ratio[i]) else _why_no_verdict(base.latency, side.latency, latency, i)
            for i in range(len(found))
        ],
    )


def ratio_of(base: Times, side: Times) -> Ratio:
    """The base's times over the side's, with intervals between processes from three a side, else within them.

    The ratio is that of the medians over the processes, which are what is printed. The interval is around the ratio of
    geometric means, as Student's t needs it; where the ratio of the medians lies outside, it is stretched to hold it.
    """
    low, high = _within(base, side)
    between = np.minimum(base.processes, side.processes) >= REPLICATES_FOR_A_VERDICT
    if between.any():
        one, other = base.where(between), side.where(between)
        middle, reach = one.mean - other.mean, _reach(one, other)
        low[between], high[between] = middle - reach, middle + reach
    ratio = base.median - side.median
    low, high = np.minimum(low, ratio), np.maximum(high, ratio)
    return Ratio(base=base, side=side, ratio=np.exp(ratio), low=np.exp(low), high=np.exp(high), between=between)


def interval_of(side: Times) -> tuple[Floats, Floats]:
    """The ends of each cell's own 95 % interval around its median time, shape (cells,) each.

    From three processes Student's t between them, of two their range, of one the interval within it. It holds the
    median, as a ratio's does.
    """
    from scipy.special import stdtrit

    below, above = side.below.copy(), side.above.copy()
    two, more = side.processes == 2, side.processes >= REPLICATES_FOR_A_VERDICT
    below[two] = above[two] = np.sqrt(side.variance[two] / 2)
    several = side.where(more)
    below[more] = above[more] = stdtrit(several.free, 0.975) * np.sqrt(several.spread / several.processes)
    low, high = np.minimum(side.mean - below, side.median), np.maximum(side.mean + above, side.median)
    return np.exp(low), np.exp(high)


def times_of(figures: Sequence[Sequence[float]]) -> Times:
    """Of cells of which each process gave one figure above 0, without an interval of its own or a common spread."""
    logs = [np.log(each) for each in figures]
    none, nothing = np.full(len(logs), np.nan), np.zeros(len(logs))
    return Times(
        median=np.array([np.log(np.median(each)) for each in figures]),
        mean=np.array([each.mean() for each in logs]),
        variance=np.array([each.var(ddof=1) if each.size > 1 else math.nan for each in logs]),
        processes=np.array([float(each.size) for each in logs]),
        below=none,
        above=none,
        prior_free=nothing,
        prior_variance=nothing,
    )


def common_spread(variances: Floats, free: Floats) -> tuple[float, float]:
    """Degrees of freedom and variance that a run's configurations lend to one side of a ratio; 0 and 0 from under ten.

    `variances` are of the configurations' log medians, each with `free` degrees of freedom. They are taken for draws
    from a scaled inverse χ² distribution, which is fitted to the moments of their logarithms (Smyth, "Linear models and
    empirical Bayes methods for assessing differential expression in microarray experiments", Statistical Applications
    in Genetics and Molecular Biology 3, 2004, section 6.2). Half of its degrees of freedom go to a side, since both
    sides of a ratio lean on it, and at most five.
    """
    from scipy.special import digamma, polygamma

    if variances.size < PRIOR_CONFIGURATIONS or not variances.any():
        return 0.0, 0.0
    variances = np.maximum(variances, _LEAST_SPREAD * np.median(variances[variances > 0]))
    logs = np.log(variances) - digamma(free / 2) + np.log(free / 2)
    beyond_chance = float(logs.var(ddof=1) - polygamma(1, free / 2).mean())
    if beyond_chance <= 0:
        return PRIOR_MOST / 2, math.exp(float(logs.mean()))
    half = _inverse_trigamma(beyond_chance)
    variance = math.exp(float(logs.mean()) + float(digamma(half)) - math.log(half))
    return min(half, PRIOR_MOST / 2), variance


def _why_no_verdict(base: Times, side: Times, latency: Ratio, cell: int) -> str:
    if latency.between[cell]:
        return f"no device time from {REPLICATES_FOR_A_VERDICT} processes a side"
    counts = f"{base.processes[cell]:.0f} and {side.processes[cell]:.0f} processes"
    lacking = "; too few samples for an interval, too" if np.isnan(latency.low[cell]) else ""
    return f"{counts}: a verdict needs {REPLICATES_FOR_A_VERDICT} a side{lacking}"


def _within(base: Times, side: Times) -> tuple[Floats, Floats]:
    """Of the log ratio: the arms of the two sides' own intervals, added in squares.

    This is the method of variance estimates recovery, which keeps the arms' asymmetry (Zou and Donner, "Construction of
    confidence limits about effect measures", Statistics in Medicine 27, 2008).
    """
    (below_a, above_a), (below_b, above_b) = _arms(base), _arms(side)
    middle = base.mean - side.mean
    return middle - np.hypot(below_a, above_b), middle + np.hypot(above_a, below_b)


def _arms(side: Times) -> tuple[Floats, Floats]:
    """How far a side's interval reaches below and above its mean, with what its processes differ by in it."""
    # Their own noise is in the difference once more, as it is in a bootstrap that resamples both.
    apart = _Z * np.sqrt(np.nan_to_num(side.variance) / np.maximum(side.processes, 1))
    return np.hypot(np.maximum(side.below, 0), apart), np.hypot(np.maximum(side.above, 0), apart)


def _reach(base: Times, side: Times) -> Floats:
    """Half the width of the interval between processes of the log ratio.

    Three processes tell their spread badly, and a run's configurations tell it well: the variance of each side is drawn
    towards what its run's have in common (the moderated t of Smyth 2004). The two are put together by Welch's t
    (Biometrika 34, 1947), which alone is left where a run has no common spread.
    """
    from scipy.special import stdtrit

    parts = [one.spread / one.processes for one in (base, side)]
    frees = [base.free, side.free]
    squared_error = parts[0] + parts[1]
    squares = parts[0] ** 2 / frees[0] + parts[1] ** 2 / frees[1]
    known = squares > 0
    free = np.where(known, squared_error**2 / np.where(known, squares, 1.0), frees[0] + frees[1])
    return np.asarray(stdtrit(free, 0.975) * np.sqrt(squared_error))


def _inverse_trigamma(value: float) -> float:
    """The x at which trigamma is `value`, by bisection of its logarithm: trigamma falls from infinity to 0."""
    from scipy.special import polygamma

    low, high = -12.0, 12.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if polygamma(1, math.exp(middle)) > value else (low, middle)
    return math.exp(low)
