"""Show a table in the published form: its sections with rows of ours marked, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from profiler.tables import numbers
from profiler.tables.numbers import Format, compact, count, decimals, each
from profiler.tables.table import Field, Table, figure, of_frame, prose, words
from profiler.tables.writers import csv, escape_markdown, markdown


@dataclass(frozen=True)
class Printed:
    """A table as a reader sees it.

    `frame` has a Boolean column `ours`; `heads` are the columns to print with their heads, in order, while the CSV has
    all columns of `data`, or of `frame`. The table is split under headings by the values of `section`. `whole` tells
    that the published figures are whole milliseconds, which then keep no decimals.
    """

    name: str
    title: str
    frame: pl.DataFrame
    heads: Mapping[str, str]
    section: str | None = None
    note: str = ""
    whole: bool = False
    data: pl.DataFrame | None = None

    def tables(self, short: bool = False) -> list[Table]:
        """Each section's, in the frame's order; with `short` notes."""
        fields = [self._field(column, heading, short) for column, heading in self.heads.items()]
        if self.section is None:
            return [Table(self.name, "", self.frame, fields, marked="ours")]
        groups = self.frame.group_by(self.section, maintain_order=True)
        return [Table(self.name, str(value), rows, fields, marked="ours") for (value,), rows in groups]

    def markdown(self) -> str:
        """Headings, tables and the note; rows of ours are bold."""
        parts = [f"## {escape_markdown(self.title)}\n"]
        parts += [f"{escape_markdown(self.note)}\n"] if self.note else []
        for table in self.tables():
            parts += [f"### {escape_markdown(table.title)}\n"] if table.title else []
            parts.append(markdown(table))
        return "\n".join(parts)

    def write_csv(self, folder: Path) -> None:
        """published-<name>.csv, with all digits and the column `ours`."""
        table = of_frame(self.name, self.title, self.frame if self.data is None else self.data)
        (folder / f"published-{self.name}.csv").write_text(csv(table), encoding="utf-8")

    def _field(self, column: str, heading: str, short: bool) -> Field:
        if column == "note":
            return prose(heading, column, format=each(_in_short) if short else numbers.words)
        if not self.frame.schema[column].is_numeric():
            return words(heading, column, repeated=True)
        return figure(heading, (column, "ours"), self._cells(column))

    def _cells(self, column: str) -> Format:
        def cells(values: Iterable[float | None], ours: Iterable[bool]) -> list[str]:
            rows = zip(values, ours, strict=True)
            return ["" if v is None else _text(column, v, whole=self.whole and not own) for v, own in rows]

        return cells


def _text(column: str, value: float, whole: bool) -> str:
    """Times have two decimals, below 1 ms three; money has three digits, and so have rates below 100."""
    if isinstance(value, int) or (whole and value.is_integer()):
        return count(value)
    if column.startswith("usd") or 0 < value < 0.1:
        return compact(value, 3)
    if column in ("throughput", "items_per_usd"):
        return count(value) if value >= 100 else compact(value, 3)
    return decimals(value, 3 if value < 1 else 2)


def _in_short(note: str) -> str:
    """The reason in a word or two: the run's own tables have it whole."""
    if "out of memory" in note:
        return note
    return "; ".join(dict.fromkeys(part.split(": ")[0] for part in note.split("; ")))
