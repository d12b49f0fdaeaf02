"""Compare runs, machines or versions, and print or write the comparison."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import polars as pl
from rich.console import Console

from profiler.compare.cells import COLUMNS, check_by, compare
from profiler.compare.differences import differences
from profiler.compare.regression import find_regressions, parse_limit
from profiler.compare.view import Comparison, Side, data, sections
from profiler.errors import ConfigError, check_choice
from profiler.job.conditions import parse_only
from profiler.options import Compare as Options
from profiler.published.references import published_as_results
from profiler.results.reading import Runs, check_only, chosen, read_runs
from profiler.results.replicates import without_probes
from profiler.results.result import in_its_interpreter
from profiler.results.sentences import rough
from profiler.results.speedups import spreads
from profiler.tables.writers import deliver, markdown_section, print_section

FORMATS = ("text", "md", "csv", "json")
_MIXED = (
    "{side.name} has several machines ({side.machine}): their rows of one cell count as its processes; --by machine "
    "separates them"
)


def execute(options: Options, console: Console) -> int:
    """Compare, print or write.

    Returns 1 for a regression, and where no cell could be compared; 4 for what may be a regression; else 0.

    Raises ConfigError for what cannot be used.
    """
    check_choice("--format", options.format, FORMATS)
    limit = None if options.fail_on_regression is None else parse_limit(options.fail_on_regression)
    comparison = make_comparison(options, limit)
    show(comparison, options, console)
    if comparison.cells["ratio"].count() == 0:
        return 1
    return comparison.regression.exit_code if comparison.regression else 0


def make_comparison(options: Options, limit: float | None = None) -> Comparison:
    """Compare as the options ask. Raises ConfigError for what cannot be used."""
    runs = read_runs(options.runs)
    published = [published_as_results(study) for study in dict.fromkeys(options.references)]
    # A published library is none of our variants: of each machine the fastest counts.
    by, best = options.by or ("machine" if published else "run"), options.best or bool(published)
    names = {**_run_names(runs), **{study: study for study in options.references}}
    results = without_probes(pl.concat([runs.results, *(frame.lazy() for frame in published)]))
    results = results.with_columns(run=pl.col("run_id").replace_strict(names, return_dtype=pl.String))
    check_by(results, by)
    needed = dict.fromkeys([*COLUMNS, "run_id", "machine", "engine", "sm_clock_mhz", by])
    rows = _only(results, options).select(*needed).collect()
    cells = compare(rows, by, options.base, best, spreads(results))
    sides, environments = _sides(rows, by, runs)
    doubt = rough(runs.sampling_seconds(run_id for side in sides for run_id in side.runs))
    return Comparison(
        sides,
        cells,
        differences(environments),
        None if limit is None else find_regressions(cells, limit),
        (
            *runs.notes,
            *(_MIXED.format(side=side) for side in sides if len(side.machines) > 1),
            *([doubt] if doubt else []),
        ),
    )


def show(comparison: Comparison, options: Options, console: Console) -> None:
    """Write the comparison in the requested format, into the file or on the terminal. Raises ConfigError."""
    if options.format == "text" and options.output is None:
        for section in sections(comparison, options.top, console.width):
            print_section(console, section)
        return
    deliver(_text(comparison, options), options.output, console)
    if comparison.regression:
        # What is parsed goes to standard output; why the exit code is what it is, to standard error.
        print(*comparison.regression.lines(options.top), sep="\n", file=sys.stderr)


def _text(comparison: Comparison, options: Options) -> str:
    if options.format == "json":
        # With an indent it takes ten times as long.
        return json.dumps(data(comparison), ensure_ascii=False, allow_nan=False) + "\n"
    if options.format == "csv":
        return comparison.cells.write_csv()
    if options.format == "md":
        return "\n".join(map(markdown_section, sections(comparison, options.top)))
    page, width = io.StringIO(), 120
    for section in sections(comparison, options.top, width):
        print_section(Console(file=page, width=width), section)
    return page.getvalue()


def _run_names(runs: Runs) -> dict[str, str]:
    """By run id what to call its run: the machine where that tells the runs apart, else the folder."""
    machines = [run.environment["machine"] for run in runs.runs]
    telling = all(machines) and len(set(machines)) == len(machines) > 1
    called = machines if telling else [run.name for run in runs.runs]
    return {run_id: name for run, name in zip(runs.runs, called, strict=True) for run_id in run.run_ids}


def _only(results: pl.LazyFrame, options: Options) -> pl.LazyFrame:
    """The rows that --only means; of published figures whatever the variant and the engine."""
    conditions = parse_only(options.only)
    if conditions is None:
        return results
    check_only(conditions, results)
    of_published = conditions.model_copy(update={"variant": None, "engine": None})
    published = pl.col("run_id").is_in(list(options.references))
    found = results.filter(pl.when(published).then(chosen(of_published)).otherwise(chosen(conditions)))
    if found.select("run_id").head(1).collect().is_empty():
        raise ConfigError(f"--only {','.join(options.only)}: no row of these runs matches")
    return found


def _sides(rows: pl.DataFrame, by: str, runs: Runs) -> tuple[tuple[Side, ...], dict[str, list[dict[str, Any]]]]:
    """The sides in order, and by name their runs' environments, each with its rows' median SM clock and engines."""
    sides = []
    environments: dict[str, list[dict[str, Any]]] = {}
    named = rows.filter(pl.col(by).is_not_null())
    for (name,), part in named.group_by(by, maintain_order=True):
        machines = part["machine"].drop_nulls().unique(maintain_order=True).to_list()
        ids = part["run_id"].unique(maintain_order=True).to_list()
        sides.append(Side(str(name), tuple(ids), tuple(machines), part.height))
        own = part.group_by("run_id").agg(pl.col("sm_clock_mhz").median(), engines=pl.col("engine").unique())
        measured = {row.pop("run_id"): {k: v for k, v in row.items() if v is not None} for row in own.to_dicts()}
        # Of a published figure its machine's name is all that is known.
        unknown = {"machine": ", ".join(machines)}
        known = [runs.environments.get(i, unknown) for i in ids]
        if by == "variant":  # It may have been measured in an interpreter of its own.
            known = [{**in_its_interpreter(of, str(name)), "interpreters": None} for of in known]
        environments[str(name)] = [{**of, **measured[i]} for i, of in zip(ids, known, strict=True)]
    return tuple(sides), environments
