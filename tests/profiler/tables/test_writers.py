"""A table is the same in every format: a terminal cuts no figure, and no name is taken for markup."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from html import unescape

import polars as pl
import pytest
from rich.console import Console
from runs import on_console

from profiler.tables.numbers import whole
from profiler.tables.table import Section, Table, figure, name, of_frame, of_rows, prose, words
from profiler.tables.writers import (
    csv,
    escape_markdown,
    html,
    markdown,
    markdown_section,
    print_section,
    print_table,
)
from tests.conftest import HOSTILE, ROOT

RESULTS = pl.DataFrame(
    {
        "model": ["resnet50", "a-very-long-name-of-a-model"],
        "ms": [1.2344, 12345.678],
        "gpu_ms": [1.05, 2.25],
        "verdict": ["faster", "tie"],
        "note": [None, None],
    }
)
FIELDS = [
    words("Model", "model"),
    figure("Base ms", "ms", expendable=1),
    figure("Device ms", "gpu_ms", expendable=2),
    figure("Verdict", "verdict", lambda values: list(values)),
    prose("Note", "note"),
]
TABLE = Table("times", "Times", RESULTS, FIELDS)


def printed(table: Table, width: int) -> list[str]:
    return [line.rstrip() for line in on_console(print_table, table, width=width).splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("width", "kept"),
    [(120, {"Base", "Device", "Verdict"}), (38, {"Base", "Verdict"}), (30, {"Verdict"}), (9, {"Verdict"})],
)
def test_a_narrow_terminal_loses_the_most_expendable_columns_first(width, kept):
    lines = printed(TABLE, width)
    grid, _, said = "\n".join(lines).partition("Left out")
    assert {word for word in ("Base", "Device", "Verdict") if word in grid} == kept
    lost = [field.heading for field in (FIELDS[2], FIELDS[1]) if field.heading.split()[0] not in kept]
    assert " ".join(said.split()) == (f"for the width: {', '.join(lost)}." if lost else "")
    assert max(map(len, lines)) <= max(width, 24)
    figures = {"Base": "12,345.68", "Device": "2.25", "Verdict": "faster"}
    assert all(any(figures[word] in line for line in lines) for word in kept), "figures stay whole"


def test_words_fold_and_a_name_stays_whole():
    long = "/a/path/that/is/very/long"
    assert long in "".join(printed(of_rows("", [name("Path", "path")], [[long]]), 12))
    folded = printed(Table("", "", RESULTS, FIELDS[:1]), 18)
    assert "".join(line.strip() for line in folded).endswith("a-very-long-name-of-a-model")
    wide = printed(of_rows("", [name("Name", "name"), figure("n", "n", whole)], [["網路網路", 1], ["abc", 2]]), 80)
    assert wide[-2:] == [" 網路網路   1", " abc        2"], "wide characters count twice"
    assert printed(of_rows("Empty", FIELDS[:1], []), 80) == []


@pytest.mark.parametrize("width", [40, 60, 200])
def test_columns_that_do_not_fit_are_in_a_further_part(width):
    fields = [name("Name", "name"), *(figure(f"column{i}", f"c{i}", whole) for i in range(20))]
    lines = printed(of_rows("Wide", fields, [["this", *(10_000 + i for i in range(20))]]), width)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert all(f"10,0{i:02d}" in text and f"column{i}" in text for i in range(20))
    assert (text.count("Wide"), text.count("this")) == (1, {40: 7, 60: 4, 200: 1}[width])


def test_a_cell_stands_out_and_leads_somewhere_in_every_markup():
    frame = {"what": ["a, b", "c"], "ms": [1.0, 2.0], "ours": [False, True], "url": ["x:1 x:2", None]}
    fields = [words("What", "what", link="url"), figure("ms", "ms")]
    table = Table("", "", frame, fields, marked="ours", bold={"ms": [True, False]}, totals=1)
    assert [line.split()[0][0] for line in printed(table, 80)] == ["W", "─", "a", "▸"]
    assert markdown(table).splitlines()[2:] == ["| [a](x:1), [b](x:2) | **1.00** |", "| ▸ c | 2.00 |"]
    assert '<td><a href="x:1">a</a>, <a href="x:2">b</a></td><td class="n"><b>1.00</b></td>' in html(table)
    console = Console(file=io.StringIO(), width=80, color_system="standard", force_terminal=True)
    print_table(console, table)
    text = console.file.getvalue()
    assert re.findall(r"\x1b\[1m *(\S+) *\x1b", text)[-1] == "1.00"


def test_markdown_is_a_table_without_empty_columns():
    assert markdown(TABLE).splitlines() == [
        "| Model | Base ms | Device ms | Verdict |",
        "| --- | ---: | ---: | ---: |",
        "| resnet50 | 1.23 | 1.05 | faster |",
        "| a-very-long-name-of-a-model | 12,345.68 | 2.25 | tie |",
    ]


def test_every_column_of_a_frame_is_there_as_it_is():
    frame = pl.DataFrame({"name_of": ["a", None], "ms": [0.123456789, 1e6], "none": [None, None], "of": [[1, 2], []]})
    assert markdown(of_frame("", "", frame)).splitlines() == [
        "| name_of | ms | none | of |",
        "| --- | ---: | --- | --- |",
        "| a | 0.123457 |  | 1; 2 |",
        "|  | 1,000,000 |  |  |",
    ]
    assert csv(frame).splitlines()[1] == "a,0.123456789,,1; 2"


NAMES = [
    *HOSTILE.values(),
    "[red]a_b*c|d[/red]",
    "a|b",
    "x\\|y",
    "- item",
    "=1+1",
    "+1",
    "@x",
    "1. item",
    "&lt;b&gt;",
    "_a_",
    "~~gone~~",
]


@pytest.mark.parametrize("hostile", NAMES)
def test_hostile_names_are_text_in_every_format(hostile):
    table = of_rows("", [name(hostile, "a"), figure("n", "n", whole)], [[hostile, 1]])
    flat = " ".join(hostile.split())
    assert flat in "\n".join(printed(table, 200))
    page = html(table)
    assert {*re.findall(r"<(\w+)", page)} == {"table", "thead", "tbody", "tr", "th", "td"}
    assert flat in unescape(re.sub("<[^>]*>", "", page))
    quoted = f"'{hostile}" if hostile[0] in "=+-@\t\r" else hostile
    assert pl.read_csv(io.StringIO(csv(pl.DataFrame({"a": [hostile]}))))["a"].to_list() == [quoted]
    head = csv(pl.DataFrame({hostile: [1]})).rpartition("\n1\n")[0]
    assert head.strip('"').replace('""', '"') == quoted
    for line in markdown(table).splitlines():
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3, "no name ends its cell"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b *c* [d](e) <f> `g` \\|", r"a_b \*c\* \[d](e) \<f> \`g\` \\\|"),
        ("_a_ __b__ c_d_e", r"\_a\_ \_\_b\_\_ c_d_e"),
        ("two\nlines", "two lines"),
        ("# head", r"\# head"),
        ("> quote", r"\> quote"),
        ("- item", r"\- item"),
        ("12. item", r"12\. item"),
        ("-3.25", "-3.25"),
        ("0.193", "0.193"),
        ("a & b &amp; c", r"a & b \&amp; c"),
        ("$x$", r"\$x\$"),
    ],
)
def test_what_markdown_would_take_for_markup_is_escaped(text, escaped):
    assert escape_markdown(text) == escaped


def test_a_section_is_printed_and_becomes_markdown():
    section = Section("What differs", ["One thing."], [of_rows("Driver", [words("What", "what")], [["580"]])])
    assert markdown_section(section) == "## What differs\n\nOne thing.\n\n**Driver**\n\n| What |\n| --- |\n| 580 |\n"
    lines = [line.strip(" ─") for line in on_console(print_section, section, width=80).splitlines()]
    assert [line for line in lines if line] == [
        "What differs",
        "One thing.",
        "Driver",
        "What",
        "580",
    ]


@pytest.mark.slow
def test_a_locale_without_our_signs_gets_them_in_ascii():
    done = subprocess.run(
        [sys.executable, "-m", "profiler", "recommend", "tests/golden/h200", "--model", "resnet50"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    text = done.stdout.decode("ascii")
    assert "error <= " in text and "x eager fp32 (" in text and "\\" not in text
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="signs")
    stream.write("±? ≥ 1…2 °C, 50 µs → é")
    stream.flush()
    assert stream.buffer.getvalue() == rb"+-? >= 1...2 degC, 50 us > \xe9"  # type: ignore[attr-defined]
