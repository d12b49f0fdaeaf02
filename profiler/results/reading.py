"""Read the folders of runs as one table each, lazily."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from profiler.errors import ConfigError, nearest
from profiler.job.conditions import Filter
from profiler.results.cells import cells as merge
from profiler.results.columns import LARGEST_BATCH, LAYERS, RESULTS, SAMPLES, Group, names
from profiler.results.environment import flat_environment
from profiler.results.run_files import check_readable, first_line, parse_json, read_json
from profiler.results.unfinished import is_unfinished, so_far

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What polars raises for a file that it cannot read; damaged bytes make some of its readers panic."""
ENVIRONMENT = ("machine", *names(Group.PLACE, Group.VERSIONS), "device")
"""Columns of the results that tell of the machine, for a run whose environment.json cannot be read."""
_GIVE = "give a run's folder, such as results/2026…, a pattern such as 'results/*', or an address such as s3://…"


@dataclass(frozen=True)
class Run:
    """One folder of results. It holds several run ids where results of several runs were put together.

    `name` tells it apart from the others: the folder's name, with as many folders above it as that needs.
    """

    address: str
    name: str
    run_ids: tuple[str, ...]
    environment: dict[str, Any]


@dataclass(frozen=True)
class Runs:
    """Several runs as one table each, with the columns of profiler/results/columns.py.

    `layers` is None where no run has any. `notes` say what could not be read or was left out.
    """

    runs: tuple[Run, ...]
    results: pl.LazyFrame
    samples: pl.LazyFrame
    layers: pl.LazyFrame | None
    largest_batches: pl.LazyFrame
    notes: tuple[str, ...] = ()

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """By run id what environment.json says; the results' own columns where it cannot be read."""
        return {run_id: run.environment for run in self.runs for run_id in run.run_ids}

    def sampling_seconds(self, run_ids: Iterable[str]) -> list[float | None]:
        """For how long the cases of these runs were sampled; None where that is not known."""
        known = self.environments
        return [known.get(run_id, {}).get("sampling_seconds") for run_id in run_ids]


def read_runs(addresses: Sequence[str | Path]) -> Runs:
    """The runs at these addresses: folders, patterns ("results/*"), or an object store's ("s3://bucket/results/*").

    A run id that is at two addresses counts once, at the first one. Raises ConfigError for an address that holds no
    run, an empty one, or one that cannot be read.
    """
    notes: list[str] = []
    known: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {}
    tables: dict[str, list[pl.LazyFrame]] = {"results": [], "samples": [], "layers": [], "largest_batch": []}
    for address in _folders(addresses, notes):
        written = _tables(address, notes)
        facts = _run_facts(written["results"], address)
        twice = [run_id for run_id in facts if any(run_id in run_ids for run_ids, _ in known.values())]
        if twice:
            notes.append(f"{address}: {', '.join(twice)} is given twice; it counts once")
        run_ids = tuple(run_id for run_id in facts if run_id not in twice)
        if not run_ids:
            continue
        known[address] = run_ids, _environment(address, facts[run_ids[0]], notes)
        if "samples" not in written:
            notes.append(f"{address}: there is no samples.parquet that can be read")
        for name, frame in written.items():
            tables[name].append(frame.filter(pl.col("run_id").is_in(run_ids)) if twice else frame)
    runs = tuple(Run(address, name, *known[address]) for address, name in zip(known, _names(list(known)), strict=True))
    samples = pl.concat(tables["samples"] or [pl.LazyFrame(schema=SAMPLES)])
    layers = pl.concat(tables["layers"]) if tables["layers"] else None
    tries = pl.concat([pl.LazyFrame(schema=LARGEST_BATCH), *tables["largest_batch"]])
    return Runs(runs, pl.concat(tables["results"]), samples, layers, tries, tuple(notes))


def read_results(address: str) -> pl.DataFrame:
    """Read results.parquet in a run's folder; of a case that is in it twice the first row counts.

    Raises ConfigError where it cannot be read.
    """
    path = f"{address}/results.parquet"
    frame = _scan(path, RESULTS)
    try:
        return frame.unique(["run_id", "case_id"], keep="first", maintain_order=True).collect()
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def load(*runs: str | Path, cells: bool = False) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Return results and samples of one or more runs, lazily: `results, samples = load("results/*")`.

    Each argument is a run's folder, a pattern of folders, or an object store's address; errors as for `read_runs`.
    With `cells` the first frame has one row a cell in place of one a process (profiler.results.cells).
    """
    read = read_runs(runs)
    return merge(read.results).lazy() if cells else read.results, read.samples


def load_layers(*runs: str | Path) -> pl.LazyFrame:
    """The layers of one or more runs that were made with --profile, lazily; arguments and errors as for `load`."""
    layers = read_runs(runs).layers
    return pl.LazyFrame(schema=LAYERS) if layers is None else layers


def load_largest_batches(*runs: str | Path) -> pl.LazyFrame:
    """The tries of the search for the largest batch of one or more runs, lazily; arguments and errors as for `load`."""
    return read_runs(runs).largest_batches


def chosen(conditions: Filter) -> pl.Expr:
    """Which rows hold the conditions."""
    tests = (pl.any_horizontal(pl.col(*columns).is_in(values)) for columns, values in conditions.tests())
    return pl.all_horizontal(pl.lit(value=True), *tests)


def check_only(conditions: Filter, results: pl.LazyFrame) -> None:
    """Raises ConfigError for a value that no row has, even beside others that some have: what was misspelt or not
    measured must not vanish in silence."""
    for columns, values in conditions.tests():
        there = results.select(columns).unique().collect()
        known = sorted({str(value) for column in reversed(columns) for value in there[column].drop_nulls()})
        for word in map(str, values):
            if word not in known:
                what = f"--only {columns[0]}={word}"
                raise ConfigError(f"{what}: no row of these runs matches{nearest(word, known) if known else ''}")


def _folders(addresses: Sequence[str | Path], notes: list[str]) -> Iterator[str]:
    """Every run's folder in the order given, patterns expanded. Raises ConfigError where there is none."""
    if not addresses:
        raise ConfigError(f"no run is given; {_GIVE}")
    for given in map(str, addresses):
        address = given.rstrip("/") or given
        if "://" in address:
            yield from _in_a_store(address)
        elif glob.has_magic(address) and not Path(address).is_dir():
            yield from _matching(address, notes)
        else:
            _check_folder(Path(address))
            yield address


