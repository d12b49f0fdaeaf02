"""Write the answer to a recommendation for a terminal, as Markdown or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.recommend.answer import Answer, versions
from profiler.recommend.candidates import FIGURES, Candidate
from profiler.recommend.choice import Loser, Margin, Recommendation, break_even
from profiler.recommend.reasons import number, reason


def print_answer(console: Console, answer: Answer) -> None:
    """For people, as wide as the console; a command is never broken."""
    console.print(Text(answer.title), soft_wrap=False)
    console.print(Text(f"\n{answer.headline}\n", style="bold green" if answer.facts else "bold red"))
    _print_pairs(console, answer.facts)
    for sentence in answer.sentences:
        console.print(Text(sentence))
    for doubt in answer.doubts:
        console.print(Text(doubt, style="yellow"))
    _print_section(console, "Which limit binds", answer.relaxations)
    if answer.losers:
        console.print(_losers(answer))
        for note in answer.notes:
            console.print(Text(note, style="dim"))
    _print_section(console, "Not measured", answer.unmeasured)
    console.print(Text("\nTo measure it again", style="bold"))
    console.print(Text(answer.command), soft_wrap=True)
    console.print(Text("\nWhere the figures come from", style="bold"))
    for line in answer.sources:
        console.print(Text(line, style="dim"))


def as_markdown(answer: Answer) -> str:
    """The same for a page or a message."""
    blocks = [f"# {_flat(answer.headline)}", _flat(answer.title)]
    if answer.facts:
        blocks.append(_table(("", ""), answer.facts))
    blocks += map(_flat, [*answer.sentences, *answer.doubts])
    if answer.relaxations:
        blocks += ["## Which limit binds", _table(("Limit", "What it takes"), answer.relaxations)]
    if answer.losers:
        blocks += [
            "## Why not the others",
            _table(("Candidate", _head(answer), "Why not"), _rows(answer)),
            *answer.notes,
        ]
    if answer.unmeasured:
        blocks += ["## Not measured", _table(("Reason", "What"), answer.unmeasured)]
    blocks += ["## To measure it again", f"```sh\n{answer.command}\n```", "## Where the figures come from"]
    blocks += map(_flat, answer.sources)
    return "\n\n".join(blocks) + "\n"


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
                "figure": r.limit.figure,
                "limit": r.limit.value,
                "needed": r.value,
                "admits": r.candidate and r.candidate.name,
            }
            for r in found.relaxations
        ],
        "losers": [_loser(loser, found) for loser in found.losers],
        "sentences": [*answer.sentences, *answer.doubts],
        "notes": answer.notes,
        "command": answer.command.replace(" \\\n ", ""),
        "sources": answer.sources,
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "engine": candidate.row["engine"],
        "variant": candidate.row["variant"],
        "precision": candidate.row["precision"],
        "batch_size": candidate.row["batch_size"],
        "machine": candidate.machine,
        "versions": versions(candidate.row),
        "run_ids": list(candidate.run_ids),
        "replicates": candidate.replicates,
        "warnings": sorted(candidate.warnings),
        "figures": candidate.figures,
    }


def _loser(loser: Loser, found: Recommendation) -> dict[str, Any]:
    choice = found.choice
    return {
        **_candidate(loser.candidate),
        "why": loser.why,
        "reason": reason(loser, found),
        "margin": loser.margin and _margin(loser.margin),
        "break_even_items": choice and break_even(choice, loser.candidate),
    }


def _margin(margin: Margin) -> dict[str, Any]:
    return {
        "ratio": margin.ratio,
        "low": margin.interval and margin.interval.low,
        "high": margin.interval and margin.interval.high,
        "interval": ("between processes" if margin.between else "within process") if margin.interval else None,
        "indistinguishable": margin.tied,
    }


def _rows(answer: Answer) -> list[tuple[str, str, str]]:
    return [(name, "" if figure is None else number(figure), why) for name, figure, why in answer.losers]


def _head(answer: Answer) -> str:
    figure = FIGURES[answer.objective]
    return f"{figure.noun.capitalize()} {figure.unit}"


def _losers(answer: Answer) -> Table:
    grid = Table(title="\nWhy not the others", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    grid.pad_edge = False
    grid.add_column("Candidate", overflow="fold")
    grid.add_column(Text(_head(answer).replace(" ", "\n", 1)), justify="right", no_wrap=True)
    grid.add_column("Why not", overflow="fold")
    for row in _rows(answer):
        grid.add_row(*map(Text, row))
    return grid


def _print_section(console: Console, title: str, pairs: Sequence[tuple[str, str]]) -> None:
    if pairs:
        console.print(Text(f"\n{title}", style="bold"))
        _print_pairs(console, pairs)


def _print_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    if not pairs:
        return
    if max(len(first) for first, _ in pairs) > console.width // 2:
        for first, second in pairs:
            console.print(Text(first))
            console.print(Text(second, style="dim"))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for first, second in pairs:
        grid.add_row(Text(first), Text(second))
    console.print(grid)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_flat(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _flat(text: str) -> str:
    """On one line."""
    return " ".join(text.split())
