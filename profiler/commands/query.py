"""Run a query in SQL over the tables of runs, and print its rows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from exporters.errors import text_of
from profiler.errors import ConfigError, check_choice, nearest
from profiler.options import Query as Options
from profiler.results.cells import CELLS, cells
from profiler.results.reading import UNREADABLE, Runs, flat, read_runs, without_panics
from profiler.tables.numbers import count, counted, listed
from profiler.tables.table import of_frame
from profiler.tables.writers import csv, markdown, print_table

FORMATS = ("text", "md", "csv", "json")
_EXAMPLE = "select variant, precision, latency_ms from results where model = 'resnet50' order by latency_ms"
_MOST_COLUMNS = 12
_NO_COLUMN = r"""(?:unable to find column "|no column named ')([^"']+)"""


def execute(options: Options, console: Console) -> int:
    """Run the query and print its rows. Raises ConfigError."""
    check_choice("--format", options.format, FORMATS)
    *addresses, sql = options.runs
    if not addresses:
        raise ConfigError(f'query: give runs, and then the query; for example query results/2026… "{_EXAMPLE}"')
    runs = read_runs(addresses)
    rows = query(runs, sql)
    for note in runs.notes:
        print(f"Note: {note}", file=sys.stderr)  # A program may read the rows on stdout.
    if options.format == "text":
        print_table(console, of_frame("", "", rows.head(options.rows)))
        total = counted(rows.height, "row")
        shown = total if rows.height <= options.rows else f"{count(options.rows)} of {total}; --rows or --format csv"
        console.print(Text(shown, style="dim"))
    elif options.format == "json":
        sys.stdout.write(rows.write_json() + "\n")
    else:
        sys.stdout.write(csv(rows) if options.format == "csv" else markdown(of_frame("", "", rows)))
    return 0


def query(runs: Runs, sql: str) -> pl.DataFrame:
    """Return the rows that `sql` selects from the tables results, cells, samples, layers, scores and environments.

    `environments` has one row per fact: run_id, key, value, both texts, such as "packages.torch", "2.13.0". The query
    is trusted: Polars' file functions, such as read_csv, can read the user's files. Raises ConfigError for an invalid
    query, and for a missing table or column.
    """
    tables = {"results": runs.results, "samples": runs.samples, "layers": runs.layers, "scores": runs.scores}
    tables["environments"] = _environments(runs.environments)
    is_asked = re.search(r"\bcells\b", sql, re.IGNORECASE)
    tables["cells"] = cells(runs.results).lazy() if is_asked else pl.LazyFrame(schema={"run_id": pl.String, **CELLS})
    try:
        with without_panics(), pl.SQLContext(tables) as context:
            return context.execute(sql, eager=False).collect(engine="streaming")
    except UNREADABLE as error:
        message = f"{text_of(error)}; the tables are {', '.join(tables)}"
        if table := re.match(r"relation '([^']+)' was not found", message):
            message = f"there is no table '{table[1]}'{nearest(table[1], tables)}"
        # Polars names a column alone or behind its table's name.
        elif column := re.search(_NO_COLUMN, message):
            named = [table for name, table in tables.items() if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
            columns = sorted({name for table in named for name in table.collect_schema()})
            others = [name for name, table in tables.items() if column[1] in table.collect_schema()]
            hint = nearest(column[1], columns, f"valid: {listed(columns, shown=_MOST_COLUMNS)}")
            hint = f"; the table {listed(others, 'or')} has it" if others else hint
            message = f"the tables it reads have no column '{column[1]}'{hint}"
        raise ConfigError(f"query: {message} (for example: {_EXAMPLE})") from None


def _environments(environments: Mapping[str, Mapping[str, Any]]) -> pl.LazyFrame:
    rows = [
        (run_id, key, value if value is None or isinstance(value, str) else json.dumps(value))
        for run_id, environment in environments.items()
        for key, value in flat(environment)
        if not isinstance(value, Mapping)
    ]
    return pl.LazyFrame(rows, schema=dict.fromkeys(("run_id", "key", "value"), pl.String), orient="row")
