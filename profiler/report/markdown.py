"""Write a report as one Markdown text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from profiler.report.charts import Chart
from profiler.report.images import Image
from profiler.report.sections import Report
from profiler.tables.writers import escape_markdown, markdown


def text(report: Report, images: Sequence[Image], folder: Path) -> str:
    """GitHub's Markdown; `folder` is where it will lie, to which links to the images are relative."""
    parts = [f"# {escape_markdown(report.title)}", escape_markdown(report.machine)]
    parts += ["\n".join(f"- {escape_markdown(str(one))}" for one in report.lead)]
    parts += [escape_markdown(note) for note in report.notes]
    for section in report.sections:
        parts += [f"## {section.title}", *section.text]
        parts += map(escape_markdown, section.plain)
        tables = [f"### {escape_markdown(table.title)}\n\n{markdown(table)}" for table in section.tables]
        sentences = "\n".join(f"- {escape_markdown(text)}" for text, _ in section.sentences)
        charts = [_chart(report, chart, images, folder) for chart in section.charts]
        parts += [*tables, sentences, *charts] if section.open else [*charts, *tables]
        parts += [f"{title}\n\n{_fenced(code)}" for title, code, _ in section.code]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _chart(report: Report, chart: Chart, images: Sequence[Image], folder: Path) -> str:
    """What it shows of each model, and the image where there is one."""
    keys = [key for key in ("run", "model", "pass", "shape") if len({row[key] for row in report.rows["lines"]}) > 1]
    texts = []
    for finding in report.findings.get(chart.name, []):
        about = ", ".join(finding[key] for key in keys if finding.get(key))
        texts.append(f"- {escape_markdown(': '.join(filter(None, (about, finding['text']))))}")
    shown = [
        f"![{escape_markdown(', '.join([chart.title, *image.about.values()]))}]"
        f"({quote(Path(os.path.relpath(image.path, folder)).as_posix())})"
        for image in images
        if image.chart is chart
    ]
    return "\n\n".join(["\n".join(texts), *shown])


def _fenced(code: str) -> str:
    """A block of code whose fence is longer than any run of backticks in it."""
    fence = "```"
    while fence in code:
        fence += "`"
    return f"{fence}\n{code.rstrip()}\n{fence}"
