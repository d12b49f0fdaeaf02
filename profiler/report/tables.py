"""What enters: a polars frame. What leaves: `Table`, the same figures for a person, as HTML or Markdown, and as CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

import polars as pl

from profiler.results.columns import Group, Shown, columns
from profiler.results.fields import field

_TAG = re.compile(r"<(thead|tbody|tr|th|td|span)\b([^>]*)>")


@dataclass(frozen=True)
class Column:
    """One column: its head, with the unit, the frame's columns that it is made from, and how."""

    head: str
    names: tuple[str, ...]
    cells: Callable[[pl.DataFrame], list[str]]
    figure: bool = True
    """Set to the right, with digits below each other."""
    prose: bool = False
    """Sentences and lists, which may take several lines."""
    over: str = ""
    """A head that stands over this and its neighbours of the same."""


@dataclass(frozen=True)
class Table:
    """`name` is its file's as CSV. Columns that are empty throughout are left out. `keys` are columns of the frame by
    which the page's filters tell rows apart. Where it has the column `restricted_to`, its rows that are not null there
    are for a filter alone to show.
    """

    name: str
    title: str
    columns: Sequence[Column]
    frame: pl.DataFrame
    keys: Sequence[str] = ()

    def heads_and_cells(self) -> tuple[list[Column], list[list[str]]]:
        """The columns that are not empty, and the cells of each."""
        made = [(column, column.cells(self.frame)) for column in self.columns]
        filled = [(column, cells) for column, cells in made if any(cells)]
        return [column for column, _ in filled], [cells for _, cells in filled]

    def html(self) -> str:
        """A table element whose only classes are `n` for figures, `p` for prose and `s` for a head over several."""
        columns, cells = self.heads_and_cells()
        marks = [' class="n"' if c.figure else ' class="p"' if c.prose else "" for c in columns]
        head = "".join(f"<th{m} scope=col>{escape(c.head)}</th>" for m, c in zip(marks, columns, strict=True))
        rows = "".join(
            f"<tr{' hidden' if hidden else ''}>"
            + "".join([f"<td{mark}>{escape(cell, quote=False)}</td>" for mark, cell in zip(marks, row, strict=True)])
            + "</tr>"
            for row, hidden in zip(zip(*cells, strict=True), self._restricted(), strict=True)
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def laid_out(self) -> str:
        """The same by great_tables, with the heads that stand over several columns.

        It takes 60 µs a cell: right for a table that is read, five seconds for all figures of a thousand lines.
        """
        from great_tables import GT

        columns, cells = self.heads_and_cells()
        names = [f"c{i}" for i in range(len(columns))]
        table = GT(pl.DataFrame(dict(zip(names, cells, strict=True))))
        table = table.cols_label(dict(zip(names, (column.head for column in columns), strict=True)))
        for over in dict.fromkeys(column.over for column in columns if column.over):
            table = table.tab_spanner(
                over, [n for n, column in zip(names, columns, strict=True) if column.over == over]
            )
        made = table.as_raw_html()
        head, body = made[made.index("<thead") : made.rindex("</table>")].split("<tbody", 1)
        marks = [' class="n"' if c.figure else ' class="p"' if c.prose else "" for c in columns]
        mark_of, hidden = cycle(marks), iter(self._restricted())

        def plain_head(tag: re.Match[str]) -> str:
            kind, told = tag.groups()
            if kind != "th":
                return f"<{kind}>"
            named = re.search(r'id="c(\d+)"', told)
            spans = "".join(f" {span}" for span in re.findall(r'(?:row|col)span="\d+"', told) if '"1"' not in span)
            mark = marks[int(named[1])] if named else ' class="s"' if "spanner_outer" in told else ""
            return f"<th{mark}{spans} scope={'col' if named else 'colgroup'}>"

        def plain_body(tag: re.Match[str]) -> str:
            if tag[1] == "tr":
                return "<tr hidden>" if next(hidden) else "<tr>"
            return f"<td{next(mark_of)}>" if tag[1] == "td" else f"<{tag[1]}>"

        text = _TAG.sub(plain_head, head) + _TAG.sub(plain_body, f"<tbody{body}")
        return re.sub(r">\s+<", "><", f"<table>{text}</table>")

    def markdown(self) -> str:
        """A GitHub table."""
        columns, cells = self.heads_and_cells()
        rows = [row for row, hidden in zip(zip(*cells, strict=True), self._restricted(), strict=True) if not hidden]
        ruled = ["---:" if column.figure else "---" for column in columns]
        lines = [
            [escape_markdown(column.head) for column in columns],
            ruled,
            *([escape_markdown(cell) for cell in row] for row in rows),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def write_csv(self, folder: Path) -> Path:
        """Every digit, the columns named as in results.parquet."""
        names = dict.fromkeys([*self.keys, *(name for column in self.columns for name in column.names)])
        frame = self.frame.select(*names)
        lists = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.List)]
        path = folder / f"{self.name}.csv"
        frame.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join("; ")).write_csv(path)
        return path

    def _restricted(self) -> list[bool]:
        if "restricted_to" not in self.frame.columns:
            return [False] * self.frame.height
        return self.frame["restricted_to"].is_not_null().to_list()


