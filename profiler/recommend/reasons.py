"""Say why a candidate was not chosen, and what would have to change."""

from __future__ import annotations

import math
from collections.abc import Iterable

from profiler.job.case import Role
from profiler.recommend.candidates import FIGURES, Candidate
from profiler.recommend.choice import (
    HIGHER,
    LIMITED_BY,
    NOT_TIMED,
    Limit,
    Loser,
    Margin,
    Recommendation,
    Relaxation,
    Shortfall,
)
from profiler.results.sentences import unlike
from profiler.results.warning_kinds import disturbed, was_disturbed
from profiler.stats.ratios import REPLICATES_FOR_A_VERDICT, outlook
from profiler.stats.samples import PERCENTILE_NEEDS
from profiler.tables import numbers

WORSE = {
    "latency": ("is", "slower"),
    "throughput": ("has", "lower throughput"),
    "memory": ("needs", "more memory"),
    "energy": ("takes", "more energy"),
    "cost": ("is", "more expensive"),
}
"""By objective a sentence's verb, and what the worse one of two is so many times."""


SEVERAL = f"`replicates: {REPLICATES_FOR_A_VERDICT}`"
"""What tells how far processes are from each other."""


def uncalibrated(barred: Iterable[Candidate]) -> str:
    """What keeps candidates from being chosen, like "int8 without calibration data"."""
    return f"{' and '.join(sorted({str(each.row['precision']) for each in barred}))} without calibration data"


def reason(loser: Loser, found: Recommendation) -> str:
    candidate, objective = loser.candidate, found.request.objective
    if loser.why == "unmeasured":
        return f"not measured: {candidate.unmeasured[0]}"
    if loser.why == "unfit":
        timed = any(shortfall.limit.figure not in NOT_TIMED for shortfall in loser.shortfalls)
        missed = "; ".join(_shortfall(candidate, shortfall) for shortfall in loser.shortfalls)
        told = found.choice and all(each.is_disturbed for each in found.candidates)  # By the headline, of all.
        doubted = timed and candidate.is_disturbed and not told
        return f"{missed}; it {was_disturbed(candidate.warnings)}" if doubted else missed
    if loser.why == "unknown":
        return _unknown(candidate, found.request.figure)
    if loser.why == "uncalibrated":
        return "; ".join([uncalibrated([candidate]), *(_shortfall(candidate, short) for short in loser.shortfalls)])
    assert loser.margin is not None and found.choice is not None and found.best is not None, "it met every limit"
    if loser.why == "tied":
        verdict = loser.margin.verdict
        same = verdict if verdict and verdict.ties else f"the same {FIGURES[found.request.figure].noun}"
        return f"{same}, but {needs_more(candidate, found.choice)}{doubt(loser.margin.disturbed)}"
    than = "" if found.best is found.choice else f" than {found.best.name}"
    # Where the best one was disturbed no row has a factor, as the first sentence says once.
    own = "" if found.best.is_disturbed else f": it {was_disturbed(candidate.warnings)}"
    own += unlike_other(candidate, found.request.figure)
    return worse(loser.margin, WORSE[objective][1] + than, own)


def worse(margin: Margin, words: str, why: str = "") -> str:
    """Like "1.402× slower (1.381–1.423)", with how sure that is; `words` are like "slower".

    `why`, like ": it was disturbed", says why there is no factor; empty where that is said elsewhere.
    """
    if margin.disturbed:
        return f"{words} (no factor{why})"
    if margin.is_unclear:
        return f"{times(margin, f' {words}')}: unclear; {outlook(margin.replicates_to_settle)}"
    return f"{times(margin, f' {words}')}{', not certain' if margin.is_unsure else ''}"


def doubt(candidates: Iterable[Candidate]) -> str:
    """Which of them were disturbed, like "; ort fp32 was"; empty where none was."""
    who = disturbed((one.name, one.warnings) for one in candidates if one.is_disturbed)
    return f"; {who}" if who else ""


def relaxation(relaxed: Relaxation, found: Recommendation) -> str:
    """How far a limit would have to give way, or why that alone would not do."""
    limit, candidate = relaxed.limit, relaxed.candidate
    if relaxed.extreme is None:
        some = next(loser.candidate for loser in found.losers if loser.candidate.cases)
        return f"no candidate has this figure: {_unknown(some, limit.figure)}"
    if candidate is None or relaxed.value is None:
        best = f"{relaxed.extreme.name} with {amount(limit.figure, relaxed.extreme.ranked[limit.figure])}"
        meet = numbers.counted(relaxed.admitted, "candidate") if relaxed.admitted else "no candidate"
        meets = "meet" if relaxed.admitted > 1 else "meets"
        return f"not enough by itself: {meet} {meets} it; the best for it is {best}"
    by = abs(relaxed.value - limit.value)
    more = f"{off(limit, relaxed.value)} {'less' if limit.figure in HIGHER else 'more'}"
    step = "lower" if limit.figure in HIGHER else "raise"
    option = setting(limit.figure, relaxed.value).replace(" ", " to ")
    doubted = "" if limit.figure in NOT_TIMED else doubt([candidate])
    return f"{step} {option} to admit {candidate.name} ({amount(limit.figure, by)} or {more}){doubted}"


