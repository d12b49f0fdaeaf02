"""Choose what to deploy, and say why not each other candidate.

Of the candidates that meet every limit the one with the best objective is chosen; one whose latency and throughput
contradict each other is ranked by the worse of the two. Where three replicates a side show
that others are equivalent to it, the one among them that takes the least to set up is, then the one with the least
memory. Where it is unclear whether they differ, the best estimate stays the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

from profiler.job.conditions import Filter
from profiler.recommend.candidates import FIGURES, Candidate, candidates, machine_name
from profiler.results import set_up
from profiler.results.reading import chosen as matching
from profiler.results.replicates import without_probes
from profiler.results.speedups import side_of, sides, spreads
from profiler.results.warning_kinds import HOST_BOUND
from profiler.stats.ratios import (
    MARGINS,
    REPLICATES_FOR_A_VERDICT,
    Verdict,
    compare,
    margin,
    overall,
    ratio_of,
    times_of,
)
from profiler.stats.samples import Interval

OBJECTIVES = {figure.objective: name for name, figure in FIGURES.items() if figure.objective}
"""By objective the figure that is to be as good as possible."""
HIGHER = frozenset(name for name, figure in FIGURES.items() if figure.better == "more")
LIMITED_BY = {
    **{name: "--max-latency-ms" for name, c in FIGURES.items() if c.percentile or c.objective == "latency"},
    "throughput": "--min-throughput",
    "peak_memory_mib": "--max-memory-mib",
    "error": "--max-error",
}
"""By figure the option that limits it."""
NOT_TIMED = ("peak_memory_mib", "error")
"""Figures that other work on the machine does not change."""

_BETWEEN_PROCESSES = 0.1
"""So far one process may be from the next where the host is in its figures: 14 of 84 were further from the median of
twelve, on two shared cores (docs/method.md)."""

_RESTRICTED: Mapping[str, tuple[str, Callable[[Any], pl.Expr]]] = {
    "--batch": ("batch_sizes", pl.col("batch_size").is_in),
    "--precision": ("precisions", pl.col("precision").is_in),
    "--engine": ("engines", lambda names: matching(Filter(engine=list(names)))),
    "--exclude-engine": ("without_engines", lambda names: ~matching(Filter(engine=list(names)))),
    "--machine": ("machines", machine_name().is_in),
}
"""By option the field of a request, and which rows its values leave."""
Why = Literal["worse", "unclear", "tied", "unfit", "unknown", "uncalibrated", "unmeasured"]


@dataclass(frozen=True)
class Limit:
    """The most that a figure of `Candidate.figures` may be, or the least for one in HIGHER; greater than 0."""

    figure: str
    value: float

    def holds(self, value: float) -> bool:
        return value >= self.value if self.figure in HIGHER else value <= self.value

    def excess(self, value: float) -> float:
        """By which share `value` misses the limit; at most 0 where it holds."""
        if self.figure in HIGHER:
            return self.value / value - 1 if value else float("inf")
        return value / self.value - 1

    def is_close(self, candidate: Candidate) -> bool:
        """Whether its next process may be on the other side of the limit, as far as fewer than three processes tell."""
        if self.figure in NOT_TIMED or candidate.replicates >= REPLICATES_FOR_A_VERDICT:
            return False
        has_host = candidate.row["device"] == "cpu" or HOST_BOUND in candidate.warnings
        reach = _BETWEEN_PROCESSES if has_host else margin(candidate.row["clock"])
        return abs(self.excess(candidate.ranked[self.figure])) <= reach


@dataclass(frozen=True)
class Request:
    """What a deployment asks for. Of batch sizes, precisions, engines and machines those that are named, or all."""

    model: str
    pass_: str = "inference"
    batch_sizes: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    work: str = ""
    """What a training iteration does besides: the column `setting`."""
    limits: tuple[Limit, ...] = ()
    objective: str = "latency"
    prices: Mapping[str, float] = field(default_factory=dict)
    """Dollars an hour by machine, in place of what the runs say."""
    allow_uncalibrated: bool = False
    """Whether int8 without calibration data may be chosen; with a limit of the error it always may."""
    engines: tuple[str, ...] = ()
    """Names of engines or of variants, as in `without_engines`."""
    without_engines: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()

    @property
    def figure(self) -> str:
        return OBJECTIVES[self.objective]

    @property
    def restrictions(self) -> dict[str, tuple[object, ...]]:
        """By option what it names of batch sizes, precisions, engines and machines; those that are given."""
        every = {option: getattr(self, name) for option, (name, _) in _RESTRICTED.items()}
        return {option: values for option, values in every.items() if values}

    def admits(self, candidate: Candidate) -> bool:
        """Whether it may be chosen at all: an int8 whose error on real inputs is unknown has to be asked for."""
        asked = self.allow_uncalibrated or any(limit.figure == "error" for limit in self.limits)
        return asked or not candidate.is_uncalibrated


@dataclass(frozen=True)
class Margin:
    """How many times better one candidate is than another by the objective, with a 95 % interval.

    `between` says whether the interval is between processes, of three replicates a side; only then there is a verdict.
    So many `replicates_to_settle` would make an unclear one clear. `disturbed` are those of the two of which nothing is
    to be said by a factor.
    """

    ratio: float
    interval: Interval | None
    between: bool
    verdict: Verdict | None
    replicates_to_settle: int | None = None
    disturbed: tuple[Candidate, ...] = ()

    @property
    def is_unclear(self) -> bool:
        """Whether three replicates a side show neither a difference nor that there is none."""
        return self.verdict is Verdict.UNCLEAR

    @property
    def tied(self) -> bool | None:
        """Whether they are equally fast, within the margin; None without a verdict."""
        return None if self.verdict is None else self.verdict.ties

    @property
    def is_unsure(self) -> bool:
        """Whether the interval includes 1 where there is no verdict."""
        return self.verdict is None and self.interval is not None and self.interval.low <= 1


@dataclass(frozen=True)
class Shortfall:
    """A limit that a candidate misses; `value` is None where it has no such figure."""

    limit: Limit
    value: float | None


@dataclass(frozen=True)
class Loser:
    """A candidate that was not chosen, and why.

    `worse`: than the best, by `margin`; `unclear`: the same, but replicates do not tell whether it is; `tied`: with the
    best, but with more to set up than the choice, or more memory; `unfit`: it misses limits; `unknown`: it lacks the
    objective's figure; `uncalibrated`: the request does not admit it, and it may miss limits, too; `unmeasured`: it
    gave no figures at all.
    """

    candidate: Candidate
    why: Why
    margin: Margin | None = None
    shortfalls: tuple[Shortfall, ...] = ()

    @property
    def is_doubtful(self) -> bool:
        """Whether all that it lost by was timed while it was disturbed."""
        if self.margin:
            return self.candidate in self.margin.disturbed
        timed = all(shortfall.limit.figure not in NOT_TIMED for shortfall in self.shortfalls)
        return self.why == "unfit" and timed and self.candidate.is_disturbed


@dataclass(frozen=True)
class Relaxation:
    """How far a limit would have to give way, the others being kept, to admit a candidate; None if none is admitted."""

    limit: Limit
    value: float | None
    candidate: Candidate | None
    admitted: int
    """How many candidates meet this limit, whatever the others say."""
    extreme: Candidate | None
    """The one whose figure is the best for it; None where no candidate has such a figure."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to deploy. `choice` is None where nothing meets the limits; only then there are relaxations."""

    request: Request
    choice: Candidate | None = None
    best: Candidate | None = None
    """With the best objective; another than the choice only where the two are tied."""
    runner_up: Candidate | None = None
    margin: Margin | None = None
    """Of the choice over the runner-up."""
    losers: tuple[Loser, ...]
    """Best first, then what misses a limit, then what was not measured."""
    relaxations: tuple[Relaxation, ...] = ()
    nearest: Candidate | None = None
    """The one that misses its worst limit by the least share, where nothing meets them."""

    @property
    def candidates(self) -> list[Candidate]:
        """All that were compared, the choice first."""
        return [*([self.choice] if self.choice else []), *(loser.candidate for loser in self.losers)]

    @property
    def compared(self) -> list[Candidate]:
        """The choice and the runner-up, as far as there are any."""
        return [one for one in (self.choice, self.runner_up) if one is not None]

    @property
    def doubtful(self) -> list[Candidate]:
        """Those that may win once they are measured undisturbed."""
        return [loser.candidate for loser in self.losers if loser.is_doubtful]