def declared(name: str) -> Column:
    """A column of the results, under its own heading and in its unit's format."""
    own = field(name)
    return Column(own.title, own.columns, lambda frame: own.format(frame[name]), figure=own.kind == "figure")


def shown(group: Group) -> list[Column]:
    """Every column of a group that a report shows."""
    return [declared(column.name) for column in columns(group, shown=Shown.REPORT)]


def text(head: str, name: str) -> Column:
    """Words as they are; a list with commas between."""
    return Column(head, (name,), lambda frame: [_word(value) for value in frame[name]], figure=False)


def under(over: str, *columns: Column) -> list[Column]:
    """These columns, with a head over them."""
    return [replace(column, over=over) for column in columns]


def prose(head: str, name: str) -> Column:
    """Words of which there may be many."""
    return replace(text(head, name), prose=True)


def whole(head: str, name: str) -> Column:
    """A number without decimals, 1,234."""
    return Column(head, (name,), lambda frame: ["" if v is None else f"{v:,.0f}" for v in frame[name]])


def figure(head: str, name: str, digits: int = 3, most: int = 3) -> Column:
    """A number with as many decimals as the column's least needs for so many `digits`, `most` at most, so that the
    points stand below each other."""

    def cells(frame: pl.DataFrame) -> list[str]:
        known = [abs(value) for value in frame[name] if value]
        places = max(0, min(most, digits - 1 - math.floor(math.log10(min(known))))) if known else 0
        return ["" if value is None else f"{value:,.{places}f}" for value in frame[name]]

    return Column(head, (name,), cells)


def percent(head: str, name: str) -> Column:
    """A share, 0.178 as 17.8."""
    return Column(head, (name,), lambda frame: ["" if v is None else f"{100 * v:.1f}" for v in frame[name]])


def tiny(head: str, name: str) -> Column:
    """An error, 1.6e-3."""

    def cell(value: float | None) -> str:
        return "" if value is None else re.sub(r"e([-+])0", r"e\1", f"{value:.1e}") if value else "0"

    return Column(head, (name,), lambda frame: [cell(value) for value in frame[name]])


def spread(head: str, low: str, high: str, middle: str) -> Column:
    """Half an interval's width in percent of its middle."""

    def cells(frame: pl.DataFrame) -> list[str]:
        rows = frame.select(low, high, middle).iter_rows()
        return ["" if a is None or b is None or not m else f"{50 * (b - a) / m:.1f}" for a, b, m in rows]

    return Column(head, (low, high), cells)


def interval(head: str, low: str, high: str) -> Column:
    """Like 7.18–7.22."""

    def cells(frame: pl.DataFrame) -> list[str]:
        return ["" if a is None or b is None else f"{a:.2f}–{b:.2f}" for a, b in frame.select(low, high).iter_rows()]

    return Column(head, (low, high), cells)


def ratio(head: str, name: str, low: str, high: str) -> Column:
    """Like 7.20 (7.18–7.22)."""

    def cells(frame: pl.DataFrame) -> list[str]:
        rows = frame.select(name, low, high).iter_rows()
        return [
            "" if middle is None else f"{middle:.2f}" + ("" if a is None or b is None else f" ({a:.2f}–{b:.2f})")
            for middle, a, b in rows
        ]

    return Column(head, (name, low, high), cells)


def rival(head: str, name: str, value: str) -> Column:
    """Another line and its figure, like "ort fp16, 1.05"."""

    def cells(frame: pl.DataFrame) -> list[str]:
        rows = frame.select(name, value).iter_rows()
        return ["" if word is None or number is None else f"{word}, {amount(number)}" for word, number in rows]

    return Column(head, (name, value), cells, figure=False)


def items(head: str, name: str) -> Column:
    """A rate, of which four digits are enough: 36,488, 122.3, 0.083."""
    return Column(head, (name,), lambda frame: ["" if v is None else amount(v, 4) for v in frame[name]])


def amount(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, thousands apart; what stands before the point is never rounded."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    words = ", ".join(map(str, value)) if isinstance(value, pl.Series | list) else str(value)
    return " ".join(words.split())


def escape_markdown(words: str) -> str:
    """With a backslash before what Markdown, or HTML in it, would take for its own."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", words)
