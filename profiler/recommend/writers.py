"""Write the answer to a recommendation for a terminal, as Markdown or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import known
from profiler.job.case import setting_words
from profiler.options import Recommend
from profiler.recommend.answer import Answer, cautions, versions
from profiler.recommend.candidates import FIGURES, Candidate
from profiler.recommend.choice import HIGHER, Loser, Margin, Recommendation, break_even
from profiler.recommend.options import command_line
from profiler.recommend.reasons import amount, limit_text, reason, setting, unlike_other
from profiler.results.columns import field
from profiler.results.sentences import not_in_the_choice
from profiler.results.set_up import BREAK_EVENS
from profiler.results.warning_kinds import disturbed
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


def print_briefly(
    console: Console, results: pl.DataFrame, answers: Sequence[tuple[Recommend, Recommendation, Answer]]
) -> None:
    """What to deploy for each of several requests to these results, and the command that says why not the others."""
    first, request = answers[0][0], answers[0][1].request
    models = {found.request.model for _, found, _ in answers}
    of_which = f" of {first.model}" if first.model and len(models) == 1 else ""
    limits = f" with {', '.join(map(limit_text, request.limits))}" if request.limits else ""
    console.print(Text(f"\nWhat to deploy{of_which}{limits}", style="bold"))
    compared = list[Candidate]()
    for asked, found, answer in answers:
        _print_choice(console, asked, found, answer, len(models) > 1)
        of, work = f"{found.request.model}: " * (len(models) > 1), setting_words(found.request.work)
        compared += [replace(one, name=", ".join([of + one.name, *work])) for one in found.compared]
    figures = {request.figure, *(limit.figure for limit in request.limits)}
    lost = not_in_the_choice(results.filter(pl.col("pass") == first.pass_, pl.col("model").is_in(models)))
    for text in [*cautions(compared, figures), lost, *dict.fromkeys(answer.rough for *_, answer in answers)]:
        if text:
            console.print(Text(f"\n{text}", style="yellow"))
    why = f"\nWhy not the others: {command_line(first)} (--help: limits, other objectives)"
    console.print(Text(why, style="dim"), soft_wrap=True)


def _print_choice(console: Console, asked: Recommend, found: Recommendation, answer: Answer, several: bool) -> None:
    """A choice with its figure and error, how it compares, and, but of one of several models, how to export it."""
    choice, figure = found.choice, found.request.figure
    aim = f"{'Highest' if figure in HIGHER else 'Lowest'} {FIGURES[figure].noun}"
    subject = found.request.model if several else aim
    lead, what = ", ".join([subject, *setting_words(found.request.work)]), answer.headline
    if choice is not None:
        error = f", error {amount('error', choice.figures['error'])}" if "error" in choice.figures else ""
        per = " per call" if figure == "latency_ms" else ""
        what = f"{choice.name} ({amount(figure, choice.figures[figure])}{per}{unlike_other(choice, figure)}{error})"
        lead += " so far" * choice.is_disturbed
    color = "green" if choice is not None and answer.is_certain else "yellow"
    console.print(Text(f"\n{lead}: {what}", style=f"bold {color}"))
    noisy = disturbed((one.name, one.warnings) for one in found.compared if one.is_disturbed)
    sentences = [*answer.sentences[: 1 if several else 2], *answer.doubts]
    for sentence in [f"Not certain: {noisy}."] if noisy else sentences:
        console.print(Text(sentence))
    deployable = choice is not None and known(choice.row["engine"]).deployment is not None
    if not several and asked.pass_ == "inference" and deployable:
        console.print(Text(f"Export: {command_line(asked)} --export deploy/"), soft_wrap=True)


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


def as_data(found: Recommendation, answer: Answer) -> dict[str, Any]:
    """For programs: every figure in full, and the reasons in words too."""
    request = found.request
    return {
        "model": request.model,
        "pass": request.pass_,
        "extra": request.work,
        "headline": answer.headline,
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
        **{key: getattr(answer, key) for key in ("sentences", "cautions", "doubts", "rough", "notes", "sources")},
        "command": answer.command.replace(" \\\n ", ""),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        **{key: candidate.row[key] for key in _IDENTITY},
        **{key: getattr(candidate, key) for key in ("name", "run_ids", "replicates", "figures")},
        "versions": versions(candidate.row),
        "warnings": sorted(candidate.warnings),
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
