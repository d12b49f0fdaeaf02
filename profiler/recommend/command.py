"""Recommend what to deploy: print the choice and its reasons, and export it ready to run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from profiler.errors import WHEN_IDLE, measuring_again, measuring_anew
from profiler.options import Recommend as Options
from profiler.recommend.answer import cautions, make_answer
from profiler.recommend.artifact import NotExported, check_folder, export
from profiler.recommend.candidates import Candidate
from profiler.recommend.choice import Recommendation, recommend
from profiler.recommend.options import check, make_request
from profiler.recommend.reasons import lacking
from profiler.recommend.writers import as_json, as_markdown, print_answer
from profiler.results.reading import Run, Runs, read_runs
from profiler.results.sentences import rough, sampling

NOTHING_FITS = 3
_MOST = 2
"""Of the candidates that had too few samples so many, the best, are measured again."""


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
    doubt, run = rough(runs.sampling_seconds(compared)), _run_of(subject, runs)
    rows, longer = _again(found, subject, run, results, is_rough=doubt is not None)
    answer = make_answer(found, _command(found, subject, rows, run, longer), doubt, longer)
    if options.format == "text":
        print_answer(console, answer)
    else:
        print(as_json(found, answer) if options.format == "json" else as_markdown(answer))
    if found.choice is None:
        if options.export is not None:
            print(f"--export {options.export}: nothing was written, since there is nothing to deploy", file=sys.stderr)
        return NOTHING_FITS
    if options.export is None:
        return 0
    doubts = [*cautions([found.choice], found.choice.figures), *answer.doubts, *([doubt] if doubt else [])]
    return _export(found.choice, run, options, doubts)


def _command(
    found: Recommendation, subject: Candidate, rows: Sequence[Mapping[str, Any]], run: Run, options: str
) -> str:
    """The shell command that measures these rows of the run again, with further options, or why there is none.

    Where the subject or what may win over it was disturbed, the run itself goes on, as far as that is enough.
    """
    if found.doubtful or any(one.is_disturbed for one in (subject, *found.compared)):
        if not options and (Path(run.address) / "journal.jsonl").is_file():
            return measuring_again(run.address)
        options = f"{options} {WHEN_IDLE}".lstrip()
    names = ("model", "variant", "pass", "precision", "batch_size", "shape", "optimizer")
    keys = {name: list(dict.fromkeys(row[name] for row in rows if row[name] is not None)) for name in names}
    # A comma would separate conditions.
    conditions = [(key, values) for key, values in keys.items() if not any("," in str(value) for value in values)]
    only = ",".join(f"{key}={value}" for key, values in conditions for value in values)
    remote = "://" in run.address
    if not remote and not (Path(run.address) / "bench.yaml").is_file():
        return f"No command: {run.address} has no bench.yaml"
    job = "bench.yaml" if remote else str(Path(run.address) / "bench.yaml")
    fetch = f"# with {run.address}/bench.yaml copied here:\n" if remote else ""
    return fetch + measuring_anew(job, only, options)


def _again(
    found: Recommendation, subject: Candidate, run: Run, results: pl.DataFrame, is_rough: bool
) -> tuple[list[Mapping[str, Any]], str]:
    """The rows of the subject's run that should be measured again, and for how long: options, or none.

    What lost by disturbed figures is among them, and where figures are rough or too few, the runner-up.
    """
    lack = [(candidate, need) for candidate, need in lacking(found) if candidate.row["run_id"] in run.run_ids][:_MOST]
    others = [*found.compared * bool(is_rough or lack), *found.doubtful, *(candidate for candidate, _ in lack)]
    rows = [subject.row, *(other.row for other in others if other.row["run_id"] in run.run_ids)]
    if not (is_rough or lack):
        return rows, ""
    needs = [(min(candidate.each["samples"], default=0), need) for candidate, need in lack]
    return [*rows, *_bases(results, rows)], sampling(run.environment.get("sampling_seconds"), needs)


def _bases(results: pl.DataFrame, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the first row's run compares these rows with for their speed-ups."""
    first, sizes = rows[0], {row["batch_size"] for row in rows}
    same = {key: first[key] for key in ("run_id", "model", "pass", "extra")}
    bases = results.filter(pl.col("is_base"), pl.col("batch_size").is_in(sizes))
    return bases.filter(pl.col(key).eq_missing(pl.lit(value)) for key, value in same.items()).to_dicts()


def _export(choice: Candidate, run: Run, options: Options, doubts: Sequence[str]) -> int:
    """Export, and say so on the standard error: the standard output may be a document."""
    folder = options.export
    assert folder is not None
    console = Console(stderr=True)
    try:
        export(choice, run, folder, console, options.trust_code, doubts)
    except NotExported as error:
        console.print(Text(f"--export {folder}: nothing was written: {error}", style="red"), soft_wrap=True)
        return 1
    console.print(Text(f"Exported: {choice.name} to {folder}; its README.txt says how to run it"), soft_wrap=True)
    return 0


def _run_of(candidate: Candidate, runs: Runs) -> Run:
    return next(run for run in runs.runs if candidate.row["run_id"] in run.run_ids)
