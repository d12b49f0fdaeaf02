"""Compare runs, machines or versions, and what their environments do not have in common; print or write it."""

from __future__ import annotations

import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from profiler.compare.cells import compare, find_regressions, replicates_needed, resolution, totals
from profiler.compare.differences import changed_models, differences
from profiler.compare.view import Comparison, regressions, sections
from profiler.errors import ConfigError, check_choice
from profiler.job.conditions import Filter, parse_only
from profiler.options import Compare as Options
from profiler.published.references import published_as_results
from profiler.results.reading import Runs, check_only, chosen, read_runs
from profiler.tables.table import Table
from profiler.tables.writers import csv, deliver, markdown_section, print_section

FORMATS = ("text", "md", "csv", "json")
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?%|(0?\.\d+|0)")


def execute(options: Options, console: Console) -> int:
    """Compare, print or write; return 1 for a regression or without a ratio, 4 for an unclear regression, else 0.

    Raises ConfigError for what cannot be used.
    """
    check_choice("--format", options.format, FORMATS)
    comparison = make_comparison(options)
    if options.format == "text" and options.output is None:
        for section in sections(comparison, options.top):
            print_section(console, section)
        return comparison.exit_code
    deliver(_text(comparison, options), options.output, console)
    if comparison.exit_code:  # Standard output is for programs.
        print_section(Console(file=sys.stderr, width=console.width), regressions(comparison, options.top))
    return comparison.exit_code


def make_comparison(options: Options) -> Comparison:
    """Compare as the options ask. Raises ConfigError for what cannot be used."""
    limit = None if options.fail_on_regression is None else parse_limit(options.fail_on_regression)
    only = parse_only(options.only)
    runs = read_runs(options.runs)
    published = [published_as_results(study) for study in dict.fromkeys(options.references)]
    # A published library is none of our variants: of each machine the fastest counts.
    by, best = options.by or ("machine" if published else "run"), options.best or bool(published)
    names = {**_run_names(runs), **{study: study for study in options.references}}
    results = pl.concat([runs.results, *(frame.lazy() for frame in published)])
    results = results.with_columns(run=pl.col("run_id").replace_strict(names, return_dtype=pl.String))
    if only is not None:
        check_only(only, results)
        results = results.filter(pl.col("replicate").is_in(only.replicate)) if only.replicate else results
    rows = results.collect()
    cells = compare(rows, by, options.base, best, _wanted(only, pl.col("run_ids").list.first(), options))
    rows = rows.filter(_wanted(only, pl.col("run_id"), options), pl.col(by).is_not_null())
    sides = dict(rows.group_by(by, maintain_order=True).agg(pl.col("run_id").unique(maintain_order=True)).iter_rows())
    base_first = dict(sorted(sides.items(), key=lambda side: side[0] != options.base))
    models, unread = changed_models(runs, base_first, rows["model"].unique())
    return Comparison(
        base=", ".join(cells["base"].unique(maintain_order=True)),
        sides=sides,
        other_models=models,
        totals=totals(cells),
        resolution=resolution(cells),
        regressions=None if limit is None else find_regressions(cells, limit),
        differences=differences({name: _environments(rows.filter(pl.col(by) == name), runs) for name in sides}),
        notes=[*runs.notes, *unread],
        next=_next(runs, replicates_needed(cells, limit)),
        cells=cells,
    )


def parse_limit(text: str) -> float:
    """Read "5%" or "0.05" as 0.05; raise ConfigError for anything else."""
    found = _LIMIT.fullmatch(text.strip())
    if not found:
        raise ConfigError(
            f"--fail-on-regression: expected a percentage such as 5%, or a share such as 0.05, got '{text}'"
        )
    return float(found[1]) / 100 if found[1] else float(found[2])


def _text(comparison: Comparison, options: Options) -> str:
    if options.format == "json":
        return comparison.model_dump_json() + "\n"
    if options.format == "csv":
        return csv(Table("", "", {}, (), data=comparison.cells))
    if options.format == "md":
        return "\n".join(map(markdown_section, sections(comparison, options.top)))
    page = io.StringIO()
    for section in sections(comparison, options.top):
        print_section(Console(file=page, width=120), section)
    return page.getvalue()


def _run_names(runs: Runs) -> dict[str, str]:
    """Name each run id's run: by the machine where that tells the runs apart, else by the folder."""
    machines = [run.environment["machine"] for run in runs.runs]
    telling = all(machines) and len(set(machines)) == len(machines) > 1
    called = machines if telling else [run.name for run in runs.runs]
    return {run_id: name for run, name in zip(runs.runs, called, strict=True) for run_id in run.run_ids}


def _wanted(only: Filter | None, run_id: pl.Expr, options: Options) -> pl.Expr:
    """Select what --only means; of published figures whatever the variant and the engine."""
    if only is None:
        return pl.lit(value=True)
    ours = only.model_copy(update={"replicate": None})
    published = ours.model_copy(update={"variant": None, "engine": None})
    return pl.when(run_id.is_in(list(options.references))).then(chosen(published)).otherwise(chosen(ours))


def _environments(rows: pl.DataFrame, runs: Runs) -> list[dict[str, Any]]:
    """List the environments of a side's runs, each with its rows' median SM clock and engines."""
    found = []
    for (run_id,), part in rows.group_by("run_id", maintain_order=True):
        clock = part["sm_clock_mhz"].median()
        # Of a published figure its machine's name is all that is known.
        known = runs.environments.get(str(run_id), {"machine": part["machine"][0]})
        own = {} if clock is None else {"sm_clock_mhz": clock}
        found.append({**known, **own, "engines": part["engine"].unique().to_list()})
    return found


def _next(runs: Runs, replicates: int | None) -> list[str]:
    """Return the commands that measure the runs' jobs again with so many replicates."""
    jobs = [path for run in runs.runs if (path := Path(run.address) / "bench.yaml").is_file()]
    return [f"python -m profiler {shlex.quote(str(job))} --replicates {replicates}" for job in jobs if replicates]
