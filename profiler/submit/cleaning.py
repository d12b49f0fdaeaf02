"""Take hosts, users and folders of a machine out of a run, and write what is left as a folder to publish."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from exporters.whole_file import write_whole
from profiler.bundled import jobs
from profiler.errors import ConfigError
from profiler.job.yaml_lines import read as read_yaml
from profiler.results.reading import read_results
from profiler.results.run_files import check_readable, first_line, printable, read_json
from profiler.tables.writers import parquet

JOB = "bench.yaml"
FILES = ("results.parquet", "environment.json", JOB)
"""What is published of a run: no raw samples, which are large, no logs, no journal."""
_PRIVATE = ("host", "user", "variables", "gpu_uuid")
"""Keys of environment.json that are left out."""
_GIVEN = ("machine", "cloud", "instance")
"""Columns whose text the user gave for others to read."""
_HOMES = re.compile(r"/(?:home|Users)/([^/\s\"']+)")
_SHARED_ACCOUNTS = {"root", "user", "admin", "ubuntu", "debian", "ec2-user", "azureuser", "runner", "jovyan"}
"""Names of accounts that say nothing of a person."""
_ABSOLUTE = re.compile(r"(?<![\w.~/<-])~?/\w[\w.-]*|\b[A-Za-z]:\\[\w\\.-]+")


@dataclass(frozen=True)
class Run:
    """What is read of a run's folder."""

    results: pl.DataFrame
    environment: dict[str, Any]
    job: dict[str, Any]


