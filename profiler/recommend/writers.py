"""Write the answer to a recommendation for a terminal, as Markdown or as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from profiler.recommend.answer import Answer, versions
from profiler.recommend.candidates import Candidate
from profiler.recommend.choice import Loser, Margin, Recommendation, break_even
from profiler.recommend.reasons import reason, setting
from profiler.results.columns import field
from profiler.results.set_up import BREAK_EVENS
from profiler.stats.ratios import BETWEEN, WITHIN
from profiler.tables.table import Section, name, of_rows, prose, words
from profiler.tables.writers import escape_markdown, markdown, markdown_section, print_pairs, print_section

_IDENTITY = ("engine", "variant", "precision", "calibrated", "batch_size", "machine")


def print_answer(console: Console, answer: Answer) -> None:
    """For people, as wide as the console; a command is never broken."""
    console.print(Text(answer.title))
    color = ("green" if answer.is_certain else "yellow") if answer.facts else "red"
    console.print(Text(f"\n{answer.headline}\n", style=f"bold {color}"))
    if answer.facts:
        print_pairs(console, [(Text(what), Text(figure)) for what, figure in answer.facts])
    for sentence in answer.sentences:
        console.print(Text(sentence))
    for doubt in (*answer.cautions, *answer.doubts):
        console.print(Text(doubt, style="yellow"))
    for section in _sections(answer):
        print_section(console, section)
    console.print(Text("\nTo measure it again", style="bold"))
    console.print(Text(answer.command), soft_wrap=True)
    print_section(console, Section("Where the figures come from", answer.sources))


def as_markdown(answer: Answer) -> str:
    """The same for a page or a message."""
    blocks = [f"# {escape_markdown(answer.headline)}", escape_markdown(answer.title)]
    if answer.facts:
        blocks.append(markdown(of_rows("", [name("", "what"), prose("", "figure")], answer.facts)).rstrip())
    blocks += map(escape_markdown, [*answer.sentences, *answer.cautions, *answer.doubts])
    blocks += [markdown_section(section).rstrip() for section in _sections(answer)]
    blocks += ["## To measure it again", f"```sh\n{answer.command}\n```"]
    return "\n\n".join([*blocks, markdown_section(Section("Where the figures come from", answer.sources))])


def _sections(answer: Answer) -> list[Section]:
    """The tables, as far as they have rows."""
    relaxations = [prose("Limit", "limit"), prose("What it takes", "text")]
    losers = [words("Candidate", "name"), field(answer.objective, expendable=0), prose("Why not", "text")]
    unmeasured = [prose("Reason", "reason"), prose("Candidates", "names")]
    sections = [
        Section("Which limit binds", (), [of_rows("", relaxations, answer.relaxations)]),
        Section(
            "Why not the others" if answer.facts else "Why none", answer.notes, [of_rows("", losers, answer.losers)]
        ),
        Section("Not measured", (), [of_rows("", unmeasured, answer.unmeasured)]),
    ]
    return [section for section in sections if section.tables[0].rows]


def as_json(found: Recommendation, answer: Answer) -> str:
    """For programs: every figure in full, and the reasons in words too."""
    request = found.request
    data = {
        "model": request.model,
        "pass": request.pass_,
        "objective": request.objective,
        "limits": {limit.figure: limit.value for limit in request.limits},
        "choice": found.choice and _candidate(found.choice),
        "runner_up": found.runner_up and found.runner_up.name,
        "margin": found.margin and _margin(found.margin),
        "nearest": found.nearest and found.nearest.name,
        "relaxations": [
            {
                "figure": one.limit.figure,
                "limit": one.limit.value,
                "needed": one.value,
                "option": None if one.value is None else setting(one.limit.figure, one.value),
                "admits": one.candidate and one.candidate.name,
            }
            for one in found.relaxations
        ],
        "losers": [_loser(loser, found) for loser in found.losers],
        "sentences": [*answer.sentences, *answer.cautions, *answer.doubts],
        "notes": answer.notes,
        "command": answer.command.replace(" \\\n ", ""),
        "sources": answer.sources,
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        **{key: candidate.row[key] for key in _IDENTITY},
        "versions": versions(candidate.row),
        "run_ids": candidate.run_ids,
        "replicates": candidate.replicates,
        "warnings": sorted(candidate.warnings),
        "figures": candidate.figures,
    }


def _loser(loser: Loser, found: Recommendation) -> dict[str, Any]:
    return {
        **_candidate(loser.candidate),
        "why": loser.why,
        "reason": reason(loser, found),
        "margin": loser.margin and _margin(loser.margin),
        **{
            name: found.choice and break_even(found.choice, loser.candidate, part) for name, part in BREAK_EVENS.items()
        },
    }


def _margin(margin: Margin) -> dict[str, Any]:
    return {
        "ratio": margin.ratio,
        "low": margin.interval and margin.interval.low,
        "high": margin.interval and margin.interval.high,
        "interval": (BETWEEN if margin.between else WITHIN) if margin.interval else None,
        "indistinguishable": margin.tied,
        "verdict": margin.verdict,
        "replicates_to_settle": margin.replicates_to_settle,
        "disturbed": [candidate.name for candidate in margin.disturbed],
    }
