"""What enters: folders of runs of suites. What leaves: their published tables, conclusions and data to keep in docs/.

    PYTHONPATH=. python benchmarks/publish_suites.py results/<run> results/<run> --into docs/results/suites

One run a suite, all on one kind of machine. Nothing that is written names the host or a folder of the machine, and raw
samples are not copied.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.publish import MADE, Cleaner, Run, facts, read, statuses
from profiler.published import conclusions
from profiler.published.studies import STUDIES
from profiler.published.tables import published_tables, write_published
from profiler.results.wall_time import describe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--into", required=True, type=Path, metavar="FOLDER", help="for example docs/results/suites")
    options = parser.parse_args()
    publish([read(folder) for folder in options.runs], options.into)


def publish(runs: Sequence[Run], into: Path) -> None:
    """A folder a suite, and a page that leads to them. Exits where a run is of no suite, or two are of one."""
    clean = Cleaner(runs)
    suites = [run.job.get("suite") for run in runs]
    for run, suite in zip(runs, suites, strict=True):
        if not run.job.get("published") or suites.count(suite) > 1:
            sys.exit(f"{suite}: give one run of each suite; python -m profiler suites lists them")
    lines = []
    for run, suite in sorted(zip(runs, suites, strict=True), key=lambda pair: str(pair[1])):
        _write(run, clean, into / str(suite))
        lines.append(_line(run, clean, str(suite)))
    page = [
        MADE.replace("publish.py", "publish_suites.py"),
        "# The published benchmarks, run today",
        "Each folder holds the tables in the published form (`published.md`, own rows in bold; as CSV too), every "
        "comparison (`conclusions.md`), all rows (`results.parquet`), the job and the machine.",
        "| suite | after | rows | command and wall time |\n| --- | --- | --- | --- |\n" + "\n".join(lines),
        "## The machine",
        "\n".join(_machine(runs, clean)),
    ]
    (into / "README.md").write_text("\n\n".join(page) + "\n")


def _machine(runs: Sequence[Run], clean: Cleaner) -> list[str]:
    """The machine's facts; what differs between the runs, such as the cores that they were given, with their suites."""
    tables = [facts(clean.environment(run.environment)) for run in runs]
    lines = []
    for rows in zip(*tables, strict=True):
        suites: dict[str, list[str]] = {}
        for run, row in zip(runs, rows, strict=True):
            suites.setdefault(row, []).append(str(run.job.get("suite")))
        said = [row.split("|")[2].strip() + f" ({', '.join(names)})" for row, names in suites.items()]
        lines.append(rows[0] if len(suites) == 1 else f"|{rows[0].split('|')[1]}| {'; '.join(said)} |")
    return lines


def _write(run: Run, clean: Cleaner, folder: Path) -> None:
    study, environment = run.job["published"], clean.environment(run.environment)
    results = clean.results(run.results)
    folder.mkdir(parents=True, exist_ok=True)
    write_published(folder, study, published_tables(study, results, [environment]))
    conclusions.write_conclusions(folder, study, results)
    results.write_parquet(folder / "results.parquet", compression="zstd")
    (folder / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")
    (folder / "bench.yaml").write_text(yaml.safe_dump(clean.job(run.job), sort_keys=False, allow_unicode=True))


def _line(run: Run, clean: Cleaner, suite: str) -> str:
    told = STUDIES[run.job["published"]]
    title = told.title.replace("|", r"\|")
    source = f"[{title}]({told.address})" if told.address else title
    environment = run.environment
    commands = [*environment.get("earlier_commands", []), environment.get("command")]
    said = ", then ".join(f"`{shlex.join(clean.command(words))}`" for words in commands if words)
    took = f": {describe(environment['wall_seconds'])}" if environment.get("wall_seconds") else ""
    return f"| [{suite}]({suite}/published.md) | {source} | {statuses(run.results)} | {said}{took} |"


if __name__ == "__main__":
    main()
