"""Read the folders of runs as one table each, lazily; of a run that has no tables yet what its journal holds."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from engines.base import Phase
from engines.catalog import ENGINES, Device
from profiler.errors import ConfigError, nearest, resuming
from profiler.job.case import Filter
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.cells import cells as merge
from profiler.results.columns import LARGEST_BATCH, LAYERS, RESULTS, SAMPLES
from profiler.results.result import WAIT, printable
from profiler.results.row import ENVIRONMENT, flat_environment
from profiler.results.run_folder import RunFolder, open_run_file, read_json, writer
from profiler.tables.numbers import counted, duration, percent

UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""Exceptions of polars for a file that it cannot read; damaged bytes make some of its readers panic."""
_FACTS = ("machine", "device", *ENVIRONMENT)
"""Columns of the results that stand in for an environment.json that cannot be read."""
_SCHEMAS = {"results": RESULTS, "samples": SAMPLES, "layers": LAYERS, "largest_batch": LARGEST_BATCH}
_GIVE = "give a run's folder, such as results/2026…, or a pattern such as 'results/*'"
_SPENT = {"measuring": (Phase.MEASURE, Phase.ENERGY), "building": (Phase.BUILD,), "waiting": (WAIT,)}
"""Phases that a run is for, and its user's waiting; the rest is the price of measuring."""


@dataclass(frozen=True)
class Run:
    """One folder of results, of one or several run ids; `name` tells it apart from the others."""

    address: str
    name: str
    run_ids: tuple[str, ...]
    environment: dict[str, Any]


@dataclass(frozen=True)
class Runs:
    """Several runs as one table each; `layers` is None where no run has any, `notes` say what could not be read."""

    runs: tuple[Run, ...]
    results: pl.LazyFrame
    samples: pl.LazyFrame
    layers: pl.LazyFrame | None
    largest_batches: pl.LazyFrame
    notes: tuple[str, ...] = ()

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """Return by run id what environment.json says; the results' own columns where it cannot be read."""
        return {run_id: run.environment for run in self.runs for run_id in run.run_ids}


def read_runs(addresses: Sequence[str | Path]) -> Runs:
    """Read the runs in these folders, or those of patterns such as "results/*".

    A run id that is in two folders counts once, in the first one. Raises ConfigError for a folder that holds no run, an
    empty one, or one that cannot be read.
    """
    notes: list[str] = []
    known: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {}
    tables: dict[str, list[pl.LazyFrame]] = {name: [] for name in _SCHEMAS}
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
    results, samples, layers, tries = (
        pl.concat([pl.LazyFrame(schema=schema), *tables[name]]) for name, schema in _SCHEMAS.items()
    )
    return Runs(runs, results, samples, layers if tables["layers"] else None, tries, tuple(notes))


def read_results(address: str) -> pl.DataFrame:
    """Read results.parquet in a run's folder; of a case that is in it twice the first row counts."""
    path = f"{address}/results.parquet"
    frame = _scan(path, RESULTS)
    try:
        return frame.unique(["run_id", "case_id"], keep="first", maintain_order=True).collect()
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def load(*runs: str | Path, cells: bool = False) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Return results and samples of one or more runs, lazily: `results, samples = load("results/*")`.

    Each argument is a run's folder or a pattern of folders; errors as for `read_runs`.
    With `cells` the first frame has one row a cell in place of one a process (profiler.results.cells).
    """
    read = read_runs(runs)
    return merge(read.results).lazy() if cells else read.results, read.samples


def load_layers(*runs: str | Path) -> pl.LazyFrame:
    """Return the layers of runs that were made with --profile, lazily; arguments and errors as for `load`."""
    layers = read_runs(runs).layers
    return pl.LazyFrame(schema=LAYERS) if layers is None else layers


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


def is_unfinished(folder: Path) -> bool:
    """Return whether the journal may hold more than the run's tables: another process measures, or there are none."""
    if (folder / "results.parquet").is_file():
        return writer(folder) is not None
    return (folder / "bench.yaml").is_file()


def so_far(folder: Path) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Return the tables of what a run's journal holds, as `RunFolder.frames`, and sentences on what is lacking."""
    run = RunFolder(folder)
    environment, who = run.read_environment(), writer(folder)
    try:
        results = run.results()
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}; give another run's folder") from None
    config = load_config(folder / "bench.yaml")  # As resolved for the run's device.
    kind: Device = "cpu" if config.device == "cpu" else "cuda"
    plan = make_plan(config, kind, hardware=environment.get("compute_capability"))
    frames = run.frames(config.suite, plan, environment)
    if frames["results"].is_empty():
        raise ConfigError(f"{folder}: {_nothing(folder)}")
    done = f"{sum(case.id in results for case in plan)} of {counted(len(plan), 'case')}"
    ended = f"this run was ended early, after {done}; finish it: {resuming(folder)}"
    return frames, [f"{folder}: {f'{who} measures into it; these are {done}' if who else ended}", *run.damages()]


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


