"""Write an Answer for a terminal, as Markdown or as JSON, and several in short."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from profiler.options import Recommend
from profiler.recommend.answer import Answer, Candidate, Figure, Rejected, subject
from profiler.recommend.options import command_line
from profiler.results.columns import COLUMNS, Group, columns
from profiler.results.reasons import amount, bound, noun
from profiler.tables.numbers import UNITS, counted, factors, grouped, listed, products, ranges, seconds, times
from profiler.tables.table import Section, Table, figure, name, of_rows, prose, words
from profiler.tables.writers import escape_markdown, markdown_section, print_section

_HEADLINES = 2
"""More answers than these are a table."""
_MOST_NAMES = 4
_AIMS = {
    "latency": "lowest latency",
    "throughput": "highest throughput",
    "memory": "lowest memory",
    "energy": "lowest energy per item",
    "cost": "lowest cost",
}
_PURPOSES = {
    "export": "Export",
    "replicates": "Measure with more replicates",
    "samples": "Measure with more samples",
}
_NOTHING = "nothing meets the limits"


def print_answer(console: Console, answer: Answer) -> None:
    """Print an answer as wide as the console; commands are never broken."""
    console.print(Text(title(answer)))
    console.print(Text(f"\n{headline(answer)}", style=f"bold {'green' if answer.winner else 'red'}"))
    for line in comparison(answer):
        console.print(Text(line))
    for section in _sections(answer):
        print_section(console, section)
    console.print()
    for line in footnotes(answer):
        console.print(Text(line, style="dim"))
    for command in answer.next:
        console.print(Text(f"{_PURPOSES[command.purpose]}: {command.command}"), soft_wrap=True)
    console.print(Text(source(answer), style="dim"))


def as_markdown(answer: Answer) -> str:
    """Return the same for a page or a message."""
    blocks = [f"# {escape_markdown(headline(answer))}", *map(escape_markdown, (title(answer), *comparison(answer)))]
    blocks += [markdown_section(section).rstrip() for section in _sections(answer)]
    blocks += [f"- {escape_markdown(line)}" for line in footnotes(answer)]
    blocks += [f"{_PURPOSES[command.purpose]}:\n\n```sh\n{command.command}\n```" for command in answer.next]
    return "\n\n".join([*blocks, escape_markdown(source(answer))]) + "\n"


def as_json(answers: Sequence[Answer]) -> str:
    """Return an answer's dump, or a list of several."""
    dumps = [answer.model_dump(mode="json", by_alias=True) for answer in answers]
    return json.dumps(dumps if len(dumps) > 1 else dumps[0], indent=2, ensure_ascii=False)


def print_briefly(console: Console, answers: Sequence[tuple[Recommend, Answer]]) -> None:
    """Print what to deploy for each of several requests to the same runs: two as headlines, more as a table."""
    asked = answers[0][0]
    if len(answers) > _HEADLINES:
        asked = Recommend(runs=asked.runs)
        print_section(console, Section("What to deploy", (), [_table([answer for _, answer in answers])]))
    else:
        for _, answer in answers:
            of = f"{subject(answer)}, {_AIMS[answer.request.objective]}: "
            console.print(Text(f"\n{of}{headline(answer)}", style=f"bold {'green' if answer.winner else 'yellow'}"))
            for line in comparison(answer):
                console.print(Text(line))
            for command in answer.next:
                if command.purpose == "export":
                    console.print(Text(f"{_PURPOSES['export']}: {command.command}"), soft_wrap=True)
        for line in dict.fromkeys(line for _, answer in answers for line in footnotes(answer)):
            console.print(Text(line, style="dim"))
    console.print(Text(f"\nWhy not the others: {command_line(asked)}", style="dim"), soft_wrap=True)


