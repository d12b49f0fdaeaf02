"""What enters: columns of text. What leaves: tables for a terminal, in which no figure is cut, and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_FOLDED = 14
"""Characters that a column of words keeps where a terminal is narrow."""


@dataclass(frozen=True)
class Column:
    """A table's column. Figures are set flush right and never folded; a narrow terminal does without the column of the
    highest `expendable` first, and never without one of 0."""

    head: str
    cells: Sequence[str]
    figures: bool = True
    expendable: int = 0

    @property
    def width(self) -> int:
        """The least that it can be printed in: words fold, and heads break at their first blank."""
        widest = max(map(len, self.cells), default=0)
        return max(widest if self.figures else min(widest, _FOLDED), *map(len, self.head.split(" ", 1)))


@dataclass(frozen=True)
class Section:
    """A part of a printed page: its heading, then paragraphs, then tables."""

    heading: str = ""
    paragraphs: Sequence[str] = ()
    tables: Sequence[tuple[str, Sequence[Column]]] = ()
    """Each with its title, which may be empty."""


def print_section(console: Console, section: Section) -> None:
    """On a terminal."""
    console.print()
    if section.heading:
        console.print(Text(section.heading, style="bold"))
    for paragraph in section.paragraphs:
        console.print(Text(paragraph))
    for title, columns in section.tables:
        console.print(grid(columns, console.width, title))


def markdown_section(section: Section) -> str:
    """As GitHub's Markdown; the tables whole."""
    parts = [f"## {section.heading}"] if section.heading else []
    # A name may look like markup; what is said in a sentence stays one line.
    parts += ["\n\n".join(map(escaped, section.paragraphs))] if section.paragraphs else []
    for title, columns in section.tables:
        parts += [f"**{escaped(title)}**"] if title else []
        parts.append(markdown(columns))
    return "\n\n".join(parts) + "\n"


def filled(columns: Sequence[Column]) -> list[Column]:
    """The columns that say anything."""
    return [column for column in columns if any(column.cells)]


def grid(columns: Sequence[Column], width: int, title: str = "") -> Table:
    """A table no wider than `width`, or without every column that is expendable."""
    kept = list(columns)
    while sum(column.width + 2 for column in kept) > width:
        dropped = max(kept, key=lambda column: column.expendable)
        if not dropped.expendable:
            break
        kept.remove(dropped)
    return _table(kept, title)


def grids(columns: Sequence[Column], width: int) -> list[Table]:
    """Tables that together hold every column, each as wide as fits."""
    parts: list[list[Column]] = []
    room = 0
    for column in columns:
        if not parts or column.width + 2 > room:
            parts.append([])
            room = width
        parts[-1].append(column)
        room -= column.width + 2
    return [_table(part, "") for part in parts]


def markdown(columns: Sequence[Column]) -> str:
    """A GitHub table."""
    rows = zip_longest(*([escaped(cell) for cell in column.cells] for column in columns))
    rules = ["---:" if column.figures else "---" for column in columns]
    lines = [[escaped(column.head) for column in columns], rules, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """On one line, with what Markdown would take for markup escaped."""
    found = " ".join(text.split())
    for mark in "\\|*_`<[":
        found = found.replace(mark, f"\\{mark}")
    return found


def number(value: float | int | None, digits: int = 4) -> str:
    """A figure with so many significant digits, or with all those before the point; "" for None."""
    if value is None or isinstance(value, int):
        return "" if value is None else f"{value:,}"
    if not math.isfinite(value) or 0 < abs(value) < 1e-4 or abs(value) >= 1e15:
        return f"{value:.{digits - 1}e}"
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits}g}")))) if value else 0
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def _table(columns: Sequence[Column], title: str) -> Table:
    # Text, not str: a name may look like markup.
    made = Table(title=Text(title, style="bold") if title else None, title_justify="left", box=box.SIMPLE_HEAD)
    made.pad_edge, made.collapse_padding = False, True
    for column in columns:
        made.add_column(
            Text(column.head.replace(" ", "\n", 1)),
            justify="right" if column.figures else "left",
            no_wrap=column.figures,
            min_width=column.width,
            overflow="fold",
            vertical="top",
        )
    for row in zip_longest(*(column.cells for column in columns), fillvalue=""):
        made.add_row(*map(Text, row))
    return made
