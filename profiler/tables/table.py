"""Describe a table once, as a frame and its fields, for every format."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from profiler.tables import numbers
from profiler.tables.numbers import Format

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, kw_only=True)
class Field:
    """One column for a reader, made by `format` from columns of the frame.

    A figure is flush right, all others left. A narrow terminal folds words and prose (sentences and lists), leaves
    figures and names whole, and drops the most `expendable` field first, never one of 0. The lowest `contested` figure
    stands out. `link` names the frame's column with the addresses that a cell links to, separated by blanks.
    """

    heading: str
    unit: str = ""
    columns: tuple[str, ...]
    format: Format
    kind: Literal["figure", "name", "words", "prose"]
    expendable: int = 0
    contested: bool = False
    link: str = ""

    @property
    def title(self) -> str:
        """Return the heading with the unit: "Latency, ms"."""
        return ", ".join(filter(None, (self.heading, self.unit)))


def figure(heading: str, columns: str | tuple[str, ...], format: Format = numbers.ms, **options: Any) -> Field:
    """Make a column of numbers."""
    columns = (columns,) if isinstance(columns, str) else columns
    return Field(heading=heading, columns=columns, format=format, kind="figure", **options)


def words(heading: str, column: str, format: Format = numbers.words, **options: Any) -> Field:
    """Make a column of words, which may fold."""
    return Field(**{"heading": heading, "columns": (column,), "format": format, "kind": "words", **options})


name = partial(words, kind="name")
prose = partial(words, kind="prose")


@dataclass(frozen=True)
class Table:
    """Rows for a reader. Empty fields are left out unless `every` is set.

    `frame` is a polars frame, or a mapping of columns to lists. Its column `marked` is true for rows to mark with a
    sign; a page filters the rows by the columns `keys`; the last `totals` rows are sums. `bold` maps a field's first
    column to the cells that stand out. `note` stands below the table.
    """

    name: str
    title: str
    frame: pl.DataFrame | Mapping[str, Sequence[Any]]
    fields: Sequence[Field]
    every: bool = False
    marked: str | None = None
    totals: int = 0
    keys: Sequence[str] = ()
    bold: Mapping[str, Sequence[bool]] = dataclasses.field(default_factory=dict)
    note: str = ""

    @property
    def rows(self) -> int:
        return len(self.frame[self.fields[0].columns[0]])

    def columns(self) -> list[tuple[Field, list[str]]]:
        """Return the fields to show, with their cells."""
        columns = [(field, field.format(*(self.frame[name] for name in field.columns))) for field in self.fields]
        return [(field, cells) for field, cells in columns if self.every or any(cells)]

    def flags(self) -> list[bool]:
        """Return whether each row is marked."""
        return [False] * self.rows if self.marked is None else [bool(value) for value in self.frame[self.marked]]

    def stand_out(self, field: Field) -> Sequence[bool]:
        return self.bold.get(field.columns[0]) or [False] * self.rows

    def links(self, field: Field) -> list[list[str]]:
        """Return the addresses that each of the field's cells links to."""
        return [(address or "").split() for address in self.frame[field.link]] if field.link else [[]] * self.rows


@dataclass(frozen=True)
class Section:
    """A part of a document: heading, paragraphs, tables."""

    heading: str = ""
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()


def of_frame(name: str, title: str, frame: pl.DataFrame) -> Table:
    fields = [
        (figure if dtype.is_numeric() else words)(column, column, numbers.anythings)
        for column, dtype in frame.schema.items()
    ]
    return Table(name, title, frame, fields, every=True)


def of_rows(title: str, fields: Sequence[Field], rows: Iterable[Sequence[Any]]) -> Table:
    values = list(zip(*rows, strict=True)) or [()] * len(fields)
    return Table("", title, {field.columns[0]: column for field, column in zip(fields, values, strict=True)}, fields)