def title(answer: Answer) -> str:
    """Return what was asked, like "resnet50 on NVIDIA H200: lowest latency, error ≤ 1.0e-2"."""
    machines = list(dict.fromkeys(one.machine for one in answer.candidates if one.machine))
    place = f" on {listed(machines)}" if machines else ""
    limits = [bound(limit.figure, limit.value) for limit in answer.limits]
    return f"{subject(answer)}{place}: {_AIMS[answer.request.objective]}{f' with {listed(limits)}' if limits else ''}"


def headline(answer: Answer) -> str:
    """Return the winner with its figures on one line, or that there is none and what comes nearest."""
    if (winner := answer.winner) is not None:
        several = len({one.batch_size for one in answer.candidates}) > 1
        batch = "" if several else f", batch {winner.batch_size}"
        return f"Deploy {winner.name}{batch}: {', '.join(_parts(answer, winner))}"
    nearest = next((loser for loser in answer.losers if loser.candidate.name == answer.nearest), None)
    if nearest is None:
        return "Nothing to deploy: no candidate was measured"
    return f"Nothing meets the limits; the nearest is {nearest.candidate.name}: {_reasons(nearest)}"


def comparison(answer: Answer) -> list[str]:
    """Return how the winner compares with the runner-up, and which limits it only just meets."""
    if answer.winner is None:
        return []
    lines = [why.text[:1].upper() + why.text[1:] for why in answer.close]
    if answer.tied:
        named = [answer.winner.name, *answer.tied]
        some = named if len(named) <= _MOST_NAMES else [*named[:_MOST_NAMES], f"{len(named) - _MOST_NAMES} more"]
        wins = f"{listed(some)}; the cheapest start wins"
        settle = answer.replicates_to_settle
        return [f"A tie of {len(named)}: {wins}{f'; --replicates {settle} would part them' if settle else ''}", *lines]
    if answer.runner_up is not None and answer.margin is not None:
        return [f"Runner-up: {answer.runner_up}, {answer.margin.text}", *lines]
    return [f"The only candidate{' that meets the limits' if answer.losers else ''}", *lines]


def footnotes(answer: Answer) -> list[str]:
    """Return a line a kind of warning."""
    return [f"{note.kind} ({', '.join(note.of)}): {note.meaning}" for note in answer.footnotes]


def source(answer: Answer) -> str:
    """Return where the figures come from on one line."""
    runs = list(dict.fromkeys(run for one in answer.candidates for run in one.run_ids))
    some = runs if len(runs) < _MOST_NAMES else [f"{len(runs)} runs"]
    of = answer.winner or next((loser.candidate for loser in answer.losers), None)
    versions = [f"{c.heading} {of.versions[c.name]}" for c in columns(Group.VERSIONS) if of and c.name in of.versions]
    return ", ".join([f"Figures: {counted(len(answer.candidates), 'candidate')} of {listed(some)}", *versions])


def _parts(answer: Answer, one: Candidate) -> list[str]:
    """Return the winner's figures: the objective's, latency with its factor, those of limits, error, memory, start."""
    figures = one.figures

    def of(name: str) -> str:
        return _amount(name, figures[name])

    latency = [f"{of('latency_ms').replace(' ms', ' ms a call', 1)}"]
    latency += [f"{times(one.factor.value, one.factor.low, one.factor.high, f'× {one.base}')}"] if one.factor else []
    limited = [limit.figure for limit in answer.limits if limit.figure in figures]
    tails = [f"{noun(name)} {of(name)}" for name in limited if COLUMNS.get(name) and COLUMNS[name].percentile]
    wanted = [name for name in dict.fromkeys([answer.figure, *limited]) if name in figures]
    rates = [of(name) for name in wanted if name in ("throughput", "energy_mj_per_item", "usd_per_million_items")]
    first, second = (
        (rates, latency) if answer.figure in wanted[:1] and answer.figure != "latency_ms" else (latency, rates)
    )
    end = []
    if "error" in figures:
        high = figures.get("error_high", figures["error"]).value
        within = f" (bound {_amount('error', figures['error_high'])})" if high > figures["error"].value else ""
        end.append(f"error {of('error')}{within}")
    end += [of("peak_memory_mib")] if "peak_memory_mib" in figures else []
    end += [f"built once in {seconds(figures['once_s'].value)}"] if _is_long(figures.get("once_s")) else []
    end += [f"starts in {seconds(figures['start_s'].value)}"] if "start_s" in figures else []
    return [*first, *second, *tails, *end]