def _matching(pattern: str, notes: list[str]) -> list[str]:
    found = []
    given = Path(pattern)
    start, parts = Path(given.anchor or "."), given.relative_to(given.anchor)
    # Not glob.glob, which follows links, and so links in a circle for ever.
    for folder in sorted(filter(Path.is_dir, start.glob(str(parts)))):
        try:
            _check_folder(folder)
        except ConfigError as error:
            notes.append(f"left out: {error}")
            continue
        found.append(str(folder))
    if not found:
        raise ConfigError(f"{pattern}: no folder with a results.parquet matches; {_GIVE}")
    return found


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise ConfigError(f"{folder}: there is no such folder; {_GIVE}")
    if (folder / "results.parquet").is_file() or is_unfinished(folder):
        return
    raise ConfigError(f"{folder}: not a run folder (no results.parquet); {_GIVE}")


def _in_a_store(address: str) -> list[str]:
    """The folders that an object store's address or pattern means."""
    if not glob.has_magic(address):
        return [address]
    try:
        paths = pl.scan_parquet(f"{address}/results.parquet", include_file_paths="path", extra_columns="ignore")
        found = paths.select(pl.col("path").unique()).collect().to_series().sort().to_list()
    except UNREADABLE as error:
        raise _unreadable(address, error) from None
    return [path.removesuffix("/results.parquet") for path in found]


def _tables(address: str, notes: list[str]) -> dict[str, pl.LazyFrame]:
    """Read the files of a run, or what its journal holds so far; a table that the run lacks is left out."""
    if "://" in address or not is_unfinished(Path(address)):
        others = {"samples": SAMPLES, "layers": LAYERS, "largest_batch": LARGEST_BATCH}
        found = {name: _scan_if_there(f"{address}/{name}.parquet", schema) for name, schema in others.items()}
        there = {name: frame for name, frame in found.items() if frame is not None}
        return {"results": read_results(address).lazy(), **there}
    frames, lacking = so_far(Path(address))
    notes.extend(lacking)
    return {name: frame.lazy() for name, frame in frames.items() if name != "layers" or not frame.is_empty()}


def _scan(path: str, schema: dict[str, pl.DataType]) -> pl.LazyFrame:
    """Open a table lazily, with the columns of `schema` alone.

    Raises ConfigError for a file that cannot be read, and for one that lacks a column or has it in another type.
    """
    if "://" not in path:
        check_readable(Path(path))
    try:
        frame = pl.scan_parquet(path, glob=False)
        found = frame.collect_schema()
    except UNREADABLE as error:
        raise _unreadable(path, error) from None
    for name, dtype in schema.items():
        if name not in found:
            raise ConfigError(f"{path}: this is no table of a run (it has no column {name}); {_GIVE}")
        if found[name] != dtype:
            raise ConfigError(f"{path}: the column {name} is of type {found[name]}, not {dtype}; give another run")
    return frame.select(*schema)


def _unreadable(path: str, error: BaseException) -> ConfigError:
    return ConfigError(f"{path}: cannot be read: {first_line(error)}; {_GIVE}")


def _scan_if_there(path: str, schema: dict[str, pl.DataType]) -> pl.LazyFrame | None:
    """A table that a run may lack, as one that was published without."""
    if "://" not in path:
        return _scan(path, schema) if Path(path).is_file() else None
    try:
        return _scan(path, schema)
    except ConfigError:
        return None


def _run_facts(results: pl.LazyFrame, address: str) -> dict[str, dict[str, Any]]:
    """By run id, in the order of the rows, what its rows say of the machine. Raises ConfigError without rows."""
    facts = [pl.col(name).drop_nulls().first() for name in ENVIRONMENT]
    rows = results.group_by("run_id", maintain_order=True).agg(facts).collect().to_dicts()
    if not rows:
        raise ConfigError(f"{address}: this run is empty: results.parquet has no rows; {_GIVE}")
    return {str(row.pop("run_id")): row for row in rows}


def _environment(address: str, facts: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """environment.json with the results' facts where it lacks them; `machine` is what to call the machine."""
    path = f"{address}/environment.json"
    try:
        found = parse_json("\n".join(pl.read_lines(path).to_series())) if "://" in path else read_json(Path(path))
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
    except (*UNREADABLE, ValueError) as error:
        notes.append(f"{path}: cannot be read ({first_line(error)}); the results' columns stand in for it")
        found = {}
    return flat_environment({**facts, **found}, facts["machine"])


def _names(addresses: Sequence[str]) -> list[str]:
    """The end of each address, as long as it needs to be unique."""
    parts = [[part for part in address.split("/") if part not in ("", ".")] or [address] for address in addresses]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return list(addresses)
