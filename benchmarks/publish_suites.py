"""Write the published tables, conclusions and data to keep in docs/, of runs of suites.

    PYTHONPATH=. python benchmarks/publish_suites.py results/<run> results/<run> --into docs/results/suites

One run a suite, all on one kind of machine. Nothing that is written names the host or a folder of the machine, and raw
samples are not copied.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.publish import MACHINE, MADE, Cleaner, Run, commands, facts, main, statuses, table_lines, write_data
from profiler.published.command import write
from profiler.published.studies import STUDIES
from profiler.published.tables import link, published_tables
from profiler.results.wall_time import describe


def publish(runs: Sequence[Run], into: Path) -> None:
    """A folder a suite, and a page that leads to them. Exits where a run is of no suite, or two are of one."""
    clean = Cleaner(runs)
    suites = {str(run.job.get("suite")): run for run in runs}
    for suite, run in suites.items():
        if not run.job.get("published") or len(suites) < len(runs):
            sys.exit(f"{suite}: give one run of each suite; python -m profiler suites lists them")
    for suite, run in suites.items():
        _write(run, clean, into / suite)
    lines = [_line(suites[suite], clean, suite) for suite in sorted(suites)]
    page = [
        MADE.replace("publish.py", "publish_suites.py"),
        "# The published benchmarks, run today",
        "Each folder holds the tables in the published form (`published.md`, own rows in bold; as CSV too), every "
        "comparison (`conclusions.md`), all rows (`results.parquet`), the job and the machine.",
        "| suite | after | rows | command and wall time |\n| --- | --- | --- | --- |\n" + "\n".join(lines),
        "## The machine",
        "\n".join(table_lines(MACHINE, _machine(suites, clean))),
    ]
    (into / "README.md").write_text("\n\n".join(page) + "\n")


def _machine(suites: Mapping[str, Run], clean: Cleaner) -> list[tuple[str, str]]:
    """The machine's facts; what differs between the runs, such as the cores that they were given, with their suites."""
    found: dict[str, dict[str, list[str]]] = {}
    for suite, run in suites.items():
        for part, what in facts(clean.environment(run.environment)):
            found.setdefault(part, {}).setdefault(what, []).append(suite)
    return [
        (part, "; ".join(what if len(values) == 1 else f"{what} ({', '.join(who)})" for what, who in values.items()))
        for part, values in found.items()
    ]


def _write(run: Run, clean: Cleaner, folder: Path) -> None:
    study, environment, results = run.job["published"], clean.environment(run.environment), clean.results(run.results)
    write_data(folder, results, environment, {"bench.yaml": clean.job(run.job)})
    write(folder, study, results, published_tables(study, results, [environment]))


def _line(run: Run, clean: Cleaner, suite: str) -> str:
    seconds = run.environment.get("wall_seconds")
    took = f": {describe(seconds)}" if seconds else ""
    command = f"{commands(clean.environment(run.environment))}{took}"
    source = link(STUDIES[run.job["published"]])
    return f"| [{suite}]({suite}/published.md) | {source} | {statuses(run.results)} | {command} |"


if __name__ == "__main__":
    main(__doc__, "docs/results/suites", publish)
