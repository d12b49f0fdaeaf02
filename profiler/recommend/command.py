"""Recommend what to deploy: print the answers, and export the winner ready to run; a run ends with a short one."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import known
from engines.options import PASSES
from profiler.errors import PROGRAM, ConfigError, check_choice, measuring_anew, nearest
from profiler.job.case import parse_only
from profiler.options import Recommend as Options
from profiler.options import Run
from profiler.recommend.answer import (
    FIGURES,
    OBJECTIVES,
    Answer,
    Candidate,
    Command,
    Figure,
    Rejected,
    Request,
    base_of,
    cells_of,
    decide,
    make_answer,
)
from profiler.recommend.artifact import NotExported, check_folder, export
from profiler.results.choice import Choice, Limit
from profiler.results.columns import COLUMNS, LIMITED_BY
from profiler.results.reading import Runs, check_only, chosen, read_runs
from profiler.results.reasons import amount, bound, noun
from profiler.run.command import execute as run_job
from profiler.tables.numbers import UNITS, counted, grouped, listed, ranges, seconds, times
from profiler.tables.table import Section, Table, figure, of_rows, prose, words
from profiler.tables.writers import print_section

FORMATS = ("text", "json")
NOTHING_FITS = 3
_MOST_NAMES = 4
_WHOLE = 2
"""Of more answers than these only the headlines are printed."""
_AIMS = {"throughput": "highest throughput", "energy": "lowest energy per item"}
"""Words of an objective; others are "lowest" and their name."""
_PURPOSES = {"export": "Export", "replicates": "Measure with more replicates"}
Found = tuple[Choice, Answer]


def execute(options: Options, console: Console) -> int:
    """Print what to deploy; returns 0, 3 where nothing meets the limits, or 1 where no artifact could be made.

    Raises ConfigError.
    """
    check_choice("--format", options.format, FORMATS)
    if options.export is not None:
        check_folder(options.export)
    runs = read_runs(options.runs)
    for note in runs.notes:
        print(note, file=sys.stderr)
    results = runs.results.collect()
    asked = requests(options, results)
    if options.export is not None and (len(asked) > 1 or options.pass_ != "inference"):
        subjects = "; ".join(one.subject for one in asked)
        raise ConfigError(f"--export takes one model's inference; choose by --model, --setting or --pass: {subjects}")
    found = answers(asked, results, {run_id: run.address for run in runs.runs for run_id in run.run_ids}, options.runs)
    made = [answer for _, answer in found]
    if options.format == "json":
        dumps = [answer.model_dump(mode="json", by_alias=True) for answer in made]
        print(json.dumps(dumps if len(dumps) > 1 else dumps[0], indent=2, ensure_ascii=False))
    elif len(found) > 1:
        print_briefly(console, made, options.runs)
    else:
        print_answer(console, made[0])
    if options.export is not None:
        return _export(options.export, found[0], runs, options.trust_code)
    return 0 if all(answer.winner for answer in made) else NOTHING_FITS


def execute_run(options: Run, console: Console) -> int:
    """Run a job, and end the run with what to deploy; returns the exit code. Raises ConfigError."""
    return run_job(options, console, conclude)


def conclude(run: Path, results: pl.DataFrame, console: Console) -> None:
    """Print what to deploy for single calls and, of several batch sizes, for throughput, for each model and setting."""
    asked = []
    measured = results.filter(status="ok")
    for (pass_, model, setting), rows in measured.group_by("pass", "model", "setting", maintain_order=True):
        objectives = ["latency", "throughput"] if rows["batch_size"].n_unique() > 1 else ["latency"]
        plain = measured.filter(pl.col("pass") == pass_, model=model, setting="").is_empty()
        if setting == "" or plain:
            asked += [Request(model, pass_, setting, objective=objective) for objective in objectives]
    if asked:
        folders = dict.fromkeys(results["run_id"].unique(), str(run))
        print_briefly(console, [answer for _, answer in answers(asked, results, folders, [str(run)])], [str(run)])


def requests(options: Options, results: pl.DataFrame) -> list[Request]:
    """Return a request for each model, and each setting of one without a plain one, that the options ask about.

    Raises ConfigError for what these results, one row a case, do not hold.
    """
    check_choice("--objective", options.objective, OBJECTIVES)
    check_choice("--pass", options.pass_, PASSES)
    limits, only = read_limits(options), parse_only(options.only)
    rows = results.filter(pl.col("pass") == options.pass_)
    if only is not None:
        if "replicate" in only.conditions:
            raise ConfigError("--only replicate: an answer is of all replicates; leave it out")
        check_only(only, results.lazy())
        rows = rows.filter(chosen(only))
    models = rows["model"].unique(maintain_order=True).to_list()
    if not models:
        raise ConfigError(f"--pass {options.pass_}{' and --only' * (only is not None)}: no row of these runs has it")
    if options.model is not None and options.model not in models:
        raise ConfigError(
            f"--model: no {options.pass_} of '{options.model}' in these rows{nearest(options.model, models)}"
        )
    found = []
    for model in [options.model] if options.model else models:
        there = rows.filter(model=model)["setting"].unique(maintain_order=True).to_list()
        wanted = [""] if "" in there else there
        if options.setting is not None:
            wanted = ["" if options.setting == "plain" else options.setting]
            if wanted[0] not in there:
                known = ", ".join(setting or "plain" for setting in there)
                raise ConfigError(f"--setting: {model} has no '{options.setting}'; it has {known}")
        asked = (str(only or ""), limits, options.objective, options.allow_uncalibrated)
        found += [Request(model, options.pass_, setting, *asked) for setting in wanted]
    return found


def read_limits(options: Options) -> tuple[Limit, ...]:
    """Read the limits as they are written, such as "2" or "p99=2". Raises ConfigError."""
    limits = []
    for option, figures in grouped((option, column) for column, option in LIMITED_BY.items()).items():
        known = {f"p{FIGURES[name].percentile}" if FIGURES[name].percentile else "": name for name in figures}
        given = getattr(options, option.removeprefix("--").replace("-", "_"))
        for text in given if isinstance(given, list | tuple) else [] if given is None else [given]:
            for word in map(str.strip, text.split(",")):
                percentile, _, number = word.rpartition("=")
                if percentile not in known or not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", number):
                    forms = ", ".join(f"{name}=2" for name in known if name)
                    raise ConfigError(f"{option}: '{word}' is no limit; give a number{forms and f', or {forms}'}")
                if not 0 < float(number) < math.inf:
                    raise ConfigError(f"{option}: '{word}' is not a number greater than 0")
                limits.append(Limit(known[percentile], float(number)))
    return tuple(limits)


def answers(
    asked: Sequence[Request], results: pl.DataFrame, folders: Mapping[str, str], runs: Sequence[str]
) -> list[Found]:
    """Answer each request; `folders` are the runs' by id, and `runs` as they were given."""
    every, several, found = cells_of(results), results["model"].n_unique() > 1, []
    for request in asked:
        choice = decide(every, request)
        answer = make_answer(request, choice, every)
        again = f"{PROGRAM} recommend {shlex.join([*runs, *request.words()[0 if several else 2 :]])}"
        commands = _commands(again, choice, every, folders)
        found.append((choice, answer.model_copy(update={"next": commands})))
    return found


