"""Write a table for a terminal, as Markdown, CSV or HTML; each writer escapes names by one rule."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from exporters.errors import printable
from profiler.tables.table import Field, Section, Table

if TYPE_CHECKING:
    import polars as pl

_FOLDED = 16
"""Least width of a column of words on a narrow terminal. Figures and names stay whole."""
MARK = "▸"
_FORMULA = r"^[=+\-@\t\r]"
"""Matches a text that a spreadsheet takes for a formula."""
_MARKUP = re.compile(
    r"[\\`*\[<|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|^>|^[#+=-](?!\w)|(?:(?<=^\d)|(?<=^\d\d))[.)](?=\s|$)"
)
"""Matches markup of Markdown: underscores at a word's edge, starts of lists, HTML."""


_IN_ASCII = str.maketrans("×–→·▸µ", "x->->u") | str.maketrans({"±": "+-", "≤": "<=", "≥": ">=", "…": "...", "°": "deg"})
"""Map the signs that we print to ASCII."""


def _signs(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the stream cannot encode: signs by ASCII, letters by escapes."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_IN_ASCII)
    return text.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("signs", _signs)


def console(**options: Any) -> Console:
    """Make a console as wide as COLUMNS or the terminal, else 120 wide: rich's 80 would cut the tables.

    A stream that escapes foreign characters prints our signs in ASCII from then on.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "backslashreplace":
            stream.reconfigure(errors="signs")
    console = Console(**options)
    console.push_render_hook(_Printable())
    if not console.file.isatty() and not os.environ.get("COLUMNS"):
        console.width = 120
    return console


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text without wrapping its lines, so that commands can be copied."""
    console.print(Text(text, style=style), soft_wrap=True)


class _Printable(RenderHook):
    """Escapes control characters."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return list(map(_Escaped, renderables))


@dataclass(frozen=True)
class _Escaped:
    whole: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.whole, options):
            yield Segment(text if control else printable(text), style, control)


def print_section(console: Console, section: Section) -> None:
    console.print()
    if section.heading:
        console.print(Text(section.heading, style="bold"))
    for paragraph in section.paragraphs:
        console.print(Text(paragraph))
    for table in section.tables:
        print_table(console, table)


def print_table(console: Console, table: Table) -> None:
    """Print the table so that it fits the terminal and no figure is cut.

    Columns that are too wide fold; then expendable ones are dropped, and a line below names them; then the table is
    split into parts that all begin with the first column.
    """
    columns, dropped = [_Column(table, field, cells) for field, cells in table.columns()], []
    if not columns:
        return
    if table.title:
        console.print(Text(table.title, style="bold"))
    for column in sorted((c for c in columns if c.field.expendable), key=lambda c: -c.field.expendable):
        if _least(columns) > console.width:
            columns.remove(column)
            dropped.append(" ".join(column.heading.split()))
    for part in _parts(columns, console.width):
        # A terminal that is narrower than a figure wraps the line, which loses nothing.
        console.print(_grid(table, part, console.width), soft_wrap=True)
    if table.note:
        console.print(Text(table.note, style="dim"))
    if dropped:
        console.print(Text(f"Left out for the width: {', '.join(dropped)}.", style="dim"))


class _Column:
    """A field's cells, and their possible widths."""

    def __init__(self, table: Table, field: Field, cells: Sequence[str]) -> None:
        self.field, self.is_folded = field, field.kind in ("words", "prose")
        # Text, since a plain name may look like rich's markup.
        is_bold = table.stand_out(field)
        self.texts = [Text(cell, style="bold" if bold else "") for cell, bold in zip(cells, is_bold, strict=True)]
        if field is table.fields[0]:
            marks = zip(self.texts, table.flags(), strict=True)
            self.texts = [Text(f"{MARK} ", style="bold") + text if marked else text for text, marked in marks]
        # Figures are narrow, so their headings break at the first blank.
        heading = f"{field.heading} {field.unit}".rstrip()
        self.heading = heading.replace(" ", "\n", 1) if field.kind == "figure" else heading
        lines = [line for text in (self.heading, *(text.plain for text in self.texts)) for line in text.split("\n")]
        self.widest = max(map(cell_len, lines))
        self.least = min(self.widest, _FOLDED) if self.is_folded else self.widest


def _least(columns: Sequence[_Column]) -> int:
    """Return the smallest width of a table, with two blanks between columns and one at either edge."""
    return sum(column.least + 2 for column in columns)


def _parts(columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    first, *others = columns
    part = [first]
    for column in others:
        if len(part) > 1 and _least([*part, column]) > width:
            yield part
            part = [first]
        part.append(column)
    yield part


def _grid(table: Table, columns: Sequence[_Column], width: int) -> Grid:
    is_tight = sum(column.widest + 3 for column in columns) - 1 > width
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=is_tight)
    for column in columns:
        grid.add_column(
            Text(column.heading),
            justify="right" if column.field.kind == "figure" else "left",
            min_width=column.least,
            no_wrap=not column.is_folded,
            overflow="fold",
        )
    for row, cells in enumerate(zip(*(column.texts for column in columns), strict=True), start=1):
        grid.add_row(*cells, end_section=row == table.rows - table.totals)
    return grid


@lru_cache(maxsize=10_000)
def escape_markdown(text: str) -> str:
    """Write words on one line and escape Markdown's markup."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def slug(name: str) -> str:
    """Convert a name for files and folders: "Xeon, 2 cores" is xeon-2-cores."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def markdown(table: Table) -> str:
    """Write the table as GitHub's Markdown, without its title; marked rows begin with a sign."""
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
        parts += [markdown(table).rstrip(), *[escape_markdown(table.note)] * bool(table.note)]
    return "\n\n".join(parts) + "\n"


def csv(frame: pl.DataFrame) -> str:
    """Write a frame with all digits and lists with semicolons; a quote keeps spreadsheets from computing formulas."""
    import polars as pl  # Imported here, so that a list of engines is printed without it.

    lists = [name for name, dtype in frame.schema.items() if dtype == pl.List]
    joined = frame.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join("; "))
    quoted = joined.with_columns(pl.col(pl.String).str.replace(_FORMULA, "'$0"))
    return quoted.rename(lambda name: re.sub(_FORMULA, r"'\g<0>", name)).write_csv()


