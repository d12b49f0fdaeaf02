"""Recommend what to deploy: print the choice and its reasons, and export it ready to run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from exporters.source import RANDOM_WEIGHTS
from profiler.errors import WHEN_IDLE, ConfigError, measuring_again, measuring_anew
from profiler.options import Recommend as Options
from profiler.recommend.answer import Answer, cautions, make_answer
from profiler.recommend.artifact import NotExported, check_folder, export
from profiler.recommend.candidates import Candidate
from profiler.recommend.choice import Recommendation, recommend
from profiler.recommend.options import check, each_of, make_request
from profiler.recommend.reasons import lacking
from profiler.recommend.writers import as_data, as_markdown, print_answer, print_briefly
from profiler.results.reading import Run, Runs, read_runs
from profiler.results.run_folder import RunFolder
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
    asked = each_of(options, results)
    answers = _answers(asked, runs, results)
    if options.format == "json":
        data = [as_data(found, answer) for _, found, answer in answers]
        print(json.dumps(data if len(asked) > 1 else data[0], indent=2, ensure_ascii=False))
    elif options.format == "md":
        print("\n".join(as_markdown(answer) for *_, answer in answers))
    elif len(asked) > 1:
        print_briefly(console, results, answers)
    else:
        print_answer(console, answers[0][2])
    if options.export is not None:
        return _export(*answers[0], runs)
    return 0 if all(found.choice for _, found, _ in answers) else NOTHING_FITS


def _answers(
    asked: Sequence[Options], runs: Runs, results: pl.DataFrame
) -> list[tuple[Options, Recommendation, Answer]]:
    """What is recommended for each of the options, also in words. Raises ConfigError where none of them fit.

    Of several those that do not are named, such as a pass that one of the models was not measured in.
    """
    answers, unfit = [], []
    for one in asked:
        try:
            found = recommend(results, make_request(one, results))
        except ConfigError as error:
            unfit.append(error)
            continue
        subject = found.choice or found.nearest or found.losers[0].candidate
        compared = dict.fromkeys(run_id for candidate in found.candidates for run_id, _ in candidate.cases)
        doubt, run = rough(runs.sampling_seconds(compared)), _run_of(subject, runs)
        rows, longer = _again(found, subject, run, results, is_rough=doubt is not None)
        of_model = results.filter(pl.col("run_id").is_in(run.run_ids), model=found.request.model)
        again = _command(found, subject, rows, of_model, run, longer)
        answer = make_answer(found, again, doubt, longer)
        answers.append((one, found, replace(answer, doubts=[*answer.doubts, *_of_weights(subject, run)])))
    if not answers:
        raise unfit[0]
    print(*unfit, sep="\n", end="\n" * bool(unfit), file=sys.stderr)
    return answers


def _of_weights(subject: Candidate, run: Run) -> list[str]:
    """A caution where the run says that the model's weights are random; nothing where it says nothing that is read."""
    try:
        recorded = {} if "://" in run.address else RunFolder(Path(run.address)).read_models()
    except ConfigError:
        return []
    named = (one.identity for name, one in recorded.items() if name.partition("/")[0] == subject.row["model"])
    is_random = any(RANDOM_WEIGHTS in identity.remarks for identity in named)
    return [f"Caution: {RANDOM_WEIGHTS}: load yours in the factory before you deploy them."] if is_random else []


def _command(
    found: Recommendation,
    subject: Candidate,
    rows: Sequence[Mapping[str, Any]],
    of_model: pl.DataFrame,
    run: Run,
    options: str,
) -> str:
    """The shell command that measures these rows of the run again, with further options, or why there is none.

    Of several values that are all those of the rows `of_model` it names none.

    Where the subject or what may win over it was disturbed, the run itself goes on, as far as that is enough.
    """
    if found.doubtful or any(one.is_disturbed for one in (subject, *found.compared)):
        if not options and (Path(run.address) / "journal.jsonl").is_file():
            return measuring_again(run.address)
        options = f"{options} {WHEN_IDLE}".lstrip()
    names = ("model", "variant", "pass", "precision", "batch_size", "shape", "optimizer")
    keys = {name: list(dict.fromkeys(row[name] for row in rows if row[name] is not None)) for name in names}
    some = {key: values for key, values in keys.items() if len(values) == 1 or set(of_model[key]) - {*values, None}}
    # A comma would separate conditions.
    conditions = [(key, values) for key, values in some.items() if not any("," in str(value) for value in values)]
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


def _export(options: Options, found: Recommendation, answer: Answer, runs: Runs) -> int:
    """Export, and say so on the standard error: the standard output may be a document."""
    folder, choice = options.export, found.choice
    assert folder is not None
    console = Console(stderr=True)
    if choice is None:
        print(f"--export {folder}: nothing was written, since there is nothing to deploy", file=sys.stderr)
        return NOTHING_FITS
    doubts = [*cautions([choice], choice.figures), *answer.doubts, *([answer.rough] if answer.rough else [])]
    try:
        export(choice, _run_of(choice, runs), folder, console, options.trust_code, doubts)
    except NotExported as error:
        console.print(Text(f"--export {folder}: nothing was written: {error}", style="red"), soft_wrap=True)
        return 1
    console.print(Text(f"Exported: {choice.name} to {folder}; its README.txt says how to run it"), soft_wrap=True)
    return 0


def _run_of(candidate: Candidate, runs: Runs) -> Run:
    return next(run for run in runs.runs if candidate.row["run_id"] in run.run_ids)
