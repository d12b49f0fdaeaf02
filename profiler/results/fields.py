"""Make the fields of a table from the columns' declarations."""

from __future__ import annotations

from typing import Any

from profiler.results.columns import COLUMNS, Group, Shown, columns
from profiler.stats.ratios import label
from profiler.tables.numbers import UNITS, Format, each, spread
from profiler.tables.table import Field, figure, words


def field(name: str, heading: str | None = None, format: Format | None = None, **more: Any) -> Field:
    """The field of a column, under its own heading and in its unit's format unless others are given."""
    column = COLUMNS[name]
    heading = column.heading if heading is None else heading
    if not column.type.is_numeric():
        return words(heading, name, **more)
    unit, own = UNITS[column.unit]
    return figure(heading, name, format or own, **{"unit": unit, "expendable": column.expendable, **more})


def fields(*groups: Group, shown: Shown) -> list[Field]:
    """The fields of every column of some groups that is shown at least so far."""
    return [field(column.name) for column in columns(*groups, shown=shown)]


def latency_spread(**more: Any) -> Field:
    """Half the width of the interval of the median latency, in percent of it."""
    ends = ("latency_ci_low_ms", "latency_ci_high_ms", "latency_ms")
    return figure("± %", ends, spread, **more)


def verdict(**more: Any) -> Field:
    return figure("Verdict", "verdict", each(label), **more)
