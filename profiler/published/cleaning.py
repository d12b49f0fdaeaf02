"""Remove hosts, users and folders from runs, and write them as a folder to publish."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from exporters.named_files import write_whole
from profiler.errors import ConfigError
from profiler.results.reading import read_results
from profiler.results.run_folder import RunFolder, read_text
from profiler.results.spread import with_spread
from profiler.tables.writers import parquet

_PUBLIC = (
    *("machine", "gpu", "cpu", "device", "cuda", "driver", "cudnn", "python", "platform", "packages", "untested"),
    *("gpu_memory_mib", "memory_mib", "compute_capability", "cpu_cores", "torch_threads", "roofs", "spread"),
    *("sampling_seconds", "wall_seconds", "command", "earlier_commands"),
)
"""Keys of environment.json to publish, besides the versions of runtimes."""
_USERS_TEXTS = ("machine", "cloud", "instance")
"""Columns and keys whose text the user wrote for others to read."""
_PATH = re.compile(r"https?://\S+|(?:(?<![\w.~/-])|(?<=-[IL]))~?/[^\s\"'`,;:()\[\]{}<>|\\]+")
_RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-[^\s\"'/]+-([0-9a-f]{4})\b")
_HOMES = re.compile(r"/(?:home|Users)/([^/\s\"']+)")
_SHARED_ACCOUNTS = {"root", "user", "admin", "ubuntu", "debian", "ec2-user", "azureuser", "runner", "jovyan"}
_FOLDERS = re.compile(r"^(?:output|import_from):.*\n(?:[ -].*\n)*", re.MULTILINE)
_ABSOLUTE = re.compile(r"(?<![\w.~/<-])~?/\w[\w.-]*|\b[A-Za-z]:\\[\w\\.-]+")


def commands_of(environment: Mapping[str, Any]) -> list[list[str]]:
    """Return every command that measured a run, in order."""
    return [words for words in (*environment.get("earlier_commands", []), environment.get("command")) if words]


@dataclass(frozen=True)
class SubmittedRun:
    """A run's rows, environment.json and the text of its job, empty if the folder has none."""

    folder: Path
    results: pl.DataFrame
    environment: dict[str, Any]
    job: str = ""

    @property
    def label(self) -> str | None:
        """Return the user's name for the machine."""
        machine = self.environment.get("machine")
        return (machine.get("label") if isinstance(machine, dict) else machine) or None


def read_run(folder: Path) -> SubmittedRun:
    """Read a run's folder, and widen its intervals by the spread of its rows and of its machine's earlier runs.

    Raises ConfigError for a missing or damaged file.
    """
    environment = RunFolder(folder).read_environment()
    rows = with_spread(read_results(folder), environment.get("spread"))
    return SubmittedRun(folder, rows, environment, read_text(folder / "bench.yaml"))


def clean(runs: Sequence[SubmittedRun]) -> list[SubmittedRun]:
    """Remove the names of hosts, users and folders. Raises ConfigError if any remain."""
    hosts = {host for run in runs for host in (run.environment.get("host"), *run.results["host"].unique()) if host}
    hosts |= {host.partition(".")[0] for host in hosts}
    users = {name for run in runs for text in _texts(run) for name in _HOMES.findall(text)}
    users |= {str(run.environment["user"]) for run in runs if run.environment.get("user")}
    private = {"host": hosts, "user": users - _SHARED_ACCOUNTS}
    patterns = {word: _any_of(names) for word, names in private.items() if names}
    cleaned, checks = [_clean(run, patterns) for run in runs], (_ABSOLUTE, *patterns.values())
    for run in cleaned:
        if remaining := sorted({match for text in _texts(run) for check in checks for match in check.findall(text)}):
            named = ", ".join(remaining)
            raise ConfigError(f"{run.folder}: still names {named}: take that out of the job, measure again")
    return cleaned


def write_run(folder: Path, runs: Sequence[SubmittedRun]) -> None:
    """Write cleaned runs as one: all rows and commands, the first machine and job. A row's last duplicate counts."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = pl.concat([run.results for run in runs]).unique(["run_id", "case_id"], keep="last", maintain_order=True)
    write_whole(folder / "results.parquet", parquet(rows))
    distinct = dict.fromkeys(tuple(words) for run in runs for words in commands_of(run.environment))
    commands, environment = list(map(list, distinct)), dict(runs[0].environment)
    if len(runs) > 1 and commands:
        environment |= {"earlier_commands": commands[:-1], "command": commands[-1]}
    write_whole(folder / "environment.json", json.dumps(environment, indent=2) + "\n")
    if runs[0].job:
        write_whole(folder / "bench.yaml", runs[0].job)


def _clean(run: SubmittedRun, patterns: Mapping[str, re.Pattern[str]]) -> SubmittedRun:
    def text(value: Any) -> Any:
        if isinstance(value, str):
            value = _RUN_ID.sub(r"\1-\2", _PATH.sub(_last_part, value))
            for word, names in patterns.items():
                value = names.sub(word, value)
            return value
        if isinstance(value, dict):
            return {key: text(item) for key, item in value.items()}
        return [text(item) for item in value] if isinstance(value, list) else value

    public = {key: value for key, value in run.environment.items() if key in _PUBLIC or key.endswith("_version")}
    environment = {key: value if key in _USERS_TEXTS else text(value) for key, value in public.items()}
    if public.get("command"):
        environment["command"] = text(_command(public["command"]))
    if public.get("earlier_commands"):
        environment["earlier_commands"] = [text(_command(words)) for words in public["earlier_commands"] if words]
    job = re.sub(r"(?m)^device: cuda:\d+", "device: cuda", text(_FOLDERS.sub("", run.job)))
    texts = [c for c, t in run.results.schema.items() if t in (pl.String, pl.List(pl.String)) and c not in _USERS_TEXTS]
    rows = run.results.with_columns(pl.Series(c, text(run.results[c].to_list()), run.results.schema[c]) for c in texts)
    rows = rows.with_columns(host=pl.lit(None, pl.String), log=pl.lit(None, pl.String))  # Logs are not published.
    return SubmittedRun(run.folder, rows, environment, job)


def _command(words: Sequence[str]) -> list[str]:
    """Return a command that a reader can type, without --output."""
    pairs = zip(["", *words], words, strict=False)
    command = [word for before, word in pairs if before != "--output" and not word.startswith("--output")]
    is_program = Path(words[0]).name in ("__main__.py", "runtime-profiler")
    return ["python", "-m", "profiler", *command[1:]] if is_program else command


def _last_part(match: re.Match[str]) -> str:
    path = match.group()
    return path if path.startswith("http") else Path(path).name or "."


def _any_of(names: set[str]) -> re.Pattern[str]:
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])")


def _texts(run: SubmittedRun) -> Iterator[str]:
    """List every text of a run, except the user's."""
    hidden = (*_USERS_TEXTS, "host", "user", "variables")
    facts = {key: value for key, value in run.environment.items() if key not in hidden}
    yield json.dumps(facts, ensure_ascii=False, default=str)
    yield run.job
    texts = run.results.drop(_USERS_TEXTS).with_columns(pl.col(pl.List(pl.String)).list.join("\n"))
    for column in texts.select(pl.col(pl.String)).iter_columns():
        yield from column.drop_nulls().unique()
