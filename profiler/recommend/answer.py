"""Put a recommendation into words: the choice, its figures, how far to trust them, and why not the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engines.catalog import known
from profiler.errors import WHEN_IDLE
from profiler.job.case import setting_words
from profiler.recommend import reasons
from profiler.recommend.candidates import FIGURES, Candidate
from profiler.recommend.choice import Limit, Margin, Recommendation, break_even
from profiler.results.columns import Group, columns
from profiler.results.environment import versions_of_others
from profiler.results.sentences import WITHIN_PROCESS
from profiler.results.set_up import PARTS, Part, parts_of
from profiler.results.warning_kinds import doubting, meaning
from profiler.stats.ratios import REPLICATES_FOR_A_VERDICT
from profiler.stats.samples import PERCENTILE_NEEDS
from profiler.tables.numbers import count, counted, grouped, listed, products, rounded, seconds, significant, span

_AIMS = {
    "latency": "lowest latency per call",
    "throughput": "highest throughput",
    "memory": "lowest peak memory",
    "energy": "lowest energy per item",
    "cost": "lowest cost per item",
}
_LEAST_SECONDS = 1.0
"""Set-up that nobody waits for."""
_MANY, _TOO_MANY = 3, 8
"""More names than these are counted: where a caution concerns all, and where it does not."""
_CALIBRATE = {
    "onnx": "Int8 without calibration data has ranges of seeded inputs, so its error on yours is unknown. Give the "
    "model `calibration: FOLDER` in the job and measure again, or let it compete with --allow-uncalibrated or "
    "--max-error.",
    "torch": "torchao takes its ranges from each call's inputs, here seeded ones, so its error on yours is unknown. "
    "Let it compete with --allow-uncalibrated or --max-error.",
}
"""By what the engine needs."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a reader gets of a recommendation, in reading order; an empty part is left out."""

    title: str
    headline: str
    is_certain: bool
    """Whether nothing disturbed the choice."""
    facts: list[tuple[str, str]]
    """Of the choice: what, and the figure."""
    sentences: list[str]
    cautions: list[str]
    """What makes the figures that decided unreliable: each kind of warning once, with whom it concerns."""
    doubts: list[str]
    """Replicates that failed, and limits that are almost missed."""
    rough: str | None
    """That the figures are rough, where they are."""
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


def make_answer(found: Recommendation, command: str, rough: str | None = None, sampling: str = "") -> Answer:
    """`command` measures the choice again, or says why none can be given; `rough` says that all figures are.

    `sampling` are its options that take more samples, where some had too few.
    """
    request, choice = found.request, found.choice
    limits = ", ".join(map(reasons.limit_text, request.limits))
    machines = list(dict.fromkeys(c.machine for c in found.candidates))
    place = f" on {machines[0]}" if len(machines) == 1 else f" on one of {', '.join(machines)}" if machines else ""
    what = f"{request.model}, {request.pass_}{f' ({request.work})' if request.work else ''}{place}"
    measured = [loser for loser in found.losers if loser.why != "unmeasured"]
    return Answer(
        title=f"{what}: {_AIMS[request.objective]}{f' with {limits}' if limits else ''}",
        headline=_headline(choice, found) if choice else _nothing(found),
        is_certain=choice is None or not choice.is_disturbed,
        facts=_facts(choice, request.limits) if choice else [],
        sentences=_comparison(choice, found) if choice else _nearest(found),
        cautions=cautions(found.compared, {request.figure, *(limit.figure for limit in request.limits)}),
        doubts=_doubts(choice, found.request.limits) if choice else [],
        rough=rough,
        relaxations=[(reasons.limit_text(r.limit), reasons.relaxation(r, found)) for r in found.relaxations],
        objective=request.figure,
        losers=[
            (x.candidate.name, x.candidate.figures.get(request.figure), reasons.reason(x, found)) for x in measured
        ],
        unmeasured=_unmeasured(found),
        command=command,
        sources=[*_sources(found), *([rough] if rough else [])],
        notes=_notes(found, rough is not None, sampling),
    )


def _headline(choice: Candidate, found: Recommendation) -> str:
    name = choice.name + "".join(f", {words}" for words in setting_words(choice.row["shape"] or ""))
    if not choice.is_disturbed:
        return f"Deploy {name}"
    noisy = sum(one.is_disturbed for one in found.candidates)
    of = counted(sum(bool(one.cases) for one in found.candidates), "candidate")
    were = "was" if noisy == 1 else "were"
    return f"Measure again ({WHEN_IDLE}): {noisy} of {of} {were} disturbed. So far {name} leads"


