"""Write a report of runs: a page, Markdown or CSV, and its charts as images."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal, get_args

import polars as pl
from rich.console import Console

from exporters.whole_file import write_whole
from profiler.errors import PROGRAM, ConfigError, check_choice
from profiler.job.conditions import Filter, parse_only
from profiler.options import Report as Options
from profiler.report import images, markdown, study
from profiler.report.data import MOST_CONFIGURATIONS, gather
from profiler.report.images import Image, ImageFormat
from profiler.report.page import page
from profiler.report.sections import Report, compose
from profiler.report.tables import tables
from profiler.results.reading import Runs, check_only, read_runs
from profiler.results.run_files import check_writable
from profiler.tables.writers import csv

Format = Literal["html", "md", "csv"]


def execute(options: Options, console: Console) -> int:
    """Write the report and print where it is. Raises ConfigError for what cannot be used."""
    first, *more = write(options)
    others = f" and {len(more)} more files" if more else ""
    console.print(f"{first}{others}", soft_wrap=True, markup=False, highlight=False)
    return 0


def write(options: Options, compared: pl.DataFrame | None = None) -> list[Path]:
    """Write the report; what was written, the report first. Raises ConfigError.

    `compared` is speedups.summary of the one run, where it is known already: half of the time goes into it.
    """
    check_choice("--format", options.format, get_args(Format))
    if options.charts is not None:
        check_choice("--charts", options.charts, get_args(ImageFormat))
    if options.study is not None and (options.format != "html" or options.charts is not None):
        raise ConfigError(
            "--study gives a page of HTML; Markdown, CSV and SVG come from "
            f"`{PROGRAM} published {shlex.join(options.runs)} --study {options.study} --into FOLDER`"
        )
    only = parse_only(options.only)
    runs = read_runs(options.runs)
    if only is not None:
        check_only(only, runs.results)
    target = _target(options)
    try:
        if options.study is not None:
            text = page(study.compose(options.study, runs, only))
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, text)
            return [target]
        return _write_report(options, runs, only, compared, target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}; give another place by --output") from None


def _write_report(
    options: Options, runs: Runs, only: Filter | None, compared: pl.DataFrame | None, target: Path
) -> list[Path]:
    """Write the report of the runs alone, in any format. Raises ConfigError, OSError."""
    data = gather(runs, only, MOST_CONFIGURATIONS, compared)
    if not data.statuses:
        raise ConfigError(f"--only {' '.join(options.only)}: no case of {', '.join(map(str, options.runs))} is left")
    target.parent.mkdir(parents=True, exist_ok=True)
    if options.format == "csv":
        # Files have room for every configuration, where a page or a drawing has not.
        made = tables(gather(runs, only, None, compared))
        target.mkdir(exist_ok=True)
        for name, table in made.items():
            write_whole(target / f"{name}.csv", csv(table))
        drawn = _images(options, target, compose(data)) if options.charts else []
        return [*(target / f"{name}.csv" for name in made), *(image.path for image in drawn)]
    report = compose(data)
    drawn = _images(options, target.with_name(f"{target.stem}-charts"), report)
    text = page(report) if options.format == "html" else markdown.text(report, drawn, target.parent)
    write_whole(target, text)
    return [target, *(image.path for image in drawn)]


def _target(options: Options) -> Path:
    """The file, or the folder of CSV files, that is to be written. Raises ConfigError."""
    of_study = f"-{options.study}" if options.study else ""
    name = "report-tables" if options.format == "csv" else f"report{of_study}.{options.format}"
    if options.output is not None:
        is_file = options.output.suffix == f".{options.format}" and not options.output.is_dir()
        return options.output if is_file or options.format == "csv" else options.output / name
    own = Path(options.runs[0])
    if len(options.runs) > 1 or not own.is_dir():
        return Path(name)
    check_writable(own)
    return own / name


def _images(options: Options, folder: Path, report: Report) -> list[Image]:
    return images.write(report, folder, "png" if options.charts == "png" else "svg") if options.charts else []
