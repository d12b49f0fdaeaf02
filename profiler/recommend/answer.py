"""Put a recommendation into words: the choice, its figures, how far to trust them, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.recommend.candidates import FIGURES, Candidate
from profiler.recommend.choice import Limit, Margin, Recommendation, break_even
from profiler.recommend.reasons import (
    WORSE,
    amount,
    items,
    limit_text,
    limit_words,
    mostly_built,
    needs_more,
    number,
    reason,
    relaxation,
    seconds,
    span,
    times,
)
from profiler.results.columns import Group, columns, parts
from profiler.results.warning_kinds import doubting, meaning
from profiler.stats.ratios import REPLICATES_FOR_A_VERDICT
from profiler.stats.samples import PERCENTILE_NEEDS

_AIMS = {
    "latency": "the least latency of a call",
    "throughput": "the highest throughput",
    "memory": "the least memory",
    "energy": "the least energy an item",
    "cost": "the least cost an item",
}
_LEAST_SECONDS = 1.0
"""Set-up that nobody waits for."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a reader gets of a recommendation, in reading order; an empty part is left out."""

    title: str
    headline: str
    facts: list[tuple[str, str]]
    """Of the choice: what, and the figure."""
    sentences: list[str]
    doubts: list[str]
    """What makes the figures that decided unreliable."""
    relaxations: list[tuple[str, str]]
    """A limit, and what it would have to be, where nothing meets them."""
    objective: str
    """The figure that the candidates are compared by."""
    losers: list[tuple[str, float | None, str]]
    """Name, the objective's figure, the reason."""
    unmeasured: list[tuple[str, str]]
    """A reason, and what it holds for."""
    command: str
    sources: list[str]
    notes: list[str]
    """How the reasons are to be read."""


def make_answer(found: Recommendation, command: str) -> Answer:
    """`command` measures the choice again, or says why none can be given."""
    request, choice = found.request, found.choice
    limits = ", ".join(map(limit_text, request.limits))
    machines = list(dict.fromkeys(c.machine for c in found.candidates))
    place = f" on {machines[0]}" if len(machines) == 1 else f" on one of {', '.join(machines)}" if machines else ""
    what = f"{request.model}, {request.pass_}{f' ({request.work})' if request.work else ''}{place}"
    measured = [loser for loser in found.losers if loser.why != "unmeasured"]
    figures = [loser.candidate.figures.get(request.figure) for loser in measured]
    return Answer(
        title=f"{what}: {_AIMS[request.objective]}{f' with {limits}' if limits else ''}",
        headline=f"Deploy {choice.name}" if choice else _nothing(found, len(measured)),
        facts=_facts(choice, request.limits) if choice else [],
        sentences=_comparison(choice, found) if choice else _nearest(found),
        doubts=_doubts(choice, found) if choice else [],
        relaxations=[(limit_text(r.limit), relaxation(r, found)) for r in found.relaxations],
        objective=request.figure,
        losers=[(x.candidate.name, figure, reason(x, found)) for x, figure in zip(measured, figures, strict=True)],
        unmeasured=_unmeasured(found),
        command=command,
        sources=_sources(found),
        notes=_notes(found),
    )


def _nothing(found: Recommendation, measured: int) -> str:
    if not measured:
        return "Nothing to deploy: no candidate was measured"
    if not found.request.limits:
        return f"Nothing to deploy: none of {measured} candidates has a figure of {found.request.objective}"
    return f"Nothing meets {'the limits' if len(found.request.limits) > 1 else 'the limit'}, of {measured} candidates"


