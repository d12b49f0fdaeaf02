"""Put the report of a published benchmark together: what follows, then every table below its pictures, and the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from profiler.errors import ConfigError, check_choice
from profiler.job.conditions import Filter
from profiler.published.claims.evidence import Evidence
from profiler.published.command import NO_ROWS
from profiler.published.page import headlines
from profiler.published.pictures import LEGEND, PANEL, PANEL_AXIS, Picture, published_pictures
from profiler.published.printed import Printed
from profiler.published.studies import STUDIES
from profiler.published.tables import published_tables
from profiler.report.charts import Chart
from profiler.report.sections import Report, Section, code, wall_time
from profiler.report.tables import environment_table
from profiler.results.reading import Runs, chosen
from profiler.tables.numbers import counted, listed
from profiler.tables.writers import MARK

_READING = (
    f"Grey bars and points are the published ones; coloured ones are our own. In tables own rows are marked {MARK}."
)


def compose(study: str, runs: Runs, only: Filter | None) -> Report:
    """The report of the runs' cases that hold the conditions. Raises ConfigError where none is of the study."""
    check_choice("--study", study, STUDIES)
    results = (runs.results.filter(chosen(only)) if only else runs.results).collect()
    environments = {run.environment["machine"]: run.environment for run in reversed(runs.runs)}
    tables = published_tables(study, results, list(environments.values()))
    if not tables:
        raise ConfigError(NO_ROWS.format(study))
    pictures = published_pictures(study, results)
    machine = f"{listed(environments)} · {counted(results.height, 'row')}"
    sections = [
        Section("conclusions", "What follows", [*headlines(Evidence(study, results)), _READING]),
        *(_section(table, pictures) for table in tables),
        Section(
            "environment",
            "Machines and versions",
            [*wall_time(runs), *runs.notes],
            tables=[environment_table(environments)],
            open=True,
            code=code(runs),
        ),
    ]
    return Report(f"{STUDIES[study].title}: published and own figures", machine, sections, {}, ())


def _section(printed: Printed, pictures: Sequence[Picture]) -> Section:
    """A table's pictures, and below them its parts to unfold; without a picture the parts at once."""
    shown = [_chart(one) for one in pictures if one.table == printed.name]
    parts = [
        replace(part, name=f"{printed.name}-{number}", title=part.title or printed.title)
        for number, part in enumerate(printed.tables())
    ]
    text = [part for part in (printed.note, printed.legend) if part]
    return Section(printed.name, printed.title, text, charts=shown, tables=parts, open=not shown)


def _chart(picture: Picture) -> Chart:
    """The picture as a chart of a page, with its data in it."""
    name = Path(picture.file).stem
    spec = picture.spec | {"datasets": {**picture.spec.get("datasets", {}), **picture.data}}
    panel = (PANEL, PANEL_AXIS) if picture.panels else None
    height, caption = picture.height, picture.note
    return Chart(name, picture.title, lambda: spec, (), {}, None, (), caption, height, panel, LEGEND)