def _nothing(found: Recommendation) -> str:
    request, whys = found.request, [loser.why for loser in found.losers if loser.why != "unmeasured"]
    admitted = len(whys) - whys.count("uncalibrated")
    if not whys:
        return "Nothing to deploy: no candidate was measured"
    if not admitted:
        return f"Nothing to deploy: all that was measured is {reasons.uncalibrated(_barred(found))}"
    if not request.limits:
        return f"Nothing to deploy: {FIGURES[request.figure].noun} was measured of none of {admitted} candidates"
    what = f"None of {admitted} candidates meets" if admitted > 1 else "The only candidate misses"
    return f"{what} the limit{'s' if len(request.limits) > 1 else ''}{' so far' if found.doubtful else ''}"


def _facts(choice: Candidate, limits: Sequence[Limit]) -> list[tuple[str, str]]:
    """Its figures, as far as it has them, each with its limit."""
    figures = choice.figures
    tails = [c for c in FIGURES.values() if c.percentile and c.name in figures]
    ms, but = reasons.amount("latency_ms", figures["latency_ms"]), reasons.unlike_other(choice, "latency_ms")
    latency = [f"{ms} per call{_spread(choice)}{but}"]
    latency += [f"{tail.heading} {significant(figures[tail.name])}" for tail in tails]
    facts = {"latency": ", ".join(latency)}
    for name in ("throughput", "peak_memory_mib", "error", "energy_mj_per_item", "usd_per_million_items"):
        if name in figures:
            facts[FIGURES[name].noun] = reasons.amount(name, figures[name])
    if "peak_memory_mib" in figures and choice.row["device"] == "cpu":
        facts[FIGURES["peak_memory_mib"].noun] += " beyond what the process and its libraries take"
    if "error" in facts and (reference := choice.row["reference_model"]):
        facts["error"] += f" (to the outputs of {reference})"
    for part in PARTS:
        if figures.get(part):
            facts[FIGURES[part].noun] = _in_parts(choice, part)
    for limit in limits:
        # A percentile's limit goes with the median.
        facts[FIGURES[limit.figure].noun.rpartition(" ")[2]] += f"; requested: {reasons.limit_text(limit)}"
    return list(facts.items())


def _in_parts(choice: Candidate, part: Part) -> str:
    """A part of the set-up in seconds, and what makes up most of it, like "7.8 s (export 2.0 s, build 5.8 s)"."""
    total = choice.figures[part]
    columns = parts_of(part, known(choice.row["engine"]).compiles)
    own = [(FIGURES[name].heading.lower(), choice.figures.get(name, 0.0)) for name in columns]
    most = [(name, value) for name, value in own if value >= 0.005 * total]
    split = [f"{name} {seconds(value)}" for name, value in most] if len(most) > 1 else [name for name, _ in most]
    apart = "; without imports" if part == "start_s" else ""
    return f"{seconds(total)} ({', '.join(split)}{apart})"


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
        alone = "meets the limits" if found.request.limits else "was measured"
        return [f"It is the only candidate that {alone}{' so far' if found.doubtful else ''}."]
    verb, than = reasons.WORSE[found.request.objective]
    relation = f"{verb} {reasons.worse(margin, than)}."
    if margin.tied:
        ratio = "" if margin.disturbed else f" (ratio {reasons.times(margin)})"
        relation = f"is {margin.verdict}{ratio}, but {reasons.needs_more(other, choice)}."
    rivals = [loser.candidate for loser in found.losers if loser.why in ("worse", "unclear", "tied")]
    cheapest = min(rivals, key=lambda c: c.figures.get("set_up_s", float("inf")))
    pays_off = [_pays_off(choice, rival) for rival in ([other] if cheapest is other else [other, cheapest])]
    start = f"The runner-up, {other.name}, {relation} {_certainty(choice, other, margin)}"
    return [start, *filter(None, pays_off)]


