"""Recommend what to deploy: print the choice and its reasons, and export it ready to run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from profiler.errors import PROGRAM
from profiler.options import Recommend as Options
from profiler.recommend.answer import make_answer
from profiler.recommend.artifact import NotExported, check_folder, export
from profiler.recommend.candidates import Candidate
from profiler.recommend.choice import recommend
from profiler.recommend.options import check, make_request
from profiler.recommend.writers import as_json, as_markdown, print_answer
from profiler.results.reading import Run, Runs, read_runs
from profiler.results.sentences import rough

NOTHING_FITS = 3


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
    found = recommend(results, make_request(options, results))
    subject = found.choice or found.nearest or found.losers[0].candidate
    compared = dict.fromkeys(run_id for candidate in found.candidates for run_id in candidate.run_ids)
    answer = make_answer(found, command(subject, _run_of(subject, runs)), rough(runs.sampling_seconds(compared)))
    if options.format == "text":
        print_answer(console, answer)
    else:
        print(as_json(found, answer) if options.format == "json" else as_markdown(answer))
    if found.choice is None:
        if options.export is not None:
            print(f"--export {options.export}: nothing was written, since there is nothing to deploy", file=sys.stderr)
        return NOTHING_FITS
    return 0 if options.export is None else _export(found.choice, _run_of(found.choice, runs), options.export)


def command(candidate: Candidate, run: Run) -> str:
    """The shell command that measures the candidate again, or why there is none."""
    row = candidate.row
    keys = {"model": row["model"], "variant": row["variant"], "pass": row["pass"], "precision": row["precision"]}
    keys |= {"batch_size": row["batch_size"]}
    if row["optimizer"] is not None:
        keys["optimizer"] = row["optimizer"]
    # A comma would separate conditions.
    only = ",".join(f"{key}={value}" for key, value in keys.items() if "," not in str(value))
    remote = "://" in run.address
    if not remote and not (Path(run.address) / "bench.yaml").is_file():
        return f"No command: {run.address} has no bench.yaml"
    job = "bench.yaml" if remote else str(Path(run.address) / "bench.yaml")
    fetch = f"# with {run.address}/bench.yaml copied here:\n" if remote else ""
    return f"{fetch}{PROGRAM} {shlex.quote(job)} \\\n  --only {shlex.quote(only)}"


def _export(choice: Candidate, run: Run, folder: Path) -> int:
    """Export, and say so on the standard error: the standard output may be a document."""
    console = Console(stderr=True)
    try:
        export(choice, run, folder, console)
    except NotExported as error:
        console.print(Text(f"--export {folder}: nothing was written: {error}", style="red"), soft_wrap=True)
        return 1
    console.print(Text(f"Exported: {choice.name} to {folder}; its README.txt says how to run it"), soft_wrap=True)
    return 0


def _run_of(candidate: Candidate, runs: Runs) -> Run:
    return next(run for run in runs.runs if candidate.row["run_id"] in run.run_ids)