def _commands(again: str, choice: Choice, every: pl.DataFrame, folders: Mapping[str, str]) -> list[Command]:
    """Return the commands that export the winner, and that part a tie by more replicates."""
    winner, commands = choice.winner, list[Command]()
    if winner and winner["pass"] == "inference" and known(winner["engine"]).deployment is not None:
        commands.append(Command(purpose="export", command=f"{again} --export deploy/"))
    job = Path(folders.get(winner["run_ids"][0], "") if winner else "") / "bench.yaml"
    if winner and choice.replicates_to_settle and job.is_file():
        rows = [row for row in (winner, *choice.tied, base_of(winner, every)) if row]
        keys = ("model", "variant", "pass", "precision", "batch_size", "shape", "optimizer")
        values = [(key, value) for key in keys for value in dict.fromkeys(row[key] for row in rows if row[key])]
        only = ",".join(f"{key}={value}" for key, value in values if "," not in str(value))
        command = measuring_anew(job, only, f"--replicates {choice.replicates_to_settle}").replace(" \\\n ", "")
        commands.append(Command(purpose="replicates", command=command))
    return commands


def _export(folder: Path, found: Found, runs: Runs, trust_code: bool) -> int:
    """Export, and say so on the standard error: the standard output may be a document."""
    choice, answer = found
    console, winner = Console(stderr=True), choice.winner
    if winner is None or answer.winner is None:
        print(f"--export {folder}: nothing was written, since there is nothing to deploy", file=sys.stderr)
        return NOTHING_FITS
    run = next(run for run in runs.runs if winner["run_ids"][0] in run.run_ids)
    try:
        export(winner, answer, run, folder, console, trust_code)
    except NotExported as error:
        console.print(Text(f"--export {folder}: nothing was written: {error}", style="red"), soft_wrap=True)
        return 1
    console.print(
        Text(f"Exported: {answer.winner.name} to {folder}; its README.txt says how to run it"), soft_wrap=True
    )
    return 0


