"""Read the folders of runs as one table each, lazily."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from engines.catalog import ENGINES
from exporters import named_files
from exporters.errors import printable, text_of
from profiler.errors import ConfigError, resuming
from profiler.job.case import Filter
from profiler.results.cells import cells as merge
from profiler.results.columns import LARGEST_BATCH, LAYERS, RESULTS, SAMPLES, SCORES
from profiler.results.row import ENVIRONMENT, flat_environment
from profiler.results.run_folder import RunFolder
from profiler.results.schema import checked_table

UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""Exceptions of polars for a file that it cannot read; damaged bytes make some of its readers panic."""
_FACTS = ("machine", "device", *ENVIRONMENT)
"""Columns of the results that stand in for missing facts of environment.json."""
_SCHEMAS = {"results": RESULTS, "samples": SAMPLES, "layers": LAYERS, "largest_batch": LARGEST_BATCH, "scores": SCORES}
_GIVE = "give a run's folder, such as results/2026…, or a pattern such as 'results/*'"


@dataclass(frozen=True)
class Run:
    """One folder of results, with one or several run ids; `name` is unique among the folders read."""

    address: str
    name: str
    run_ids: tuple[str, ...]
    environment: dict[str, Any]


@dataclass(frozen=True)
class Runs:
    """Several runs as one table each; `notes` list the runs left out."""

    runs: tuple[Run, ...]
    results: pl.LazyFrame
    samples: pl.LazyFrame
    layers: pl.LazyFrame
    largest_batches: pl.LazyFrame
    scores: pl.LazyFrame
    notes: tuple[str, ...] = ()

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """Return environment.json by run id, completed by columns of the results."""
        return {run_id: run.environment for run in self.runs for run_id in run.run_ids}

    @property
    def labels(self) -> dict[str, str]:
        """Return a label by run id: the machine if all runs have different ones, else the folder."""
        machines = [run.environment["machine"] for run in self.runs]
        is_unique = all(machines) and len(set(machines)) == len(machines)
        names = machines if is_unique else [run.name for run in self.runs]
        return {run_id: name for run, name in zip(self.runs, names, strict=True) for run_id in run.run_ids}


def read_runs(addresses: Sequence[str | Path]) -> Runs:
    """Read the runs in these folders, or in the folders of patterns such as "results/*".

    A run id in two folders counts once, in the first; an empty run among several does not count. Raises ConfigError for
    a folder without a run, a single empty run, or one that cannot be read.
    """
    notes, empty, runs, run_ids_read = list[str](), list[str](), list[Run](), set[str]()
    tables: dict[str, list[pl.LazyFrame]] = {name: [pl.LazyFrame(schema=schema)] for name, schema in _SCHEMAS.items()}
    folders = list(_folders(addresses, notes))
    are_names_unique = len({folder.name for folder in folders}) == len(folders)
    for folder in folders:
        results = read_results(folder)
        facts = results.group_by("run_id", maintain_order=True).agg(pl.col(_FACTS).drop_nulls().first())
        if facts.is_empty():
            empty.append(f"{folder}: this run is empty: results.parquet has no rows")
            continue
        if twice := run_ids_read & set(facts["run_id"]):
            notes.append(f"{folder}: {', '.join(sorted(twice))} is given twice; it counts once")
        run_ids = tuple(run_id for run_id in facts["run_id"] if run_id not in run_ids_read)
        if not run_ids:
            continue
        run_ids_read |= {*run_ids}
        environment, columns = RunFolder(folder).read_environment(), facts.row(0, named=True)
        environment = flat_environment({**columns, **environment}, columns["machine"])
        name = printable(folder.name if are_names_unique else str(folder))
        runs.append(Run(str(folder), name, run_ids, environment))
        for table, frames in tables.items():
            if table in ("samples", "scores"):  # They may be too many for the memory.
                frame = _scan(folder, table)
            else:
                frame = (results if table == "results" else _checked(folder, table)).lazy()
            frames.append(frame.filter(pl.col("run_id").is_in(run_ids)))
    if not runs:
        raise ConfigError(f"{empty[0]}; {_GIVE}")
    notes += empty
    results_of, samples, layers, tries, scores = map(pl.concat, tables.values())
    return Runs(tuple(runs), results_of, samples, layers, tries, scores, tuple(map(printable, notes)))


def read_results(folder: Path) -> pl.DataFrame:
    """Read results.parquet in a run's folder; of a case's duplicate rows the first counts."""
    return _checked(folder, "results")


