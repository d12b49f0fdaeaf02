"""Show what follows from a study's tables: the conclusions that tell most, its statements, all else folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

import polars as pl
from rich.console import Console
from rich.text import Text

from profiler.published import conclusions, references
from profiler.published.claims import answers
from profiler.published.claims.evidence import Claim, Evidence, Outcome
from profiler.published.conclusions import Comparison, Subject, best_published, between, compare_machines, most_telling
from profiler.published.setups import geometric_mean
from profiler.published.studies import PASSES
from profiler.results.cells import compared
from profiler.tables.numbers import compact, counted, listed
from profiler.tables.writers import escape_markdown

_SPEED, _NETWORKS, _LIBRARIES, _MEMORY, _SWEEPS = (
    "Machines and libraries",
    "Network against network",
    "The fastest library",
    "Memory",
    "Minibatches",
)
MOST = 5
STATEMENTS = "What the source states, and what its rows say"
_IN_PART = f"""\
"{Outcome.IN_PART}" stands where the direction is right, but a printed number differs from the computed one by \
0.05 or more, or
not every network agrees."""
_COUNTED = {
    Outcome.FAILS: ("does not hold", "do not hold"),
    Outcome.IN_PART: ("does not quite hold", "do not quite hold"),
    Outcome.HOLDS: ("holds", "hold"),
    Outcome.UNDECIDED: ("cannot be checked", "cannot be checked"),
}
"""What is said of one statement with a verdict, and of several; what surprises comes first."""
_INTRODUCTION = """\
Each range is over all {noun} that both ran: the least and the greatest ratio of their times for {passes}, per
image where batch sizes differ. With an own time it reaches to the ends of the ratios' 95 % intervals. Equal (`==`) are
two that stay within 5 % of each other throughout.
Own machines and libraries come first. An own GPU and a CPU, or an own CPU and a GPU, are compared as machines only."""


Own = Callable[[Evidence], list[str]]
"""Sentences that own rows give."""
KINDS: Mapping[str, tuple[str, Sequence[Own]]] = {
    "speed": (_SPEED, [answers.without_cudnn]),
    "order": (_SPEED, []),
    "network_speed": (_NETWORKS, [answers.networks_own]),
    "accuracy": (_NETWORKS, []),
    "best": (_LIBRARIES, [answers.fastest]),
    "framework": (_LIBRARIES, [answers.fastest, answers.ran_everything]),
    "best_per_layer": (_LIBRARIES, [answers.layers_own]),
    "memory": (_MEMORY, []),
    "fit": (_MEMORY, [answers.fit_own, answers.ran_everything]),
    "support": (_MEMORY, [answers.support_own]),
    "memory_use": (_MEMORY, [answers.use_own]),
    "time_per_sample": (_SWEEPS, [answers.per_sample_own]),
    "ms_above_twice": (_SWEEPS, [answers.excess_own]),
    "curvature": (_SWEEPS, [answers.bend_own]),
    "best_gpu": ("Which card to buy", []),
}
"""By the `kind` of references/conclusions.csv, in the order of their headings, what answers all statements of it."""


@dataclass(frozen=True)
class Group:
    """The statements under one heading, and what own rows say of them."""

    heading: str
    claims: Sequence[Claim]
    own: Sequence[str]


def groups(evidence: Evidence) -> list[Group]:
    order, found = list(KINDS), []
    claims = sorted(references.claims(evidence.study), key=lambda claim: order.index(claim["kind"]))
    for heading, of in groupby(claims, lambda claim: KINDS[claim["kind"]][0]):
        stated = list(of)
        answering = dict.fromkeys(own for claim in stated for own in KINDS[claim["kind"]][1])
        found.append(Group(heading, stated, list(dict.fromkeys(text for own in answering for text in own(evidence)))))
    return found


def headlines(evidence: Evidence) -> list[str]:
    """At most five sentences in Markdown: the first of each kind of conclusion that there is, then further ones."""
    found = [kind(evidence) for kind in HEADLINES]
    return list(dict.fromkeys(one for turn in zip_longest(*found) for one in turn if one))[:MOST]


def machines(evidence: Evidence) -> list[str]:
    """The own variant that stands for the published library against the fastest published setup, then others to it."""
    found = (most_telling(times, subject) for subject, times in evidence.times.items())
    return [pair.sentence() for pairs in found for pair in pairs]


def fastest(evidence: Evidence) -> list[str]:
    """The fastest own setup against the fastest published one, or against the own one that stands for it."""
    found = []
    for subject, times in evidence.times.items():
        for of in conclusions.by_device(times):
            mine = set(of.filter("ours", "counterpart")["setup"])
            first = conclusions.fastest(of.filter("ours"))
            if mine.isdisjoint(first):
                found += [pair.sentence() for pair in between(of, first, best_published(of) or mine, subject)]
    return found


def own_machines(evidence: Evidence) -> list[str]:
    """Own machines against each other, each with the variant that stands for the published library."""
    found = []
    for subject, times in evidence.times.items():
        for of in conclusions.by_device(times):
            pairs = compare_machines(of.filter("ours"), evidence.row.by_release)
            found += [replace(pair, subject=subject).sentence() for pair in pairs]
    return found


def cost(evidence: Evidence) -> list[str]:
    """What a million images cost as the published library computed, and in the cheapest way; only where priced.

    Of each machine and pass. Two ways are compared over the networks that both ran, and only over half of them or more.
    """
    priced = evidence.own.drop_nulls("usd_per_million_items")
    found = []
    for (pass_, _, price), rows in priced.group_by("pass", "machine", "usd_per_hour", maintain_order=True):
        figure = pl.col("usd_per_million_items")
        setup = conclusions.fastest(
            (rows.filter("counterpart") if rows["counterpart"].any() else rows).with_columns(network="model", ms=figure)
        )
        base = rows.filter(pl.col("setup").is_in(setup)).sort(figure, maintain_order=True)
        found.append(
            f"A million images, {PASSES[str(pass_)]}, cost {_prices(base)} on {conclusions.the(base['setup'][0])}, at "
            f"{compact(price)} USD an hour{_cheapest(base, rows)}."
        )
    return found


def _prices(rows: pl.DataFrame) -> str:
    """The least and the greatest of sorted rows, each with its network; one where both are of the same."""
    ends = rows.select("usd_per_million_items", "published_network").rows()
    least, most = ends[0], next(end for end in ends if end[0] == ends[-1][0])
    return " to ".join(dict.fromkeys(f"**{compact(usd, 3)} USD** ({network})" for usd, network in (least, most)))


def _cheapest(base: pl.DataFrame, rows: pl.DataFrame) -> str:
    """Which setup costs least in comparison, like "; eager amp-fp16 costs 0.25x to 0.90x as much, …", or nothing."""
    both = rows.join(base, on="model", suffix="_base").filter(pl.col("setup") != pl.col("setup_base"))
    both = both.drop("factor", "factor_low", "factor_high", "verdict")
    both = both.hstack(compared(both, figure="throughput"))
    means = both.group_by("setup").agg(mean=geometric_mean(pl.col("factor")), count=pl.col("model").n_unique())
    cheaper = means.filter(pl.col("mean") > 1, 2 * pl.col("count") >= base["model"].n_unique())
    cheaper = cheaper.sort("mean", "setup", descending=[True, False])
    if cheaper.is_empty():
        return ""
    best = both.filter(setup=cheaper["setup"][0])
    low, high = (1 / end for end in best.select(pl.col("factor_high").max(), pl.col("factor_low").min()).row(0))
    return (
        f"; with {best['library'][0]}, **{conclusions.span(low, high)}** as much, on the "
        f"{counted(cheaper['count'][0], 'network')} that both ran"
    )


def _of_kind(kind: str) -> Own:
    """What own rows answer to the study's statements of a kind; nothing where it makes none."""
    return lambda evidence: [text for own in KINDS[kind][1] for text in own(evidence)] if evidence.claims(kind) else []