def print_answer(console: Console, answer: Answer) -> None:
    """Print an answer as wide as the console; commands are never broken."""
    machines = list(dict.fromkeys(one.machine for one in answer.candidates if one.machine))
    place = f" on {listed(machines)}" if machines else ""
    limits = [bound(limit.figure, limit.value) for limit in answer.limits]
    console.print(Text(f"{answer.request.subject}{place}: {_aim(answer)}{f' with {listed(limits)}' if limits else ''}"))
    console.print(Text(f"\n{headline(answer)}", style=f"bold {'green' if answer.winner else 'red'}"))
    for line in comparison(answer):
        console.print(Text(line))
    for section in _sections(answer):
        print_section(console, section)
    console.print()
    for note in answer.footnotes:
        console.print(Text(f"{note.kind} ({', '.join(note.of)}): {note.meaning}", style="dim"))
    for command in answer.next:
        console.print(Text(f"{_PURPOSES[command.purpose]}: {command.command}"), soft_wrap=True)
    runs = list(dict.fromkeys(run for one in answer.candidates for run in one.run_ids))
    console.print(Text(f"Figures: {counted(len(answer.candidates), 'candidate')} of {_some(runs)}", style="dim"))


def print_briefly(console: Console, answers: Sequence[Answer], runs: Sequence[str]) -> None:
    """Print what to deploy for each of several requests to the same runs; of more than two the headlines alone."""
    for answer in answers:
        style = f"bold {'green' if answer.winner else 'yellow'}"
        console.print(Text(f"\n{answer.request.subject}, {_aim(answer)}: {headline(answer)}", style=style))
        if len(answers) <= _WHOLE:
            for line in comparison(answer):
                console.print(Text(line))
            for command in answer.next:
                if command.purpose == "export":
                    console.print(Text(f"{_PURPOSES['export']}: {command.command}"), soft_wrap=True)
    again = f"{PROGRAM} recommend {shlex.join([*runs, '--model', answers[0].request.model])}"
    console.print(Text(f"\nWhy not the others: {again}", style="dim"), soft_wrap=True)


def _aim(answer: Answer) -> str:
    return _AIMS.get(answer.request.objective, f"lowest {answer.request.objective}")


def headline(answer: Answer) -> str:
    """Return the winner with its figures on one line, or that there is none and what comes nearest."""
    if (winner := answer.winner) is not None:
        batch = "" if ", batch " in winner.name else f", batch {winner.batch_size}"
        return f"Deploy {winner.name}{batch}: {', '.join(_parts(answer, winner))}"
    nearest = next((loser for loser in answer.losers if loser.candidate.name == answer.nearest), None)
    if nearest is None:
        return "Nothing to deploy: no candidate was measured"
    return f"Nothing meets the limits; the nearest is {nearest.candidate.name}: {_why(nearest)}"


