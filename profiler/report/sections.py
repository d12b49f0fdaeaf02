"""What enters: `Data`. What leaves: `Report`, its sections in the order of reading, whatever they are written as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from profiler.report import charts, content, findings, texts
from profiler.report import rows as chart_rows
from profiler.report.charts import Chart
from profiler.report.data import Data
from profiler.report.findings import Finding
from profiler.tables.numbers import count
from profiler.tables.table import Table


@dataclass(frozen=True)
class Section:
    """One part: what it says, its charts, its tables, and sentences with what each is about.

    `open`: its tables stand there at once; otherwise a reader unfolds them. `code`: titles and what can be unfolded
    below them, letter by letter.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    open: bool = False
    said: Sequence[tuple[str, Mapping[str, Any]]] = ()
    code: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Report:
    """All that is said, and the rows that the charts draw, by data set. `machine` is what was measured, and how many
    cases; `notes` are what was left out."""

    title: str
    machine: str
    lead: Sequence[str]
    sections: Sequence[Section]
    findings: Mapping[str, Sequence[Finding]]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    notes: Sequence[str]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def charts(self) -> list[Chart]:
        return [chart for section in self.sections for chart in section.charts]


def compose(data: Data) -> Report:
    """The report of what was gathered."""
    rows = chart_rows.rows(data)
    drawn = {
        name: chart
        for name, chart in charts.make(chart_rows.domains(data, rows["lines"])).items()
        if charts.select(chart, rows[chart.data[0]]) and all(rows[other] for other in chart.data)
    }
    sections = _sections(data, drawn, content.tables(data))
    return Report(
        findings.headline(data.lines),
        _machine(data),
        findings.lead(data.lines),
        [section for section in sections if section.text or section.charts or section.tables],
        findings.findings(data),
        rows,
        [note for note in data.notes if note not in data.runs.notes],
    )


def _sections(data: Data, drawn: Mapping[str, Chart], tables: Mapping[str, Table]) -> list[Section]:
    def section(name: str, title: str, text: Sequence[str], *more: str, **fields: Any) -> Section:
        """With the charts and tables of that name, and of `more` names, that there are."""
        names = (name, *more)
        found = [chart for part in names if (chart := drawn.get(part))]
        own = [table for part in names for key, table in tables.items() if key == part or key.startswith(f"{part}-")]
        return Section(name, title, text, found, own, **fields)

    lines = data.lines
    trained = not lines.filter(pl.col("pass") == "training").is_empty()
    sized = lines["batch_size"].n_unique() > 1
    ran, clean = "not-measured" not in tables, "warnings" not in tables
    environment = [*texts.wall_time(data), *data.runs.notes]
    return [
        section("answer", "What to deploy", texts.answer(data), "overview", open=True, said=texts.sentences(lines)),
        section("ladder", "The ladder of speed-ups", texts.speedups(data)),
        section("latency", "Latency against batch size", texts.latency(data)),
        section("throughput", "Throughput against latency", [] if lines.is_empty() else [texts.THROUGHPUT]),
        section("memory", "Memory", texts.memory(data)),
        section("roofline", "Roofline", texts.roofline(data, "roofline" in drawn)),
        section("efficiency", "Minibatch efficiency", [texts.EFFICIENCY] if sized else [], "largest-batch"),
        section("training", "Training", [texts.TRAINING] if trained else []),
        section("layers", "Layer by layer", texts.layers(data)),
        section("samples", "Raw samples", texts.samples(data)),
        section("setup", "Set-up and break-even", [] if lines.is_empty() else [texts.SETUP], "break-even"),
        section("energy", "Energy and cost", []),
        section("not-measured", "Not measured", ["Every case gave figures."] if ran else [], open=True),
        section("warnings", "Warnings", ["No row carries a warning."] if clean else [], open=True),
        section("environment", "Machine and versions", environment, open=True, code=texts.code(data)),
        Section("method", "Method", texts.METHOD),
    ]


def _machine(data: Data) -> str:
    names = list(data.environments)
    machines = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    counts = ", ".join(f"{count(number)} {status}" for status, number in data.statuses.items())
    return f"{machines} · {count(sum(data.statuses.values()))} cases: {counts}"
