"""Compare runs, machines or versions, and what their environments do not have in common; print or write it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from engines.catalog import ENGINES
from exporters.source import MAY_COMPUTE_THE_SAME, Identity
from profiler.compare.cells import COLUMNS, check_by, compare
from profiler.compare.regression import find_regressions, parse_limit
from profiler.compare.view import Comparison, Side, data, other_models, sections
from profiler.errors import ConfigError, check_choice
from profiler.job.conditions import parse_only
from profiler.options import Compare as Options
from profiler.published.references import published_as_results
from profiler.results.columns import Group, names
from profiler.results.environment import flat, versions_of_others
from profiler.results.reading import Runs, check_only, chosen, read_runs
from profiler.results.replicates import without_probes
from profiler.results.result import in_its_interpreter
from profiler.results.run_files import printable
from profiler.results.run_folder import RecordedModel, RunFolder
from profiler.results.sentences import rough
from profiler.results.speedups import spreads
from profiler.tables.numbers import compact
from profiler.tables.writers import deliver, markdown_section, print_section

FORMATS = ("text", "md", "csv", "json")
_MIXED = (
    "{side.name} has several machines ({side.machine}): their rows of one cell count as its processes; --by machine "
    "separates them"
)
Environment = Mapping[str, Any]
_FIRST = (
    *("machine", "cloud", "instance", "usd_per_hour", "device"),
    *("gpu", "gpu_memory_mib", "compute_capability", "driver", "sm_clock_mhz", "cuda", "cudnn"),
    *("cpu", "cpu_cores", "memory_mib", "torch_threads"),
    *names(Group.VERSIONS),
)
"""What a reader looks for first; all else follows in the environments' order."""
_OF_THE_RUN = (
    *("command", "earlier_commands", "wall_seconds", "measured_roofs", "roofs_disturbance", "older_rows", "untested"),
)
"""Keys of environment.json that describe the run, not the machine."""
_TWICE = frozenset(f"packages.{package}" for e in ENGINES.values() if e.version for package in e.version.packages)
"""Packages whose versions have a key of their own."""
_CLOSE = 0.02
"""Figures closer together than this share are the same: roofs and clocks are measured again in every run."""
_MOST_MODELS = 8 << 20
"""Bytes of a models.json, which anybody may have made."""
_PART = object()
"""In place of a mapping: what it does not hold, the run does not have; and of what is not the side's."""


def execute(options: Options, console: Console) -> int:
    """Compare, print or write.

    Returns 1 for a regression, and where no cell was measured on both sides; 4 for what may be a regression; else 0.

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
    notes = [*runs.notes]
    base_first = sorted(sides, key=lambda side: side.name != options.base)
    models = changed_models(runs, base_first, rows["model"].unique(), notes)
    doubt = rough(runs.sampling_seconds(run_id for side in sides for run_id in side.runs))
    return Comparison(
        sides,
        cells,
        differences(environments),
        None if limit is None else find_regressions(cells, limit, models),
        (
            *notes,
            *(_MIXED.format(side=side) for side in sides if len(side.machines) > 1),
            *([doubt] if doubt else []),
        ),
        models,
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
        print(*other_models(comparison), *comparison.regression.lines(options.top), sep="\n", file=sys.stderr)


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


def changed_models(runs: Runs, sides: Sequence[Side], names: Container[str], notes: list[str]) -> list[dict[str, Any]]:
    """One row a model and side in which it may be another network than in the first side that recorded it: `model`,
    `base`, `side`, in `differs` its parts in words, and whether it is `certain` (code that differs may compute the
    same). Adds to `notes` which run's models.json cannot be read."""
    recorded: dict[str, dict[str, RecordedModel]] = {}
    processors = {run_id: run.environment.get("cpu") for run in runs.runs for run_id in run.run_ids}
    for run in runs.runs:
        try:
            known = {} if "://" in run.address else RunFolder(Path(run.address)).read_models(_MOST_MODELS)
        except ConfigError:
            notes.append(f"{run.address}/models.json: cannot be read; whether its models are the others' is not known")
            known = {}
        recorded |= dict.fromkeys(run.run_ids, known)
    first: dict[str, tuple[str, str, Identity]] = {}
    changes: dict[tuple[str, str, str], dict[str, None]] = {}
    for side in sides:
        models = [(of, *each) for of in side.runs for each in recorded.get(of, {}).items()]
        for run_id, subject, model in models:
            now = model.identity
            name = subject.partition("/")[0]  # At several shapes it is recorded as several.
            base, its_run, its = first.setdefault(subject, (side.name, run_id, now))
            if base != side.name and name in names:
                # Another processor or version of torch rounds otherwise, and outputs are recorded bit by bit.
                here, there = (
                    (processors.get(of), each.parts.get("torch")) for of, each in ((its_run, its), (run_id, now))
                )
                words = printable(its.changes(now, *(["outputs"] if here != there or None in here else [])))
                changes.setdefault((name, base, side.name), {}).update(dict.fromkeys(words))
    return [
        {"model": name, "base": base, "side": side, "certain": _is_another(words), "differs": [*words]}
        for (name, base, side), words in changes.items()
        if words
    ]


