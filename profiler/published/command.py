"""Print runs next to a published benchmark's figures, and publish runs of suites as folders with a page a suite."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.text import Text

from exporters.whole_file import write_whole
from profiler.bundled import jobs
from profiler.errors import ConfigError, check_choice
from profiler.job.config import load_config
from profiler.options import Published as Options
from profiler.published.cleaning import Run, clean, read_run, write_run
from profiler.published.comparing import MATRIX
from profiler.published.studies import STUDIES, Study
from profiler.published.tables import Environment, published_tables
from profiler.published.times import NOT_MEASURED
from profiler.results.reading import read_runs
from profiler.tables.numbers import listed
from profiler.tables.table import Section, Table, prose, words
from profiler.tables.writers import MARK, escape_markdown, markdown, markdown_section, print_section, slug

_LEAD = (
    f"{MARK} measured by us; all other rows are {{}}'s figures. **Bold** is the lowest time per image of a column, "
    "among the published rows and among ours; a time without another beside it is not bold. A dash repeats the "
    "reason to its left."
)
NOTHING = "no row fits a table of {}: it has other networks, or compares other passes"


def execute(options: Options, console: Console) -> int:
    """Print runs next to a study's figures, and publish them. Raises ConfigError for what cannot be used."""
    if options.study is not None:
        check_choice("--study", options.study, STUDIES)
    runs = read_runs(options.runs)
    results, environments = runs.results.collect(), [run.environment for run in runs.runs]
    suites = results["suite"].unique().sort().to_list()
    studies = {suite: options.study or study_of(suite) for suite in suites}
    parts = {study: [suite for suite in suites if studies[suite] == study] for study in studies.values()}
    shown = [
        present(console, study, results.filter(pl.col("suite").is_in(suites)), environments)
        for study, suites in parts.items()
    ]
    if not any(shown):
        raise ConfigError(NOTHING.format(listed(parts)))
    if options.into is not None:
        for target in publish([Path(run.address) for run in runs.runs], options.into):
            console.print(Text(f"Written: {target}"), soft_wrap=True)
        write_pages(options.into)
        console.print(Text(f"Pages: {options.into / 'README.md'}"), soft_wrap=True)
    return 0


