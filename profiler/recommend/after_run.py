"""Run a job, and end the run of a model that the command line names with what to deploy."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import known
from profiler.errors import PROGRAM
from profiler.job.case import setting_words
from profiler.options import Recommend, Run
from profiler.recommend.answer import cautions, make_answer
from profiler.recommend.choice import Recommendation, recommend
from profiler.recommend.options import make_request
from profiler.recommend.reasons import amount
from profiler.results.replicates import without_probes
from profiler.results.sentences import not_in_the_choice
from profiler.results.warning_kinds import disturbed
from profiler.run.command import execute as run_job

_FEW = 2
"""So many sentences of each answer."""
_PER = {"latency": " per call", "throughput": ""}


def execute(options: Run, console: Console) -> int:
    """Run the job and say what to deploy; returns the exit code. Raises ConfigError."""
    return run_job(options, console, conclude)


def conclude(run: Path, results: pl.DataFrame, console: Console) -> None:
    """Print what to deploy for single calls and for throughput, and the commands that say why and export it."""
    rows = without_probes(results).filter(status="ok")
    if rows.is_empty():
        return
    passes = rows["pass"].unique(maintain_order=True).to_list()
    one = Recommend(runs=[str(run)], pass_="inference" if "inference" in passes else passes[0])
    aims: list[Recommend] = []
    shapes = rows.filter(pl.col("pass") == one.pass_, pl.col("shape").is_not_null())["setting"]
    for shape in shapes.unique(maintain_order=True).to_list() or [None]:
        own = rows if shape is None else rows.filter(setting=shape)
        sizes, at = sorted(own["batch_size"].unique()), replace(one, extra=shape)
        aims += [replace(at, batch=str(sizes[0]))] if len(sizes) > 1 else [at]
        aims += [replace(at, objective="throughput")] if len(sizes) > 1 else []
    console.print(Text("\nWhat to deploy", style="bold"))
    answers = [(aim, recommend(results, make_request(aim, results))) for aim in aims]
    for aim, found in answers:
        _print_answer(console, aim, found)
    for text in cautions([one for _, found in answers for one in found.compared], ()):
        console.print(Text(f"\n{text}", style="yellow"))
    if lost := not_in_the_choice(results.filter(pl.col("pass") == one.pass_)):
        console.print(Text(f"\n{lost}", style="yellow"))
    why = f"\nWhy not the others: {PROGRAM} recommend {shlex.quote(str(run))}{_options(aims[0])}"
    console.print(Text(f"{why} (--help: limits, other objectives)", style="dim"), soft_wrap=True)


def _print_answer(console: Console, asked: Recommend, found: Recommendation) -> None:
    """The choice with its figure and error, how it compares with the runner-up, and the command that exports it."""
    answer, choice = make_answer(found, ""), found.choice
    if choice is None:
        console.print(Text(f"  {answer.headline}", style="yellow"))
        return
    aim = "Lowest latency" if asked.objective == "latency" else "Highest throughput"
    facts = f"{amount(found.request.figure, choice.figures[found.request.figure])}{_PER[asked.objective]}"
    if "error" in choice.figures:
        facts += f", error {amount('error', choice.figures['error'])}"
    at = f", {', '.join(setting_words(asked.extra))}" if asked.extra else ""
    leads = f"{aim}{at}{' so far' * choice.is_disturbed}: {choice.name} ({facts})"
    console.print(Text(f"\n{leads}", style="bold green" if answer.is_certain else "bold yellow"))
    sentences = [*answer.sentences[:_FEW], *answer.doubts]
    if noisy := disturbed((one.name, one.warnings) for one in found.compared if one.is_disturbed):
        sentences = [f"Not certain: {noisy}."]
    for sentence in sentences:
        console.print(Text(sentence))
    if asked.pass_ == "inference" and known(choice.row["engine"]).deployment is not None:
        command = f"{PROGRAM} recommend {shlex.quote(asked.runs[0])}{_options(asked)} --export deploy/"
        console.print(Text(f"Export: {command}"), soft_wrap=True)


def _options(asked: Recommend) -> str:
    """The options that ask `recommend` the same."""
    usual = Recommend(runs=())
    given = {"--pass": "pass_", "--batch": "batch", "--extra": "extra", "--objective": "objective"}
    values = {
        flag: getattr(asked, name) for flag, name in given.items() if getattr(asked, name) != getattr(usual, name)
    }
    return "".join(f" {flag} {shlex.quote(str(value))}" for flag, value in values.items())