def _certainty(choice: Candidate, other: Candidate, margin: Margin) -> str:
    fewest, most = sorted((choice.replicates, other.replicates))
    runs = f"{counted(most, 'run')} each" if fewest == most else f"{fewest} and {most} runs"
    if margin.is_unclear:
        return f"Chosen by the measured median ({runs})."
    if margin.verdict is not None:
        return f"Statistically tested ({runs})."
    unsure = ", though the interval includes 1" if margin.is_unsure and not margin.disturbed else ""
    tested = f"Not statistically tested ({runs}; a test needs {REPLICATES_FOR_A_VERDICT})."
    return f"{tested} Chosen by the measured median{unsure}."


def _pays_off(choice: Candidate, rival: Candidate) -> str:
    """After how many items it has made up for what it takes longer than the rival, once and at every start."""
    if choice.is_disturbed or rival.is_disturbed:
        return ""
    once, start = (break_even(choice, rival, part) for part in PARTS)
    if once is None or start is None:
        return ""
    longer = {part: choice.figures[part] - rival.figures[part] for part in PARTS}
    if max(longer.values()) < _LEAST_SECONDS:
        return ""
    figures = [tuple(seconds(one.figures[part]) for one in (choice, rival)) for part in PARTS]
    both_once, both_start = (f"{own}, against {its}" for own, its in figures)
    clauses = []
    if longer["once_s"] >= _LEAST_SECONDS:
        what = "Export and build pay"
        if reasons.mostly_built(choice, rival) or not choice.figures.get("build_s"):
            what = f"The {'build' if choice.figures.get('build_s') else 'export'} pays"
        clauses.append(f"{what} off against {rival.name} after {rounded(once, 2)} items (once: {both_once})")
    if start >= 1:
        each = "each" if clauses else f"Against {rival.name} each"
        text = f"{each} start takes longer ({both_start}, without imports): as long as {rounded(start, 2)} items save"
        clauses.append(text)
    return f"{'; '.join(clauses)}." if clauses else ""


def _nearest(found: Recommendation) -> list[str]:
    """What comes closest to the limits, and the options by which it meets them; and what only lacks calibration."""
    near = next((loser for loser in found.losers if loser.candidate is found.nearest), None)
    sentences = []
    if near:
        admit = dict.fromkeys(reasons.setting(x.limit.figure, x.value) for x in near.shortfalls if x.value is not None)
        sentences.append(
            f"The nearest is {near.candidate.name}: {reasons.reason(near, found)}. Admit it with {' '.join(admit)}."
        )
    barred = [x.candidate for x in found.losers if x.why == "uncalibrated" and not x.shortfalls]
    if barred and found.request.limits:
        names = ", ".join(candidate.name for candidate in barred)
        sentences.append(f"Only {reasons.uncalibrated(barred)} meets the limits: {names}.")
    return sentences


def _barred(found: Recommendation) -> list[Candidate]:
    """What the request does not admit."""
    return [loser.candidate for loser in found.losers if loser.why == "uncalibrated"]


def cautions(compared: Iterable[Candidate], figures: Collection[str]) -> list[str]:
    """Each kind of warning that makes one of the figures unreliable once, with whom of those compared it concerns."""
    kinds = [*doubting("latency"), *doubting("error"), *(doubting("memory") if "peak_memory_mib" in figures else ())]
    carried = {one.name: one.warnings for one in compared}
    found = {kind: [name for name, warnings in carried.items() if kind in warnings] for kind in kinds}

    def who(names: list[str]) -> str:
        if _MANY < len(names) == len(carried):
            return f"all {len(carried)} compared"
        return listed(names) if len(names) <= _TOO_MANY else f"{len(names)} of {len(carried)} compared"

    return [
        f"Caution: {kind} ({who(names)}): {meaning(kind, otherwise=kind)}." for kind, names in found.items() if names
    ]


def _doubts(choice: Candidate, limits: Sequence[Limit]) -> list[str]:
    doubts = [_close(choice, limit) for limit in limits]
    if failed := len(choice.unmeasured):
        total = choice.replicates + failed
        doubts.insert(0, f"Caution: {failed} of its {total} replicates failed: {choice.unmeasured[0]}.")
    return [*filter(None, doubts)]


