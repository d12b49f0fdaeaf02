"""Keep a run's folder: its lock, a journal line per finished case, and Parquet files and tables at the end."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import polars as pl
from filelock import FileLock, Timeout

from exporters import named_files
from exporters.dataset import is_function, item_order
from exporters.errors import printable
from exporters.metrics import METRICS
from exporters.named_files import NO_ROOM, write_whole
from exporters.source import Identity
from profiler.errors import ConfigError, naming_limits, resuming
from profiler.job.case import Case
from profiler.job.config import Config
from profiler.job.mistakes import to_yaml
from profiler.machine.target import host_and_user
from profiler.results import columns
from profiler.results.cells import CONFIGURATION, OK, PROBLEM, largest, not_measured
from profiler.results.columns import FACTOR, LAYERS, MEASURE, RESULTS, SAMPLES, SCORES, TEXT, Group, names
from profiler.results.layers import layer_rows
from profiler.results.losses import with_losses
from profiler.results.result import Result
from profiler.results.roofline import placed, raised
from profiler.results.row import ENVIRONMENT, row_of
from profiler.results.schema import FACTS, IDENTITIES, check_result, check_try, read_json
from profiler.results.spread import with_spread
from profiler.tables.writers import csv, parquet

_NO_RESULT = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Exceptions that damaged lines raise."""
_MOST_JOURNAL_BYTES = 2**33
_NOT_REACHED = "the run ended before; --resume measures it"
_TIMES = names(Group.LATENCY, Group.CLOCKS, Group.PARTS, Group.THROUGHPUT, Group.COST, Group.ACCURACY)
_FACTORS = [*CONFIGURATION, "processes", "latency_ms", "latency_low_ms", "latency_high_ms", "base"]
_FACTORS += [*FACTOR, "verdict", "error", "error_high", "footnotes"]


def read_text(path: Path) -> str:
    """Read a run's file as printable text, empty for a missing file. Raises OSError."""
    if not named_files.exists(path):
        return ""
    return str(printable(named_files.read_bytes(path).decode("utf-8", errors="replace")))


def append_line(journal: Path, line: str) -> None:
    """Add a JSON object, on the disk when this returns. Raises OSError."""
    with journal.open("ab+") as file:
        # Begin a new line if a crash cut off the last one.
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.write(b"\n")
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(journal: Path) -> list[str]:
    """Read every line, except one that a crash cut off."""
    if not named_files.exists(journal):
        return []
    text = named_files.read_bytes(journal, _MOST_JOURNAL_BYTES).decode("utf-8", errors="replace")
    return [line for line in text.split("\n") if line.endswith("}")]


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Lock a run's folder. Raises ConfigError if it is locked or removed, or the disk or the processes run out."""
    try:
        with naming_limits(f"go on with: {resuming(folder)}"), FileLock(folder / "lock", timeout=0):
            yield
    except Timeout:
        raise ConfigError(f"{folder}: another process measures into it; wait until that ends, or end it") from None
    except OSError as error:
        if not folder.exists():
            raise ConfigError(f"{folder}: was removed while the run measured into it; start a new run") from None
        if error.errno not in NO_ROOM:
            raise
        advice = f"the journal keeps what has been measured: make room, then go on with: {resuming(folder)}"
        raise ConfigError(f"{error.filename or folder}: {error.strerror}; {advice}") from None


