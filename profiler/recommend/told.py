"""What enters: a `Recommendation`. What leaves: all that a reader is told of it, piece by piece, in reading order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiler.recommend.candidates import FIGURES, Candidate
from profiler.recommend.choice import OBJECTIVES, Limit, Margin, Recommendation, break_even
from profiler.recommend.words import (
    WORSE,
    amount,
    is_unsure,
    items,
    limit_name,
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


@dataclass(frozen=True)
class Told:
    """What is said of a recommendation, in reading order; an empty part is left out."""

    title: str
    answer: str
    facts: list[tuple[str, str]]
    """Of the choice: what, and the figure."""
    sentences: list[str]
    relaxations: list[tuple[str, str]]
    """A limit, and what it would have to be, where nothing meets them."""
    losers: list[tuple[str, str, str]]
    """Name, the objective's figure, the reason."""
    unmeasured: list[tuple[str, str]]
    """A reason, and what it holds for."""
    command: str
    sources: list[str]
    notes: list[str]
    """How the reasons are to be read."""


def tell(found: Recommendation, command: str) -> Told:
    """`command` measures the choice again, or says why none can be given."""
    wanted, choice = found.wanted, found.choice
    limits = ", ".join(f"{FIGURES[limit.figure].noun} {limit_words(limit)}" for limit in wanted.limits)
    machines = list(dict.fromkeys(c.machine for c in _all(found)))
    place = f" on {machines[0]}" if len(machines) == 1 else f" on one of {', '.join(machines)}" if machines else ""
    what = f"{wanted.model}, {wanted.pass_}{f' ({wanted.work})' if wanted.work else ''}{place}"
    measured = [loser for loser in found.losers if loser.why != "unmeasured"]
    return Told(
        title=f"{what}: {_AIMS[wanted.objective]}{f' with {limits}' if limits else ''}",
        answer=f"Deploy {choice.name}" if choice else _nothing(found, len(measured)),
        facts=_facts(choice, wanted.limits) if choice else [],
        sentences=[*_comparison(found), *_doubts(found)] if choice else _nearest(found),
        relaxations=[(limit_name(r.limit), relaxation(r, found)) for r in found.relaxations],
        losers=[(x.candidate.name, _objective(x.candidate, wanted.objective), reason(x, found)) for x in measured],
        unmeasured=_unmeasured(found),
        command=command,
        sources=_sources(found),
        notes=_notes(found),
    )


def _all(found: Recommendation) -> list[Candidate]:
    return [*([found.choice] if found.choice else []), *(loser.candidate for loser in found.losers)]


def _objective(candidate: Candidate, objective: str) -> str:
    value = candidate.figures.get(OBJECTIVES[objective])
    return "" if value is None else number(value)


def _nothing(found: Recommendation, measured: int) -> str:
    if not measured:
        return "Nothing to deploy: no candidate was measured"
    if not found.wanted.limits:
        return f"Nothing to deploy: none of {measured} candidates has a figure of {found.wanted.objective}"
    return f"Nothing meets {'the limits' if len(found.wanted.limits) > 1 else 'the limit'}, of {measured} candidates"


def _facts(choice: Candidate, limits: Sequence[Limit]) -> list[tuple[str, str]]:
    """Its figures, as far as it has them, each beside its limit."""
    figures = choice.figures
    tails = [f"{c.heading} {number(figures[c.name])}" for c in FIGURES.values() if c.percentile and c.name in figures]
    latency = ", ".join([f"{amount('latency_ms', figures['latency_ms'])} a call{_spread(choice)}", *tails])
    names = ("throughput", "peak_memory_mib", "error", "energy_mj_per_item", "usd_per_million_items")
    told = {
        "latency": latency,
        **{FIGURES[name].noun: amount(name, figures[name]) for name in names if name in figures},
    }
    if "set_up_s" in figures:
        total = figures["set_up_s"]
        own = [(FIGURES[name].heading.lower(), figures.get(name, 0.0)) for name in parts("set_up_s")]
        split = [f"{name} {seconds(value)}" for name, value in own if value >= 0.005 * total]
        told["set-up"] = seconds(total) + (f" ({', '.join(split)})" if len(split) > 1 else "")
    for limit in limits:
        name = FIGURES[limit.figure].noun
        told[name.rpartition(" ")[2]] += f"; wanted {f'{name} ' if ' ' in name else ''}{limit_words(limit)}"
    return list(told.items())


def _spread(choice: Candidate) -> str:
    """Of the median: between processes where there are several, else within the one."""
    values = choice.each["latency_ms"]
    if len(values) > 1:
        return f" ({span(min(values), max(values))} in {len(values)} processes)"
    low, high = (choice.figures.get(f"latency_ci_{end}_ms") for end in ("low", "high"))
    return f" ({span(low, high)})" if low is not None and high is not None else ""


def _comparison(found: Recommendation) -> list[str]:
    """How the choice stands to the runner-up and what its set-up is worth."""
    choice, other, margin = found.choice, found.runner_up, found.margin
    assert choice is not None
    if other is None or margin is None:
        alone = "meets the limits" if found.wanted.limits else "was measured"
        return [f"It is the only candidate that {alone}."]
    verb, worse = WORSE[found.wanted.objective]
    said = [f"The runner-up, {other.name}, {verb} {worse} {times(margin)}. {_certainty(choice, other, margin)}"]
    if margin.tied:
        more = needs_more(other, choice)
        said = [f"The runner-up, {other.name}, is {margin.verdict} (ratio {times(margin)}), but {more}. "
                f"{_certainty(choice, other, margin)}"]  # fmt: skip
    rivals = [loser.candidate for loser in found.losers if loser.why in ("worse", "tied")]
    cheapest = min(rivals, key=lambda c: c.figures.get("set_up_s", float("inf")))
    for rival in dict.fromkeys((other.name, cheapest.name)):
        said += _pays_off(choice, next(c for c in rivals if c.name == rival))
    return said


