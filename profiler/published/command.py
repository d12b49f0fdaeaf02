"""Print runs next to a published benchmark's figures, and publish runs of suites as folders with a page a suite."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.text import Text

from exporters import named_files
from exporters.whole_file import write_whole
from profiler.bundled import suites
from profiler.errors import ConfigError
from profiler.job.config import load_config
from profiler.options import ShowSuites, SubmitSuites
from profiler.published.cleaning import Run, clean, read_run, write_run
from profiler.published.comparing import MATRIX
from profiler.published.studies import STUDIES, Study
from profiler.published.tables import Environment, picture, published_tables, title
from profiler.published.times import NOT_MEASURED
from profiler.results.reading import read_runs
from profiler.tables.numbers import grouped, listed
from profiler.tables.table import Section, Table
from profiler.tables.writers import MARK, escape_markdown, markdown_section, print_section, slug

_LEAD = (
    f"{MARK} measured by us; all other rows are {{}}'s figures. **Bold** is the lowest time per image of a column, "
    "among the published rows and among ours; a time without another beside it is not bold. A dash repeats the "
    "reason to its left."
)
NOTHING = "no row fits a table of {}: it has other networks, or compares other passes"
_INDEX = f"""# The published benchmarks, run today

One page a suite, with the rows of all machines among the published ones (marked {MARK}). A machine leads to its run:
every row (`results.parquet`) and the machine (`environment.json`). [Add yours](../../../CONTRIBUTING.md).

"""


def show(options: ShowSuites, console: Console) -> int:
    """Print runs next to the figures of the studies that their jobs name. Raises ConfigError."""
    runs = read_runs(options.runs)
    results, environments = runs.results.collect(), [run.environment for run in runs.runs]
    by_study = grouped((study_of(Path(run.address)), run_id) for run in runs.runs for run_id in run.run_ids)
    parts = {study: results.filter(pl.col("run_id").is_in(ids)) for study, ids in by_study.items()}
    shown = [present(console, study, part, environments) for study, part in parts.items()]
    if not any(shown):
        raise ConfigError(NOTHING.format(listed(parts)))
    return 0


def submit(options: SubmitSuites, console: Console) -> int:
    """Write cleaned runs of suites to <machine>/<suite>/, and all pages. Raises ConfigError for what would mislead."""
    named_files.exists(options.into)  # Raises ConfigError for a path that cannot be looked up.
    found = [read_run(Path(run.address)) for run in read_runs(options.runs).runs]
    by_target = grouped((options.into / slug(run.label or "") / str(run.results["suite"][0]), run) for run in found)
    for target, run, first in ((target, run, runs[0]) for target, runs in by_target.items() for run in runs):
        if problem := _problem(target, run, first):
            raise ConfigError(f"{run.folder}: {problem}")
    for target, runs in by_target.items():
        # The suite has the job.
        write_run(target, clean([replace(run, job="") for run in runs]))
        console.print(Text(f"Written: {target}"), soft_wrap=True)
    write_pages(options.into)
    console.print(Text(f"Pages: {options.into / 'README.md'}"), soft_wrap=True)
    return 0


def present(
    console: Console, study: str, results: pl.DataFrame, environments: Sequence[Environment], into: Path | None = None
) -> bool:
    """Print the study's tables that have rows of ours; write all as `into`/published.md. Returns False without any."""
    said, sections = published_tables(study, results, environments)
    if said:
        console.print(Text("\n" + "\n".join(said)))
    for section in sections:
        tables = [table for table in section.tables if _has_figures(table)]
        if section.heading == MATRIX:
            tables = [replace(table, frame=pl.DataFrame(table.frame).filter("ours")) for table in tables]
        if tables:
            print_section(console, replace(section, tables=tables))
    if sections and into is not None:
        write_whole(
            into / "published.md", page(study, said, sections, measured(results, environments), title(study, results))
        )
    return bool(sections)


def _has_figures(table: Table) -> bool:
    """Tell whether a run has said something about a table."""
    why = table.frame["why"] if "why" in table.frame else [None] * table.rows
    return any(own and reason != NOT_MEASURED for own, reason in zip(table.flags(table.marked), why, strict=True))


