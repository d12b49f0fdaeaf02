"""Write a report as one HTML page that loads nothing: scripts, styles and data are in it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from rich.console import Console

from exporters import named_files
from exporters.cache import Cache, CacheError
from exporters.named_files import write_whole
from profiler.errors import PROGRAM, ConfigError
from profiler.job.case import parse_only, setting_words
from profiler.options import Report as Options
from profiler.report import chart_specs
from profiler.report.chart_specs import Chart, charts
from profiler.report.data import Data, chart_rows, domains, gather
from profiler.report.tables import tables
from profiler.results.cells import Row
from profiler.results.choice import MAX_ERROR, TIES, Choice
from profiler.results.columns import FACTOR
from profiler.results.reading import check_only, read_runs
from profiler.results.run_folder import writable
from profiler.tables.numbers import count, error, natural, times
from profiler.tables.table import Table
from profiler.tables.writers import html

_NAME = "report.html"
_TEMPLATES = Path(__file__).parent / "templates"
_FILTERS = {"run": "Run", "model": "Model", "pass": "Pass", "batch_size": "Batch"}
_FILTERS |= {"setting": "Setting", "precision": "Precision"}
_TITLES = {
    "deploy": "What to deploy",
    "answer": "How sure that is",
    "speedups": "Speed-up by configuration",
    "latency": "Latency by batch size",
    "throughput": "Throughput against latency",
    "memory": "Memory",
    "roofline": "Roofline",
    "training": "Training",
    "layers": "Layer by layer",
    "setup": "Set-up",
    "energy": "Energy and cost",
    "not-measured": "Not measured",
    "warnings": "Warnings",
    "environment": "Machine and versions",
    "method": "Method",
}
"""The sections in the order of reading; charts and tables have their section's name."""
_OPEN = ("deploy", "answer", "not-measured", "warnings", "environment")
"""Sections whose tables are open; a reader unfolds the others."""
_ANSWER = (
    "The lowest latency of each model and batch size among configurations whose error bound is at most "
    f"{error(MAX_ERROR)}. Tied ones are not proven slower; {TIES}."
)
_SET_UP = (
    "Once: export and build, which are kept. Every start: loading and the first call, and compiling where the engine "
    "does so in its process."
)
_METHOD = (
    "Every case runs in a process of its own, one at a time. Latency is the median time of one call: on a GPU between "
    "CUDA events, on a CPU by the host's clock; copies of inputs and outputs are not in it. fp32 is true fp32.",
    "An interval holds 95 %: the hull of sampling noise, the spread between processes on this machine, clocks that "
    "contradict each other, movement while sampling, other work, and the figures of several processes. Factors and "
    "verdicts follow from these intervals.",
)
_MARGIN = 16
"""Pixels above a chart's first row and below its last."""
Filters = Mapping[str, Sequence[Any]]
"""Values of each filter."""


@dataclass(frozen=True)
class Report:
    """A page's content: title, machine, charts with their rows, tables and texts."""

    title: str
    machine: str
    charts: Sequence[Chart]
    rows: Mapping[str, Sequence[Row]]
    tables: Sequence[Table]
    texts: Mapping[str, Sequence[str]]


def execute(options: Options, console: Console) -> int:
    """Write the report and print its path. Raises ConfigError."""
    console.print(str(write(options)), soft_wrap=True, markup=False, highlight=False)
    return 0


def write(options: Options, cells: pl.DataFrame | None = None) -> Path:
    """Write the page and return its path; `cells` are the runs' by run_id, if merged already. Raises ConfigError."""
    only, runs = parse_only(options.only), read_runs(options.runs)
    target = _target(options)
    if only is not None:
        check_only(only, runs.results)
    data = gather(runs, only, cells)
    if not data.statuses:
        raise ConfigError(f"--only {' '.join(options.only)}: no case of {', '.join(map(str, options.runs))} is left")
    with writable(target, "--output"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, page(compose(data)))
    return target


def _target(options: Options) -> Path:
    """Return the file to write: --output, or one in the only run's folder, or one in the current folder."""
    if options.output is not None:
        named_files.exists(options.output)  # Raises ConfigError for a path that cannot be looked up.
        is_file = options.output.suffix == ".html" and not options.output.is_dir()
        return options.output if is_file else options.output / _NAME
    folder = Path(options.runs[0])
    return folder / _NAME if len(options.runs) == 1 and folder.is_dir() else Path(_NAME)


def compose(data: Data) -> Report:
    """Compose a report of the data."""
    rows, by_name = chart_rows(data), tables(data)
    recommend = shlex.join(["recommend", *(run.address for run in data.runs.runs)])
    limits = f"To choose under limits of latency, throughput, memory or error: {PROGRAM} {recommend}"
    texts = {
        "deploy": [_ANSWER, limits],
        "setup": [_SET_UP] if "setup" in by_name else [],
        "not-measured": [] if "not-measured" in by_name else ["Every case succeeded."],
        "warnings": [] if "warnings" in by_name else ["No warnings."],
        "environment": data.runs.notes,
        "method": _METHOD,
        "layers": [f"To print the times of every node: {PROGRAM} layers RUN"] if data.layers else [],
    }
    drawn = [
        chart
        for chart in charts(domains(data.cells))
        if any(row[chart.needs] is not None for row in rows[chart.data[0]]) and all(rows[name] for name in chart.data)
    ]
    counts = ", ".join(f"{count(number)} {status}" for status, number in data.statuses.items())
    machine = f"{', '.join(data.environments)} · {count(sum(data.statuses.values()))} cases: {counts}"
    return Report(headline(data.choices), machine, drawn, rows, list(by_name.values()), texts)


