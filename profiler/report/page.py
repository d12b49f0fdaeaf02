"""Write a report as one HTML page that loads nothing: scripts, styles and data are in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

import polars as pl

from exporters.cache import Cache, CacheError
from profiler.job.case import setting_words
from profiler.report import charts, palette
from profiler.report.charts import Chart
from profiler.report.sections import Report, Section
from profiler.tables.numbers import natural
from profiler.tables.table import Table
from profiler.tables.writers import html

_TEMPLATES = Path(__file__).parent / "templates"
_FILTERS = {
    "run": "Run",
    "model": "Model",
    "pass": "Pass",
    "batch_size": "Batch",
    "setting": "Setting",
    "precision": "Precision",
}
_SAID = ("title", "caption", "draw")
"""What of a chart stands in the page itself, or makes its specification."""
Options = Mapping[str, Sequence[Any]]


def page(report: Report) -> str:
    """Return the whole document; whatever names it holds, only the two scripts run whose hashes it allows."""
    options = _options(report)
    bundle, script = vega_bundle(), _template("report.js")
    hashes = [hashlib.sha256(text.encode()).digest() for text in (bundle, script)]
    return Template(_template("report.html")).substitute(
        hashes=" ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in hashes),
        title=escape(report.title),
        machine=escape(report.machine),
        style=_style(),
        contents="".join(f'<li><a href="#{part.name}">{escape(part.title)}</a></li>' for part in report.sections),
        filters=_filters(options),
        notes="".join(f'<p class="notes">{escape(note)}</p>' for note in report.notes),
        sections="".join(_section(part) for part in report.sections),
        data=_json(_payload(report, options)),
        bundle=bundle,
        script=script,
    )


def vega_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script; it takes a second to bundle, so the cache keeps it."""
    import vl_convert

    def bundled() -> str:
        text = vl_convert.javascript_bundle("globalThis.vegaEmbed = vegaEmbed;")
        return text.replace("</script", "<\\/script").replace("</SCRIPT", "<\\/SCRIPT")

    def produce(path: Path) -> None:
        path.write_text(bundled(), encoding="utf-8")

    try:
        path, _ = Cache().entry("script", f"vega-{version('vl-convert-python')}", ".js", produce)
        return path.read_text(encoding="utf-8")
    except CacheError:
        return bundled()


def _template(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _style() -> str:
    light, dark = palette.css(palette.LIGHT), palette.css(palette.DARK)
    # On paper it is always the light one.
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}" + _template("report.css")


def _filters(options: Options) -> str:
    fields = []
    for key, title in _FILTERS.items():
        if len(options[key]) > 1:
            every = "<option value=''>All</option>"
            names = [", ".join(setting_words(v)) or "none" if key == "setting" else str(v) for v in options[key]]
            values = "".join(f"<option value='{i}'>{escape(name)}</option>" for i, name in enumerate(names))
            fields.append(f'<label>{title}<select data-key="{key}" autocomplete="off">{every}{values}</select></label>')
    return f'<form class="filters" aria-label="Show only"><div>{"".join(fields)}</div></form>' if fields else ""


def _section(section: Section) -> str:
    parts = [f"<p>{_marked(text)}</p>" for text in section.text]
    tables = [_table(table, section.open) for table in section.tables]
    figures = [_figure(chart, titled=len(section.charts) > 1 or section.open) for chart in section.charts]
    code = [
        f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
        for title, text in section.code
    ]
    body = "".join([*parts, *figures, *tables, *code])
    return f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{body}</section>'


def _marked(text: str) -> str:
    """Escape a text, with code between backticks and bold between two asterisks."""
    coded = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", coded)


def _figure(chart: Chart, titled: bool) -> str:
    title = f"<h3>{escape(chart.title)}</h3>" if titled else ""
    return (
        f'<figure id="chart-{chart.name}">{title}<p class="scope"></p><figcaption>{escape(chart.caption)}</figcaption>'
        f'<div class="chart" role="img" aria-label="{escape(chart.title)}; its figures are in the table below"></div>'
        '<p class="nothing" hidden>Nothing to draw for this choice.</p>'
        '<p class="only-without">The chart needs JavaScript; the table below has its figures.</p></figure>'
    )


def _table(table: Table, open_: bool) -> str:
    title = escape(table.title)
    region = f'tabindex="0" role="region" aria-label="{title}"'
    body = (
        f'<div class="table" id="table-{table.name}" {region}>{html(table)}</div>'
        '<p class="nothing" hidden>No row for this choice.</p>'
    )
    if open_:
        return f"<div>{body}</div>"
    return f"<details><summary>Table: {title}</summary>{body}</details>"


def _options(report: Report) -> dict[str, list[Any]]:
    """Return by key the values that a filter offers, in the order of the page."""
    rows = report.rows.get("lines", ())
    options = {key: list(dict.fromkeys(row[key] for row in rows)) for key in _FILTERS}
    options["batch_size"].sort()
    options["setting"].sort(key=natural)
    options["precision"] = list(dict.fromkeys(row["precision"] for row in sorted(rows, key=lambda row: row["step"])))
    return options


def _payload(report: Report, options: Options) -> dict[str, Any]:
    return {
        "options": options,
        "margin": charts.MARGIN,
        "config": palette.config(palette.variables()),
        "charts": [
            {"spec": one.spec} | {key: value for key, value in vars(one).items() if key not in _SAID}
            for one in report.charts
        ],
        "data": {
            name: {"columns": list(rows[0]) if rows else [], "rows": [_short(list(row.values())) for row in rows]}
            for name, rows in report.rows.items()
        },
        "tables": {table.name: _keys(table, options) for table in report.tables if table.keys},
    }


def _keys(table: Table, options: Options) -> dict[str, Any]:
    """Map each row's values to their places among the filters' options, -1 for none, -2 for one that no filter has."""
    keys, columns = [key for key in _FILTERS if key in table.keys], []
    for key in keys:
        places = {value: place for place, value in enumerate(options[key])} | {None: -1}
        columns.append(
            [
                [places.get(one, -2) for one in value] if isinstance(value, pl.Series) else places.get(value, -2)
                for value in table.frame[key]
            ]
        )
    return {"keys": keys, "rows": list(zip(*columns, strict=True))}


def _short(value: Any) -> Any:
    """Five digits are more than a chart can show."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return [_short(item) for item in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    """JSON that ends no script element, whatever names are in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
