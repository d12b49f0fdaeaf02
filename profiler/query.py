"""Run a query in SQL over the tables of runs, and print or write its rows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from exporters.whole_file import write_whole
from profiler.errors import ConfigError, check_choice, nearest
from profiler.options import Query as Options
from profiler.results.cells import cells
from profiler.results.reading import UNREADABLE, Runs, first_line, flat, read_runs
from profiler.tables.numbers import count, counted
from profiler.tables.table import of_frame
from profiler.tables.writers import csv, markdown, parquet, print_table

FORMATS = ("text", "md", "csv", "json", "parquet")
_READS = ("select", "with", "show", "explain", "describe", "values", "from")
"""First words of a query: it may read, never write."""
_EXAMPLE = "select variant, precision, latency_ms from results where model = 'resnet50' order by latency_ms"

_LISTS = "a column of lists, such as warnings, is taken apart by unnest(warnings), a row each, or array_to_string"


def execute(options: Options, console: Console) -> int:
    """Run the query and print or write its rows. Raises ConfigError for what cannot be used."""
    check_choice("--format", options.format, FORMATS)
    if options.format == "parquet" and options.output is None:
        raise ConfigError("--format parquet: say where to, by --output rows.parquet")
    *runs, sql = options.runs
    if not runs:
        raise ConfigError(f'query: give runs, and then the query; for example query results/2026… "{_EXAMPLE}"')
    read = read_runs(runs)
    found = query(read, sql)
    for note in read.notes:
        print(f"Note: {note}", file=sys.stderr)  # Not among the rows, which a program may read.
    if options.format == "text" and options.output is None:
        _print(console, found, options.rows)
    elif options.output is None:
        sys.stdout.write(_text(found, options.format))
    else:
        write = parquet if options.format == "parquet" else partial(_text, format_=options.format)
        try:
            write_whole(options.output, write(found))
        except OSError as error:
            raise ConfigError(f"--output {options.output}: {error.strerror}; give another file") from None
        console.print(Text(f"Written: {options.output}, {counted(found.height, 'row')}"), soft_wrap=True)
    return 0


def query(runs: Runs, sql: str) -> pl.DataFrame:
    """Return the rows that `sql` selects from the tables results, cells, samples, layers and environments.

    `environments` has a row a fact: run_id, key, value, both texts, such as "packages.torch", "2.13.0". The query is
    trusted: Polars' file functions, such as read_csv, read in it what the user can. Raises ConfigError for a query that
    is none or that names a table or column that there is not.
    """
    first = re.split(r"\W+", sql.strip(" \t\n("))[0].lower()
    if first not in _READS:
        hint = nearest(first, _READS, f'for example "{_EXAMPLE}"')
        raise ConfigError(f"query: only queries that read are allowed{hint}")
    tables = {"results": runs.results, "samples": runs.samples, "layers": runs.layers}
    tables["environments"] = _environments(runs.environments)
    if re.search(r"\bcells\b", sql, re.IGNORECASE):
        tables["cells"] = cells(runs.results).lazy()
    try:
        with pl.SQLContext(tables) as context:
            return context.execute(sql, eager=False).collect(engine="streaming")
    except UNREADABLE as error:
        message = first_line(error)
        if column := re.search(r'"([^"]+)"', message) if isinstance(error, pl.exceptions.ColumnNotFoundError) else None:
            columns = {name for table in tables.values() for name in table.collect_schema()}
            message = f"the tables it reads have no column '{column[1]}'{nearest(column[1], columns)}"
        elif relation := re.search(r"relation '([^']+)' was not found", message):
            message = f"there is no table '{relation[1]}'; there are {', '.join(tables)}"
        elif "function" in message:
            message += f"; {_LISTS}"
        raise ConfigError(f"query: {message} (for example: {_EXAMPLE})") from None


def _environments(environments: Mapping[str, Mapping[str, Any]]) -> pl.LazyFrame:
    rows = [
        (run_id, key, value if value is None or isinstance(value, str) else json.dumps(value))
        for run_id, environment in environments.items()
        for key, value in flat(environment)
        if not isinstance(value, Mapping)
    ]
    return pl.LazyFrame(rows, schema=dict.fromkeys(("run_id", "key", "value"), pl.String), orient="row")


def _print(console: Console, found: pl.DataFrame, most: int) -> None:
    """Print the first rows."""
    print_table(console, of_frame("", "", found.head(most)))
    rows = counted(found.height, "row")
    text = rows if found.height <= most else f"{count(most)} of {rows}; --rows or --format csv gives more"
    console.print(Text(text, style="dim"))


def _text(found: pl.DataFrame, format_: str) -> str:
    if format_ == "json":
        return found.write_json() + "\n"
    return csv(found) if format_ == "csv" else markdown(of_frame("", "", found))
