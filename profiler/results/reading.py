"""Read the folders of runs as one table each, lazily."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from engines.catalog import ENGINES
from exporters import named_files
from exporters.errors import printable
from profiler.errors import ConfigError, nearest, resuming
from profiler.job.case import Filter
from profiler.results.cells import cells as merge
from profiler.results.columns import LARGEST_BATCH, LAYERS, RESULTS, SAMPLES
from profiler.results.row import ENVIRONMENT, flat_environment
from profiler.results.run_folder import RunFolder
from profiler.results.schema import checked_table

UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""Exceptions of polars for a file that it cannot read; damaged bytes make some of its readers panic."""
_FACTS = ("machine", "device", *ENVIRONMENT)
"""Columns of the results that stand in for what environment.json lacks."""
_SCHEMAS = {"results": RESULTS, "samples": SAMPLES, "layers": LAYERS, "largest_batch": LARGEST_BATCH}
_GIVE = "give a run's folder, such as results/2026…, or a pattern such as 'results/*'"


@dataclass(frozen=True)
class Run:
    """One folder of results, of one or several run ids; `name` tells it apart from the others."""

    address: str
    name: str
    run_ids: tuple[str, ...]
    environment: dict[str, Any]


@dataclass(frozen=True)
class Runs:
    """Several runs as one table each; `notes` say what was left out."""

    runs: tuple[Run, ...]
    results: pl.LazyFrame
    samples: pl.LazyFrame
    layers: pl.LazyFrame
    largest_batches: pl.LazyFrame
    notes: tuple[str, ...] = ()

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """Return by run id what environment.json says; the results' own columns where there is none."""
        return {run_id: run.environment for run in self.runs for run_id in run.run_ids}

    @property
    def labels(self) -> dict[str, str]:
        """Return by run id what its run is called: its machine where that tells the runs apart, else its folder."""
        machines = [run.environment["machine"] for run in self.runs]
        telling = all(machines) and len(set(machines)) == len(machines)
        called = machines if telling else [run.name for run in self.runs]
        return {run_id: name for run, name in zip(self.runs, called, strict=True) for run_id in run.run_ids}


def read_runs(addresses: Sequence[str | Path]) -> Runs:
    """Read the runs in these folders, or those of patterns such as "results/*".

    A run id that is in two folders counts once, in the first one. Raises ConfigError for a folder that holds no run, an
    empty one, or one that cannot be read.
    """
    notes, runs, seen = list[str](), list[Run](), set[str]()
    tables: dict[str, list[pl.LazyFrame]] = {name: [pl.LazyFrame(schema=schema)] for name, schema in _SCHEMAS.items()}
    folders = list(_folders(addresses, notes))
    are_told_apart = len({folder.name for folder in folders}) == len(folders)
    for folder in folders:
        results = read_results(folder)
        facts = results.group_by("run_id", maintain_order=True).agg(pl.col(_FACTS).drop_nulls().first())
        if facts.is_empty():
            raise ConfigError(f"{folder}: this run is empty: results.parquet has no rows; {_GIVE}")
        if twice := seen & set(facts["run_id"]):
            notes.append(f"{folder}: {', '.join(sorted(twice))} is given twice; it counts once")
        run_ids = tuple(run_id for run_id in facts["run_id"] if run_id not in seen)
        if not run_ids:
            continue
        seen |= {*run_ids}
        environment, columns = RunFolder(folder).read_environment(), facts.row(0, named=True)
        environment = flat_environment({**columns, **environment}, columns["machine"])
        name = printable(folder.name if are_told_apart else str(folder))
        runs.append(Run(str(folder), name, run_ids, environment))
        for table, frames in tables.items():
            frame = results.lazy() if table == "results" else _read(folder, table)
            frames.append(frame.filter(pl.col("run_id").is_in(run_ids)))
    results_of, samples, layers, tries = map(pl.concat, tables.values())
    return Runs(tuple(runs), results_of, samples, layers, tries, tuple(map(printable, notes)))


def read_results(folder: Path) -> pl.DataFrame:
    """Read results.parquet in a run's folder; of a case that is in it twice the first row counts."""
    return _checked(
        folder, "results", lambda frame: frame.unique(["run_id", "case_id"], keep="first", maintain_order=True)
    )