@contextlib.contextmanager
def writable(place: Path, option: str) -> Iterator[None]:
    """Raise ConfigError if writing there fails, with the option that gives another place."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{place}: cannot be written: {why}; give another place by {option}") from None


class RunFolder:
    """One run: `bench.yaml`, `environment.json`, `models.json`, `journal.jsonl`, Parquet files, `tables/`, `logs/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.logs = path / "logs"
        self.tables = path / "tables"
        self.journal = path / "journal.jsonl"
        self.tries = path / "largest_batch.jsonl"
        self._models = path / "models.json"
        self._environment: dict[str, Any] = {}
        self.damaged = 0

    @classmethod
    def create(cls, output: Path) -> RunFolder:
        """Make a folder in `output`, named <UTC time>-<host>-<4 hex>. Raises ConfigError if that fails."""
        host = socket.gethostname().partition(".")[0]
        run = cls(output / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{host}-{secrets.token_hex(2)}")
        with writable(output, "--output"):
            run.logs.mkdir(parents=True)
        return run

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """Open the folder of an earlier run. Raises ConfigError for another folder."""
        if not named_files.is_file(path / "bench.yaml"):
            raise ConfigError(f"--resume {path}: no run was written there; give a run's folder, such as results/2026…")
        run = cls(path.resolve())
        run.logs.mkdir(exist_ok=True)
        return run

    def write_config(self, config: Config) -> None:
        """Write the resolved config; paths inside this folder are relative, so that it can be moved."""
        data = as_job(config)
        inside = [(data, "import_from"), *((model, "inputs") for model in data["models"] if "inputs" in model)]
        for keys, key in inside:
            keys[key] = moved(keys[key], self.path.absolute())
        write_whole(self.path / "bench.yaml", to_yaml(data))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write environment.json, for the results appended from now on."""
        self._environment = {name: environment[name] for name in ENVIRONMENT if name in environment}
        write_whole(self.path / "environment.json", json.dumps(environment, indent=2) + "\n")

    def read_environment(self) -> dict[str, Any]:
        """Read environment.json. Raises ConfigError for a damaged one."""
        return read_json(self.path / "environment.json", FACTS)

    def write_models(self, identities: Mapping[str, Identity]) -> None:
        """Add each model's identity to models.json."""
        lines = {name: asdict(identity) for name, identity in {**self.read_models(), **identities}.items()}
        write_whole(self._models, json.dumps(lines, indent=2, default=repr) + "\n")

    def read_models(self) -> dict[str, Identity]:
        """Read models.json, if there is one. Raises ConfigError for a damaged one."""
        return models_of(read_json(self._models, IDENTITIES))

    def append(self, result: Result) -> Result:
        """Write the result to the journal, synced to the disk, and return it; invalid values make it a failed one."""
        columns.check([*result.figures, *result.clocks])
        result = replace(result, environment=result.environment or self._environment)
        try:
            written = _parsed(line := result.to_json())
        except _NO_RESULT as error:
            failed = Result(result.case_id, "failed", [f"its figures cannot be kept: {error}"])
            written = _parsed(line := replace(failed, environment=result.environment).to_json())
        try:
            append_line(self.journal, line)
            self._results[written.case_id] = written
        except BaseException:  # An interrupt may come once the line is on the disk: read the journal again.
            vars(self).pop("_results", None)
            raise
        return written

    def append_try(self, case: Case, result: Result) -> None:
        """Write a try of the search for the largest batch, synced to the disk."""
        tried: dict[str, Any] = {"pass": case.pass_, "status": result.status, "reason": result.reason}
        tried |= {name: getattr(case, name) for name in ("model", "variant", "precision", "setting", "batch_size")}
        tried |= {"peak_memory_mib": result.figures.get("peak_memory_mib")}
        append_line(self.tries, json.dumps(printable(tried)))

    @cached_property
    def _results(self) -> dict[str, Result]:
        """Read the journal, once: `append` adds to the results."""
        results, self.damaged = dict[str, Result](), 0
        for line in read_lines(self.journal):
            try:
                result = _parsed(line)
                results[result.case_id] = result
            except _NO_RESULT:
                self.damaged += 1
        return results

    def results(self) -> dict[str, Result]:
        """Return the results by case id; the last readable line of a case counts."""
        return dict(self._results)

    def largest_batches(self) -> pl.DataFrame:
        """Return one row per try of the search for the largest batch; a try's last line counts."""
        rows = list[dict[str, Any]]()
        for line in read_lines(self.tries):
            with contextlib.suppress(*_NO_RESULT):
                row = dict.fromkeys(columns.LARGEST_BATCH) | {**json.loads(line), "run_id": self.run_id}
                check_try(row)
                rows.append(row)
        tries = pl.DataFrame(rows, schema=columns.LARGEST_BATCH)
        axes = ["model", "variant", "pass", "precision", "setting", "batch_size"]
        return tries.unique(axes, keep="last", maintain_order=True).sort("batch_size", maintain_order=True)

    def ended_cases(self, cases: Iterable[Case]) -> list[Case]:
        """Return the finished cases, in the plan's order.

        Replicates beyond the plan come last: they confirm a choice that earlier ones made.
        """
        results = self._results
        finished = {case.id: case for case in cases if case.id in results} if results else {}
        for case in [case for case in finished.values() if not case.replicate]:
            replicates = (replace(case, replicate=number) for number in count(1))
            for replicate in takewhile(lambda replicate: replicate.id in results, replicates):
                finished.setdefault(replicate.id, replicate)
        return list(finished.values())

    def ended(
        self, suite: str, cases: Sequence[Case], environment: Mapping[str, Any]
    ) -> tuple[list[tuple[Case, Result]], pl.DataFrame]:
        """Return `ended_cases` with their results, and their rows."""
        planned = {case.id for case in cases}
        ended = [(case, self._results[case.id]) for case in self.ended_cases(cases)]
        roofs = raised(environment.get("roofs") or {}, ended)
        done = [(case, placed(case, result, roofs)) for case, result in ended]
        rows = [
            row_of(result, case, self.run_id, suite, environment, confirming=case.id not in planned)
            for case, result in done
        ]
        frame = with_losses(pl.DataFrame(rows, RESULTS), {case.id: result.scores for case, result in done})
        return done, with_spread(frame, environment.get("spread"))

    def write_parquet(
        self, suite: str, cases: Sequence[Case], environment: Mapping[str, Any], waiting: Iterable[Case] = ()
    ) -> tuple[pl.DataFrame, list[tuple[Case, Result]]]:
        """Write the finished cases in the plan's order, then `waiting`; return rows and `ended`. Raises OSError."""
        done, results = self.ended(suite, cases, environment)
        unreached = [(case, Result(case.id, "waiting", [_NOT_REACHED])) for case in waiting if done]
        rows = [row_of(result, case, self.run_id, suite, environment) for case, result in unreached]
        results = results.vstack(pl.DataFrame(rows, RESULTS))
        layers = [row for _, result in done for row in _layers(self.run_id, result)]
        frames = {
            "results": results,
            "samples": _samples(self.run_id, [result for _, result in done]),
            "layers": pl.DataFrame(layers, LAYERS),
            "scores": pl.DataFrame(_scores(self.run_id, [result for _, result in done]), SCORES, orient="row"),
            "largest_batch": self.largest_batches(),
        }
        for name, frame in frames.items():
            if name in ("results", "samples") or not frame.is_empty():
                write_whole(self.path / f"{name}.parquet", parquet(frame))
        return results, done


def write_tables(folder: Path, results: pl.DataFrame, cells: pl.DataFrame, tries: pl.DataFrame | None = None) -> None:
    """Write each table as CSV; `tries` are those of the search for the largest batch."""
    folder.mkdir(exist_ok=True)
    tables = {
        "latency": results.filter(OK).select([*CONFIGURATION, "replicate", *_TIMES, "warnings"]),
        "memory": results.filter(OK).select([*CONFIGURATION, "replicate", *names(Group.MEMORY)]),
        "speedup": cells.filter(OK).select(_FACTORS),
        "not-measured": not_measured(results, PROBLEM, pl.first("log")),
    }
    if "layer" in results["model_kind"]:
        tables["layer-passes"] = layer_rows(results)
    if tries is not None and not tries.is_empty():
        tables["largest-batch"] = largest(tries)
    for name, frame in tables.items():
        write_whole(folder / f"{name}.csv", csv(frame))


def _parsed(line: str) -> Result:
    result = Result.from_json(line)
    check_result(result)
    columns.check([*result.figures, *result.clocks])
    return result


def _layers(run_id: str, result: Result) -> list[dict[str, Any]]:
    total = sum(layer["ms"] for layer in result.layers)
    ids = {"run_id": run_id, "case_id": result.case_id}
    shares = [layer["ms"] / total if total else 0.0 for layer in result.layers]
    return [{**ids, "order": n, **layer, "share": shares[n]} for n, layer in enumerate(result.layers)]


def _scores(run_id: str, results: Iterable[Result]) -> list[tuple[str, str, int, float]]:
    pairs = ((r.case_id, zip(item_order(r.data_items or 0).tolist(), r.scores, strict=False)) for r in results)
    return [(run_id, case_id, item, score) for case_id, scores in pairs for item, score in scores]


def _samples(run_id: str, results: Iterable[Result]) -> pl.DataFrame:
    series = [(result.case_id, *clock) for result in results for clock in result.samples.items()]
    schema = {"case_id": TEXT, "clock": TEXT, "ms": pl.List(MEASURE)}
    frame = pl.DataFrame(series, schema=schema, orient="row").with_columns(run_id=pl.lit(run_id))
    index = pl.int_ranges(pl.col("ms").list.len())
    # A clock without samples has no rows.
    return frame.with_columns(index=index).explode("index", "ms").drop_nulls("ms").select(*SAMPLES)


def models_of(lines: Mapping[str, Any]) -> dict[str, Identity]:
    """Parse the content of models.json. Raises ValueError, TypeError or KeyError for any other content."""
    return {name: Identity(dict(line["parts"])) for name, line in lines.items()}


def as_job(config: Config) -> dict[str, Any]:
    """Return a config as a job's file writes it, with absolute paths."""
    data = config.model_dump(mode="json", exclude_none=True, by_alias=True) | {"output": str(config.output.resolve())}
    for model in data["models"]:
        for key in [k for k in ("inputs", "dimensions", "options", "prefix", "outputs") if not model.get(k)]:
            del model[key]
    return data


def moved(value: Any, folder: Path, to: Path = Path()) -> Any:
    """Move the absolute paths below `folder` in a part of a job to below `to`, by default to relative paths."""
    if isinstance(value, dict):
        return {key: moved(part, folder, to) for key, part in value.items()}
    if isinstance(value, list):
        return [moved(part, folder, to) for part in value]
    library, colon, path = value.rpartition(":") if isinstance(value, str) else ("", "", "")  # As in hf:FOLDER.
    inside = Path(path).is_absolute() and Path(path).is_relative_to(folder)
    return f"{library}{colon}{to / Path(path).relative_to(folder)}" if inside else value


def without_foreign_code(config: Config, folder: Path, option: str, trusted: bool) -> Config:
    """Drop folders of code from a job of another user or host. Raises ConfigError if it needs them."""
    if trusted or host_and_user().items() <= RunFolder(folder).read_environment().items():
        return config
    factories = [f"{entry.factory} (of {entry.name})" for entry in config.models if entry.factory]
    factories += config.training.losses
    factories += [entry.data for entry in config.models if entry.data and is_function(entry.data)]
    factories += [entry.metric for entry in config.models if entry.metric and entry.metric not in METRICS]
    if named := ", ".join(factories):
        places = ", ".join(map(str, config.import_from))
        advice = "read that code, then add --trust-code"
        raise ConfigError(f"{option}: another host or user made this run, which calls {named} from {places}; {advice}")
    return config.model_copy(update={"import_from": []})
