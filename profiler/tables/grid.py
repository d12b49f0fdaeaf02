"""What enters: rows of a table. What leaves: a grid that fits the terminal, every figure whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]
Column = Callable[[Sequence[Row]], list[str]]
"""Makes a column's cells from the rows."""

_EXPENDABLE = ("± %", "Of peak %", "Device ms", "Items/s", "Rel. error", "Memory MiB", "Verdict")
"""Columns that a narrow terminal does without, in this order; the run's folder has them all."""
_LABEL_WIDTH = 13


def fitting(console: Console, title: str, columns: Sequence[tuple[str, Column]], rows: Sequence[Row]) -> Table:
    """The table, closer together or without the least important columns on a narrow terminal: a figure is never cut."""
    made = [(head, make(rows)) for head, make in columns]
    filled = [(head, cells) for head, cells in made if any(cells)]
    for expendable, gap in product(("", *_EXPENDABLE), (3, 2)):
        filled = [(head, cells) for head, cells in filled if head != expendable]
        # `gap` blanks between columns and one at either edge.
        if sum(_width(head, cells) + gap for head, cells in filled) - gap + 2 <= console.width:
            break
    return _grid(title, filled, tight=gap == 2)


def _width(head: str, cells: list[str]) -> int:
    """What a column needs: heads break at their first blank, and a long engine label folds."""
    widest = max(map(len, cells))
    return max(min(widest, _LABEL_WIDTH) if head == "Engine" else widest, *map(len, head.split(" ", 1)))


def _grid(title: str, columns: Sequence[tuple[str, list[str]]], tight: bool) -> Table:
    # Text, not str: a name may look like markup.
    grid = Table(title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    grid.collapse_padding = tight
    for head, cells in columns:
        grid.add_column(
            Text(head.replace(" ", "\n", 1)),
            justify="left" if head in ("Engine", "Precision") else "right",
            no_wrap=head != "Engine",
            min_width=_width(head, cells),
            overflow="fold",
            vertical="top",
        )
    for row in zip(*(cells for _, cells in columns), strict=True):
        grid.add_row(*map(Text, row))
    return grid


def text(column: str) -> Column:
    """A column of words."""
    return lambda rows: [str(row[column]) for row in rows]


def number(column: str) -> Column:
    """A column of figures with as many decimals as its smallest needs for three significant digits."""

    def make(rows: Sequence[Row]) -> list[str]:
        values = [row[column] for row in rows]
        known = [abs(v) for v in values if v]
        places = next((p for p, bound in ((3, 1), (2, 10), (1, 100)) if known and min(known) < bound), 0)
        return ["" if v is None else f"{v:,.{places}f}" for v in values]

    return make
