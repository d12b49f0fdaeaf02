"""Show what follows from a study's tables: the conclusions that tell most, its statements checked, all else folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl
from rich.console import Console
from rich.text import Text

from profiler.published import conclusions
from profiler.published.claims.evidence import Claim, Evidence
from profiler.published.claims.kinds import Group, groups
from profiler.published.conclusions import Comparison, Subject
from profiler.published.headlines import headlines
from profiler.results.sentences import sweep_sentences
from profiler.tables.numbers import counted, listed
from profiler.tables.writers import escape_markdown

STATEMENTS = "What the source states, and what its rows say"
_VERDICTS = """\
"Not quite" stands where the direction is right, but a printed number differs from the computed one by 0.05 or more, or
not every network agrees."""
_COUNTED = {
    "Does not hold": ("does not hold", "do not hold"),
    "Not quite": ("does not quite hold", "do not quite hold"),
    "Holds": ("holds", "hold"),
    "Cannot be checked": ("cannot be checked", "cannot be checked"),
}
"""What is said of one statement with a verdict, and of several; what surprises comes first."""
_INTRODUCTION = """\
Each range is over all {noun} that both ran: the least and the greatest ratio of their times for {passes}, per
image where batch sizes differ. Own times on a GPU are the device's, without gaps between launches, where those could be
kept out; where not, {noun} whose time the host sets are named and do not count. Equal (`==`) are two that stay within
5 % of each other throughout.
Own machines and libraries come first. An own GPU and a CPU, or an own CPU and a GPU, are compared as machines only."""


def markdown(evidence: Evidence) -> str:
    """Everything as a page: what is not told first is folded, so that GitHub shows it closed."""
    parts = [f"# {escape_markdown(evidence.row.title)}: conclusions"]
    if first := headlines(evidence):
        parts.append("\n".join(f"{number}. {sentence}" for number, sentence in enumerate(first, start=1)))
    parts += _statements(groups(evidence))
    for subject, times in evidence.times.items():
        parts += _folded(subject, _comparisons(evidence, subject, times))
    if "minibatch" in evidence.row.tables and (findings := sweep_sentences(evidence.results)):
        parts += _details(f"Every batch sweep: {counted(len(findings), 'finding')}", [_bullets(findings)])
    return "\n\n".join(parts) + "\n"


def show(console: Console, evidence: Evidence) -> None:
    """Print the conclusions that tell most, and how many of the source's statements hold."""
    if first := headlines(evidence):
        _heading(console, "Conclusions")
    for number, sentence in enumerate(first, start=1):
        console.print(Text(f"{number}. {sentence.replace('**', '')}"))
    if counts := _counts(groups(evidence)):
        _heading(console, STATEMENTS)
        console.print(Text(f"{counts} conclusions.md has each of them."))


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold underline"))


def _statements(found: Sequence[Group]) -> list[str]:
    """Its statements by heading, each with its verdict, and then what own rows say."""
    counts = _counts(found)
    if not counts:
        return []
    in_part = any(claim["verdict"] == "Not quite" for group in found for claim in group.claims)
    parts = [f"## {STATEMENTS}", f"{counts}\n{_VERDICTS}" if in_part else counts]
    for group in found:
        parts += [f"### {group.heading}", _bullets(list(map(sentence, group.claims)))]
        if group.own:
            parts += ["The rows also say:", _bullets(group.own)]
    return parts


def sentence(claim: Claim) -> str:
    """A statement behind its verdict, and what that rests on, in Markdown."""
    return f"**{claim['verdict']}**: {claim['statement']}. {claim['answer']}"


def _counts(found: Sequence[Group]) -> str:
    """How many statements have which verdict, in a sentence; empty without any."""
    verdicts = Counter(claim["verdict"] for group in found for claim in group.claims)
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
