"""Read the folders of runs, of this version or an older one, as one table each, lazily."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from engines.catalog import BASES
from profiler.errors import ConfigError, nearest
from profiler.job.case import MARKS, Role
from profiler.job.conditions import Filter
from profiler.results.checked import UNREADABLE, check_types, checked, first_line
from profiler.results.columns import LAYERS, RESULTS, SAMPLES, Group, kind_of_warning, names
from profiler.results.environment import flat_environment, known_facts
from profiler.results.parquet_size import check_size
from profiler.results.run_files import open_run_file, parse_json, read_json
from profiler.results.unfinished import has_journal, is_unfinished, so_far

ENVIRONMENT = ("machine", *names(Group.PLACE, Group.VERSIONS), "device")
"""Columns of the results that tell of the machine, for a run whose environment.json cannot be read."""
_GIVE = "give a run's folder, such as results/2026…, a pattern such as 'results/*', or an address such as s3://…"
Schema = Mapping[str, pl.DataType]
Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


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
    """Several runs as one table each: exactly the columns of profiler/results/columns.py, null where a run lacks one.

    A run that is older than the column `machine` has in it what it would have now: the GPU's name, or the CPU's.
    `layers` is None where no run has any. `notes` say what could not be read or was left out.
    """

    runs: tuple[Run, ...]
    results: pl.LazyFrame
    samples: pl.LazyFrame
    layers: pl.LazyFrame | None
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
    tables: dict[str, list[pl.LazyFrame]] = {"results": [], "samples": [], "layers": []}
    for address in _folders(addresses, notes):
        written = _tables(address, notes)
        results = written["results"]
        assert results is not None, "a run has results, or cannot be read"
        results = checked("results", with_all_columns(results), f"{address}/results.parquet", notes)
        facts = _run_facts(results, address)
        twice = [run_id for run_id in facts if any(run_id in run_ids for run_ids, _ in known.values())]
        if twice:
            notes.append(f"{address}: {', '.join(twice)} is given twice; it counts once")
        run_ids = tuple(run_id for run_id in facts if run_id not in twice)
        if not run_ids:
            continue
        environment = _environment(address, facts[run_ids[0]], notes)
        known[address] = run_ids, environment
        # Written before the columns were: as they would be now.
        machine = pl.coalesce("machine", "gpu", pl.lit(environment["machine"]))
        doubted = bool(environment.get("roofs_disturbance"))
        share = pl.lit(None, pl.Float64) if doubted else pl.col("fraction_of_peak")
        written["results"] = results.with_columns(machine=machine, fraction_of_peak=share)
        if written["samples"] is None:
            notes.append(f"{address}: there is no samples.parquet that can be read")
        for name, frame in written.items():
            if frame is not None:
                sound = frame if name == "results" else checked(name, frame, f"{address}/{name}.parquet", notes)
                tables[name].append(sound.filter(pl.col("run_id").is_in(run_ids)) if twice else sound)
    runs = tuple(Run(address, name, *known[address]) for address, name in zip(known, _names(list(known)), strict=True))
    samples = pl.concat(tables["samples"] or [pl.LazyFrame(schema=SAMPLES)])
    layers = pl.concat(tables["layers"]) if tables["layers"] else None
    return Runs(runs, pl.concat(tables["results"]), samples, layers, tuple(notes))


def read_results(address: str, notes: list[str]) -> pl.LazyFrame:
    """The rows of results.parquet in a run's folder. Raises ConfigError where it cannot be read or none is left."""
    path = f"{address}/results.parquet"
    return checked("results", with_all_columns(_scan(path, RESULTS)), path, notes)