HEADLINES: Sequence[Own] = (
    machines,
    fastest,
    own_machines,
    cost,
    answers.without_cudnn,
    _of_kind("best_per_layer"),
    _of_kind("memory_use"),
    answers.most_outdone,
    _of_kind("framework"),
    _of_kind("time_per_sample"),
    answers.knees,
    _of_kind("ms_above_twice"),
    _of_kind("curvature"),
    _of_kind("fit"),
    answers.fastest,
)
"""In the order in which they are told; what a study did not ask gives none."""


def markdown(evidence: Evidence) -> str:
    """Everything as a page: what is not told first is folded, so that GitHub shows it closed."""
    parts = [f"# {escape_markdown(evidence.row.title)}: conclusions"]
    if first := headlines(evidence):
        parts.append("\n".join(f"{number}. {sentence}" for number, sentence in enumerate(first, start=1)))
    parts += _statements(groups(evidence))
    for subject, times in evidence.times.items():
        parts += _folded(subject, _comparisons(evidence, subject, times))
    return "\n\n".join(parts) + "\n"


def show(console: Console, evidence: Evidence) -> None:
    """Print the conclusions that tell most, and how many of the source's statements hold."""
    if first := headlines(evidence):
        _heading(console, "Conclusions")
    for number, sentence in enumerate(first, start=1):
        console.print(Text(f"{number}. {sentence.replace('**', '')}"))
    if counts := _counts(references.claims(evidence.study)):
        _heading(console, STATEMENTS)
        console.print(Text(f"{counts} conclusions.md has each of them."))


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold underline"))