def page(
    study: str, said: Sequence[str], sections: Sequence[Section], runs: Sequence[str], heading: str, shown: str = ""
) -> str:
    """Write conclusions, what was run where, a picture and the tables as one page of Markdown."""
    points = "\n".join(f"- {escape_markdown(text)}" for text in said)
    opening = [
        f"# {escape_markdown(heading)}: published and own figures",
        points,
        "\n".join(runs),
        shown,
        _LEAD.format(link(STUDIES[study])),
    ]
    return "\n".join(["\n\n".join(filter(None, opening)) + "\n", *map(markdown_section, sections)])


def measured(results: pl.DataFrame, environments: Sequence[Environment]) -> list[str]:
    """List the runs' machines, days and commands in Markdown."""
    lines = []
    for facts in environments:
        machine, what = facts.get("machine"), facts.get("gpu") or f"{facts.get('cpu')}, {facts.get('cpu_cores')} cores"
        ids = results.filter(pl.col("machine").eq_missing(machine))["run_id"]
        days = listed([f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in ids.str.head(8).unique().sort()])
        commands = [shlex.join(words) for words in (*facts.get("earlier_commands", []), facts.get("command")) if words]
        how = ", then ".join(f"`{command}`" for command in commands)
        versions = f"torch {facts.get('torch_version')}, Python {facts.get('python')}"
        lines.append(f"- {machine or what}, {days}: {what}, {versions}; {how}")
    return lines


def link(study: Study) -> str:
    title = escape_markdown(study.title)
    return f"[{title}]({study.address})" if study.address else f'"{title}"'


def study_of(run: Path) -> str:
    """Return the published benchmark that a run's job names. Raises ConfigError where it names none."""
    suite = str(read_run(run).results["suite"][0])
    study = load_config(suites().get(suite, run / "bench.yaml"), "cpu").published
    if study is None:
        raise ConfigError(f"{run}: its job names no published benchmark: run a suite, or add `published` to the job")
    return study


def _problem(target: Path, run: Run, first: Run) -> str:
    suite = str(run.results["suite"][0])
    if suite not in suites():
        return f"its job '{suite}' is no suite: `python -m profiler suites` lists them"
    if not slug(run.label or ""):
        return "its machine has no name: resume it with --machine label=NAME"
    seconds = load_config(suites()[suite], "cpu" if run.environment.get("device") == "cpu" else "cuda").budget.seconds
    if (run.environment.get("sampling_seconds") or seconds) < seconds:
        return f"its cases were sampled for less than the suite's {seconds:g} s: run it without --quick"
    for there in (first, *(read_run(path.parent) for path in target.parent.glob("*/environment.json"))):
        if any(there.environment.get(fact) != run.environment.get(fact) for fact in ("gpu", "cpu", "device")):
            return f"another machine is called '{run.label}' in {there.folder}: resume it with another --machine label"
    return ""


def write_pages(folder: Path) -> None:
    """Write a page a suite over all machines in the folder, and the README.md that leads to them."""
    read = read_runs([path.parent for path in sorted(folder.glob("*/*/results.parquet"))])
    runs = sorted(read.runs, key=lambda run: (Path(run.address).name, run.environment.get("device") == "cpu"))
    rows = ["| Suite | Source | Machines |", "| --- | --- | --- |"]
    for suite, of_suite in grouped((Path(run.address).name, run) for run in runs).items():
        study, environments = study_of(Path(of_suite[0].address)), [run.environment for run in of_suite]
        results = read_runs([run.address for run in of_suite]).results.collect()
        write_whole(folder / f"{suite}.svg", picture(study, results))
        made = published_tables(study, results, environments)
        runs_of_suite, shown = measured(results, environments), f"![{suite}]({suite}.svg)"
        text = page(study, *made, runs_of_suite, title(study, results), shown)
        write_whole(folder / f"{suite}.md", text)
        machines = [f"[{run.environment['machine']}]({Path(run.address).relative_to(folder)})" for run in of_suite]
        rows.append(f"| [{suite}]({suite}.md) | {link(STUDIES[study])} | {', '.join(machines)} |")
    write_whole(folder / "README.md", _INDEX + "\n".join(rows) + "\n")
