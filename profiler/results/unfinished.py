"""Read what stands so far in the folder of a run that is being measured, or that was ended before its tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from engines.catalog import Device
from profiler.errors import ConfigError, resuming
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.run_files import check_readable
from profiler.results.run_folder import RunFolder, damages
from profiler.results.run_lock import writer
from profiler.tables.numbers import counted


def is_unfinished(folder: Path) -> bool:
    """Tell whether the journal may hold more than the run's tables: another process measures, or there are none.

    Raises ConfigError for a run without tables that has measured nothing.
    """
    if (folder / "results.parquet").is_file():
        return (folder / "journal.jsonl").is_file() and writer(folder) is not None
    if not (folder / "bench.yaml").is_file():
        return False
    journal = folder / "journal.jsonl"
    _check_begun(folder, journal.is_file() and journal.stat().st_size > 0)
    return True


def _check_begun(folder: Path, begun: bool) -> None:
    if begun:
        return
    who = writer(folder)
    if who:
        raise ConfigError(f"{folder}: {who} has measured nothing yet; give another run's folder")
    raise ConfigError(f"{folder}: this run was ended before it had measured anything; finish it: {resuming(folder)}")


def so_far(folder: Path) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The run's tables of what its journal holds, as `RunFolder.frames`, and sentences on what is lacking.

    Raises ConfigError where nothing has been measured yet, or the run's bench.yaml or journal cannot be read.
    """
    run = RunFolder(folder)
    environment = run.read_environment()
    try:
        check_readable(folder / "bench.yaml")
        results = run.results()
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}; give another run's folder") from None
    config = load_config(folder / "bench.yaml")  # As resolved for the run's device.
    kind: Device = "cpu" if config.device == "cpu" else "cuda"
    plan = make_plan(config, kind, hardware=environment.get("compute_capability"))
    frames = run.frames(config.suite, plan, environment)
    _check_begun(folder, not frames["results"].is_empty())
    who = writer(folder)
    left = sum(case.id not in results for case in plan)
    done = f"{len(plan) - left} of {counted(len(plan), 'case')}"
    if who:
        return frames, [f"{folder}: {who} measures into it; these are {done}", *damages(run)]
    what = f"this run was ended early, after {done}; finish it"
    if not left:
        what = f"all of {counted(len(plan), 'case')} have been measured, only the tables are missing; write them"
    return frames, [f"{folder}: {what}: {resuming(folder)}", *damages(run)]
