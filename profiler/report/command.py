"""What enters: addresses of runs. What leaves: a report of them: a page, Markdown or CSV, and its charts as images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from profiler.errors import ConfigError, nearest
from profiler.job.conditions import parse_only
from profiler.report import content, images, markdown
from profiler.report.data import MOST_LINES, gather
from profiler.report.images import Image, ImageFormat
from profiler.report.page import page
from profiler.report.sections import Report, compose
from profiler.results.reading import read_runs

Format = Literal["html", "md", "csv"]


@dataclass(frozen=True)
class Order:
    """What the user asked for. `output` is a file, or a folder that gets a file named report; None is the run's own
    folder, of several runs the current one. `charts` asks for every chart as an image, too."""

    runs: Sequence[str | Path]
    format: str = "html"
    output: Path | None = None
    charts: str | None = None
    only: Sequence[str] = ()


def write(order: Order, compared: pl.DataFrame | None = None) -> list[Path]:
    """Write the report; what was written, the report first. Raises ConfigError.

    `compared` is table.summary of the order's one run, where it is known already: half of the time goes into it.
    """
    for word, given, valid in (
        ("format", order.format, get_args(Format)),
        ("charts", order.charts, get_args(ImageFormat)),
    ):
        if given is not None and given not in valid:
            raise ConfigError(f"--{word} {given}: unknown{nearest(given, valid)}; valid: {', '.join(valid)}")
    only = parse_only(order.only)
    runs = read_runs(order.runs)
    data = gather(runs, only, MOST_LINES, compared)
    if not data.statuses:
        raise ConfigError(f"--only {' '.join(order.only)}: no case of {', '.join(map(str, order.runs))} is left")
    target = _target(order)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if order.format == "csv":
            # Files have room for every line, where a page or a drawing has not.
            tables = content.tables(gather(runs, only, None, compared))
            target.mkdir(exist_ok=True)
            drawn = _images(order, target, compose(data)) if order.charts else []
            return [*(table.write_csv(target) for table in tables.values()), *(image.path for image in drawn)]
        report = compose(data)
        drawn = _images(order, target.with_name(f"{target.stem}-charts"), report)
        text = page(report) if order.format == "html" else markdown.text(report, drawn, target.parent)
        # Written whole or not at all: a page may stand there already.
        scratch = target.with_name(f".{target.name}.tmp")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}; give another place by --output") from None
    return [target, *(image.path for image in drawn)]


def _target(order: Order) -> Path:
    """The file, or the folder of CSV files, that is to be written."""
    name = "report-tables" if order.format == "csv" else f"report.{order.format}"
    if order.output is not None:
        is_it = order.format == "csv" or (order.output.suffix == f".{order.format}" and not order.output.is_dir())
        return order.output if is_it else order.output / name
    own = Path(order.runs[0])
    return own / name if len(order.runs) == 1 and own.is_dir() else Path(name)


def _images(order: Order, folder: Path, report: Report) -> list[Image]:
    if order.charts is None:
        return []
    return images.write(report, folder, "png" if order.charts == "png" else "svg")