def parquet(frame: pl.DataFrame) -> bytes:
    """Return the bytes of the frame's Parquet file, for `write_whole`."""
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


def html(table: Table) -> str:
    """Write a table element with the classes `n` for figures and `p` for prose."""

    def plain(cell: str) -> str:
        # Blanks that align a column on a terminal say nothing here.
        return "<br>".join(escape(" ".join(line.split()), quote=False) for line in cell.split("\n"))

    fields = [field for field, _ in table.columns()]
    classes = [{"figure": ' class="n"', "prose": ' class="p"'}.get(field.kind, "") for field in fields]
    body = ""
    for cells in _markup(table, plain, '<a href="{1}">{0}</a>', "<b>{}</b>"):
        body += f"<tr>{''.join(f'<td{name}>{text}</td>' for name, text in zip(classes, cells, strict=True))}</tr>"
    head = (f"<th{name} scope=col>{escape(field.title)}</th>" for field, name in zip(fields, classes, strict=True))
    return f"<table><thead><tr>{''.join(head)}</tr></thead><tbody>{body}</tbody></table>"


def _markup(table: Table, plain: Callable[[str], str], link: str, bold: str) -> list[list[str]]:
    def cell(text: str, addresses: Sequence[str], is_bold: bool) -> str:
        if text and addresses:
            parts = text.split(", ") if len(addresses) > 1 else [text]
            pairs = zip(parts, addresses, strict=True)
            text = ", ".join(link.format(plain(part), address) for part, address in pairs)
        else:
            text = plain(text)
        return bold.format(text) if is_bold and text else text

    columns = [map(cell, cells, table.links(field), table.stand_out(field)) for field, cells in table.columns()]
    rows = [list(row) for row in zip(*columns, strict=True)]
    for row, marked in zip(rows, table.flags(), strict=False):
        row[0] = f"{MARK} {row[0]}" if marked else row[0]
    return rows
