"""Run a job, and end the run of a model that the command line names with what to deploy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console

from profiler.options import Recommend, Run
from profiler.recommend.answer import make_answer
from profiler.recommend.choice import recommend
from profiler.recommend.options import each_of, make_request
from profiler.recommend.writers import print_briefly
from profiler.results.replicates import without_probes
from profiler.run.command import execute as run_job


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
    for at in each_of(one, rows):
        sizes = sorted((rows if at.extra is None else rows.filter(setting=at.extra))["batch_size"].unique())
        aims += [replace(at, batch=str(sizes[0]))] if len(sizes) > 1 else [at]
        aims += [replace(at, objective="throughput")] if len(sizes) > 1 else []
    found = [recommend(results, make_request(aim, results)) for aim in aims]
    print_briefly(console, results, [(aim, one, make_answer(one, "")) for aim, one in zip(aims, found, strict=True)])