def read_run(folder: Path) -> Run:
    """Read the files of a run. Raises ConfigError where one is missing or damaged."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{folder}: not a whole run: it lacks {', '.join(missing)}; give the folder of a finished run"
        )
    path = folder / "environment.json"
    try:
        environment = read_json(path)
        if not isinstance(environment, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {first_line(error)}; give another run") from None
    check_readable(folder / JOB)
    return Run(read_results(str(folder)), environment, printable(read_yaml(folder / JOB)[0]))


class Cleaner:
    """Takes hosts, users and folders of the machine out of text: what lies in the project or the job's folder stays
    relative, of any other absolute path the last part stays."""

    _PATH = re.compile(r"https?://\S+|(?:(?<![\w.~/-])|(?<=-[IL]))~?/[^\s\"'`,;:()\[\]{}<>|\\]+")
    _RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-[^\s\"'/]+-([0-9a-f]{4})\b")

    def __init__(self, runs: Sequence[Run]) -> None:
        projects, hosts, users = list[str](), set[str](), set[str]()
        for run in runs:
            main = Path((run.environment.get("command") or [""])[0])
            projects += [str(folder) for folder in main.parents[1:2] if main.name == "__main__.py"]
            for host in filter(None, (run.environment.get("host"), *run.results["host"].unique())):
                hosts |= {host, host.partition(".")[0]}
            users |= {name for text in _texts(run) for name in _HOMES.findall(text)} - _SHARED_ACCOUNTS
        imported = (str(folder) for run in runs for folder in run.job.get("import_from", []))
        self._roots = [f"{root}/" for root in (*projects, *imported) if Path(root).is_absolute() and root != "/"]
        self._names = {word: _any_of(names) for word, names in (("host", hosts), ("user", users)) if names}

    def __call__(self, value: Any) -> Any:
        """The same value with every text in it cleaned."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {key: self(item) for key, item in value.items()}
        return [self(item) for item in value] if isinstance(value, list) else value

    def command(self, words: Sequence[str]) -> list[str]:
        """A command that a reader can type: a suite by its path in the project, no output folder, the first GPU."""
        called = Path(words[0]).name
        program = ["python", "-m", "profiler"] if called in ("__main__.py", "cnn-profiler") else ["python"]
        given = list(words[1:] if len(program) > 1 or called == "python" else words)
        cleaned, left = program, iter(given)
        for word in left:
            option, equals, value = word.partition("=")
            if option in ("--output", "--resume", "--device") and not equals:
                value = next(left, "")
            match option:
                case "--output":
                    continue
                case "--resume":
                    cleaned += [option, "results/<run>"]
                case "--device":
                    cleaned += [option, value.partition(":")[0]]
                case _:
                    cleaned.append(self._argument(word))
        return cleaned

    def environment(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """Without what identifies the machine; what the user said of it stays as it is."""
        kept = {key: self(value) for key, value in environment.items() if key not in _PRIVATE}
        if environment.get("command"):
            kept["command"] = self.command(environment["command"])
        if environment.get("earlier_commands"):
            kept["earlier_commands"] = [self.command(words) for words in environment["earlier_commands"] if words]
        return kept | ({"machine": environment["machine"]} if "machine" in environment else {})

    def job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Without folders, and on the first GPU, whichever this run had."""
        kept = {key: self(value) for key, value in job.items() if key not in ("output", "import_from", "machine")}
        kept |= {"machine": job["machine"]} if "machine" in job else {}
        return kept | ({"device": "cuda"} if str(kept.get("device")).startswith("cuda:") else {})

    def results(self, results: pl.DataFrame) -> pl.DataFrame:
        """Without hosts, and without the names of logs, which are not published."""
        texts = [c for c, kind in results.schema.items() if kind in (pl.String, pl.List(pl.String)) and c not in _GIVEN]
        cleaned = [pl.Series(c, self(results[c].to_list()), results.schema[c]) for c in texts]
        return results.with_columns(*cleaned).with_columns(pl.lit(None, pl.String).alias(c) for c in ("host", "log"))

    def run(self, run: Run) -> Run:
        return Run(self.results(run.results), self.environment(run.environment), self.job(run.job))

    def left(self, cleaned: Run) -> list[str]:
        """What a cleaned run still says of a host, a user or a folder: nothing, unless a text is of an unknown form."""
        found = set[str]()
        for text in _texts(cleaned):
            found |= {match for pattern in (_ABSOLUTE, *self._names.values()) for match in pattern.findall(text)}
        return sorted(found | (cleaned.environment.keys() & set(_PRIVATE)))

    def _argument(self, word: str) -> str:
        path = Path(word)
        is_suite = path.parent.name == "suites" and path.suffix == ".yaml" and path.stem in jobs()
        return f"suites/{path.name}" if is_suite else self._text(word)

    def _text(self, text: str) -> str:
        text = self._RUN_ID.sub(r"\1-\2", self._PATH.sub(self._relative, text))
        for word, names in self._names.items():
            text = names.sub(word, text)
        return text

    def _relative(self, found: re.Match[str]) -> str:
        path = found.group()
        if path.startswith("http"):
            return path
        root = next((root for root in self._roots if path.startswith(root)), None)
        return (path.removeprefix(root) if root else Path(path).name) or "."


def write_data(
    folder: Path, results: pl.DataFrame, environment: Mapping[str, Any], jobs: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write every row, the machine and the jobs, by the names of their files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "results.parquet", parquet(results))
    write_whole(folder / "environment.json", json.dumps(environment, indent=2) + "\n")
    for name, job in jobs.items():
        write_whole(folder / name, yaml.safe_dump(dict(job), sort_keys=False, allow_unicode=True))


def _any_of(names: set[str]) -> re.Pattern[str]:
    """One of the names as a whole word."""
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])")


def _texts(run: Run) -> Iterator[str]:
    """Every text of a run but what the user said of the machine."""
    for facts in (run.environment, run.job):
        yield from _strings({key: value for key, value in facts.items() if key not in ("machine", *_PRIVATE)})
    texts = run.results.drop(_GIVEN).with_columns(pl.col(pl.List(pl.String)).list.join("\n"))
    for column in texts.select(pl.col(pl.String)).iter_columns():
        yield from column.drop_nulls().unique()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