def present(
    console: Console,
    study: str,
    results: pl.DataFrame,
    environments: Sequence[Environment],
    into: Path | None = None,
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
        write_whole(into / "published.md", page(study, said, sections))
    return bool(sections)


def _has_figures(table: Table) -> bool:
    """Tell whether a run has said something about a table."""
    why = table.frame["why"] if "why" in table.frame else [None] * table.rows
    return any(own and reason != NOT_MEASURED for own, reason in zip(table.flags(table.marked), why, strict=True))


def page(study: str, said: Sequence[str], sections: Sequence[Section], picture: str = "") -> str:
    """Write five conclusions, a picture, the tables and what the source states as one page of Markdown."""
    title = f"# {escape_markdown(STUDIES[study].title)}: published and own figures"
    opening = [
        title,
        "\n".join(f"- {escape_markdown(text)}" for text in said),
        _LEAD.format(link(STUDIES[study])),
        picture,
    ]
    return "\n".join(["\n\n".join(filter(None, opening)) + "\n", *map(markdown_section, sections)])


def link(study: Study) -> str:
    title = escape_markdown(study.title)
    return f"[{title}]({study.address})" if study.address else f'"{title}"'


def study_of(suite: str) -> str:
    """Return the published benchmark of a suite. Raises ConfigError where it has none."""
    file = jobs().get(suite)
    if file is not None and (study := load_config(file, "cpu").published):
        return study
    raise ConfigError(f"'{suite}' is no suite: say next to which figures by --study: {', '.join(STUDIES)}")


def publish(folders: Sequence[Path], into: Path) -> list[Path]:
    """Write the cleaned runs of suites to <machine>/<suite>/. Raises ConfigError for a run that would mislead."""
    runs = {into / slug(run.label or "") / str(run.results["suite"][0]): run for run in map(read_run, folders)}
    for target, run in runs.items():
        if problem := _problem(target, run):
            raise ConfigError(f"{run.folder}: {problem}")
    for target, run in runs.items():
        # The suite has the job.
        write_run(target, clean([replace(run, job="")]))
    return list(runs)


def _problem(target: Path, run: Run) -> str:
    suite = str(run.results["suite"][0])
    if suite not in jobs() or suite == "bench":
        return f"its job '{suite}' is no suite: `python -m profiler suites` lists them"
    if not slug(run.label or ""):
        return "its machine has no name: resume it with --machine label=NAME"
    seconds = load_config(jobs()[suite], "cpu" if run.environment.get("device") == "cpu" else "cuda").budget.seconds
    if (run.environment.get("sampling_seconds") or seconds) < seconds:
        return f"its cases were sampled for less than the suite's {seconds:g} s: run it without --quick"
    for path in target.parent.glob("*/environment.json"):
        there = read_run(path.parent).environment
        if any(there.get(fact) != run.environment.get(fact) for fact in ("gpu", "cpu", "device")):
            return f"another machine is called '{run.label}' in {path.parent}: resume it with another --machine label"
    return ""


def write_pages(folder: Path) -> None:
    """Write a page a suite over all machines in the folder, and the README.md that leads to them."""
    from profiler.published.pictures import picture  # altair takes half a second

    runs = [read_run(path.parent) for path in sorted(folder.glob("*/*/results.parquet"))]
    by_suite: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.folder.name, run.environment.get("device") == "cpu")):
        by_suite.setdefault(run.folder.name, []).append(run)
    for suite, of_suite in by_suite.items():
        read = read_runs([run.folder for run in of_suite])
        environments = [run.environment for run in read.runs]
        study, results = study_of(suite), read.results.collect()
        write_whole(folder / f"{suite}.svg", picture(study, results))
        shown = f"![{suite}]({suite}.svg)"
        write_whole(folder / f"{suite}.md", page(study, *published_tables(study, results, environments), shown))
    write_whole(folder / "README.md", _index(by_suite))


def _index(by_suite: Mapping[str, Sequence[Run]]) -> str:
    suites = [
        [f"[{suite}]({suite}.md)", link(STUDIES[study_of(suite)]), ", ".join(str(run.label) for run in of_suite)]
        for suite, of_suite in by_suite.items()
    ]
    parts = [
        "# The published benchmarks, run today",
        f"One page a suite, with the rows of all machines among the published ones (marked {MARK}). "
        "[Add your machine](../../../CONTRIBUTING.md).",
        "\n".join(f"| {' | '.join(row)} |" for row in (["Suite", "Source", "Machines"], ["---"] * 3, *suites)),
        "## The runs",
        "A run's folder has every row (`results.parquet`) and the machine (`environment.json`).",
        markdown(_listing(run for of_suite in by_suite.values() for run in of_suite)).rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def _listing(runs: Iterable[Run]) -> Table:
    """List the runs: their machines, statuses and commands."""
    rows = []
    for run in runs:
        facts = run.environment
        commands = [*facts.get("earlier_commands", []), facts.get("command")]
        statuses = run.results["status"].value_counts(sort=True).rows()
        rows.append(
            {
                "run": f"{run.folder.parent.name}/{run.folder.name}",
                "machine": facts.get("gpu") or f"{facts.get('cpu')}, {facts.get('cpu_cores')} cores",
                "software": f"torch {facts.get('torch_version')}, Python {facts.get('python')}",
                "cases": ", ".join(f"{count} {status}" for status, count in statuses),
                "command": ", then ".join(shlex.join(words) for words in commands if words),
            }
        )
    names = ("run", "machine", "software", "cases")
    fields = [words(name.capitalize(), name, link="run" if name == "run" else "") for name in names]
    return Table("runs", "", pl.DataFrame(rows), [*fields, prose("Command", "command")])