def unlike_other(candidate: Candidate, figure: str) -> str:
    """What contradicts a figure, like ", but 5.95 ms by its throughput"; else empty."""
    by_throughput = candidate.row["by_throughput_ms"]
    if figure == "throughput" and by_throughput:
        return f", but {amount('latency_ms', candidate.figures['latency_ms'])} per call at the median"
    return unlike(by_throughput) if figure == "latency_ms" or FIGURES[figure].percentile else ""


def setting(figure: str, value: float) -> str:
    """The option whose limit a candidate with that value meets, like "--max-latency-ms p99=2.31"."""
    percentile = FIGURES[figure].percentile
    number = numbers.reachable(value, up=figure not in HIGHER)
    return f"{LIMITED_BY.get(figure, figure)} {f'p{percentile}=' if percentile else ''}{number}"


def limit_text(limit: Limit) -> str:
    """Like "latency ≤ 2 ms", with the number as it was given."""
    figure = FIGURES[limit.figure]
    unit = "" if figure.unit == "error" else f" {figure.unit}"
    return f"{figure.noun} {'≥' if limit.figure in HIGHER else '≤'} {limit.value:,.10g}{unit}"


def off(limit: Limit, value: float) -> str:
    """How far a value is from a limit, like "3.7 %"."""
    return f"{numbers.significant(100 * abs(value - limit.value) / limit.value, 2)} %"


def amount(figure: str, value: float) -> str:
    unit = FIGURES[figure].unit
    return numbers.error(value) if unit == "error" else f"{numbers.significant(value)} {unit}"


def times(margin: Margin, worse: str = "") -> str:
    """Like "1.402× slower (1.381–1.423)"; `worse` is what so many times."""
    low, high = vars(margin.interval).values() if margin.interval else (None, None)
    sign = f"×{worse}"
    return numbers.ratio(margin.ratio, low, high, sign) if math.isfinite(margin.ratio) else f"∞{sign}"


def mostly_built(more: Candidate, less: Candidate) -> bool:
    """Whether building makes up most of the set-up that `more` needs beyond `less`."""
    built, other = more.figures.get("build_s", 0.0), less.figures.get("build_s", 0.0)
    longer = more.figures["set_up_s"] - less.figures["set_up_s"]
    return not other and built >= longer / 2 > 0


def needs_more(loser: Candidate, choice: Candidate) -> str:
    """What an equivalent candidate needs beyond the choice."""
    own, its = (c.figures.get("set_up_s") for c in (loser, choice))
    if own is None or its is None:
        if its is not None:
            return "its set-up was not measured"
    elif own > its:
        if mostly_built(loser, choice):
            return f"needs a {numbers.seconds(loser.figures['build_s'])} build"
        return f"takes {numbers.seconds(own - its)} more to set up"
    mine, theirs = (c.figures.get("peak_memory_mib") for c in (loser, choice))
    if mine is not None and theirs is not None and mine > theirs:
        return f"needs {amount('peak_memory_mib', mine - theirs)} more memory"
    if mine is None and theirs is not None:
        return "its memory was not measured"
    return "comes later in the results, and nothing else tells them apart"


def lacking(found: Recommendation) -> list[tuple[Candidate, int]]:
    """The candidates without a percentile that a limit is of, best first, and how many samples it needs."""
    needs = []
    for loser in found.losers:
        figures = [FIGURES[missed.limit.figure] for missed in loser.shortfalls if missed.value is None]
        if of_tails := [PERCENTILE_NEEDS[figure.percentile] for figure in figures if figure.percentile]:
            needs.append((loser.candidate, max(of_tails)))
    return needs


def _shortfall(candidate: Candidate, missed: Shortfall) -> str:
    limit, value = missed.limit, missed.value
    name = FIGURES[limit.figure].noun
    if value is None:
        return _unknown(candidate, limit.figure)
    if limit.figure == "error":
        digits = next((d for d in range(2, 9) if numbers.error(value, d) != numbers.error(limit.value, d)), 9)
        return f"error {numbers.error(value, digits)} over the limit of {numbers.error(limit.value, digits)}"
    over = "under" if limit.figure in HIGHER else "over"
    but = unlike_other(candidate, limit.figure)
    both = f": {amount(limit.figure, candidate.figures[limit.figure])}{but}" if but else ""
    values, close = candidate.each[limit.figure], ""
    if not but and (meeting := sum(map(limit.holds, values))):
        close = f" ({meeting} of its {len(values)} replicates meet it)"
    elif limit.is_close(candidate):
        close = f" ({off(limit, value)}: another process may meet it, {SEVERAL} would tell)"
    return f"{over} the {name} limit by {amount(limit.figure, abs(value - limit.value))}{close}{both}"


def _unknown(candidate: Candidate, figure: str) -> str:
    """Why a candidate lacks a figure, as far as that is known."""
    name = FIGURES[figure].noun
    if percentile := FIGURES[figure].percentile:
        fewest = int(min(candidate.each["samples"], default=0))
        of_each = " in a replicate" if candidate.replicates > 1 else ""
        return f"no p{percentile}: only {numbers.counted(fewest, 'sample')}{of_each}"
    if figure == "usd_per_million_items" and candidate.row["throughput"] is not None:
        return f"no price of {candidate.machine}: give --usd-per-hour"
    swept = candidate.row["role"] == Role.SWEEP
    why = {
        "energy_mj_per_item": ": it needs `energy: true` in the job",
        "peak_memory_mib": ": the cases of a sweep share a process" if swept else "",
    }
    return f"no {name} was measured{why.get(figure, '')}"
