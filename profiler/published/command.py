"""Print and write the tables of a published benchmark with the results of runs among its figures, and conclusions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.errors import ConfigError, check_choice
from profiler.job.case import settings
from profiler.published import conclusions
from profiler.published.layers import LAYERS
from profiler.published.printed import Printed
from profiler.published.references import STUDIES, network_names
from profiler.published.tables import Environment, published_tables, write_published
from profiler.results.reading import read_runs

_MARK = "▸"
_WORDS_WIDTH = 16
"""To which a column of words may fold."""
_NO_ROWS = "no row of these runs fits a table of {}: it has other networks, or measured other passes"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command's options; see `python -m profiler published --help`."""

    runs: Sequence[str]
    study: str
    into: Path | None = None


def execute(options: Options, console: Console) -> int:
    """Print runs next to a study's figures. Raises ConfigError for an unknown study, or a folder that holds no run."""
    check_choice("--study", options.study, STUDIES)
    runs = read_runs(options.runs)
    environments = [run.environment for run in runs.runs]
    if not present(console, options.study, runs.results.collect(), environments, options.into):
        raise ConfigError(_NO_ROWS.format(options.study))
    return 0


def present(
    console: Console, study: str, results: pl.DataFrame, environments: Sequence[Environment], into: Path | None
) -> bool:
    """Print the study's tables and its most telling conclusions; write all of them into the folder `into`.

    Returns whether there was anything: results of other networks alone belong into no table.
    """
    tables = published_tables(study, results, environments)
    if not tables:
        return False
    if into is not None:
        write_published(into, study, tables)
        conclusions.write_conclusions(into, study, results)
    for table in tables:
        print_published(console, table)
    _print_conclusions(console, study, results)
    if into is not None:
        where = f"All tables and comparisons: {into / 'published.md'}, {into / 'conclusions.md'}"
        console.print(Text(where, style="dim"), soft_wrap=True)
    return True


def require(study: str | None) -> None:
    """Raises ConfigError where the study's figures are missing: better before a run than at its end."""
    if study is not None:
        network_names(study)


def covers(study: str, group: Mapping[str, Any]) -> bool:
    """Whether a group of results, by its model, pass and setting, has its table among the study's."""
    names = set(network_names(study)) | (set(LAYERS) if study == "convnet-benchmarks" else set())
    passes = ("inference", "training") if study == "gpu-study" or group["model"] in LAYERS else ("training",)
    return group["model"] in names and group["pass"] in passes and "optimizer" not in settings(group["setting"])


def print_published(console: Console, table: Printed) -> None:
    """The table's sections in which rows of ours stand, ours marked and bold."""
    console.print()
    console.print(Text(table.title, style="bold underline"))
    if table.note:
        console.print(Text(table.note, style="dim"))
    for heading, rows in table.sections():
        if rows["ours"].any():
            for columns in _fitting(table, rows, console.width):
                console.print(_grid(table, heading if table.section else "", rows, columns))


def _fitting(table: Printed, rows: pl.DataFrame, width: int) -> Iterator[list[str]]:
    """The columns, in as many parts as the terminal needs: words may fold, a figure is never cut."""
    columns, cells = table.columns(rows), list(rows.iter_rows(named=True))
    figures = [column for column in columns if table.is_numeric(column)]

    def needs(column: str) -> int:
        head = max(map(len, _head(table, column).split("\n")))
        return 2 + max(head, *(len(table.cell(column, row)) for row in cells))

    room = width - 5 - sum(min(needs(column), _WORDS_WIDTH) for column in columns if column not in figures)
    while figures:
        count = next((n for n in range(len(figures), 1, -1) if sum(map(needs, figures[:n])) <= room), 1)
        part, figures = figures[:count], figures[count:]
        yield [column for column in columns if column in part or not table.is_numeric(column)]


def _head(table: Printed, column: str) -> str:
    return table.heads[column].replace(" (ms)", "\nms")


def _grid(table: Printed, heading: str, rows: pl.DataFrame, columns: Sequence[str]) -> Table:
    title = Text(heading, style="bold") if heading else None
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    grid.add_column("")
    for column in columns:
        numeric = table.is_numeric(column)
        grid.add_column(
            Text(_head(table, column)),
            justify="right" if numeric else "left",
            no_wrap=numeric,
            overflow="fold",
        )
    for row in rows.iter_rows(named=True):
        cells = [_short(table.cell(column, row)) if column == "note" else table.cell(column, row) for column in columns]
        grid.add_row(_MARK if row["ours"] else "", *map(Text, cells), style="bold" if row["ours"] else None)
    return grid


def _short(note: str) -> str:
    """The reason in a word or two: the run's own tables tell it whole."""
    if "out of memory" in note:
        return note
    return "; ".join(dict.fromkeys(part.split(": ")[0] for part in note.split("; ")))


def _print_conclusions(console: Console, study: str, results: pl.DataFrame) -> None:
    sentences = [
        comparison.sentence().replace("**", "")
        for what, times in conclusions.times_of(study, results).items()
        for comparison in conclusions.most_telling(times, what)
    ]
    if sentences:
        console.print(Text("\nConclusions", style="bold underline"))
    for sentence in sentences:
        console.print(Text(f"- {sentence}"))
