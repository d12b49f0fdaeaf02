"""Tables lose columns before they lose a figure, and names are never taken for markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from profiler.tables.fitted import (
    Column,
    Section,
    escaped,
    grid,
    grids,
    markdown,
    markdown_section,
    number,
    print_section,
)


def printed(*tables: object, width: int) -> list[str]:
    page = io.StringIO()
    for table in tables:
        Console(file=page, width=width).print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]


COLUMNS = [
    Column("Model", ["resnet50", "a-very-long-name-of-a-model"], figures=False),
    Column("Base ms", ["1.234", "12,345.678"], expendable=1),
    Column("Device (95 %)", ["1.05 (1.04–1.06)", "1.00 (0.99–1.01)"], expendable=2),
    Column("Verdict", ["faster", "tie"]),
]


@pytest.mark.parametrize(
    ("width", "kept"),
    [(120, {"Base", "Device", "Verdict"}), (45, {"Base", "Verdict"}), (30, {"Verdict"}), (9, {"Verdict"})],
)
def test_a_narrow_terminal_loses_the_most_expendable_columns_first(width: int, kept: set[str]) -> None:
    lines = printed(grid(COLUMNS, width), width=max(width, 30))
    assert {word for word in ("Base", "Device", "Verdict") if any(word in line for line in lines)} == kept
    assert max(map(len, lines)) <= max(width, 30)
    figures = {"Base": "12,345.678", "Device": "1.05 (1.04–1.06)", "Verdict": "faster"}
    assert all(any(figures[word] in line for line in lines) for word in kept), "figures stay whole"


def test_a_long_name_folds_and_loses_nothing() -> None:
    lines = printed(grid(COLUMNS[:1], 20), width=20)
    assert "".join(line.strip() for line in lines).endswith("a-very-long-name-of-a-model")


@pytest.mark.parametrize("width", [40, 60, 200])
def test_columns_that_do_not_fit_stand_in_a_further_table(width: int) -> None:
    columns = [Column(f"column{i}", [f"{1000 + i}.5", "7"]) for i in range(20)]
    tables = grids(columns, width)
    lines = printed(*tables, width=width)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert all(f"{1000 + i}.5" in text and f"column{i}" in text for i in range(20))
    assert len(tables) == {40: 7, 60: 4, 200: 1}[width] or len(tables) > 1


def test_names_are_not_taken_for_markup() -> None:
    name = "[red]a_b*c|d[/red]"
    assert name in "\n".join(printed(grid([Column("Name", [name], figures=False)], 80), width=80))
    page = io.StringIO()
    print_section(Console(file=page, width=80), Section(name, [name], [(name, [Column(name, [name])])]))
    assert page.getvalue().count(name) == 5
    assert escaped("a|b\nc_d") == r"a\|b c\_d"
    assert markdown([Column("n", ["<b>|"])]).splitlines()[2] == r"| \<b>\| |"


def test_a_section_becomes_markdown() -> None:
    section = Section(
        "What differs", ["One thing."], [("", [Column("What", ["driver"], figures=False), Column("n", ["2"])])]
    )
    assert markdown_section(section).splitlines() == [
        "## What differs", "", "One thing.", "", "| What | n |", "| --- | ---: |", "| driver | 2 |",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (0.0, "0.000"), (1.23456, "1.235"), (9.99999, "10.00"), (0.05, "0.05000"), (12345.678, "12,346"),
        (1441218880.0, "1,441,218,880"), (1e-5, "1.000e-05"), (16, "16"), (70772, "70,772"), (-3.25, "-3.250"),
        (float("inf"), "inf"), (float("nan"), "nan"), (99.996, "100.0"),
    ],
)  # fmt: skip
def test_figures_have_four_digits_and_lose_none_before_the_point(value: float | None, text: str) -> None:
    assert number(value) == text