def _facts(choice: Candidate, limits: Sequence[Limit]) -> list[tuple[str, str]]:
    """Its figures, as far as it has them, each with its limit."""
    figures = choice.figures
    tails = [f"{c.heading} {number(figures[c.name])}" for c in FIGURES.values() if c.percentile and c.name in figures]
    facts = {"latency": ", ".join([f"{amount('latency_ms', figures['latency_ms'])} a call{_spread(choice)}", *tails])}
    for name in ("throughput", "peak_memory_mib", "error", "energy_mj_per_item", "usd_per_million_items"):
        if name in figures:
            facts[FIGURES[name].noun] = amount(name, figures[name])
    if "set_up_s" in figures:
        total = figures["set_up_s"]
        own = [(FIGURES[name].heading.lower(), figures.get(name, 0.0)) for name in parts("set_up_s")]
        split = [f"{name} {seconds(value)}" for name, value in own if value >= 0.005 * total]
        facts["set-up"] = seconds(total) + (f" ({', '.join(split)})" if len(split) > 1 else "")
    for limit in limits:
        name = FIGURES[limit.figure].noun
        facts[name.rpartition(" ")[2]] += f"; wanted {f'{name} ' if ' ' in name else ''}{limit_words(limit)}"
    return list(facts.items())


def _spread(choice: Candidate) -> str:
    """Of the median: between processes where there are several, else within the one."""
    values = choice.each["latency_ms"]
    if len(values) > 1:
        return f" ({span(min(values), max(values))} in {len(values)} processes)"
    low, high = (choice.figures.get(f"latency_ci_{end}_ms") for end in ("low", "high"))
    return f" ({span(low, high)})" if low is not None and high is not None else ""


def _comparison(choice: Candidate, found: Recommendation) -> list[str]:
    """How the choice compares with the runner-up, and after how many items its set-up pays off."""
    other, margin = found.runner_up, found.margin
    if other is None or margin is None:
        return [f"It is the only candidate that {'meets the limits' if found.request.limits else 'was measured'}."]
    verb, worse = WORSE[found.request.objective]
    relation = f"{verb} {worse} {times(margin)}."
    if margin.tied:
        relation = f"is {margin.verdict} (ratio {times(margin)}), but {needs_more(other, choice)}."
    rivals = [loser.candidate for loser in found.losers if loser.why in ("worse", "tied")]
    cheapest = min(rivals, key=lambda c: c.figures.get("set_up_s", float("inf")))
    pays_off = [_pays_off(choice, rival) for rival in ([other] if cheapest is other else [other, cheapest])]
    start = f"The runner-up, {other.name}, {relation} {_certainty(choice, other, margin)}"
    return [start, *filter(None, pays_off)]


def _certainty(choice: Candidate, other: Candidate, margin: Margin) -> str:
    if margin.tied is not None:
        return f"That is a verdict between processes, {choice.replicates} and {other.replicates} of them."
    needs = REPLICATES_FOR_A_VERDICT
    few = min(choice.replicates, other.replicates)
    said = f"That is no verdict, which takes {needs} replicates a side (here {few}): the point estimate decides"
    return f"{said}{', though the interval holds 1' if margin.is_unsure else ''}."


def _pays_off(choice: Candidate, rival: Candidate) -> str:
    count = break_even(choice, rival)
    if count is None or choice.figures["set_up_s"] - rival.figures["set_up_s"] < _LEAST_SECONDS:
        return ""
    own, its = (seconds(one.figures["set_up_s"]) for one in (choice, rival))
    what = "build" if mostly_built(choice, rival) else "set-up"
    return f"Its {what} pays off after {items(count)} items against {rival.name} (set-up of {own} against {its})."


def _nearest(found: Recommendation) -> list[str]:
    near = next((loser for loser in found.losers if loser.candidate is found.nearest), None)
    return [f"The nearest is {near.candidate.name}: {reason(near, found)}."] if near else []


def _doubts(choice: Candidate, found: Recommendation) -> list[str]:
    limits = found.request.limits
    figures = {found.request.figure, *(limit.figure for limit in limits)}
    kinds = [*doubting("latency"), *doubting("error"), *(doubting("memory") if "peak_memory_mib" in figures else ())]
    compared = [candidate for candidate in (choice, found.runner_up) if candidate is not None]
    carriers = {kind: [c.name for c in compared if kind in c.warnings] for kind in kinds}
    doubts = [
        f"Beware, {' and '.join(names)} {'carry' if len(names) > 1 else 'carries'} the warning {kind}: "
        f"{meaning(kind, otherwise=kind)}."
        for kind, names in carriers.items()
        if names
    ]
    if failed := len(choice.unmeasured):
        total = choice.replicates + failed
        doubts.append(f"Beware, {failed} of its {total} replicates gave no figures: {choice.unmeasured[0]}.")
    return [*doubts, *filter(None, (_close(choice, limit) for limit in limits))]


