"""What enters: Results as they come. What leaves: a run's folder, journal first, Parquet last."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from profiler.errors import ConfigError
from profiler.job.case import Case, CaseId
from profiler.job.config import Config
from profiler.results import columns, warning_kinds
from profiler.results.columns import LAYERS, RESULTS, SAMPLES, whole_row
from profiler.results.result import Result


class RunFolder:
    """One run: `bench.yaml` as resolved, `environment.json`, `journal.jsonl`, Parquet files, `tables/`, `logs/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.logs = path / "logs"
        self.tables = path / "tables"
        self.journal = path / "journal.jsonl"

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
        """The config as resolved for this device, with absolute paths, so that it can be run again as it is."""
        data = config.model_dump(mode="json", exclude_none=True, by_alias=True)
        for model in data["models"]:
            for key in [k for k in ("dimensions", "options") if not model.get(k)]:
                del model[key]
        (self.path / "bench.yaml").write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        (self.path / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")

    def read_environment(self) -> dict[str, Any]:
        """What environment.json says. Raises ConfigError where it cannot be read."""
        try:
            environment: dict[str, Any] = json.loads((self.path / "environment.json").read_text())
        except (OSError, ValueError):
            raise ConfigError(f"--resume {self.path}: its environment.json cannot be read; start a new run") from None
        return environment

    def append(self, result: Result) -> None:
        """Add one line to the journal and flush it to the disk: what has been measured survives a crash."""
        warning_kinds.check(result.warnings)
        columns.check([*result.figures, *result.clocks])
        with self.journal.open("ab+") as file:
            # A line that a crash cut off must not swallow this one.
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")
            file.write(result.to_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def results(self) -> dict[CaseId, Result]:
        """The journal's results by case id; the last line of a case counts, a line cut off by a crash does not."""
        found: dict[CaseId, Result] = {}
        if self.journal.exists():
            for line in self.journal.read_text().splitlines():
                try:
                    result = Result.from_json(line)
                    columns.check([*result.figures, *result.clocks])
                except (ValueError, TypeError, KeyError):
                    continue
                found[result.case_id] = result
        return found

    def write_parquet(
        self, suite: str, cases: Sequence[Case], environment: Mapping[str, Any]
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Write and return results and samples of every case that has ended, in the plan's order."""
        found = self.results()
        done = [(case, found[case.id]) for case in cases if case.id in found]
        rows = [result.row(self.run_id, suite, case, environment) for case, result in done]
        results = pl.DataFrame(list(map(whole_row, rows)), schema=RESULTS)
        samples = pl.concat([_samples(self.run_id, result) for _, result in done] or [pl.DataFrame(schema=SAMPLES)])
        results.write_parquet(self.path / "results.parquet")
        samples.write_parquet(self.path / "samples.parquet")
        layers = [row for _, result in done for row in _layers(self.run_id, result)]
        if layers:
            pl.DataFrame(layers, schema=LAYERS).write_parquet(self.path / "layers.parquet")
        return results, samples


def _layers(run_id: str, result: Result) -> list[dict[str, Any]]:
    total = sum(layer["ms"] for layer in result.layers)
    return [
        {
            "run_id": run_id,
            "case_id": str(result.case_id),
            "order": order,
            **layer,
            "share": layer["ms"] / total if total else 0.0,
        }
        for order, layer in enumerate(result.layers)
    ]


def _samples(run_id: str, result: Result) -> pl.DataFrame:
    columns: Iterable[tuple[str, list[float]]] = result.samples.items()
    return pl.concat(
        [
            pl.DataFrame(
                {
                    "run_id": run_id,
                    "case_id": str(result.case_id),
                    "clock": clock,
                    "index": range(len(values)),
                    "ms": values,
                },
                schema=SAMPLES,
            )
            for clock, values in columns
        ]
        or [pl.DataFrame(schema=SAMPLES)]
    )