def headline(choices: Sequence[tuple[Mapping[str, Any], Choice]]) -> str:
    """Return the answer in short, like "Deploy compiled fp16 for 5 of 6 models and batch sizes"."""
    # Prefer inference, since users deploy it.
    of_inference = [choice for key, choice in choices if key["pass"] == "inference"]
    answers = of_inference or [choice for _, choice in choices]
    won = [choice for choice in answers if choice.winner]
    if not won:
        if doubts := {choice.doubt for choice in answers if choice.doubt}:
            return "No recommendation yet" + (f": {doubts.pop()}" if len(doubts) == 1 else "")
        is_measured = any(choice.best or choice.nearest for _, choice in choices)
        return "No configuration can be deployed" if is_measured else "No case succeeded"
    ((names, number),) = Counter(choice.names for choice in won).most_common(1)
    if len(answers) > 1:
        return f"Deploy {names} for {number} of {len(answers)} models and batch sizes"
    winner = won[0].winner or {}
    factor, low, high = (winner[end] for end in FACTOR)
    gain = times(factor, low, high, sign=f"× {winner['base']}") if factor else "no base to compare it with"
    return f"Deploy {names}: {'the base itself' if winner['is_base'] else gain}"


def page(report: Report) -> str:
    """Return the document. Its policy allows only the two scripts' hashes, so names in it cannot run as code."""
    options, bundle = _options(report.rows["lines"]), vega_bundle()
    style, body, script = ((_TEMPLATES / f"report.{kind}").read_text("utf-8") for kind in ("css", "html", "js"))
    filled = {chart.name for chart in report.charts} | {table.name for table in report.tables}
    filled |= {name for name, texts in report.texts.items() if texts}
    document: str = jinja2.Template(body, autoescape=True).render(
        hashes=[base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (bundle, script)],
        report=report,
        sections={name: title for name, title in _TITLES.items() if name in filled},
        filters=[(key, title, _choices(key, options[key])) for key, title in _FILTERS.items() if len(options[key]) > 1],
        open=_OPEN,
        html=html,
        style=style,
        data=_json(_payload(report, options)),
        bundle=bundle,
        script=script,
    )
    return document


def vega_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, cached, as bundling takes a second."""
    import vl_convert

    def bundled() -> str:
        text = vl_convert.javascript_bundle("globalThis.vegaEmbed = vegaEmbed;")
        return re.sub("</(script)", r"<\\/\1", text, flags=re.IGNORECASE)

    def produce(path: Path) -> None:
        path.write_text(bundled(), encoding="utf-8")

    try:
        path, _ = Cache().entry("script", f"vega-{version('vl-convert-python')}", ".js", produce)
        return path.read_text(encoding="utf-8")
    except CacheError:
        return bundled()


def _options(rows: Sequence[Row]) -> Filters:
    options = {key: list(dict.fromkeys(row[key] for row in rows)) for key in _FILTERS}
    options["batch_size"].sort()
    options["setting"].sort(key=natural)
    options["precision"] = list(dict.fromkeys(row["precision"] for row in sorted(rows, key=lambda row: row["step"])))
    return options


def _choices(key: str, values: Sequence[Any]) -> list[str]:
    return [", ".join(setting_words(value)) or "none" if key == "setting" else str(value) for value in values]


def _payload(report: Report, options: Filters) -> dict[str, Any]:
    drawn = [
        {"name": c.name, "needs": c.needs, "keep": c.keep, "row_height": c.row_height, "data": c.data, "spec": c.draw()}
        for c in report.charts
    ]
    return {
        "options": options,
        "margin": _MARGIN,
        "config": chart_specs.config(),
        "charts": drawn,
        "data": {
            name: {"columns": list(rows[0]) if rows else [], "rows": [_short(list(row.values())) for row in rows]}
            for name, rows in report.rows.items()
        },
        "tables": {table.name: _keys(table, options) for table in report.tables if table.keys},
    }


def _keys(table: Table, options: Filters) -> dict[str, Any]:
    """Map each row's values to their index among a filter's options: -1 for null, -2 for a value that is no option."""
    keys, columns = [key for key in _FILTERS if key in table.keys], []
    for key in keys:
        places = {value: place for place, value in enumerate(options[key])} | {None: -1}
        values = [list(value) if isinstance(value, pl.Series) else [value] for value in table.frame[key]]
        columns.append([[places.get(value, -2) for value in cell] for cell in values])
    return {"keys": keys, "rows": list(zip(*columns, strict=True))}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return [_short(item) for item in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    """Write JSON that cannot end a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate({ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})