def _is_long(figure: Figure | None) -> bool:
    return figure is not None and figure.value >= 1


def _amount(name: str, of: Figure) -> str:
    return amount(name, of.value, of.low, of.high)


def _reasons(loser: Rejected) -> str:
    return "; ".join(why.text for why in loser.reasons)


def _sections(answer: Answer) -> list[Section]:
    """Return the tables that have rows."""
    unit, _ = UNITS[COLUMNS[answer.figure].unit]
    heading = COLUMNS[answer.figure].heading
    losers = [loser for loser in answer.losers if loser.reasons[0].code != "not-measured"]
    rows = [
        (loser.candidate.name, *_ends(loser.candidate.figures.get(answer.figure)), _reasons(loser)) for loser in losers
    ]
    why = [
        words("Candidate", "name"),
        figure(heading, ("value", "low", "high"), ranges, unit=unit),
        prose("Why", "why"),
    ]
    limits = [
        (bound(one.figure, one.limit), one.option or "alone admits none with a known figure", one.admits)
        for one in answer.relaxations
    ]
    relaxed = [prose("Limit", "limit"), prose("What admits one", "option"), prose("Which", "admits")]
    lost = grouped((loser.reasons[0].detail, loser.candidate) for loser in answer.losers if loser not in losers)
    missing = [prose("Candidates", "names"), prose("Why", "why")]
    tables = {
        "Limits to relax": of_rows("", relaxed, limits),
        "Why not the others" if answer.winner else "Why none": _with_ends(why, rows),
        "Not measured": of_rows("", missing, [(_briefly(each), text) for text, each in lost.items()]),
    }
    return [Section(heading, (), [table]) for heading, table in tables.items() if table.rows]


def _with_ends(fields: Sequence[object], rows: Sequence[Sequence[object]]) -> Table:
    """Make a table of rows that have three values for a figure."""
    names = [column for field in fields for column in field.columns]  # type: ignore[attr-defined]
    frame = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    return Table("", "", frame, fields)  # type: ignore[arg-type]


def _ends(of: Figure | None) -> tuple[float | None, float | None, float | None]:
    return (of.value, of.low, of.high) if of else (None, None, None)


def _briefly(lost: Sequence[Candidate]) -> str:
    """Return variants, precisions and batch sizes as few products."""
    found = products([(one.variant, one.precision, str(one.batch_size)) for one in lost])
    return "; ".join(f"{', '.join(v)} · {', '.join(p)} · batch {', '.join(b)}" for v, p, b in found)


def _table(answers: Sequence[Answer]) -> Table:
    """Return a row an answer."""
    rows = []
    for answer in answers:
        one = answer.winner
        figures = one.figures if one else {}
        rows.append(
            (
                subject(answer),
                answer.request.objective,
                one and one.batch_size,
                f"{one.variant} {one.precision}" if one else _NOTHING,
                f"{len(answer.tied)} more" if answer.tied else "",
                *_ends(figures.get("latency_ms")),
                *_ends(one.factor if one else None),
                figures["error"].value if "error" in figures else None,
            )
        )
    fields = [
        name("Model", "model"),
        words("For", "objective"),
        figure("Batch", "batch_size", UNITS[""][1]),
        words("Deploy", "configuration"),
        words("Tied with", "tied"),
        figure("Latency", ("ms", "ms_low", "ms_high"), ranges, unit="ms"),
        figure("Factor", ("factor", "factor_low", "factor_high"), factors),
        figure("Error", "error", UNITS["error"][1]),
    ]
    return _with_ends(fields, rows)