def recommend(results: pl.DataFrame, request: Request) -> Recommendation:
    """The best candidate by the objective that meets the limits, the runner-up, and every loser with its reason.

    The results may be of any number of runs, all of each; their columns are profiler.results.columns's.
    """
    every, figure, limits = candidates(rows_of(results, request), request.prices), request.figure, request.limits
    measured = [c for c in every if c.cases]
    admitted = [c for c in measured if request.admits(c)]
    sign = -1 if figure in HIGHER else 1
    ranked = sorted((c for c in admitted if figure in c.figures), key=lambda c: (sign * c.ranked[figure], *_set_up(c)))
    missed = {c.name: _shortfalls(c, limits) for c in ranked}
    fit = [c for c in ranked if not missed[c.name]]
    rest = [
        *(Loser(c, "unfit", shortfalls=missed[c.name]) for c in ranked if missed[c.name]),
        *(Loser(c, "unknown") for c in admitted if figure not in c.figures),
        *(Loser(c, "uncalibrated", shortfalls=_shortfalls(c, limits)) for c in measured if not request.admits(c)),
        *(Loser(c, "unmeasured") for c in every if not c.cases),
    ]
    if not fit:
        relaxations = tuple(_relaxation(limit, ranked, limits) for limit in limits if ranked)
        nearest = _nearest(ranked, limits)
        return Recommendation(request=request, losers=tuple(rest), relaxations=relaxations, nearest=nearest)
    best, times = fit[0], _times(results, fit)
    margins = {c.name: margin_of(best, c, figure, times) for c in fit[1:]}
    choice = min([best, *(c for c in fit[1:] if margins[c.name].tied)], key=_set_up)
    equal = {c.name for c in fit[1:] if margins[c.name].tied or c.ranked[figure] == best.ranked[figure]}
    unclear = {name for name, margin in margins.items() if margin.is_unclear}
    whys: dict[str, Why] = {**dict.fromkeys(equal, "tied"), **dict.fromkeys(unclear, "unclear")}
    beaten = [Loser(c, whys.get(c.name, "worse"), margins[c.name]) for c in fit[1:] if c is not choice]
    if choice is not best:
        beaten.insert(0, Loser(best, "tied", margins[choice.name]))
    runner_up = beaten[0].candidate if beaten else None
    return Recommendation(
        request=request,
        choice=choice,
        best=best,
        runner_up=runner_up,
        margin=margin_of(choice, runner_up, figure, times) if runner_up else None,
        losers=(*beaten, *rest),
    )


