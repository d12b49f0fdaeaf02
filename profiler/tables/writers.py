"""Write a table for a terminal, as Markdown, CSV or HTML; each writer has the one rule by which it escapes names."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from exporters.whole_file import write_whole
from profiler.errors import ConfigError
from profiler.tables.table import Field, Section, Table, name

if TYPE_CHECKING:
    import polars as pl

_FOLDED = {"words": 14, "prose": 24, "excerpt": 10}
"""Characters that a column keeps on a narrow terminal, by the field's kind. Figures and names stay whole."""
MARK = "▸"
"""Before rows that are marked."""
_MARKUP = re.compile(
    r"[\\`*\[<|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|^>|^[#+=-](?!\w)|(?:(?<=^\d)|(?<=^\d\d))[.)](?=\s|$)"
)
"""Match what Markdown would take for markup: underscores at a word's edge, starts of lists, HTML."""


def console(**options: Any) -> Console:
    """Make a console as wide as COLUMNS or the terminal, or 120 where nobody looks, since 80 would cut the tables."""
    made = Console(**options)
    if not made.file.isatty() and not os.environ.get("COLUMNS"):
        made.width = 120
    return made


def print_section(console: Console, section: Section) -> None:
    console.print()
    if section.heading:
        console.print(Text(section.heading, style="bold"))
    for paragraph in section.paragraphs:
        console.print(Text(paragraph))
    for table in section.tables:
        print_table(console, table)


def print_table(console: Console, table: Table, width: int | None = None) -> list[Field]:
    """Print the table so that it fits the terminal, or `width`, and no figure is cut; return the fields left out.

    Where it is too wide its columns move together and fold, then the expendable ones are left out, which a line below
    says, then it is split: every part begins with the first column.
    """
    columns = [_Column(field, cells, table.stand_out(field)) for field, cells in table.columns()]
    if not columns:
        return []
    marked = table.flags(table.marked)
    if any(marked):
        columns.insert(0, _Column(name("", ""), [MARK if own else "" for own in marked], marked))
    if table.title:
        console.print(Text(table.title, style="bold"))
    width, shown = width or console.width, set[_Column]()
    for part in _parts(columns, 1 + any(marked), width):
        grid = _grid(part, width)
        for row, cells in enumerate(zip(*(column.texts for column in part), strict=True)):
            if table.totals and row == table.rows - table.totals:
                grid.add_section()
            grid.add_row(*cells)
        # A terminal that is narrower than a figure wraps the line, which loses nothing.
        console.print(grid, soft_wrap=True)
        shown |= set(part)
    lost = [column.field for column in columns if column not in shown]
    if lost:
        names = ", ".join(f"{field.heading} {field.unit}".rstrip() for field in lost)
        console.print(Text(f"Left out for the width: {names}.", style="dim"))
    return lost


def print_pairs(console: Console, pairs: Iterable[tuple[Text, Text]], gap: int = 2) -> None:
    """Print labels and what they are of side by side; the latter folds."""
    grid = Grid.grid(padding=(0, gap))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in pairs:
        grid.add_row(label, text)
    console.print(grid)


class _Column:
    """A field's cells, and the widths in which they can be printed."""

    def __init__(self, field: Field, cells: Sequence[str], bold: Sequence[bool]) -> None:
        self.field = field
        # Not str, for a name may look like rich's markup.
        self.texts = [Text(cell, style="bold" if out else "") for cell, out in zip(cells, bold, strict=True)]
        # Figures are narrow, so their headings break at the first blank.
        heading = f"{field.heading} {field.unit}".rstrip()
        self.heading = heading.replace(" ", "\n", 1) if field.kind == "figure" else heading
        self.widest = max(map(cell_len, [*self.heading.split("\n"), *cells]))
        self.least = min(self.widest, _FOLDED.get(field.kind, self.widest))


def _parts(columns: list[_Column], repeated: int, width: int) -> Iterator[list[_Column]]:
    """Give the columns of each part of the table; the first ones are in every part."""
    for dropped in sorted((c for c in columns if c.field.expendable), key=lambda c: -c.field.expendable):
        if _least(columns) > width:
            columns = [column for column in columns if column is not dropped]
    part = columns[:repeated]
    for column in columns[repeated:]:
        if len(part) > repeated and _least([*part, column]) > width:
            yield part
            part = columns[:repeated]
        part = [*part, column]
    yield part


def _least(columns: Sequence[_Column]) -> int:
    """Return the least width of a table, with two blanks between columns and one at either edge."""
    return sum(column.least + 2 for column in columns)