def comparison(answer: Answer) -> list[str]:
    """Return how the winner compares with the runner-up, and which limits it only just meets."""
    if answer.winner is None:
        return []
    lines = [text[:1].upper() + text[1:] for text in map(str, answer.close)]
    if answer.tied:
        named = [answer.winner.name, *answer.tied]
        settle = answer.replicates_to_settle
        parting = f"; --replicates {settle} would part them" if settle else ""
        return [f"A tie of {len(named)}: {_some(named)}; the cheapest start wins{parting}", *lines]
    if answer.runner_up is not None and answer.margin is not None:
        return [f"Runner-up: {answer.runner_up}, {answer.margin}", *lines]
    return [f"The only candidate{' that meets the limits' if answer.losers else ''}", *lines]


def _parts(answer: Answer, one: Candidate) -> list[str]:
    """Return the winner's figures: the objective's, latency with its factor, those of limits, error, memory, start."""
    limited = [limit.figure for limit in answer.limits]
    found = []
    for shown in dict.fromkeys([answer.figure, "latency_ms", *limited, "error", "peak_memory_mib", "start_s"]):
        if shown not in one.figures:
            continue
        of = one.figures[shown]
        text = amount(shown, of.value, of.low, of.high)
        if shown == "latency_ms":
            found.append(text.replace(" ms", " ms a call", 1))
            factor = one.factor
            found += [times(factor.value, factor.low, factor.high, f"× {one.base}")] if factor else []
        elif shown == "error":
            high = one.figures.get("error_high", of)
            found.append(f"error {text}{f' (bound {amount(shown, high.value)})' if high.value > of.value else ''}")
        elif shown == "start_s":
            found.append(f"starts in {seconds(of.value)}")
        else:
            found.append(f"{noun(shown)} {text}" if FIGURES[shown].percentile else text)
    return found


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - _MOST_NAMES} more"][: len(names) > _MOST_NAMES]
    return listed([*names[:_MOST_NAMES], *more])


def _why(loser: Rejected) -> str:
    return "; ".join(map(str, loser.reasons))


def _sections(answer: Answer) -> list[Section]:
    """Return the tables that have rows."""
    column = COLUMNS[answer.figure]
    losers = [loser for loser in answer.losers if loser.reasons[0].code != "not-measured"]
    rows = [(each.candidate.name, *_ends(each.candidate.figures.get(answer.figure)), _why(each)) for each in losers]
    figures = figure(column.heading, ("value", "low", "high"), ranges, unit=UNITS[column.unit][0])
    limits = [
        (bound(one.figure, one.limit), one.option or "alone admits none with a known figure", one.admits)
        for one in answer.relaxations
    ]
    relaxed = [prose("Limit", "limit"), prose("What admits one", "option"), prose("Which", "admits")]
    lost = grouped((loser.reasons[0].text, loser.candidate.name) for loser in answer.losers if loser not in losers)
    missing = [prose("Candidates", "names"), prose("Why", "why")]
    tables = {
        "Limits to relax": of_rows("", relaxed, limits),
        "Why not the others" if answer.winner else "Why none": _table_of(
            [words("Candidate", "name"), figures, prose("Why", "why")], rows
        ),
        "Not measured": of_rows("", missing, [(_some(names), text) for text, names in lost.items()]),
    }
    return [Section(heading, (), [table]) for heading, table in tables.items() if table.rows]


def _table_of(fields: Sequence[Any], rows: Sequence[Sequence[object]]) -> Table:
    """Make a table of rows that have three values for a figure."""
    names = [column for field in fields for column in field.columns]
    return Table("", "", dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True)), fields)


def _ends(of: Figure | None) -> tuple[float | None, float | None, float | None]:
    return (of.value, of.low, of.high) if of else (None, None, None)