def describe(split: Mapping[str, float]) -> str:
    """Say what a run's seconds went into, like "Took 78 s (measuring 33 %, building 39 %, other 28 %)"."""
    total = sum(split.values())
    shares = {what: sum(split.get(phase, 0.0) for phase in phases) for what, phases in _SPENT.items()}
    known = {what: seconds for what, seconds in shares.items() if seconds} | {"other": total - sum(shares.values())}
    parts = [f"{what} {percent(seconds / (total or 1.0))} %" for what, seconds in known.items()]
    return f"Took {duration(total)} ({', '.join(parts)})"


def first_line(error: BaseException) -> str:
    """Say on one line what an error says."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def json_object(text: str | None) -> dict[str, Any]:
    """Parse a text column that holds a JSON object, such as a row's options; null is an empty one."""
    return dict(printable(json.loads(text or "{}")))


def _folders(addresses: Sequence[str | Path], notes: list[str]) -> Iterator[str]:
    """Give every run's folder in the order given, patterns expanded. Raises ConfigError where there is none."""
    if not addresses:
        raise ConfigError(f"no run is given; {_GIVE}")
    for given in map(str, addresses):
        address = given.rstrip("/") or given
        is_pattern = glob.has_magic(address) and not Path(address).is_dir()
        found = sorted(filter(Path.is_dir, map(Path, glob.glob(address)))) if is_pattern else [Path(address)]  # noqa: PTH207
        problems = {folder: why for folder in found if (why := _problem(folder))}
        if not is_pattern and problems:
            raise ConfigError(f"{address}: {problems[found[0]]}")
        if len(problems) == len(found):
            raise ConfigError(f"{address}: no folder with a results.parquet matches; {_GIVE}")
        notes += [f"left out: {folder}: {why}" for folder, why in problems.items()]
        yield from (str(folder) for folder in found if folder not in problems)


def _problem(folder: Path) -> str:
    """Say why a folder holds no run; "" if it does."""
    if not folder.exists():
        return f"there is no such folder; {_GIVE}"
    journal = folder / "journal.jsonl"
    if (folder / "results.parquet").is_file() or (journal.is_file() and journal.stat().st_size):
        return ""
    return _nothing(folder) if is_unfinished(folder) else f"not a run folder (no results.parquet); {_GIVE}"


def _nothing(folder: Path) -> str:
    if who := writer(folder):
        return f"{who} has measured nothing yet; give another run's folder"
    return f"this run was ended before it had measured anything; finish it: {resuming(folder)}"


def _tables(address: str, notes: list[str]) -> dict[str, pl.LazyFrame]:
    """Read the files of a run, or what its journal holds so far; a table that the run lacks is left out."""
    if is_unfinished(Path(address)):
        frames, lacking = so_far(Path(address))
        notes.extend(lacking)
        return {name: frame.lazy() for name, frame in frames.items() if name != "layers" or not frame.is_empty()}
    paths = {name: f"{address}/{name}.parquet" for name in _SCHEMAS}
    others = {name: _scan(path, _SCHEMAS[name]) for name, path in paths.items() if Path(path).is_file()}
    return others | {"results": read_results(address).lazy()}


def _scan(path: str, schema: dict[str, pl.DataType]) -> pl.LazyFrame:
    """Open a table lazily, with the columns of `schema` alone. Raises ConfigError for one that is no such table."""
    try:
        open_run_file(Path(path)).close()
        frame = pl.scan_parquet(path, glob=False)
        found = frame.collect_schema()
    except UNREADABLE as error:
        raise _unreadable(path, error) from None
    for name, dtype in schema.items():
        if found.get(name) != dtype:
            what = f"the column {name} is of type {found[name]}, not {dtype}" if name in found else f"no column {name}"
            raise ConfigError(f"{path}: this is no table of a run ({what}); {_GIVE}")
    return frame.select(*schema)


def _unreadable(path: str, error: BaseException) -> ConfigError:
    return ConfigError(f"{path}: cannot be read: {first_line(error)}; {_GIVE}")


def _run_facts(results: pl.LazyFrame, address: str) -> dict[str, dict[str, Any]]:
    """Return by run id, in the order of the rows, what its rows say of the machine. Raises ConfigError without rows."""
    facts = [pl.col(name).drop_nulls().first() for name in _FACTS]
    rows = results.group_by("run_id", maintain_order=True).agg(facts).collect().to_dicts()
    if not rows:
        raise ConfigError(f"{address}: this run is empty: results.parquet has no rows; {_GIVE}")
    return {str(row.pop("run_id")): row for row in rows}


def _environment(address: str, facts: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Read environment.json, with the results' facts where it lacks them; `machine` is what to call the machine."""
    path = f"{address}/environment.json"
    try:
        found = dict(read_json(Path(path)))
    except (OSError, ValueError, TypeError) as error:
        notes.append(f"{path}: cannot be read ({first_line(error)}); the results' columns stand in for it")
        found = {}
    return flat_environment({**facts, **found}, facts["machine"])


def _names(addresses: Sequence[str]) -> list[str]:
    """Return the end of each address, as long as it needs to be unique."""
    parts = [[part for part in address.split("/") if part not in ("", ".")] or [address] for address in addresses]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return list(addresses)