def _close(choice: Candidate, limit: Limit) -> str:
    """Whether a limit that the choice meets is missed by a replicate of it, or may be by another process."""
    name, values = FIGURES[limit.figure].noun, choice.each[limit.figure]
    missing = [value for value in values if not limit.holds(value)]
    if missing:
        worst = reasons.amount(limit.figure, max(missing, key=limit.excess))
        return f"Caution: {len(missing)} of its {len(values)} replicates miss the {name} limit (at worst {worst})."
    high = choice.figures.get("latency_ci_high_ms", 0.0)
    if limit.figure == "latency_ms" and len(values) == 1 and not limit.holds(high):
        reach = reasons.amount("latency_ms", high)
        return f"Caution: the interval of the median latency includes the limit; it ends at {reach}."
    if limit.is_close(choice):
        within = reasons.off(limit, choice.ranked[limit.figure])
        return f"Caution: {within} from the {name} limit: another process may miss it, {reasons.SEVERAL} would tell."
    return ""


def _unmeasured(found: Recommendation) -> list[tuple[str, str]]:
    """Each reason once, and what it holds for."""
    lost = [loser.candidate for loser in found.losers if loser.why == "unmeasured"]
    return [(why, _briefly(group)) for why, group in grouped((one.unmeasured[0], one) for one in lost).items()]


def _briefly(group: Sequence[Candidate]) -> str:
    """Their variants, precisions and batch sizes; the names where those do not tell them apart."""
    cells = [tuple(str(c.row[key]) for key in ("variant", "precision", "batch_size")) for c in group]
    if len({*cells}) < len(cells):
        return "; ".join(candidate.name for candidate in group)
    found = ([", ".join(values) for values in each] for each in products(cells))
    return "; ".join(f"{variants} · {precisions} · batch {sizes}" for variants, precisions, sizes in found)


def _sources(found: Recommendation) -> list[str]:
    """Machine, versions, runs and samples of the figures."""
    subject = found.choice or found.nearest
    runs = list(dict.fromkeys(run_id for candidate in found.candidates for run_id in candidate.run_ids))
    of_runs = f"{'run' if len(runs) == 1 else 'runs'} {', '.join(runs)}"
    limited = [f"{option} {', '.join(map(str, values))}" for option, values in found.request.restrictions.items()]
    to = f" ({'; '.join(limited)})" if limited else ""
    compared = [
        f"Compared: {counted(len(found.candidates), 'candidate')} of {of_runs}{to}.",
        *_left_out(found.candidates),
    ]
    if subject is None:
        return compared
    samples = " + ".join(map(count, subject.each["samples"])) or "no"
    where = f"{subject.machine}, {versions(subject.row)}; run {', '.join(subject.run_ids)}"
    return [f"{subject.name}: {where}; {samples} samples.", *compared]


def _left_out(candidates: Sequence[Candidate]) -> list[str]:
    """The runs of which some candidates' figures do not count, and whose."""
    names = grouped((run_id, candidate.name) for candidate in candidates for run_id in candidate.left_out)
    return [f"Disturbed in run {run_id}, so only other runs count: {'; '.join(of)}." for run_id, of in names.items()]


def _notes(found: Recommendation, is_rough: bool, sampling: str) -> list[str]:
    margins = [loser.margin for loser in found.losers if loser.margin and not loser.margin.disturbed]
    notes = []
    if any(m.interval is not None and not m.between for m in margins):
        notes.append(f"In parentheses: 95 % intervals. {WITHIN_PROCESS}")
    latency = found.request.objective == "latency"
    if any(m.interval is None for m in margins) and not (latency and is_rough):
        why = "30 independent samples. Raise budget.seconds" if latency else f"{REPLICATES_FOR_A_VERDICT} replicates"
        notes.append(f"No interval: fewer than {why}.")
    short = {missed.limit.figure for loser in found.losers for missed in loser.shortfalls if missed.value is None}
    tails = [c.percentile for name, c in FIGURES.items() if name in short and c.percentile]
    notes += [f"A p{tail} needs {PERCENTILE_NEEDS[tail]} samples in each replicate." for tail in tails]
    if "--min-samples" in sampling:
        notes.append(f"For more samples measure with {sampling}.")
    return [*notes, *dict.fromkeys(_CALIBRATE[known(barred.row["engine"]).needs] for barred in _barred(found))]


def versions(row: Mapping[str, object]) -> str:
    """Of the software that a row was measured with."""
    others = versions_of_others([str(row["engine"])])
    found = [c for c in columns(Group.VERSIONS) if row[c.name] and c.name not in others]
    named = [f"{c.noun or c.heading} {row[c.name]}" for c in found]
    return ", ".join(named) or "versions unknown"
