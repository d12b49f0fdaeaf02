"""Print runs next to a published benchmark's figures, and publish runs of suites with one page per suite."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.text import Text

from exporters import named_files
from exporters.named_files import write_whole
from profiler.bundled import suites
from profiler.errors import PROGRAM, ConfigError
from profiler.job.config import load_config
from profiler.options import ShowSuites, SubmitSuites
from profiler.published.cleaning import SubmittedRun, clean, commands_of, read_run, write_run
from profiler.published.comparing import MATRIX
from profiler.published.studies import STUDIES, Study
from profiler.published.tables import Environment, picture, published_tables, title
from profiler.published.times import NOT_MEASURED
from profiler.results.reading import read_results, read_runs
from profiler.tables.numbers import grouped, listed, natural
from profiler.tables.table import Section, Table
from profiler.tables.writers import MARK, escape_markdown, markdown_section, print_section, say, slug

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
    """Print runs next to the figures of their jobs' studies. Raises ConfigError."""
    runs = read_runs(options.runs)
    results, environments = runs.results.collect(), [run.environment for run in runs.runs]
    by_study = grouped((study_of(Path(run.address)), run_id) for run in runs.runs for run_id in run.run_ids)
    parts = {study: results.filter(pl.col("run_id").is_in(ids)) for study, ids in by_study.items()}
    shown = [present(console, study, part, environments) for study, part in parts.items()]
    if not any(shown):
        raise ConfigError(NOTHING.format(listed(parts)))
    return 0


def submit(options: SubmitSuites, console: Console) -> int:
    """Write cleaned runs of suites to <machine>/<suite>/, and all pages. Raises ConfigError for unfit runs."""
    named_files.exists(options.into)  # Raises ConfigError for a path that cannot be looked up.
    read = [read_run(Path(run.address)) for run in read_runs(options.runs).runs]
    by_target = grouped((options.into / slug(run.label or "") / str(run.results["suite"][0]), run) for run in read)
    for target, runs in by_target.items():
        for run in runs:
            if problem := _problem(target, run, runs[0]):
                raise ConfigError(f"{run.folder}: {problem}")
    for target, runs in by_target.items():
        # Publish no job: the suite has it.
        write_run(target, clean([replace(run, job="") for run in runs]))
        say(console, f"Written: {target}")
    write_pages(options.into)
    say(console, f"Pages: {options.into / 'README.md'}")
    return 0


def present(
    console: Console, study: str, results: pl.DataFrame, environments: Sequence[Environment], into: Path | None = None
) -> bool:
    """Print the study's tables with rows of ours, and write all of them as `into`/published.md.

    Return whether any table has rows of ours.
    """
    texts, sections = published_tables(study, results, environments)
    if texts:
        console.print(Text("\n" + "\n".join(texts)))
    for section in sections:
        tables = [table for table in section.tables if _has_figures(table)]
        if section.heading == MATRIX:
            tables = [replace(table, frame=pl.DataFrame(table.frame).filter("ours")) for table in tables]
        if tables:
            print_section(console, replace(section, tables=tables))
    if sections and into is not None:
        write_whole(into / "published.md", page(study, texts, sections, results, environments))
    return bool(sections)


def _has_figures(table: Table) -> bool:
    why = table.frame["why"] if "why" in table.frame else [None] * table.rows
    return any(ours and reason != NOT_MEASURED for ours, reason in zip(table.flags(), why, strict=True))


def page(
    study: str,
    texts: Sequence[str],
    sections: Sequence[Section],
    results: pl.DataFrame,
    environments: Sequence[Environment],
    image: str = "",
) -> str:
    """Write conclusions, runs, picture and tables as one page of Markdown."""
    heading = f"# {escape_markdown(title(study, results))}: published and own figures"
    points, runs = "\n".join(f"- {escape_markdown(text)}" for text in texts), "\n".join(_runs(results, environments))
    opening = "\n\n".join(filter(None, [heading, points, runs, image, _LEAD.format(link(STUDIES[study]))]))
    return "\n".join([f"{opening}\n", *map(markdown_section, sections)])


def _runs(results: pl.DataFrame, environments: Sequence[Environment]) -> list[str]:
    """List the runs' machines, days and commands in Markdown."""
    lines = []
    for facts in environments:
        machine, chip = facts.get("machine"), facts.get("gpu") or f"{facts.get('cpu')}, {facts.get('cpu_cores')} cores"
        rows = results.filter(pl.col("machine").eq_missing(machine))
        days = listed([f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in rows["run_id"].str.head(8).unique().sort()])
        pythons = sorted({name for name in (facts.get("python"), *rows["python"]) if name}, key=natural)
        commands = ", then ".join(f"`{shlex.join(words)}`" for words in commands_of(facts))
        versions = f"torch {facts.get('torch_version')}, Python {listed(pythons)}"
        lines.append(f"- {machine or chip}, {days}: {chip}, {versions}; {commands}")
    return lines


def link(study: Study) -> str:
    title = escape_markdown(study.title)
    return f"[{title}]({study.address})" if study.address else f'"{title}"'


def study_of(run: Path) -> str:
    """Return the published benchmark that a run's job names. Raises ConfigError if it names none."""
    suite = str(read_results(run)["suite"][0])
    study = load_config(suites().get(suite, run / "bench.yaml"), "cpu").published
    if study is None:
        raise ConfigError(f"{run}: its job names no published benchmark: run a suite, or add `published` to the job")
    return study


def _problem(target: Path, run: SubmittedRun, first: SubmittedRun) -> str:
    suite = str(run.results["suite"][0])
    if suite not in suites():
        return f"its job '{suite}' is no suite: {PROGRAM} suites lists them"
    if not slug(run.label or ""):
        return "its machine has no name: resume it with --machine label=NAME"
    seconds = load_config(suites()[suite], "cpu" if run.environment.get("device") == "cpu" else "cuda").budget.seconds
    if (run.environment.get("sampling_seconds") or seconds) < seconds:
        return f"its cases were sampled for less than the suite's {seconds:g} s: run it without --quick"
    for other in (first, *(read_run(path.parent) for path in target.parent.glob("*/environment.json"))):
        if any(other.environment.get(fact) != run.environment.get(fact) for fact in ("gpu", "cpu", "device")):
            return f"another machine is called '{run.label}' in {other.folder}: resume it with another --machine label"
    return ""


def write_pages(folder: Path) -> None:
    """Write one page per suite over all machines in the folder, and the README.md that links to them."""
    folders = [path.parent for path in sorted(folder.glob("*/*/results.parquet"))]
    runs = sorted(
        read_runs(folders).runs, key=lambda run: (Path(run.address).name, run.environment.get("device") == "cpu")
    )
    rows = ["| Suite | Source | Machines |", "| --- | --- | --- |"]
    for suite, of_suite in grouped((Path(run.address).name, run) for run in runs).items():
        study, environments = study_of(Path(of_suite[0].address)), [run.environment for run in of_suite]
        results = read_runs([run.address for run in of_suite]).results.collect()
        write_whole(folder / f"{suite}.svg", picture(study, results))
        texts, sections = published_tables(study, results, environments)
        text = page(study, texts, sections, results, environments, f"![{suite}]({suite}.svg)")
        write_whole(folder / f"{suite}.md", text)
        machines = [f"[{run.environment['machine']}]({Path(run.address).relative_to(folder)})" for run in of_suite]
        rows.append(f"| [{suite}]({suite}.md) | {link(STUDIES[study])} | {', '.join(machines)} |")
    write_whole(folder / "README.md", _INDEX + "\n".join(rows) + "\n")
