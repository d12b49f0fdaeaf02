"""Print and write the tables of a published benchmark with the results of runs among its figures, and conclusions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from exporters.whole_file import write_whole
from profiler.errors import ConfigError, check_choice
from profiler.job.case import settings
from profiler.options import Published as Options
from profiler.published import page
from profiler.published.claims.evidence import Evidence
from profiler.published.machines import Environment
from profiler.published.printed import Printed
from profiler.published.references import network_names
from profiler.published.studies import STUDIES
from profiler.published.tables import LAYERS, markdown, published_tables
from profiler.results.reading import read_runs
from profiler.tables.numbers import listed
from profiler.tables.writers import print_table

NO_ROWS = "no row of these runs fits a table of {}: it has other networks, or measured other passes"


def execute(options: Options, console: Console) -> int:
    """Print runs next to a study's figures. Raises ConfigError for an unknown study, or a folder that holds no run."""
    if options.study is None:
        raise ConfigError(f"--study: say next to which figures: {', '.join(STUDIES)}")
    check_choice("--study", options.study, STUDIES)
    runs = read_runs(options.runs)
    environments = [run.environment for run in runs.runs]
    if not present(console, options.study, runs.results.collect(), environments, options.into):
        raise ConfigError(NO_ROWS.format(options.study))
    return 0


def present(
    console: Console, study: str, results: pl.DataFrame, environments: Sequence[Environment], into: Path | None
) -> bool:
    """Print the study's tables and its most telling conclusions; write all of them into the folder `into`.

    Returns whether there was anything: there is no table for results of other networks only.
    """
    tables = published_tables(study, results, environments)
    if not tables:
        return False
    evidence = Evidence(study, results)
    if into is not None:
        write(into, evidence, tables)
    for table in tables:
        print_published(console, table)
    page.show(console, evidence)
    if into is not None:
        where = f"All tables and comparisons: {into / 'published.md'}, {into / 'conclusions.md'}"
        console.print(Text(where, style="dim"), soft_wrap=True)
    return True


def write(folder: Path, evidence: Evidence, tables: Sequence[Printed]) -> None:
    """Write the study's tables as published.md, as CSV and as pictures (published-<name>.csv, .svg); conclusions.md."""
    # Altair takes half a second to import, which only those pay who draw.
    from profiler.published import pictures

    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.write(folder)
    drawn = pictures.published_pictures(evidence.study, evidence.results)
    pictures.write(folder, drawn)
    images = {table.name: [picture.image for picture in drawn if picture.table == table.name] for table in tables}
    write_whole(folder / "published.md", markdown(evidence.study, tables, images))
    write_whole(folder / "conclusions.md", page.markdown(evidence))


def nothing_compared(study: str, passes: Iterable[str]) -> str:
    """Say why no row of a run that measured these passes is in the study's tables."""
    compared = STUDIES[study].passes
    if set(passes) & set(compared):
        why = f"{study} has other networks: {listed(network_names(study))}"
    else:
        why = f"{study} compares {listed(compared)}; add `passes: [{', '.join(compared)}]`"
    return f"Nothing of this run is comparable: {why}"


def require(study: str | None) -> None:
    """Raises ConfigError where the study's figures are missing: better before a run than at its end."""
    if study is not None:
        network_names(study)


def covers(study: str, group: Mapping[str, Any]) -> bool:
    """Whether a group of results, by its model or network, pass and setting, has its table among the study's."""
    layers = LAYERS if "layers" in STUDIES[study].tables else []
    networks = network_names(study) if group["pass"] in STUDIES[study].passes else {}
    model = group.get("network") or group["model"]
    return model in {*networks, *layers} and "optimizer" not in settings(group["setting"])


def print_published(console: Console, printed: Printed) -> None:
    """Print the table's sections that have rows of ours, which are marked."""
    console.print()
    console.print(Text(printed.title, style="bold underline"))
    if printed.note:
        console.print(Text(printed.note, style="dim"))
    for table in printed.tables(note="brief"):
        if any(table.flags("ours")):
            print_table(console, table)
    if printed.legend:
        console.print(Text(printed.legend, style="dim"))
