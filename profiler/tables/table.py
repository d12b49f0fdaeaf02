"""Describe a table once: a frame, and the fields that a reader sees of it, whatever it is written as."""

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
    """One column for a reader: its heading and unit, the frame's columns that it is made from, and how.

    A figure is flush right, all others left. A narrow terminal folds words and prose (sentences and lists), leaves
    figures and names whole, and does without the most `expendable` field first, never without one of 0. `contested`
    lets the lowest figure stand out. `link` is a column with the addresses, parted by blanks, that a cell leads to.
    """

    heading: str
    unit: str = ""
    columns: tuple[str, ...]
    format: Format
    kind: Literal["figure", "name", "words", "prose"]
    expendable: int = 0
    style: str = ""
    """On a terminal, such as "dim"."""
    contested: bool = False
    link: str = ""

    @property
    def title(self) -> str:
        """Return the heading with the unit: "Latency, ms"."""
        return ", ".join(filter(None, (self.heading, self.unit)))


def figure(heading: str, columns: str | tuple[str, ...], format: Format = numbers.ms, **more: Any) -> Field:
    """Make a column of numbers."""
    columns = (columns,) if isinstance(columns, str) else columns
    return Field(heading=heading, columns=columns, format=format, kind="figure", **more)


def words(heading: str, column: str, format: Format = numbers.words, **more: Any) -> Field:
    """Make a column of words, which may fold."""
    return Field(**{"heading": heading, "columns": (column,), "format": format, "kind": "words", **more})


name = partial(words, kind="name")
prose = partial(words, kind="prose")


@dataclass(frozen=True)
class Table:
    """Rows for a reader. Fields that are empty throughout are left out, unless it is to have `every` field.

    `frame` is a polars frame, or a mapping with a list a column. Of its columns `marked` is true of rows to mark with
    a sign, and a page filters the rows by the `keys`; the last `totals` rows are sums. `bold` has, by a field's first
    column, which of its cells stand out. `note` stands below the table.
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
        """The fields to show, each with its cells."""
        made = [(field, field.format(*(self.frame[name] for name in field.columns))) for field in self.fields]
        return [(field, cells) for field, cells in made if self.every or any(cells)]

    def flags(self, column: str | None) -> list[bool]:
        """Evaluate a column for each row; False without a column."""
        return [False] * self.rows if column is None else [bool(value) for value in self.frame[column]]

    def stand_out(self, field: Field) -> Sequence[bool]:
        return self.bold.get(field.columns[0]) or [False] * self.rows

    def links(self, field: Field) -> list[list[str]]:
        """Return the link target of each of the field's cells."""
        return [(address or "").split() for address in self.frame[field.link]] if field.link else [[]] * self.rows


@dataclass(frozen=True)
class Section:
    """A part of a document: its heading, then paragraphs, then tables."""

    heading: str = ""
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()


def of_frame(name: str, title: str, frame: pl.DataFrame) -> Table:
    fields = [
        (figure if dtype.is_numeric() else words)(column, column, numbers.anythings)
        for column, dtype in frame.schema.items()
    ]
    return Table(name, title, frame, fields, every=True)


def of_rows(title: str, fields: Sequence[Field], rows: Iterable[Sequence[Any]], **more: Any) -> Table:
    values = list(zip(*rows, strict=True)) or [()] * len(fields)
    frame = {field.columns[0]: column for field, column in zip(fields, values, strict=True)}
    return Table("", title, frame, fields, **more)