def _statements(found: Sequence[Group]) -> list[str]:
    """Its statements by heading, each with its verdict, and then what own rows say."""
    claims = [claim for group in found for claim in group.claims]
    if not claims:
        return []
    in_part = any(claim["verdict"] == Outcome.IN_PART for claim in claims)
    parts = [f"## {STATEMENTS}", f"{_counts(claims)}\n{_IN_PART}" if in_part else _counts(claims)]
    for group in found:
        parts += [f"### {group.heading}", _bullets(list(map(sentence, group.claims)))]
        if group.own:
            parts += ["The rows also say:", _bullets(group.own)]
    return parts


def sentence(claim: Claim) -> str:
    """A statement behind its verdict, and what that rests on, in Markdown."""
    return f"**{claim['verdict']}**: {claim['statement']}. {claim['answer']}"


def _counts(claims: Sequence[Claim]) -> str:
    """How many statements have which verdict, in a sentence; empty without any."""
    verdicts = Counter(claim["verdict"] for claim in claims)
    counts = [f"{verdicts[which]} {words[verdicts[which] > 1]}" for which, words in _COUNTED.items() if verdicts[which]]
    return f"Of {counted(verdicts.total(), 'statement')}, {listed(counts)}." if counts else ""


def _comparisons(evidence: Evidence, subject: Subject, times: pl.DataFrame) -> Mapping[str, list[Comparison]]:
    """Every pair by heading, own ones first."""
    row = evidence.row
    with_their = f"newest {row.columns['library']}" if row.by_release else "fastest library"
    manner = f" ({subject.manner})" if subject.manner else ""
    sections = {
        f"Machines, each with its {with_their}{conclusions.counterparts(times)}": conclusions.compare_machines(
            times, row.by_release
        ),
        "Libraries, over all machines that ran both": conclusions.compare_shared_libraries(
            conclusions.with_releases(evidence.study, times)
        ),
        "Machines with their libraries": conclusions.compare_setups(times),
    }
    return {
        f"{heading}{manner}": sorted((replace(one, subject=subject) for one in found), key=lambda one: not one.ours)
        for heading, found in sections.items()
    }


def _folded(subject: Subject, sections: Mapping[str, Sequence[Comparison]]) -> list[str]:
    body = [_INTRODUCTION.format(noun=subject.noun, passes=subject.passes)]
    for heading, found in sections.items():
        body += [f"## {heading}", _bullets([one.sentence() for one in found]) or "There is nothing to compare."]
    count = sum(map(len, sections.values()))
    of = f" of {subject.noun}{f', {subject.manner}' if subject.manner else ''}"
    return _details(f"Every two machines and libraries: {counted(count, 'comparison')}{of}", body)


def _details(summary: str, body: Sequence[str]) -> list[str]:
    return [f"<details>\n<summary>{summary}</summary>", *body, "</details>"]


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
