"""Read what stands so far in the folder of a run that is being measured, or that was ended before its tables."""

from __future__ import annotations

import shlex
from pathlib import Path

import polars as pl

from engines.catalog import Device
from profiler.errors import PROGRAM, ConfigError
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.job.probes import probes_among
from profiler.results.run_folder import RunFolder, damages
from profiler.results.run_lock import writer
from profiler.tables.numbers import counted


def is_unfinished(folder: Path) -> bool:
    """Whether the journal may hold more than the run's tables: another process measures, or there are none."""
    has_tables = (folder / "results.parquet").is_file()
    return (folder / "journal.jsonl").is_file() and (not has_tables or writer(folder) is not None)


def so_far(folder: Path) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The run's tables of what its journal holds, as `RunFolder.frames`, and sentences on what is lacking.

    Raises ConfigError where nothing has been measured yet, or the run's bench.yaml cannot be read.
    """
    run = RunFolder(folder)
    environment = run.read_environment()
    config = load_config(folder / "bench.yaml")  # As resolved for the run's device.
    kind: Device = "cpu" if config.device == "cpu" else "cuda"
    results = run.results()
    plan = make_plan(config, kind, capability=environment.get("compute_capability"))
    frames = run.frames(config.suite, [*plan, *probes_among(plan, results)], environment)
    who = writer(folder)
    if frames["results"].is_empty():
        measured = f"{who} has measured nothing yet" if who else "this run was ended before it had measured anything"
        raise ConfigError(f"{folder}: {measured}; give another run's folder")
    done = f"{len(plan) - sum(case.id not in results for case in plan)} of {counted(len(plan), 'case')}"
    if who:
        return frames, [f"{folder}: {who} measures into it; these are {done}", *damages(run)]
    finish = f"finish it: {PROGRAM} --resume {shlex.quote(str(folder))}"
    return frames, [f"{folder}: this run was ended early, after {done}; {finish}", *damages(run)]