def _close(choice: Candidate, limit: Limit) -> str:
    """Whether a limit that the choice meets is missed by a replicate of it, or lies within the median's interval."""
    name, values = FIGURES[limit.figure].noun, choice.each[limit.figure]
    missing = [value for value in values if not limit.holds(value)]
    if missing:
        worst = amount(limit.figure, max(missing, key=limit.excess))
        return f"Beware, {len(missing)} of its {len(values)} replicates miss the {name} limit (at worst {worst})."
    high = choice.figures.get("latency_ci_high_ms", 0.0)
    if limit.figure == "latency_ms" and len(values) == 1 and not limit.holds(high):
        reach = amount("latency_ms", high)
        return f"Beware, the latency limit lies within the median's interval, which reaches {reach}."
    return ""


def _unmeasured(found: Recommendation) -> list[tuple[str, str]]:
    """Each reason once, and what it holds for."""
    groups: dict[str, list[Candidate]] = {}
    for loser in found.losers:
        if loser.why == "unmeasured":
            groups.setdefault(loser.candidate.unmeasured[0], []).append(loser.candidate)
    return [(why, _briefly(group)) for why, group in groups.items()]


def _briefly(group: Sequence[Candidate]) -> str:
    """Their variants, precisions and batch sizes; the names where that would claim more than there is."""
    keys = ("variant", "precision", "batch_size")
    variants, precisions, batches = (list(dict.fromkeys(str(c.row[key]) for c in group)) for key in keys)
    if len(variants) * len(precisions) * len(batches) != len(group):
        return "; ".join(candidate.name for candidate in group)
    return f"{', '.join(variants)} · {', '.join(precisions)} · batch {', '.join(batches)}"


def _sources(found: Recommendation) -> list[str]:
    """Machine, versions, runs and samples of the figures."""
    subject = found.choice or found.nearest
    runs = list(dict.fromkeys(run_id for candidate in found.candidates for run_id in candidate.run_ids))
    count = f"{len(found.candidates)} candidates of {'run' if len(runs) == 1 else 'runs'} {', '.join(runs)}"
    if subject is None:
        return [f"Compared: {count}."]
    samples = " + ".join(f"{value:,.0f}" for value in subject.each["samples"]) or "no"
    where = f"{subject.machine}, {versions(subject.row)}; run {', '.join(subject.run_ids)}"
    return [f"{subject.name}: {where}; {samples} samples.", f"Compared: {count}."]


def _notes(found: Recommendation) -> list[str]:
    short = {x.limit.figure for loser in found.losers for x in loser.shortfalls if x.value is None}
    margins = [loser.margin for loser in found.losers if loser.margin is not None]
    needs, latency = REPLICATES_FOR_A_VERDICT, found.request.objective == "latency"
    lacking = [PERCENTILE_NEEDS[q] for figure in short if (q := FIGURES[figure].percentile)]
    notes = []
    if any(m.interval is not None and not m.between for m in margins):
        notes.append(
            "In parentheses stand 95 % intervals, within one process a side; between processes figures differ more: "
            f"give replicates: {needs} in the job."
        )
    if any(m.interval is None for m in margins):
        why = "under 30 independent samples" if latency else f"under {needs} replicates a side"
        notes.append(f"Ratios without an interval stand on {why}.")
    if lacking:
        notes.append(f"More samples come with budget: {{min_samples: {max(lacking)}}}, and seconds enough for them.")
    return notes


def versions(row: Mapping[str, object]) -> str:
    """Of the software that a row was measured with."""
    known = [f"{c.noun or c.heading} {row[c.name]}" for c in columns(Group.VERSIONS) if row[c.name]]
    return ", ".join(known) or "versions unknown"