def _is_another(changes: Iterable[str]) -> bool:
    return not all(change.startswith(MAY_COMPUTE_THE_SAME) for change in changes)


def differences(sides: Mapping[str, Sequence[Environment]]) -> list[dict[str, str]]:
    """One row a fact that the sides do not have in common: `what`, then under each side's name its value or values.

    A value that a run says it does not have is "none"; what it did not record is no difference, and "" in its side, as
    is the version of what no row of the side ran in, where the environment has `engines`. Roofs that other work lowered
    say so.
    """
    flat = {name: [_flatten(run) for run in runs] for name, runs in sides.items()}
    doubted = [name for name, runs in sides.items() if any(run.get("roofs_disturbance") for run in runs)]
    known = [key for runs in flat.values() for run in runs for key in run if run[key] is not _PART]
    rows = []
    for key in dict.fromkeys([*(key for key in _FIRST if key in known), *known]):
        values = {
            name: _distinct(value for run in runs for value in _recorded(run, key)) for name, runs in flat.items()
        }
        if len(_distinct(value for found in values.values() for value in found)) > 1:
            texts = {name: ", ".join(map(_in_text, found)) for name, found in values.items()}
            for name in doubted if key.startswith("roofs.") else ():
                texts[name] += " (beside other work)"
            rows.append({"what": key, **texts})
    return rows


def _flatten(environment: Environment) -> dict[str, Any]:
    facts = {key: _PART if isinstance(value, Mapping) else value for key, value in flat(environment)}
    others = dict.fromkeys(versions_of_others(environment.get("engines", ENGINES)), _PART)
    return {
        key: value
        for key, value in (facts | others).items()
        if key.partition(".")[0] not in _OF_THE_RUN
        and key not in _TWICE
        and (value is _PART or value is None or isinstance(value, str | int | float))
    }


def _recorded(run: Mapping[str, Any], key: str) -> list[Any]:
    """The value in a list, [None] where the run has none, [] where it says nothing of it."""
    if key in run:
        return [] if run[key] is _PART else [run[key]]
    parent = key.partition(".")[0]
    return [None] if run.get(parent) is _PART else []


def _distinct(values: Iterator[Any]) -> list[Any]:
    """The values that are not close to one before them."""
    found: list[Any] = []
    for value in values:
        if not any(_close(value, other) for other in found):
            found.append(value)
    return found


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return abs(one - other) <= _CLOSE * max(abs(one), abs(other))
    return bool(one == other)


def _in_text(value: Any) -> str:
    return "none" if value is None else compact(value, 5) if isinstance(value, float) else str(value)