def _grid(columns: Sequence[_Column], width: int) -> Grid:
    """Make the empty table. What the columns leave that cannot be narrower is shared by the others."""
    gap = 3 if sum(column.widest + 3 for column in columns) - 1 <= width else 2
    widths = {column: column.widest for column in columns}
    flexible = sorted((c for c in columns if c.least < c.widest), key=lambda c: c.widest)
    room = width - gap * (len(columns) - 1) - 2 - sum(c.widest for c in columns if c not in flexible)
    for place, column in enumerate(flexible):
        # What a short column leaves, the longer ones may use.
        widths[column] = max(column.least, min(column.widest, room // (len(flexible) - place)))
        room -= widths[column]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=gap == 2)
    grid.width = sum(widths.values()) + gap * (len(columns) - 1) + 2
    for column, wide in widths.items():
        kind = column.field.kind
        grid.add_column(
            Text(column.heading),
            justify="right" if kind == "figure" else "left",
            width=wide,
            no_wrap=kind not in ("words", "prose"),
            overflow="ellipsis" if kind == "excerpt" else "fold",
            style=column.field.style,
        )
    return grid


@lru_cache(maxsize=10_000)
def escape_markdown(text: str) -> str:
    """Put words on one line, with a backslash before what Markdown would take for markup."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def slug(name: str) -> str:
    """Write a name as files and folders are called: "Xeon, 2 cores" is xeon-2-cores."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def markdown(table: Table) -> str:
    """Write the table as GitHub's Markdown, without its title; a row that is marked begins with a sign."""
    fields = [field for field, _ in table.columns()]
    head = [escape_markdown(field.title) for field in fields]
    rule = ["---:" if field.kind == "figure" else "---" for field in fields]
    lines = [head, rule, *_markup(table, escape_markdown, "[{}]({})", "**{}**")]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_section(section: Section) -> str:
    parts = [f"## {escape_markdown(section.heading)}"] if section.heading else []
    parts += map(escape_markdown, section.paragraphs)
    for table in section.tables:
        parts += [f"**{escape_markdown(table.title)}**"] if table.title else []
        parts.append(markdown(table).rstrip())
    return "\n\n".join(parts) + "\n"


def csv(table: Table) -> str:
    """Write the table's data with all digits, its columns named as in the frame; lists with semicolons between."""
    import polars as pl  # Not at the top: a list of engines is printed without it.

    names = dict.fromkeys(name for field in table.fields for name in field.columns)
    frame = pl.DataFrame(table.frame).select(*names)
    lists = [name for name, dtype in frame.schema.items() if dtype == pl.List]
    return frame.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join("; ")).write_csv()


def parquet(frame: pl.DataFrame) -> bytes:
    """Write the frame as a Parquet file's bytes, which `write_whole` puts on the disk."""
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


def html(table: Table) -> str:
    """Write a table element; its classes are `n` for figures and `p` for prose."""
    fields = [field for field, _ in table.columns()]
    marks = [{"figure": ' class="n"', "prose": ' class="p"'}.get(field.kind, "") for field in fields]
    body = ""
    # Blanks that align a column on a terminal say nothing here.
    for cells in _markup(
        table, lambda cell: escape(" ".join(cell.split()), quote=False), '<a href="{1}">{0}</a>', "<b>{}</b>"
    ):
        row = "".join(f"<td{mark}>{text}</td>" for mark, text in zip(marks, cells, strict=True))
        body += f"<tr>{row}</tr>"
    head = (f"<th{mark} scope=col>{escape(field.title)}</th>" for field, mark in zip(fields, marks, strict=True))
    return f"<table><thead><tr>{''.join(head)}</tr></thead><tbody>{body}</tbody></table>"


def _markup(table: Table, plain: Callable[[str], str], link: str, bold: str) -> list[list[str]]:
    def cell(text: str, addresses: Sequence[str], out: bool) -> str:
        parts = text.split(", ") if len(addresses) > 1 else [text]
        linked = text and addresses
        pairs = zip(parts, addresses, strict=True) if linked else ()
        text = ", ".join(link.format(plain(part), address) for part, address in pairs) if linked else plain(text)
        return bold.format(text) if out and text else text

    made = [
        [cell(*each) for each in zip(cells, table.links(field), table.stand_out(field), strict=True)]
        for field, cells in table.columns()
    ]
    rows = [list(row) for row in zip(*made, strict=True)]
    for row, own in zip(rows, table.flags(table.marked), strict=False):
        row[0] = f"{MARK} {row[0]}" if own else row[0]
    return rows


TEXTS = {"md": markdown, "csv": csv, "html": html}
"""The writers to text, by the ending of their files."""


def deliver(document: str | bytes, output: Path | None, console: Console, about: str = "") -> None:
    """Print a text as it is, or write the document and say where it is, and then what `about` adds.

    Raises ConfigError where the file cannot be written. Bytes need a file.
    """
    if output is None:
        assert isinstance(document, str)
        sys.stdout.write(document)
        return
    try:
        write_whole(output, document)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}; give another file") from None
    console.print(Text(f"Written: {output}{about}"), soft_wrap=True)
