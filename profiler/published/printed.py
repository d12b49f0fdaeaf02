"""Show a table in the published form: its sections with rows of ours marked, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from profiler.tables.numbers import compact, count, decimals, each, whole
from profiler.tables.table import Field, Table, figure, of_frame, prose, words
from profiler.tables.writers import csv, escape_markdown, markdown

NOTES = ("note", "brief")
"""The columns that say why a row lacks figures: in full for files, and for a terminal."""


@dataclass(frozen=True)
class Printed:
    """A table as a reader sees it.

    `frame` has a Boolean column `ours`, and perhaps those of NOTES.
    The table is split under headings by the values of `section`. The CSV has all columns of `data`, or of `frame`.
    """

    name: str
    title: str
    frame: pl.DataFrame
    fields: Sequence[Field]
    section: str | None = None
    note: str = ""
    data: pl.DataFrame | None = None

    def tables(self, note: str = "note") -> list[Table]:
        """Each section's, in the frame's order, with the notes of the column `note`."""
        fields = [*self.fields, prose("Note", note)] if note in self.frame.columns else self.fields
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
        data = self.frame if self.data is None else self.data
        table = of_frame(self.name, self.title, data.drop("brief", strict=False))
        (folder / f"published-{self.name}.csv").write_text(csv(table), encoding="utf-8")


def joined_notes() -> list[pl.Expr]:
    """The notes of several rows as those of one."""
    return [pl.col(note).drop_nulls().str.join("; ").replace("", None) for note in NOTES]


def label(column: str, heading: str) -> Field:
    """A column of words by which rows are known."""
    return words(heading, column, repeated=True)


def milliseconds(column: str, heading: str) -> Field:
    """A column of times: two decimals, below 1 ms three. Published ones that are all whole keep none."""
    return figure(heading, (column, "ours"), _milliseconds)


def per_image(heading: str) -> list[Field]:
    """The batch size and the time per image, for tables whose rows differ in the batch size."""
    return [figure("Batch", "batch_size", whole), figure(heading, "per_item_ms", measures)]


def _milliseconds(values: Iterable[float | None], ours: Iterable[bool]) -> list[str]:
    rows = list(zip(values, ours, strict=True))
    plain = all(value.is_integer() for value, own in rows if value is not None and not own)
    return ["" if v is None else count(v) if plain and not own else measure(v) for v, own in rows]


def measure(value: float) -> str:
    """Two decimals, below 1 three, below 0.1 three digits."""
    return compact(value, 3) if 0 < value < 0.1 else decimals(value, 3 if value < 1 else 2)


measures = each(measure)
money = each(lambda value: compact(value, 3))
rates = each(lambda value: count(value) if value >= 100 else compact(value, 3))
