"""Take hosts, users and folders of a machine out of runs, and write what is left as a folder to publish."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from exporters.whole_file import write_whole
from profiler.errors import ConfigError
from profiler.results.reading import read_results
from profiler.results.run_folder import RunFolder, read_text
from profiler.results.spread import with_spread
from profiler.tables.writers import parquet

_PUBLIC = (
    *("machine", "gpu", "cpu", "device", "cuda", "driver", "cudnn", "python", "platform", "packages", "untested"),
    *("gpu_memory_mib", "memory_mib", "compute_capability", "cpu_cores", "torch_threads", "roofs"),
    *("sampling_seconds", "wall_seconds", "command", "earlier_commands"),
)
"""Keys of environment.json to publish, besides the versions of runtimes."""
_GIVEN = ("machine", "cloud", "instance")
"""Columns, and keys, whose text the user gave for others to read."""
_PATH = re.compile(r"https?://\S+|(?:(?<![\w.~/-])|(?<=-[IL]))~?/[^\s\"'`,;:()\[\]{}<>|\\]+")
_RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-[^\s\"'/]+-([0-9a-f]{4})\b")
_HOMES = re.compile(r"/(?:home|Users)/([^/\s\"']+)")
_SHARED_ACCOUNTS = {"root", "user", "admin", "ubuntu", "debian", "ec2-user", "azureuser", "runner", "jovyan"}
_FOLDERS = re.compile(r"^(?:output|import_from):.*\n(?:[ -].*\n)*", re.MULTILINE)
"""Keys of a job that name folders."""
_ABSOLUTE = re.compile(r"(?<![\w.~/<-])~?/\w[\w.-]*|\b[A-Za-z]:\\[\w\\.-]+")


@dataclass(frozen=True)
class Run:
    """A run's rows, what it knows of its machine, and the text of its job (empty where the folder has none)."""

    folder: Path
    results: pl.DataFrame
    environment: dict[str, Any]
    job: str = ""

    @property
    def label(self) -> str | None:
        """Return what the user calls the machine."""
        machine = self.environment.get("machine")
        return (machine.get("label") if isinstance(machine, dict) else machine) or None


def read_run(folder: Path) -> Run:
    """Read a run's folder; only its own rows give the spread. Raises ConfigError for a missing or damaged file."""
    environment = RunFolder(folder).read_environment()
    return Run(folder, with_spread(read_results(folder)), environment, read_text(folder / "bench.yaml"))


def clean(runs: Sequence[Run]) -> list[Run]:
    """Take out what names a host, a user or a folder. Raises ConfigError where something is left."""
    hosts = {host for run in runs for host in (run.environment.get("host"), *run.results["host"].unique()) if host}
    hosts |= {host.partition(".")[0] for host in hosts}
    users = {name for run in runs for text in _texts(run) for name in _HOMES.findall(text)}
    users |= {str(run.environment["user"]) for run in runs if run.environment.get("user")}
    names = {"host": hosts, "user": users - _SHARED_ACCOUNTS}
    patterns = {word: _any_of(names) for word, names in names.items() if names}
    cleaned = [_clean(run, patterns) for run in runs]
    for run in cleaned:
        checks = (_ABSOLUTE, *patterns.values())
        if left := sorted({match for text in _texts(run) for check in checks for match in check.findall(text)}):
            raise ConfigError(f"{run.folder}: still names {', '.join(left)}: take that out of the job, measure again")
    return cleaned


def write_run(folder: Path, runs: Sequence[Run]) -> None:
    """Write all rows of cleaned runs as one table, the first one's machine and job, and all commands.

    A run that is there twice, published and as it was, counts as given last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = pl.concat([run.results for run in runs]).unique(["run_id", "case_id"], keep="last", maintain_order=True)
    write_whole(folder / "results.parquet", parquet(rows))
    known = [run.environment for run in runs]
    given = [words for facts in known for words in (*facts.get("earlier_commands", []), facts.get("command"))]
    commands = [list(words) for words in dict.fromkeys(map(tuple, filter(None, given)))]
    told = {"earlier_commands": commands[:-1], "command": commands[-1]} if len(runs) > 1 and commands else {}
    write_whole(folder / "environment.json", json.dumps(known[0] | told, indent=2) + "\n")
    if runs[0].job:
        write_whole(folder / "bench.yaml", runs[0].job)


def _clean(run: Run, patterns: Mapping[str, re.Pattern[str]]) -> Run:
    def text(value: Any) -> Any:
        if isinstance(value, str):
            value = _RUN_ID.sub(r"\1-\2", _PATH.sub(_last_part, value))
            for word, names in patterns.items():
                value = names.sub(word, value)
            return value
        if isinstance(value, dict):
            return {key: text(item) for key, item in value.items()}
        return [text(item) for item in value] if isinstance(value, list) else value

    known = run.environment
    kept = [key for key in known if key in _PUBLIC or key.endswith("_version")]
    environment = {key: known[key] if key in _GIVEN else text(known[key]) for key in kept}
    environment |= {"command": text(_command(known["command"]))} if known.get("command") else {}
    if known.get("earlier_commands"):
        environment["earlier_commands"] = [text(_command(words)) for words in known["earlier_commands"] if words]
    job = re.sub(r"(?m)^device: cuda:\d+", "device: cuda", text(_FOLDERS.sub("", run.job)))
    texts = [c for c, t in run.results.schema.items() if t in (pl.String, pl.List(pl.String)) and c not in _GIVEN]
    rows = run.results.with_columns(pl.Series(c, text(run.results[c].to_list()), run.results.schema[c]) for c in texts)
    rows = rows.with_columns(host=pl.lit(None, pl.String), log=pl.lit(None, pl.String))  # Logs are not published.
    return Run(run.folder, rows, environment, job)


def _command(words: Sequence[str]) -> list[str]:
    """Return a command that a reader can type, without the folder of its results."""
    pairs = zip(["", *words], words, strict=False)
    kept = [word for before, word in pairs if before != "--output" and not word.startswith("--output")]
    is_program = Path(words[0]).name in ("__main__.py", "runtime-profiler")
    return ["python", "-m", "profiler", *kept[1:]] if is_program else kept


def _last_part(found: re.Match[str]) -> str:
    path = found.group()
    return path if path.startswith("http") else Path(path).name or "."


def _any_of(names: set[str]) -> re.Pattern[str]:
    """Match one of the names as a whole word."""
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])")


def _texts(run: Run) -> Iterator[str]:
    """List every text of a run but those that the user gave."""
    kept = {key: value for key, value in run.environment.items() if key not in (*_GIVEN, "host", "user", "variables")}
    yield json.dumps(kept, ensure_ascii=False, default=str)
    yield run.job
    texts = run.results.drop(_GIVEN).with_columns(pl.col(pl.List(pl.String)).list.join("\n"))
    for column in texts.select(pl.col(pl.String)).iter_columns():
        yield from column.drop_nulls().unique()
