"""Run a job, and end the run with what to deploy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console

from profiler.options import Recommend, Run
from profiler.recommend.command import answers
from profiler.recommend.options import each_of
from profiler.recommend.writers import print_briefly
from profiler.run.command import execute as run_job


def execute(options: Run, console: Console) -> int:
    """Run the job and say what to deploy; returns the exit code. Raises ConfigError."""
    return run_job(options, console, conclude)


def conclude(run: Path, results: pl.DataFrame, console: Console) -> None:
    """Print what to deploy for single calls and, of several batch sizes, for throughput, for each model and setting."""
    measured, asked = results.filter(status="ok"), list[Recommend]()
    for pass_ in measured["pass"].unique(maintain_order=True):
        rows = results.filter(pl.col("pass") == pass_)
        for one in each_of(Recommend(runs=[str(run)], pass_=pass_), rows):
            of_one = measured.filter(
                pl.col("pass") == pass_,
                pl.col("model") == (one.model or pl.col("model")),
                pl.col("setting") == (pl.col("setting") if one.setting is None else pl.lit(one.setting)),
            )
            if of_one.is_empty():
                continue
            model = one.model or (of_one["model"][0] if results["model"].n_unique() > 1 else None)
            asked.append(replace(one, model=model))
            if of_one["batch_size"].n_unique() > 1:
                asked.append(replace(one, model=model, objective="throughput"))
    if asked:
        folders = dict.fromkeys(results["run_id"].unique(), str(run))
        found = answers(asked, results, folders)
        print_briefly(console, [(options, answer) for options, _, answer in found])