def load(*runs: str | Path) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Results and samples of one or more runs, lazily: `results, samples = load("results/*")`.

    Each argument is a run's folder, a pattern of folders, or an object store's address; errors as for `read_runs`.
    """
    read = read_runs(runs)
    return read.results, read.samples


def load_layers(*runs: str | Path) -> pl.LazyFrame:
    """The layers of one or more runs that were made with --profile, lazily; arguments and errors as for `load`."""
    layers = read_runs(runs).layers
    return pl.LazyFrame(schema=LAYERS) if layers is None else layers


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


def with_all_columns(results: Frame) -> Frame:
    """The rows with exactly the columns of this version; those that they lack are null.

    Rows older than the columns `setting`, `role` and `is_base` get them from `extra`, variant and precision; those
    older than `calibrated` from the warning that comes with a proof. A share of the peak above 1 is left out: it was
    recorded before what rows reach raised a roof, and either is wrong.
    """
    setting, role = pl.col("extra").fill_null(""), pl.lit(Role.CELL)
    for marked, mark in MARKS.items():
        role = pl.when(setting.str.ends_with(mark)).then(pl.lit(marked)).otherwise(role)
    for mark in MARKS.values():
        setting = setting.str.strip_suffix(mark).str.strip_suffix("/")
    bases = [(pl.col("variant") == variant) & (pl.col("precision") == precision) for variant, precision in BASES]
    is_base = pl.any_horizontal(bases) & (pl.col("role") != Role.PROBE)
    kinds = pl.col("warnings").list.eval(kind_of_warning(pl.element()))
    is_proved = (pl.col("precision") == "int8") & pl.col("proof").is_not_null()
    calibrated = pl.when(is_proved).then(~kinds.list.contains("calibration"))
    share = pl.col("fraction_of_peak")
    known = _in_form(results, RESULTS).with_columns(
        setting=pl.coalesce("setting", setting),
        role=pl.coalesce("role", role),
        calibrated=pl.coalesce("calibrated", calibrated),
        fraction_of_peak=pl.when(share <= 1).then(share),
    )
    return known.with_columns(is_base=pl.coalesce("is_base", is_base))


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
        raise ConfigError(f"{address}: cannot be read: {first_line(error)}; {_GIVE}") from None
    return [path.removesuffix("/results.parquet") for path in found]


def _tables(address: str, notes: list[str]) -> dict[str, pl.LazyFrame | None]:
    """The files of a run, or what its journal holds so far; a table that a run may lack is None where it does."""
    if "://" in address or not is_unfinished(Path(address)):
        try:
            results, others = _scan(f"{address}/results.parquet", RESULTS), {"samples": SAMPLES, "layers": LAYERS}
            found = {name: _scan_if_there(f"{address}/{name}.parquet", schema) for name, schema in others.items()}
            return {"results": results, **found}
        except ConfigError as error:
            if "://" in address or not has_journal(Path(address)):
                raise
            notes.append(f"{str(error).removesuffix(_GIVE).rstrip('; ')}; the journal stands in for the tables")
    frames, lacking = so_far(Path(address))
    notes.extend(lacking)
    return {name: None if name == "layers" and frame.is_empty() else frame.lazy() for name, frame in frames.items()}


def _scan(path: str, schema: Schema) -> pl.LazyFrame:
    """The file's columns that `schema` knows, in its order and types; null where the file is older than the column."""
    try:
        if "://" not in path:
            with open_run_file(Path(path)) as file:
                check_size(file)
        frame = pl.scan_parquet(path, glob=False)
        there = frame.collect_schema()
    except (*UNREADABLE, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {first_line(error)}; {_GIVE}") from None
    lacking = [key for key in ("run_id", "case_id") if key not in there]
    if lacking:
        raise ConfigError(f"{path}: this is no table of a run (it has no column {lacking[0]}); {_GIVE}")
    check_types(path, there, schema)
    return _in_form(frame, schema)


def _in_form(frame: Frame, schema: Schema) -> Frame:
    there = frame.collect_schema().names()
    return frame.select(
        (pl.col(name) if name in there else pl.lit(None).alias(name)).cast(dtype, strict=False)
        for name, dtype in schema.items()
    )


def _scan_if_there(path: str, schema: Schema) -> pl.LazyFrame | None:
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
    try:
        rows = results.group_by("run_id", maintain_order=True).agg(facts).collect().to_dicts()
    except UNREADABLE as error:
        raise ConfigError(f"{address}/results.parquet: cannot be read: {first_line(error)}; {_GIVE}") from None
    if not rows:
        raise ConfigError(f"{address}: this run is empty: results.parquet has no rows that can be used; {_GIVE}")
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
    found, wrong = known_facts(found)
    if wrong:
        notes.append(f"{path}: left out, since no run writes them so: {', '.join(wrong)}")
    return flat_environment({**facts, **found}, facts["machine"])


def _names(addresses: Sequence[str]) -> list[str]:
    """The end of each address, as long as it needs to be unique."""
    parts = [[part for part in address.split("/") if part not in ("", ".")] or [address] for address in addresses]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-length:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return list(addresses)
