"""Say why a candidate was not chosen, and what would have to change."""

from __future__ import annotations

from profiler.job.case import Role
from profiler.recommend.candidates import FIGURES, Candidate
from profiler.recommend.choice import HIGHER, Limit, Loser, Margin, Recommendation, Relaxation, Shortfall
from profiler.stats.samples import PERCENTILE_NEEDS

WORSE = {
    "latency": ("is", "slower by"),
    "throughput": ("does", "fewer items a second, by"),
    "memory": ("needs", "more memory, by"),
    "energy": ("takes", "more energy, by"),
    "cost": ("is", "dearer by"),
}
"""By objective what is said of the worse one of two, before the ratio; a sentence has the verb too."""


def reason(loser: Loser, found: Recommendation) -> str:
    """Why a candidate was not chosen."""
    candidate, objective = loser.candidate, found.request.objective
    if loser.why == "unmeasured":
        return f"not measured: {candidate.unmeasured[0]}"
    if loser.why == "unfit":
        return "; ".join(_shortfall(candidate, shortfall) for shortfall in loser.shortfalls)
    if loser.why == "unknown":
        return _unknown(candidate, found.request.figure)
    assert loser.margin is not None and found.choice is not None and found.best is not None, "it met every limit"
    if loser.why == "tied":
        verdict = loser.margin.verdict
        same = verdict if verdict and not verdict.differs else f"the same {FIGURES[found.request.figure].noun}"
        return f"{same}, but {needs_more(candidate, found.choice)}"
    than = "" if found.best is found.choice else f" than {found.best.name}"
    unsure = ", which is not certain" if loser.margin.is_unsure else ""
    return f"{WORSE[objective][1]} {times(loser.margin)}{than}{unsure}"


def relaxation(relaxed: Relaxation, found: Recommendation) -> str:
    """How far a limit would have to give way, or why that alone would not do."""
    limit, candidate = relaxed.limit, relaxed.candidate
    if relaxed.extreme is None:
        some = next(loser.candidate for loser in found.losers if loser.candidate.cases)
        return f"no candidate has this figure: {_unknown(some, limit.figure)}"
    if candidate is None or relaxed.value is None:
        best = f"{relaxed.extreme.name} comes to {amount(limit.figure, relaxed.extreme.figures[limit.figure])}"
        return f"if it alone gave way, nothing would meet the others; {relaxed.admitted} meet it, and {best}"
    by = abs(relaxed.value - limit.value)
    return (
        f"would have to be {amount(limit.figure, relaxed.value)}, which is {amount(limit.figure, by)} "
        f"({100 * by / limit.value:.2g} %) {'less' if limit.figure in HIGHER else 'more'}: admits {candidate.name}"
    )


def limit_text(limit: Limit) -> str:
    """Like "latency ≤ 2 ms"."""
    return f"{FIGURES[limit.figure].noun} {limit_words(limit)}"


def limit_words(limit: Limit) -> str:
    """Like "≤ 2 ms"."""
    unit = FIGURES[limit.figure].unit
    return f"{'≥' if limit.figure in HIGHER else '≤'} {limit.value:,.10g}{'' if unit == 'error' else f' {unit}'}"


def amount(figure: str, value: float) -> str:
    """A figure with its unit, to three significant digits."""
    unit = FIGURES[figure].unit
    return exponent(value) if unit == "error" else f"{number(value)} {unit}"


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, or whole: 0.460, 12.3, 1,102."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".").replace("e-0", "e-")


def span(low: float, high: float) -> str:
    """Two ends with as many digits as tell them apart, up to six: 0.4597–0.4603."""
    digits = next((d for d in range(3, 6) if number(low, d) != number(high, d)), 6)
    return f"{number(low, digits)}–{number(high, digits)}"


def exponent(value: float, digits: int = 1) -> str:
    """Like 4e-4, 1.2e-3."""
    mantissa, _, power = f"{value:.{digits}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}" if value else "0"


def seconds(value: float) -> str:
    """Like 0.04 s, 3.1 s, 41 s."""
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s".replace("e-0", "e-")


def items(count: float) -> str:
    """Two significant digits from a hundred up: 180,000."""
    places = max(0, len(str(int(count))) - 2)
    return f"{round(count, -places):,.0f}"


def times(margin: Margin) -> str:
    """Like "1.40× (1.38–1.42)", with a digit more where two would say 1.00."""
    places = 3 if abs(margin.ratio - 1) < 0.02 else 2 if margin.ratio < 10 else 1
    interval = margin.interval
    ends = f" ({interval.low:.{places}f}–{interval.high:.{places}f})" if interval else ""
    return f"{margin.ratio:.{places}f}×{ends}"


def mostly_built(more: Candidate, less: Candidate) -> bool:
    """Whether building makes up most of the set-up that `more` needs beyond `less`."""
    built, other = more.figures.get("build_s", 0.0), less.figures.get("build_s", 0.0)
    longer = more.figures["set_up_s"] - less.figures["set_up_s"]
    return not other and built >= longer / 2 > 0


def needs_more(loser: Candidate, choice: Candidate) -> str:
    """What an indistinguishable candidate needs beyond the choice."""
    own, its = (c.figures.get("set_up_s") for c in (loser, choice))
    if own is None or its is None:
        if its is not None:
            return "its set-up was not measured"
    elif own > its:
        if mostly_built(loser, choice):
            return f"needs a {seconds(loser.figures['build_s'])} build"
        return f"takes {seconds(own - its)} more to set up"
    mine, theirs = (c.figures.get("peak_memory_mib") for c in (loser, choice))
    if mine is not None and theirs is not None and mine > theirs:
        return f"needs {amount('peak_memory_mib', mine - theirs)} more memory"
    if mine is None and theirs is not None:
        return "its memory was not measured"
    return "stands behind it in the order of the results, and nothing else tells them apart"


def _shortfall(candidate: Candidate, missed: Shortfall) -> str:
    limit, value = missed.limit, missed.value
    name = FIGURES[limit.figure].noun
    if value is None:
        return _unknown(candidate, limit.figure)
    if limit.figure == "error":
        digits = next((d for d in range(1, 8) if exponent(value, d) != exponent(limit.value, d)), 8)
        return f"error {exponent(value, digits)} over the limit of {exponent(limit.value, digits)}"
    over = "under" if limit.figure in HIGHER else "over"
    return f"{over} the {name} limit by {amount(limit.figure, abs(value - limit.value))}"


def _unknown(candidate: Candidate, figure: str) -> str:
    """Why a candidate lacks a figure, as far as that is known."""
    name = FIGURES[figure].noun
    if percentile := FIGURES[figure].percentile:
        samples = int(candidate.figures.get("samples", 0))
        return f"no p{percentile}: it takes {PERCENTILE_NEEDS[percentile]} samples, and there are {samples}"
    if figure == "usd_per_million_items" and candidate.row["throughput"] is not None:
        return f"no price of {candidate.machine}: give --usd-per-hour"
    swept = candidate.row["role"] == Role.SWEEP
    why = {
        "energy_mj_per_item": ": measure with energy: true",
        "peak_memory_mib": ": rows that share a process have none" if swept else "",
    }
    return f"no figure of {name}{why.get(figure, '')}"