def rows_of(results: pl.DataFrame, request: Request) -> pl.DataFrame:
    """The rows that `request` leaves to choose from."""
    asked = {"model": request.model, "pass": request.pass_, "setting": request.work}
    restricted = (_RESTRICTED[option][1](values) for option, values in request.restrictions.items())
    return without_probes(results).filter(*restricted, **asked)


def margin_of(better: Candidate, worse: Candidate, figure: str, times: pl.DataFrame) -> Margin:
    """How many times better `better` is than `worse`; `times` are their `sides`."""
    between = min(len(better.each[figure]), len(worse.each[figure])) >= REPLICATES_FOR_A_VERDICT
    ratio, verdict = None, None
    needed: list[int | None] = []
    timed = figure != OBJECTIVES["memory"]
    disturbed = tuple(one for one in (better, worse) if timed and one.is_disturbed)
    if figure == OBJECTIVES["latency"]:
        slow, fast = (side_of(times.filter(candidate=one.name)) for one in (worse, better))
        found = compare(slow, fast)
        ratio, within = found.latency, MARGINS[found.judged_on[0]]
        # A candidate that waits for its host is slower by latency, another one by device time: either tells them apart.
        verdicts = [*ratio.verdicts([within]), *found.verdict]
        each = zip(verdicts, [*ratio.replicates_to_settle([within]), *found.replicates_to_settle], strict=True)
        needed = [number for one, number in each if one is Verdict.UNCLEAR]
        verdict = overall(verdicts)
    elif between and min(*better.each[figure], *worse.each[figure]) > 0:
        # One figure a process: without replicates nothing is known of how it spreads.
        worst, finest = (better, worse) if figure in HIGHER else (worse, better)
        ratio = ratio_of(times_of([worst.each[figure]]), times_of([finest.each[figure]]))
        within = margin(better.row["clock"])
        (verdict,), needed = ratio.verdicts([within]), ratio.replicates_to_settle([within])
    if ratio is None or np.isnan(ratio.ratio[0]):
        estimate = _ratio(better.figures[figure], worse.figures[figure], figure)
        return Margin(estimate, None, between, verdict, disturbed=disturbed)
    low, high = float(ratio.low[0]), float(ratio.high[0])
    interval = None if np.isnan(low) else Interval(low, high)
    known = [number for number in needed if number]
    settled = max(known) if verdict is Verdict.UNCLEAR and len(known) == len(needed) and known else None
    return Margin(float(ratio.ratio[0]), interval, between, verdict, settled, disturbed)