def _certainty(choice: Candidate, other: Candidate, margin: Margin) -> str:
    if margin.tied is not None:
        return f"That is a verdict between processes, {choice.replicates} and {other.replicates} of them."
    needs = REPLICATES_FOR_A_VERDICT
    few = min(choice.replicates, other.replicates)
    said = f"That is no verdict, which takes {needs} replicates a side (here {few}): the point estimate decides"
    return f"{said}{', though the interval holds 1' if is_unsure(margin) else ''}."


def _pays_off(choice: Candidate, rival: Candidate) -> list[str]:
    count = break_even(choice, rival)
    if count is None or choice.figures["set_up_s"] - rival.figures["set_up_s"] < _LEAST_SECONDS:
        return []
    own, its = choice.figures["set_up_s"], rival.figures["set_up_s"]
    what = "build" if mostly_built(choice, rival) else "set-up"
    seconds_each = f"set-up of {seconds(own)} against {seconds(its)}"
    return [f"Its {what} pays off after {items(count)} items against {rival.name} ({seconds_each})."]


def _nearest(found: Recommendation) -> list[str]:
    near = found.nearest
    if near is None:
        return []
    missed = next((loser for loser in found.losers if loser.candidate is near), None)
    return [f"The nearest is {near.name}: {reason(missed, found)}."] if missed else []


def _doubts(found: Recommendation) -> list[str]:
    """What makes the figures that decided unreliable."""
    wanted = found.wanted
    memory = wanted.objective == "memory" or any(limit.figure == "peak_memory_mib" for limit in wanted.limits)
    kinds = [*doubting("latency"), *doubting("error"), *(doubting("memory") if memory else ())]
    told = [candidate for candidate in (found.choice, found.runner_up) if candidate is not None]
    carriers = {kind: [c.name for c in told if kind in c.warnings] for kind in kinds}
    said = [
        f"Beware, {' and '.join(names)} {'carry' if len(names) > 1 else 'carries'} the warning {kind}: "
        f"{meaning(kind, otherwise=kind)}."
        for kind, names in carriers.items()
        if names
    ]
    choice = found.choice
    assert choice is not None
    if choice.unmeasured:
        total = choice.replicates + len(choice.unmeasured)
        said.append(
            f"Beware, {len(choice.unmeasured)} of its {total} replicates gave no figures: {choice.unmeasured[0]}."
        )
    return said + [text for limit in wanted.limits if (text := _close(choice, limit))]


def _close(choice: Candidate, limit: Limit) -> str:
    """Whether a limit that the choice meets is missed by a replicate of it, or lies within the median's interval."""
    name, values = FIGURES[limit.figure].noun, choice.each[limit.figure]
    missing = [value for value in values if not limit.holds(value)]
    if missing:
        worst = amount(limit.figure, max(missing, key=limit.excess))
        return f"Beware, {len(missing)} of its {len(values)} replicates miss the {name} limit (at worst {worst})."
    high = choice.figures.get("latency_ci_high_ms", 0.0)
    if limit.figure == "latency_ms" and len(values) == 1 and not limit.holds(high):
        return (
            f"Beware, the latency limit lies within the median's interval, which reaches {amount('latency_ms', high)}."
        )
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
    variants, precisions, batches = (_listed(group, key) for key in ("variant", "precision", "batch_size"))
    if len(variants) * len(precisions) * len(batches) != len(group):
        return "; ".join(candidate.name for candidate in group)
    return f"{', '.join(variants)} · {', '.join(precisions)} · batch {', '.join(batches)}"


def _listed(group: Iterable[Candidate], key: str) -> list[str]:
    return list(dict.fromkeys(str(getattr(candidate, key)) for candidate in group))


def _sources(found: Recommendation) -> list[str]:
    """Machine, versions, runs and samples of the figures."""
    subject = found.choice or found.nearest
    runs = list(dict.fromkeys(run_id for candidate in _all(found) for run_id in candidate.run_ids))
    said = [f"Compared: {len(_all(found))} candidates of {'run' if len(runs) == 1 else 'runs'} {', '.join(runs)}."]
    if subject is None:
        return said
    samples = " + ".join(f"{value:,.0f}" for value in subject.each.get("samples", ()))
    of_run = f"run {', '.join(subject.run_ids)}"
    return [f"{subject.name}: {subject.machine}, {versions(subject.row)}; {of_run}; {samples or 'no'} samples.", *said]


def _notes(found: Recommendation) -> list[str]:
    short = {x.limit.figure for loser in found.losers for x in loser.shortfalls if x.value is None}
    margins = [loser.margin for loser in found.losers if loser.margin is not None]
    needs, latency = REPLICATES_FOR_A_VERDICT, found.wanted.objective == "latency"
    lacking = [PERCENTILE_NEEDS[q] for figure in short if (q := FIGURES[figure].percentile)]
    within = [m for m in margins if m.interval is not None and not m.between]
    notes = [f"In parentheses stand 95 % intervals, within one process a side; between processes figures differ more: "
             f"give replicates: {needs} in the job."] if within else []  # fmt: skip
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
