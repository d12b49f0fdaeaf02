"""Show a table in the published form: its sections with rows of ours marked, as Markdown and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import polars as pl

from exporters.whole_file import write_whole
from profiler.results.warning_kinds import HOST_BOUND, KINDS
from profiler.tables.numbers import compact, count, decimals, each, significant, whole
from profiler.tables.table import Field, Table, figure, of_frame, prose, words
from profiler.tables.writers import MARK, csv, escape_markdown, markdown

NOTES = ("note", "brief")
"""The columns that say why a row lacks figures: in full for files, and for a terminal."""

OWN = f"{MARK}\u00a0{{}}"
"""The heading of a column of ours; on a terminal it does not break after the sign."""
OURS = pl.col("ours")
SAME_BATCH = pl.format("{} {}", "ours", "batch_size")
"""What distinguishes rows whose figures can be held against each other: own ones, and those of one batch size."""


MARKED = (HOST_BOUND, *(kind.kind for kind in KINDS.values() if kind.retake))
"""Kinds of warnings that a table marks in its notes and explains below itself."""


def marks(kinds: pl.Expr) -> pl.Expr:
    """Return the marks of lists of kinds of warnings, such as "h x"; null without any."""
    found = [pl.when(kinds.list.contains(kind)).then(pl.lit(KINDS[kind].mark)) for kind in MARKED]
    text = pl.concat_str(found, separator=" ", ignore_nulls=True)
    return pl.when(text != "").then(text)


def legend(kinds: Iterable[str | None]) -> str:
    """Explain the marks of some kinds of warnings; empty without any."""
    carried = set(kinds)
    return "; ".join(f"{KINDS[kind].mark}: {KINDS[kind].meaning}" for kind in MARKED if kind in carried)


@dataclass(frozen=True)
class Printed:
    """A table as a reader sees it.

    `frame` has a Boolean column `ours`, by which rows are `marked`, and perhaps those of NOTES and lists of `kinds` of
    warnings, whose marks are in the notes.
    The table is split under headings by the values of `section`. The CSV has all columns of `data`, or of `frame`.
    The lowest figure of a contested column is bold, among rows of one `contest`; null takes no part.
    """

    name: str
    title: str
    frame: pl.DataFrame
    fields: Sequence[Field]
    section: str | None = None
    note: str = ""
    data: pl.DataFrame | None = None
    marked: str | None = "ours"
    contest: pl.Expr = OURS

    def tables(self, note: str = "note") -> list[Table]:
        """Each section's, in the frame's order, with the notes of the column `note`."""
        fields = [*self.fields, prose("Note", note)] if note in self.frame.columns else self.fields
        if self.section is None:
            return [self._table("", self.frame, fields)]
        groups = self.frame.group_by(self.section, maintain_order=True)
        return [self._table(str(value), rows, fields) for (value,), rows in groups]

    def _table(self, title: str, rows: pl.DataFrame, fields: Sequence[Field]) -> Table:
        return Table(self.name, title, rows, fields, marked=self.marked, bold=self._best(rows))

    def _best(self, rows: pl.DataFrame) -> dict[str, list[bool]]:
        """By contested column which of its figures is the lowest of several."""
        names = [field.columns[0] for field in self.fields if field.contested]

        def best(name: str) -> pl.Expr:
            lowest, several = pl.col(name).min().over("contest"), pl.col(name).count().over("contest") > 1
            return ((pl.col(name) == lowest) & several & pl.col("contest").is_not_null()).fill_null(value=False)

        return rows.select(*names, contest=self.contest).select(map(best, names)).to_dict(as_series=False)

    def markdown(self, pictures: Sequence[str] = ()) -> str:
        """Headings, the note, pictures as paragraphs, and tables; rows of ours are marked."""
        parts = [f"## {escape_markdown(self.title)}\n"]
        parts += [f"{escape_markdown(self.note)}\n"] if self.note else []
        parts += [f"{picture}\n" for picture in pictures]
        for table in self.tables():
            parts += [f"### {escape_markdown(table.title)}\n"] if table.title else []
            parts.append(markdown(table))
        return "\n".join([*parts, *([f"{escape_markdown(self.legend)}\n"] if self.legend else [])])

    @property
    def legend(self) -> str:
        return legend(self.frame["kinds"].explode()) if "kinds" in self.frame.columns else ""

    def write(self, folder: Path) -> None:
        """published-<name>.csv, with all digits and the column `ours`."""
        data = self.frame if self.data is None else self.data
        table = of_frame(self.name, self.title, data.drop("brief", strict=False))
        write_whole(folder / f"published-{self.name}.csv", csv(table))


def joined_notes() -> list[pl.Expr]:
    return [pl.col(note).drop_nulls().str.join("; ").replace("", None) for note in NOTES]


def joined_kinds() -> pl.Expr:
    return pl.col("kinds").explode().drop_nulls().unique(maintain_order=True)


def label(column: str, heading: str, link: str = "") -> Field:
    """A column of words by which rows are known, which lead to the addresses in the column `link`."""
    return words(heading, column, repeated=True, link=link)


def milliseconds(column: str, heading: str, as_printed: str = "") -> Field:
    """A column of times, of which the lowest stand out: two decimals, below 1 ms three.

    Published ones that are all whole keep none. `as_printed` is a column with what stands in place of a number.
    """
    columns = (column, "ours", as_printed) if as_printed else (column, "ours")
    return figure(heading, columns, _milliseconds, contested=True)


def interval(low: str, high: str) -> Field:
    """A column with both ends of a time's 95 % interval, blank where three digits do not tell them apart."""
    return figure("95 %", (low, high), _intervals, unit="ms", expendable=1)


def _intervals(low: Iterable[float | None], high: Iterable[float | None]) -> list[str]:
    ends = [[significant(value) for value in both if value is not None] for both in zip(low, high, strict=True)]
    return ["–".join(both) if len(set(both)) == 2 else "" for both in ends]


def per_image(heading: str) -> list[Field]:
    return [figure("Batch", "batch_size", whole), figure(heading, "per_item_ms", measures)]


def _milliseconds(
    values: Iterable[float | None], ours: Iterable[bool], printed: Iterable[str | None] = repeat(None)
) -> list[str]:
    rows = list(zip(values, ours, printed, strict=False))
    plain = all(value.is_integer() for value, own, _ in rows if value is not None and not own)
    return [text or "" if v is None else count(v) if plain and not own else measure(v) for v, own, text in rows]


def measure(value: float) -> str:
    """Two decimals, below 1 three, below 0.1 three digits."""
    return compact(value, 3) if 0 < value < 0.1 else decimals(value, 3 if value < 1 else 2)


measures = each(measure)
money = each(lambda value: compact(value, 3))
rates = each(lambda value: count(value) if value >= 100 else compact(value, 3))