def _ratio(better: float, worse: float, figure: str) -> float:
    low, high = (worse, better) if figure in HIGHER else (better, worse)
    return 1.0 if low == high else high / low if low else float("inf")


def break_even(choice: Candidate, other: Candidate, part: set_up.Part) -> float | None:
    """After how many items that part of the choice's set-up has paid off against the other's."""
    own, its = (one.figures.get(part) for one in (choice, other))
    return set_up.break_even(own, choice.seconds_per_item, its, other.seconds_per_item)


def _set_up(candidate: Candidate) -> tuple[float, float]:
    """What decides between candidates that are equivalent: seconds, then memory; unknown ones come last."""
    figures = candidate.figures
    return figures.get("set_up_s", float("inf")), figures.get("peak_memory_mib", float("inf"))


def _shortfalls(candidate: Candidate, limits: Sequence[Limit]) -> tuple[Shortfall, ...]:
    values = [(limit, candidate.ranked.get(limit.figure)) for limit in limits]
    return tuple(Shortfall(limit, value) for limit, value in values if value is None or not limit.holds(value))


def _relaxation(limit: Limit, ranked: Sequence[Candidate], limits: Sequence[Limit]) -> Relaxation:
    """The candidate that meets the other limits and misses this one by the least."""

    def excess(candidate: Candidate) -> float:
        return limit.excess(candidate.ranked[limit.figure])

    others = [other for other in limits if other is not limit]
    known = [c for c in ranked if limit.figure in c.figures]
    nearest = min((c for c in known if not _shortfalls(c, others)), key=excess, default=None)
    value = None if nearest is None else nearest.ranked[limit.figure]
    admitted = sum(limit.holds(c.ranked[limit.figure]) for c in known)
    return Relaxation(limit, value, nearest, admitted, min(known, key=excess, default=None))


def _nearest(ranked: Sequence[Candidate], limits: Sequence[Limit]) -> Candidate | None:
    known = [c for c in ranked if all(limit.figure in c.figures for limit in limits)]
    return min(known, key=lambda c: max(limit.excess(c.ranked[limit.figure]) for limit in limits), default=None)


def _times(results: pl.DataFrame, compared: Sequence[Candidate]) -> pl.DataFrame:
    names = [(*case, c.name) for c in compared for case in c.cases]
    of_cases = pl.DataFrame(names, schema=["run_id", "case_id", "candidate"], orient="row")
    rows = results.join(of_cases, on=["run_id", "case_id"])
    return sides(rows, ["candidate"], spreads(results), pl.col("clock").first())