def load(*runs: str | Path, cells: bool = False) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Return results and samples of one or more runs, lazily: `results, samples = load("results/*")`.

    Each argument is a run's folder or a pattern of folders; errors as for `read_runs`. With `cells` the first frame has
    one row per cell instead of one per process (profiler.results.cells), and its lists are comma-separated texts, which
    a CSV file can hold.
    """
    read = read_runs(runs)
    texts = pl.selectors.list().list.join(", ")
    return merge(read.results).lazy().with_columns(texts) if cells else read.results, read.samples


def load_layers(*runs: str | Path) -> pl.LazyFrame:
    """Return the layers of runs with --profile, lazily; arguments and errors as for `load`."""
    return read_runs(runs).layers


def load_largest_batches(*runs: str | Path) -> pl.LazyFrame:
    """Return the tries of the search for the largest batch, lazily; arguments and errors as for `load`."""
    return read_runs(runs).largest_batches


def chosen(conditions: Filter) -> pl.Expr:
    """Return an expression that is true for rows that meet the conditions."""
    tests = (pl.any_horizontal(pl.col(*columns).is_in(values)) for columns, values in conditions.tests())
    return pl.all_horizontal(pl.lit(value=True), *tests)


def check_only(conditions: Filter, results: pl.LazyFrame) -> None:
    """Raise ConfigError for a value that no row has, which is misspelt or was not measured."""

    def values_of(column: str) -> pl.Series:
        return results.select(pl.col(column).drop_nulls().unique().sort()).collect().to_series()

    conditions.check(values_of, "no row of these runs matches")


def flat(environment: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield facts by flat keys such as "packages.torch"; a mapping comes before its items."""
    for key, value in environment.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")


def versions_of_others(engines: Iterable[str]) -> set[str]:
    """Return the flat keys of libraries that `engines` do not use; PyTorch, which exports, is always used."""
    used, unused = set[str](), set[str]()
    for name, engine in ENGINES.items():
        column, packages = (engine.version.column, engine.version.packages) if engine.version else ("", ())
        keys = {column, *(f"packages.{package}" for package in (*packages, *engine.packages))}
        if name in {*engines, "eager"}:
            used |= keys
        else:
            unused |= keys
    return unused - used


def json_object(text: str | None) -> dict[str, Any]:
    """Parse the JSON object in a text column, such as a row's options; null is an empty one."""
    return dict(printable(json.loads(text or "{}")))


def _folders(addresses: Sequence[str | Path], notes: list[str]) -> Iterator[Path]:
    """Yield the runs' folders in order, patterns expanded. Raises ConfigError for an address without a run."""
    if not addresses:
        raise ConfigError(f"no run is given; {_GIVE}")
    for address in map(str, addresses):
        is_pattern = not named_files.exists(Path(address)) and glob.has_magic(address)
        matches = filter(os.path.exists, glob.glob(address)) if is_pattern else [address]  # noqa: PTH207
        folders = [run for folder in sorted(map(Path, matches)) for run in (_runs_by_device(folder) or [folder])]
        runs = [folder for folder in folders if named_files.is_file(folder / "results.parquet")]
        begun = [folder for folder in folders if folder not in runs and named_files.is_file(folder / "bench.yaml")]
        unfinished = [f"{folder}: no results yet; finish it: {resuming(folder)}" for folder in begun]
        if not runs:
            raise ConfigError(unfinished[0] if unfinished else f"{address}: no run's folder; {_GIVE}")
        notes += unfinished
        yield from runs


def _runs_by_device(folder: Path) -> list[Path]:
    """Return the runs in the folder of a job on several kinds of devices; empty for another folder."""
    if not named_files.is_file(folder / "bench.yaml"):
        return []
    return sorted(path.parent for path in folder.glob("*/bench.yaml"))


def _checked(folder: Path, table: str) -> pl.DataFrame:
    path = folder / f"{table}.parquet"
    with _naming(path):
        frame = _scan(folder, table).collect()
    if table == "results":
        frame = frame.unique(["run_id", "case_id"], keep="first", maintain_order=True)
    return checked_table(path, frame)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise ConfigError with the file's name if polars cannot read it."""
    try:
        with without_panics():
            yield
    except UNREADABLE as error:
        raise ConfigError(f"{path}: cannot be read: {text_of(error)}; {_GIVE}") from None


@contextlib.contextmanager
def without_panics() -> Iterator[None]:
    """Silence the message that polars' Rust prints besides its exception for a damaged file."""
    usual, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(usual, 2)
        os.close(usual)
        os.close(nothing)


def _scan(folder: Path, name: str) -> pl.LazyFrame:
    """Open a run's table lazily; a missing file is an empty table, a missing column null.

    Raises ConfigError for a damaged file, and for a file that is no run's table.
    """
    path, schema = folder / f"{name}.parquet", _SCHEMAS[name]
    if name != "results" and not named_files.is_file(path):
        return pl.LazyFrame(schema=schema)
    with _naming(path):
        frame = pl.scan_parquet(path, glob=False)
        types = frame.collect_schema()
    absent = {} if "run_id" not in types else {c: pl.lit(None, dtype) for c, dtype in schema.items() if c not in types}
    for column, dtype in schema.items():
        if column not in absent and types.get(column) != dtype:
            raise ConfigError(f"{path}: this is no table of a run: column {column} is not of type {dtype}; {_GIVE}")
    return frame.with_columns(**absent).select(*schema)
