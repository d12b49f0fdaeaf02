"""Write a run's folder: the journal as cases end, Parquet files at the end."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from exporters.source import Identity
from exporters.whole_file import write_whole
from profiler.errors import ConfigError
from profiler.job.case import Case, CaseId
from profiler.job.config import Config
from profiler.results import columns, journal, spread, warning_kinds
from profiler.results.columns import LAYERS, MEASURE, RESULTS, SAMPLES, TEXT, whole_row
from profiler.results.result import Result, measured_in
from profiler.results.roofline import placed, raised
from profiler.results.run_files import open_run_file, read_json
from profiler.stats.intervals import Spreads
from profiler.tables.numbers import counted
from profiler.tables.writers import parquet

_NO_RESULT = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What a line raises that is no result."""
_NO_ROW = (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError)
"""What is raised for rows of which a value is none of its column's."""


@dataclass(frozen=True)
class RecordedModel:
    """What a model was when the run measured it first."""

    identity: Identity
    since: str


class RunFolder:
    """One run: `bench.yaml` as resolved, `environment.json`, `models.json`, `journal.jsonl`, Parquet files, `tables/`,
    `logs/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.logs = path / "logs"
        self.tables = path / "tables"
        self.journal = path / "journal.jsonl"
        self._tries = path / "largest_batch.jsonl"
        self._models = path / "models.json"
        self._here: dict[str, Any] = {}
        self._read: tuple[tuple[int, int] | None, dict[CaseId, Result], int] | None = None

    @classmethod
    def create(cls, output: Path) -> RunFolder:
        """A new folder inside `output`, named <UTC time>-<host>-<4 hex>. Raises ConfigError if it cannot be made."""
        host = socket.gethostname().partition(".")[0]
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{host}-{secrets.token_hex(2)}"
        run = cls(output / name)
        try:
            run.logs.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"output {output}: {error.strerror}; give another folder by --output") from None
        return run

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """The folder of an earlier run. Raises ConfigError if it is none."""
        run = cls(path.resolve())
        if not (path / "bench.yaml").is_file():
            raise ConfigError(f"--resume {path}: not a run folder (no bench.yaml); give a folder such as results/2026…")
        run.logs.mkdir(exist_ok=True)
        return run

    def write_config(self, config: Config) -> None:
        """The config as resolved for this device, so that it can be run again as it is.

        Paths are absolute, but what a live module was saved in is found in this folder wherever that is moved.
        """
        data = config.model_dump(mode="json", exclude_none=True, by_alias=True)
        own = [path.relative_to(self.path) if path.is_relative_to(self.path) else path for path in config.import_from]
        data["import_from"] = list(map(str, own))
        for model in data["models"]:
            for key in [k for k in ("dimensions", "options", "prefix", "outputs") if not model.get(k)]:
                del model[key]
            if model.get("inputs"):
                model["inputs"] = relative_to(self.path, model["inputs"])
        write_whole(self.path / "bench.yaml", yaml.safe_dump(data, sort_keys=False, allow_unicode=True))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Results that are appended from now on were measured in this environment."""
        self._here = dict(environment)
        write_whole(self.path / "environment.json", json.dumps(environment, indent=2) + "\n")

    def read_environment(self) -> dict[str, Any]:
        """What environment.json says, nothing where it cannot be read: lines of the journal say it of themselves."""
        try:
            environment = read_json(self.path / "environment.json")
        except (OSError, ValueError):
            return {}
        return environment if isinstance(environment, dict) else {}

    def write_models(self, identities: Mapping[str, Identity]) -> None:
        """Record in models.json what each model is; one that has not changed stays as it was recorded first."""
        known, now = self.read_models(), f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        for name, identity in identities.items():
            if name not in known or known[name].identity.changes(identity):
                known[name] = RecordedModel(identity, now)
        lines = {name: {"since": model.since, **asdict(model.identity)} for name, model in known.items()}
        write_whole(self._models, json.dumps(lines, indent=2, default=repr) + "\n")

    def read_models(self) -> dict[str, RecordedModel]:
        """What models.json says, nothing in a run that has none. Raises ConfigError where it cannot be read."""
        try:
            if not self._models.exists():
                return {}
            with open_run_file(self._models) as file:
                lines = json.load(file).items()
            if not all(isinstance(one["parts"], dict) and isinstance(one["since"], str) for _, one in lines):
                raise TypeError("a model's parts are no mapping, or its date is no text")
            return {
                name: RecordedModel(Identity(one["parts"], one["repeatable"], tuple(one["remarks"])), one["since"])
                for name, one in lines
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ConfigError(f"{self._models}: cannot be read; start a new run") from None

    def append(self, result: Result) -> Result:
        """Add one line to the journal, on the disk when this returns; returns the result as the journal has it.

        A result that says nothing of where it was measured was measured here. One with a value that no reader takes, as
        a sample that is no time, is a failed one.
        """
        kept = self._append(self.journal, result)
        self._read = None  # While cases are measured nothing is to fill the memory.
        return kept

    def append_try(self, result: Result) -> None:
        """Add one line to the tries of the search for the largest batch, on the disk when this returns."""
        self._append(self._tries, result)

    def _append(self, path: Path, result: Result) -> Result:
        here = result.environment or measured_in(self._here)
        result = replace(result, environment=here)
        warning_kinds.check(result.warnings)
        columns.check([*result.figures, *result.clocks])
        try:
            kept = Result.from_json(line := result.to_json())
        except _NO_RESULT as error:
            line = Result(result.case_id, "failed", [f"its figures cannot be kept: {error}"]).to_json()
            kept = Result.from_json(line)
        journal.append(path, line)
        return kept

    def results(self) -> dict[CaseId, Result]:
        """The journal's results by case id; the last line of a case counts, one that cannot be read does not."""
        return self._read_journal()[0]

    def tries(self) -> dict[CaseId, Result]:
        """Return the tries of the search for the largest batch by case id; the last line of one counts."""
        return _results_in(self._tries)[0]

    def largest_batches(self) -> pl.DataFrame:
        """Return one row a try of the search for the largest batch."""
        rows = [
            {
                **{name: getattr(id_, name) for name in ("model", "variant", "precision", "setting", "batch_size")},
                "run_id": self.run_id,
                "pass": id_.pass_,
                "status": result.status,
                "reason": result.reason,
                "peak_memory_mib": result.figures.get("peak_memory_mib"),
            }
            for id_, result in self.tries().items()
        ]
        return pl.DataFrame(rows, schema=columns.LARGEST_BATCH).sort("batch_size", maintain_order=True)

    def unreadable_lines(self) -> int:
        """How many of the journal's lines are damaged, or are no results."""
        return self._read_journal()[1]

    def _read_journal(self) -> tuple[dict[CaseId, Result], int]:
        """What `results` and `unreadable_lines` are; it is parsed once as long as nobody writes into it."""
        facts = self.journal.stat() if self.journal.exists() else None
        written = facts and (facts.st_size, facts.st_mtime_ns)
        if self._read is None or self._read[0] != written:
            self._read = written, *_results_in(self.journal)
        _, known, unreadable = self._read
        return dict(known), unreadable

    def write_parquet(
        self, suite: str, cases: Sequence[Case], environment: Mapping[str, Any]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Write `frames`, some only where they have rows; returns results and samples. Raises OSError."""
        frames = self.frames(suite, cases, environment)
        for name, frame in frames.items():
            if name not in ("layers", "largest_batch") or not frame.is_empty():
                write_whole(self.path / f"{name}.parquet", parquet(frame))
        return frames["results"], frames["samples"]

    def frames(self, suite: str, cases: Sequence[Case], environment: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
        """Results, samples and layers of every case that has ended, in the plan's order; tries of a search."""
        known = self.results()
        ended = [(case, known[case.id]) for case in cases if case.id in known]
        roofs = raised(environment.get("roofs") or {}, ended)
        done = [(case, placed(case, result, roofs)) for case, result in ended]
        spreads = spread.spreads(environment.get("spread") or {}, spread.of_bases(done))
        try:
            results = _frame([result.row(self.run_id, suite, case, environment, spreads) for case, result in done])
        except _NO_ROW:
            results = _frame([self._row(suite, case, result, environment, spreads) for case, result in done])
        samples = _samples(self.run_id, [result for _, result in done])
        layers = [row for _, result in done for row in _layers(self.run_id, result)]
        frames = {"results": results, "samples": samples, "layers": pl.DataFrame(layers, schema=LAYERS)}
        return {**frames, "largest_batch": self.largest_batches()}

    def _row(
        self, suite: str, case: Case, result: Result, environment: Mapping[str, Any], spreads: Spreads
    ) -> dict[str, Any]:
        """The result's row; a failed one where what it holds is no value of a column."""
        try:
            row = result.row(self.run_id, suite, case, environment, spreads)
            _frame([row])
        except _NO_ROW as error:
            why = f"its figures cannot be written as a row: {str(error).splitlines()[0]}"
            return Result(case.id, "failed", [why]).row(self.run_id, suite, case, environment, spreads)
        return row


def _results_in(path: Path) -> tuple[dict[CaseId, Result], int]:
    """Read the results by case id, and count the lines that are none."""
    found = dict[CaseId, Result]()
    lines, bad = journal.read_lines(path)
    for line in lines:
        try:
            result = Result.from_json(line)
            columns.check([*result.figures, *result.clocks])
            found[result.case_id] = result
        except _NO_RESULT:
            bad += 1
    return found, bad


def damages(run: RunFolder) -> list[str]:
    """What of the run's files cannot be read, one sentence each."""
    notes = []
    if count := run.unreadable_lines():
        lines = counted(count, "line")
        notes.append(f"{run.journal}: {lines} cannot be read; --resume measures again what they held")
    if run.journal.exists() and not run.read_environment():
        notes.append(f"{run.path / 'environment.json'}: cannot be read, so the machine is not compared")
    return notes


def _frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(map(whole_row, rows)), schema=RESULTS)


def _layers(run_id: str, result: Result) -> list[dict[str, Any]]:
    total = sum(layer["ms"] for layer in result.layers)
    own = {"run_id": run_id, "case_id": str(result.case_id)}
    shares = [layer["ms"] / total if total else 0.0 for layer in result.layers]
    return [{**own, "order": n, **layer, "share": shares[n]} for n, layer in enumerate(result.layers)]


def _samples(run_id: str, results: Iterable[Result]) -> pl.DataFrame:
    series = [(str(result.case_id), *clock) for result in results for clock in result.samples.items()]
    schema = {"case_id": TEXT, "clock": TEXT, "ms": pl.List(MEASURE)}
    frame = pl.DataFrame(series, schema=schema, orient="row").with_columns(run_id=pl.lit(run_id))
    index = pl.int_ranges(pl.col("ms").list.len())
    # A clock without samples has no rows.
    return frame.with_columns(index=index).explode("index", "ms").drop_nulls("ms").select(*SAMPLES)


def relative_to(folder: Path, value: Any) -> Any:
    """A part of a job, in which the paths of files in the folder are relative to it."""
    if isinstance(value, dict):
        return {key: relative_to(folder, part) for key, part in value.items()}
    if isinstance(value, list):
        return [relative_to(folder, part) for part in value]
    inside = isinstance(value, str) and Path(value).is_absolute() and Path(value).is_relative_to(folder.absolute())
    return str(Path(value).relative_to(folder.absolute())) if inside else value
