"""What enters: a table in the published form, as a frame. What leaves: its cells as text, its Markdown, its CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl


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

    def sections(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Each heading and its rows, in the frame's order."""
        if self.section is None:
            yield self.title, self.frame
            return
        for (value,), rows in self.frame.group_by(self.section, maintain_order=True):
            yield str(value), rows

    def columns(self, rows: pl.DataFrame) -> list[str]:
        """The columns to print of some rows: those in which something stands."""
        return [column for column in self.heads if rows[column].null_count() < rows.height]

    def cell(self, column: str, row: Mapping[str, Any]) -> str:
        """A value as it is printed: times with two decimals, below 1 ms with three; money with three digits."""
        value = row[column]
        if value is None or not isinstance(value, float):
            return "" if value is None else f"{value:,}" if isinstance(value, int) else " ".join(str(value).split())
        if column.startswith("usd") or 0 < value < 0.1:
            return f"{value:.3g}"
        if column in ("throughput", "items_per_usd"):
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        whole = self.whole and not row["ours"] and value.is_integer()
        return f"{value:.{0 if whole else 3 if value < 1 else 2}f}"

    def is_numeric(self, column: str) -> bool:
        """Whether it belongs to the right."""
        return self.frame.schema[column].is_numeric()

    def markdown(self) -> str:
        """Headings, tables and the note; rows of ours are bold."""
        parts = [f"## {self.title}\n"]
        if self.note:
            parts.append(f"{self.note}\n")
        for heading, rows in self.sections():
            if self.section is not None:
                parts.append(f"### {heading}\n")
            columns = self.columns(rows)
            lines = [
                _row([self.heads[c] for c in columns]),
                _row(["---:" if self.is_numeric(c) else "---" for c in columns]),
            ]
            for row in rows.iter_rows(named=True):
                cells = [self.cell(column, row).replace("|", r"\|") for column in columns]
                lines.append(_row([f"**{c}**" if c and row["ours"] else c for c in cells]))
            parts.append("\n".join(lines) + "\n")
        return "\n".join(parts)

    def write_csv(self, folder: Path) -> None:
        """published-<name>.csv, with all digits and the column `ours`."""
        (self.frame if self.data is None else self.data).write_csv(folder / f"published-{self.name}.csv")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
