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
from profiler.report.sections import About, Report, Section
from profiler.tables.numbers import natural
from profiler.tables.table import Table
from profiler.tables.writers import html

_TEMPLATES = Path(__file__).parent / "templates"
_FILTERS = {
    "run": "Run",
    "model": "Model",
    "pass": "Pass",
    "batch_size": "Batch",
    "shape": "Shape",
    "precision": "Precision",
}
_SENTENCES_AT_ONCE = 12
"""Of the answer; more have to be unfolded."""
_MOST_LEADS = 6
_SAID = ("title", "caption", "draw")
"""Of a chart what stands in the page itself, or makes its specification."""
Options = Mapping[str, Sequence[Any]]


def page(report: Report) -> str:
    """The whole document. Whatever a run's names hold, no script runs but the two whose hashes the page allows."""
    options = _options(report)
    bundle, script = vega_bundle(), _template("report.js")
    hashes = [hashlib.sha256(text.encode()).digest() for text in (bundle, script)]
    return Template(_template("report.html")).substitute(
        hashes=" ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in hashes),
        title=escape(report.title),
        machine=escape(report.machine),
        style=_style(),
        lead=_lead(report),
        contents="".join(f'<li><a href="#{part.name}">{escape(part.title)}</a></li>' for part in report.sections),
        filters=_filters(options),
        notes="".join(f'<p class="notes">{escape(note)}</p>' for note in report.notes),
        sections="".join(_section(part, options) for part in report.sections),
        data=_json(_payload(report, options)),
        bundle=bundle,
        script=script,
    )


def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Putting it together takes a second, so it is kept in the cache
    where that can be written."""
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


def _lead(report: Report) -> str:
    items = [
        f"<li><span>{escape(one.where)}</span><b>{escape(one.ratio)}</b><span>{escape(one.over)}</span></li>"
        for one in report.lead[:_MOST_LEADS]
    ]
    return f'<ul class="lead">{"".join(items)}</ul>' if items else ""


def _filters(options: Options) -> str:
    fields = []
    for key, title in _FILTERS.items():
        if len(options[key]) > 1:
            every = "<option value=''>All</option>"
            names = [", ".join(setting_words(v)) if key == "shape" else str(v) for v in options[key]]
            values = "".join(f"<option value='{i}'>{escape(name)}</option>" for i, name in enumerate(names))
            fields.append(f'<label>{title}<select data-key="{key}" autocomplete="off">{every}{values}</select></label>')
    return f'<form class="filters" aria-label="Show only"><div>{"".join(fields)}</div></form>' if fields else ""


def _section(section: Section, options: Options) -> str:
    parts = [f"<p>{_marked(text)}</p>" for text in section.text]
    parts += [f"<p>{escape(text)}</p>" for text in section.plain]
    if section.name == "answer" and len(options["precision"]) > 1:
        parts.append('<p class="only-with">Choose a precision above to see the fastest in it.</p>')
    tables = [_table(table, section.open) for table in section.tables]
    figures = [_figure(chart, titled=len(section.charts) > 1 or section.open) for chart in section.charts]
    parts += [*tables, *figures, *_sentences(section, options)] if section.open else [*figures, *tables]
    parts += [
        f"<details{_about(about, options)}><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
        for title, text, about in section.code
    ]
    return f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{"".join(parts)}</section>'


def _about(about: About, options: Options) -> str:
    """An attribute by which the script hides an element with the rows that it is about, by the places of their values
    among the filters' options."""
    places = {key: _places(options, key).get(about[key], -2) for key in _FILTERS if key in about}
    return f" data-about='{json.dumps(places)}'" if places else ""


def _places(options: Options, key: str) -> dict[Any, int]:
    """Of each value that a filter offers its place. A row without a shape is none of the one that is chosen."""
    return {value: place for place, value in enumerate(options[key])} | {None: -2 if key == "shape" else -1}


def _marked(text: str) -> str:
    """What is between backticks is code, and between two asterisks bold."""
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


def _sentences(section: Section, options: Options) -> list[str]:
    if not section.sentences:
        return []
    items = "".join(f"<li{_about(about, options)}>{escape(text)}</li>" for text, about in section.sentences)
    unfolded = " open" if len(section.sentences) <= _SENTENCES_AT_ONCE else ""
    title = "In sentences"
    return [f'<details{unfolded}><summary>{title}</summary><ul class="sentences">{items}</ul></details>']


def _options(report: Report) -> dict[str, list[Any]]:
    """By key the values that a filter offers, in the order of the page."""
    rows = report.rows.get("lines", ())
    options = {key: list(dict.fromkeys(row[key] for row in rows)) for key in _FILTERS}
    options["batch_size"].sort()
    options["shape"] = sorted(filter(None, options["shape"]), key=natural)
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
        "findings": report.findings,
        "tables": {table.name: _keys(table, options) for table in report.tables if table.keys},
    }


def _keys(table: Table, options: Options) -> dict[str, Any]:
    """For each row the places of its values among the filters' options, -1 for none; a list where it has several.

    A row is shown only for that choice under a key that ends in "!".
    """
    keys = {key: key for key in _FILTERS if key in table.keys} | ({"precision!": table.hidden} if table.hidden else {})
    if options["shape"] and "shape" in table.frame:
        keys["shape"] = "shape"
    columns = []
    for key, column in keys.items():
        places = _places(options, key.rstrip("!"))
        columns.append(
            [
                [places.get(one, -2) for one in value] if isinstance(value, pl.Series) else places.get(value, -2)
                for value in table.frame[column]
            ]
        )
    return {"keys": list(keys), "rows": list(zip(*columns, strict=True))}


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
