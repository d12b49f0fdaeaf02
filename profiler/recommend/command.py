"""Recommend what to deploy: print the answer, and export the winner ready to run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import known
from exporters.source import RANDOM_WEIGHTS
from profiler.errors import ConfigError, measuring_anew
from profiler.options import Recommend as Options
from profiler.recommend.answer import FIGURES, Answer, Command, Footnote, base_of, cells_of, decide, make_answer
from profiler.recommend.artifact import NotExported, check_folder, export
from profiler.recommend.options import check, command_line, each_of, make_request
from profiler.recommend.writers import as_json, as_markdown, print_answer, print_briefly
from profiler.results.choice import Choice
from profiler.results.reading import Runs, read_runs
from profiler.results.run_folder import RunFolder
from profiler.stats.samples import PERCENTILE_NEEDS

NOTHING_FITS = 3
_MOST_AGAIN = 3
"""Candidates with too few samples that a command measures again."""
Found = tuple[Options, Choice, Answer]
Row = Mapping[str, Any]


def execute(options: Options, console: Console) -> int:
    """Print what to deploy; returns 0, 3 where nothing meets the limits, or 1 where no artifact could be made.

    Raises ConfigError.
    """
    check(options)
    if options.export is not None:
        check_folder(options.export)
    runs = read_runs(options.runs)
    for note in runs.notes:
        print(note, file=sys.stderr)
    results = runs.results.collect()
    folders = {run_id: run.address for run in runs.runs for run_id in run.run_ids}
    found = answers(each_of(options, results), results, folders)
    made = [answer for *_, answer in found]
    if options.format == "json":
        print(as_json(made))
    elif options.format == "md":
        print("\n".join(map(as_markdown, made)))
    elif len(found) > 1:
        print_briefly(console, [(asked, answer) for asked, _, answer in found])
    else:
        print_answer(console, made[0])
    if options.export is not None:
        return _export(options.export, found[0], runs, options.trust_code)
    return 0 if all(answer.winner for answer in made) else NOTHING_FITS


def answers(asked: Sequence[Options], results: pl.DataFrame, folders: Mapping[str, str]) -> list[Found]:
    """Answer each request; `folders` are the runs' by id. Raises ConfigError where no request can be answered.

    Of several, those that cannot are named on the standard error, such as a pass that a model was not measured in.
    """
    found, refused = list[Found](), list[ConfigError]()
    cells = dict[str, pl.DataFrame]()
    for options in asked:
        try:
            request = make_request(options, results)
        except ConfigError as error:
            refused.append(error)
            continue
        prices = str(request.prices)
        every = cells[prices] = cells[prices] if prices in cells else cells_of(results, request.prices)
        choice = decide(every, request)
        answer = make_answer(request, choice, every)
        notes = [*answer.footnotes, *_weights(choice, folders)]
        commands = _commands(options, choice, every, folders)
        found.append((options, choice, answer.model_copy(update={"footnotes": notes, "next": commands})))
    if not found:
        raise refused[0]
    print(*refused, sep="\n", end="\n" * bool(refused), file=sys.stderr)
    return found


def _commands(options: Options, choice: Choice, every: pl.DataFrame, folders: Mapping[str, str]) -> list[Command]:
    """Return the commands that export the winner, part a tie, and take the samples that a percentile needs."""
    winner, commands = choice.winner, list[Command]()
    if winner and winner["pass"] == "inference" and known(winner["engine"]).deployment is not None:
        commands.append(Command(purpose="export", command=f"{command_line(options)} --export deploy/"))
    again = partial(_measuring, every=every, folders=folders)
    if winner and choice.replicates_to_settle:
        commands += again("replicates", [winner, *choice.tied], f"--replicates {choice.replicates_to_settle}")
    needs, lacking = 0, list[Row]()
    for loser in choice.losers:
        percentiles = [FIGURES[reason.figure].percentile for reason in loser.reasons if reason.code == "unknown"]
        if all(percentiles) and len(percentiles) == len(loser.reasons):
            needs = max(needs, *(PERCENTILE_NEEDS[percentile] for percentile in percentiles if percentile))
            lacking.append(loser.cell)
    if lacking:
        rows = [*([winner] if winner else []), *lacking[:_MOST_AGAIN]]
        commands += again("samples", rows, f"--min-samples {needs}")
    return commands


def _measuring(
    purpose: Any, cells: Iterable[Row], options: str, every: pl.DataFrame, folders: Mapping[str, str]
) -> list[Command]:
    """Return the command that measures these cells of the first one's run again with their base, if it has a job."""
    rows = list(cells)
    job = Path(folders.get(rows[0]["run_ids"][0], "")) / "bench.yaml"
    if not job.is_file():
        return []
    rows = [row for row in rows if set(row["run_ids"]) & set(rows[0]["run_ids"])]
    base = base_of(rows[0], every)
    rows += [base] if base else []
    names = ("model", "variant", "pass", "precision", "batch_size", "shape", "optimizer")
    values = {name: list(dict.fromkeys(row[name] for row in rows if row[name])) for name in names}
    only = ",".join(f"{name}={value}" for name in names for value in values[name] if "," not in str(value))
    return [Command(purpose=purpose, command=measuring_anew(job, only, options).replace(" \\\n ", ""))]


def _weights(choice: Choice, folders: Mapping[str, str]) -> list[Footnote]:
    """Return a footnote where the winner's run says that the model's weights are random."""
    folder = folders.get(choice.winner["run_ids"][0], "") if choice.winner else ""
    if choice.winner is None:
        return []
    model = choice.winner["model"]
    try:
        recorded = RunFolder(Path(folder)).read_models()
    except ConfigError:
        return []
    remarks = [
        each for name, one in recorded.items() if name.partition("/")[0] == model for each in one.identity.remarks
    ]
    meaning = f"{RANDOM_WEIGHTS}: load yours in the factory before you deploy them"
    return [Footnote(kind="random-weights", meaning=meaning, of=[model])] if RANDOM_WEIGHTS in remarks else []


def _export(folder: Path, found: Found, runs: Runs, trust_code: bool) -> int:
    """Export, and say so on the standard error: the standard output may be a document."""
    _, choice, answer = found
    console, winner = Console(stderr=True), choice.winner
    if winner is None:
        print(f"--export {folder}: nothing was written, since there is nothing to deploy", file=sys.stderr)
        return NOTHING_FITS
    run = next(run for run in runs.runs if winner["run_ids"][0] in run.run_ids)
    try:
        export(winner, answer, run, folder, console, trust_code)
    except NotExported as error:
        console.print(Text(f"--export {folder}: nothing was written: {error}", style="red"), soft_wrap=True)
        return 1
    name = answer.winner.name if answer.winner else ""
    console.print(Text(f"Exported: {name} to {folder}; its README.txt says how to run it"), soft_wrap=True)
    return 0
