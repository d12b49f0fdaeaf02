"""Write a report of runs as one page."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from rich.console import Console

from exporters import named_files
from exporters.named_files import write_whole
from profiler.errors import ConfigError
from profiler.job.case import parse_only
from profiler.options import Report as Options
from profiler.report.data import gather
from profiler.report.page import compose, page
from profiler.results.reading import check_only, read_runs

_NAME = "report.html"


def execute(options: Options, console: Console) -> int:
    """Write the report and print its path. Raises ConfigError."""
    console.print(str(write(options)), soft_wrap=True, markup=False, highlight=False)
    return 0


def write(options: Options, cells: pl.DataFrame | None = None) -> Path:
    """Write the page and return its path; `cells` are the runs' by run_id, if merged already. Raises ConfigError."""
    only, runs = parse_only(options.only), read_runs(options.runs)
    target = _target(options)
    if only is not None:
        check_only(only, runs.results)
    data = gather(runs, only, cells)
    if not data.statuses:
        raise ConfigError(f"--only {' '.join(options.only)}: no case of {', '.join(map(str, options.runs))} is left")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, page(compose(data)))
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}; give another place by --output") from None
    return target


def _target(options: Options) -> Path:
    """Return the file to write: --output, or one in the only run's folder, or one in the current folder."""
    if options.output is not None:
        named_files.exists(options.output)  # Raises ConfigError for a path that cannot be looked up.
        is_file = options.output.suffix == ".html" and not options.output.is_dir()
        return options.output if is_file else options.output / _NAME
    folder = Path(options.runs[0])
    return folder / _NAME if len(options.runs) == 1 and folder.is_dir() else Path(_NAME)
