"""Draw each chart of a report as SVG or PNG files, one for every model and pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exporters.whole_file import write_whole
from profiler.job.case import setting_words
from profiler.report import charts, palette
from profiler.report.charts import Chart
from profiler.report.sections import Report

ImageFormat = Literal["png", "svg"]
_WIDTH = 760
_SCALE = 2
"""Pixels of a PNG per unit."""
_EACH = ("run", "model", "pass")


@dataclass(frozen=True)
class Image:
    """One chart of what `about` says: `run`, `model` and `pass`, as far as the chart is of one."""

    chart: Chart
    about: Mapping[str, str]
    path: Path


def write(report: Report, folder: Path, kind: ImageFormat) -> list[Image]:
    """Write every chart into the folder. Raises OSError."""
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Image] = {}
    for chart in report.charts:
        for about, spec in _specs(report, chart):
            # What every file system takes.
            words = (re.sub(r"[^\w.-]+", "-", word)[:60].strip("-.") for word in (chart.name, *about.values()))
            name = "-".join(word or "unnamed" for word in words)
            while name in drawn:
                name += "-"
            svg = kind == "svg"
            made = vl_convert.vegalite_to_svg(spec) if svg else vl_convert.vegalite_to_png(spec, scale=_SCALE)
            drawn[name] = Image(chart, about, folder / f"{name}.{kind}")
            write_whole(drawn[name].path, made)
    return list(drawn.values())


def _specs(report: Report, chart: Chart) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    main, *others = chart.data
    rows = report.rows[main]
    keys = [key for key in _EACH if chart.keep.get(key) == 1]
    several = [key for key in _EACH if len({row[key] for row in rows}) > 1]
    for values in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        about = dict(zip(keys, values, strict=True))
        chosen = charts.select(chart, [row for row in rows if all(row[key] == value for key, value in about.items())])
        if not chosen:
            continue
        sets = {
            main: chosen,
            **{name: [r for r in report.rows[name] if r["run"] == chosen[0]["run"]] for name in others},
        }
        yield {key: value for key, value in about.items() if key in several}, _spec(chart, about, sets)


def _spec(chart: Chart, about: Mapping[str, str], sets: Mapping[str, Any]) -> dict[str, Any]:
    """With a title, which a page has next to the chart."""
    rows = sets[chart.data[0]]
    sizes = sorted({row["batch_size"] for row in rows})
    shown = [f"batch {', '.join(map(str, sizes))}"] if len(sizes) < 6 else []
    if len(shapes := {row.get("shape") for row in rows}) == 1:
        shown += setting_words(next(iter(shapes)) or "")
    spec = palette.on_paper(
        charts.legends(chart.spec, rows), sets, chart.title, ", ".join([*about.values(), *shown]), offset=24
    )
    pixels = charts.height(chart, rows)
    return spec | {"width": _WIDTH} | ({"height": pixels} if pixels else {})