def load(*runs: str | Path, cells: bool = False) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Return results and samples of one or more runs, lazily: `results, samples = load("results/*")`.

    Each argument is a run's folder or a pattern of folders; errors as for `read_runs`.
    With `cells` the first frame has one row a cell in place of one a process (profiler.results.cells); lists are texts
    in it, with commas between, so that a CSV file can hold it.
    """
    read = read_runs(runs)
    texts = pl.selectors.list().list.join(", ")
    return merge(read.results).lazy().with_columns(texts) if cells else read.results, read.samples


def load_layers(*runs: str | Path) -> pl.LazyFrame:
    """Return the layers of runs that were made with --profile, lazily; arguments and errors as for `load`."""
    return read_runs(runs).layers


def load_largest_batches(*runs: str | Path) -> pl.LazyFrame:
    """Return the tries of the search for the largest batch, lazily; arguments and errors as for `load`."""
    return read_runs(runs).largest_batches


def chosen(conditions: Filter) -> pl.Expr:
    """Return which rows hold the conditions."""
    tests = (pl.any_horizontal(pl.col(*columns).is_in(values)) for columns, values in conditions.tests())
    return pl.all_horizontal(pl.lit(value=True), *tests)


def check_only(conditions: Filter, results: pl.LazyFrame) -> None:
    """Raise ConfigError for a value that no row has: what was misspelt or not measured must not vanish in silence."""
    for columns, values in conditions.tests():
        there = results.select(columns).unique().collect()
        known = sorted({str(value) for column in reversed(columns) for value in there[column].drop_nulls()})
        for word in map(str, values):
            if word not in known:
                what = f"--only {columns[0]}={word}"
                raise ConfigError(f"{what}: no row of these runs matches{nearest(word, known) if known else ''}")


def flat(environment: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Give its facts by keys such as "packages.torch", and before those of a mapping that mapping."""
    for key, value in environment.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")


def versions_of_others(engines: Iterable[str]) -> set[str]:
    """Name the facts, by flat keys, of libraries without a part in rows of `engines`; PyTorch, which exports, has."""
    keys: dict[bool, set[str]] = {True: set(), False: set()}
    for name, engine in ENGINES.items():
        column, packages = (engine.version.column, engine.version.packages) if engine.version else ("", ())
        names = (f"packages.{package}" for package in (*packages, *engine.packages))
        keys[name in {*engines, "eager"}] |= {column, *names}
    return keys[False] - keys[True]


def first_line(error: BaseException) -> str:
    """Say on one line what an error says."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def json_object(text: str | None) -> dict[str, Any]:
    """Parse a text column that holds a JSON object, such as a row's options; null is an empty one."""
    return dict(printable(json.loads(text or "{}")))


def _folders(addresses: Sequence[str | Path], notes: list[str]) -> Iterator[Path]:
    """Give every run's folder in the order given, patterns expanded. Raises ConfigError where there is none."""
    if not addresses:
        raise ConfigError(f"no run is given; {_GIVE}")
    for address in map(str, addresses):
        is_pattern = not named_files.exists(Path(address)) and glob.has_magic(address)
        matches = filter(os.path.exists, glob.glob(address)) if is_pattern else [address]  # noqa: PTH207
        found = sorted(map(Path, matches))
        found = [run for folder in found for run in (kinds_in(folder) or [folder])]
        runs = [folder for folder in found if named_files.is_file(folder / "results.parquet")]
        begun = [folder for folder in found if folder not in runs and named_files.is_file(folder / "bench.yaml")]
        unfinished = [f"{folder}: no results yet; finish it: {resuming(folder)}" for folder in begun]
        if not runs:
            raise ConfigError(unfinished[0] if unfinished else f"{address}: no run's folder; {_GIVE}")
        notes += unfinished
        yield from runs


def kinds_in(folder: Path) -> list[Path]:
    """Return the runs in the folder of a job that was measured on several kinds of devices; nothing of another."""
    if not named_files.is_file(folder / "bench.yaml"):
        return []
    return sorted(path.parent for path in folder.glob("*/bench.yaml"))


def _read(folder: Path, table: str) -> pl.LazyFrame:
    return _scan(folder, table) if table == "samples" else _checked(folder, table).lazy()  # Samples may be too many.


def _checked(folder: Path, table: str, change: Callable[[pl.LazyFrame], pl.LazyFrame] = lambda t: t) -> pl.DataFrame:
    path = folder / f"{table}.parquet"
    try:
        with without_panics():
            frame = change(_scan(folder, table)).collect()
    except UNREADABLE as error:
        raise _unreadable(path, error) from None
    return checked_table(path, frame)


@contextlib.contextmanager
def without_panics() -> Iterator[None]:
    """Drop what polars' Rust prints of a damaged file, besides the exception that it raises."""
    usual, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(usual, 2)
        os.close(usual)
        os.close(nothing)


def _scan(folder: Path, name: str) -> pl.LazyFrame:
    """Open a run's table lazily, an empty one where it has none. Columns that an earlier version lacked are null.

    Raises ConfigError for any other file.
    """
    path, schema = folder / f"{name}.parquet", _SCHEMAS[name]
    if name != "results" and not named_files.is_file(path):
        return pl.LazyFrame(schema=schema)
    try:
        with without_panics():
            frame = pl.scan_parquet(path, glob=False)
            found = frame.collect_schema()
    except UNREADABLE as error:
        raise _unreadable(path, error) from None
    lacking = {} if "run_id" not in found else {c: pl.lit(None, d) for c, d in schema.items() if c not in found}
    for column, dtype in schema.items():
        if column not in lacking and found.get(column) != dtype:
            raise ConfigError(f"{path}: this is no table of a run: column {column} is not of type {dtype}; {_GIVE}")
    return frame.with_columns(**lacking).select(*schema)


def _unreadable(path: Path, error: BaseException) -> ConfigError:
    return ConfigError(f"{path}: cannot be read: {first_line(error)}; {_GIVE}")
