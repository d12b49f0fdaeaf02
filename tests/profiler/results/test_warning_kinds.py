"""Every kind of warning is declared whole: a mark of its own, what it means, and its row of docs/columns.md."""

from __future__ import annotations

import ast
from pathlib import Path

import polars as pl
import pytest

from engines.base import Warning
from profiler.results import warning_kinds
from profiler.results.columns import kind_of_warning
from profiler.results.warning_kinds import KINDS, is_due

OUTLIERS = Warning("outliers", "7 of 40: far from the median")


def test_every_kind_is_declared_whole_with_a_mark_of_its_own_and_a_short_footnote():
    assert all(0 < len(kind.meaning.split()) <= 15 for kind in KINDS.values())
    marks = [kind.mark for kind in KINDS.values()]
    assert [mark for mark in marks if len(mark) != 1] == []
    assert len(set(marks)) == len(marks)


def test_no_kind_vouches_for_a_figure_that_another_kind_of_the_row_may_doubt():
    assert [kind.kind for kind in KINDS.values() if "trust" in kind.meaning or "reliable" in kind.meaning] == []


def test_the_page_has_the_table_of_the_kinds():
    page = (Path(__file__).resolve().parents[3] / "docs" / "columns.md").read_text()
    rows = [f"| `{kind.kind}` | {kind.when or kind.meaning} |" for kind in KINDS.values()]
    table = "\n".join(["| warning | meaning |", "| --- | --- |", *rows])
    assert page.endswith(f"\n\n{table}\n"), f"put this at the end of docs/columns.md:\n{table}"


def test_a_warning_reads_back_what_it_wrote():
    assert str(OUTLIERS) == "outliers: 7 of 40: far from the median"
    assert Warning.parse(str(OUTLIERS)) == OUTLIERS
    assert Warning.parse("short-calls") == Warning("short-calls", "")
    assert pl.select(kind_of_warning(pl.lit(str(OUTLIERS)))).item() == OUTLIERS.kind


def test_a_kind_that_is_not_declared_is_refused():
    warning_kinds.check([OUTLIERS])
    with pytest.raises(KeyError, match="no kind of warning is called 'moonlight'"):
        warning_kinds.check([OUTLIERS, Warning("moonlight", "it was bright")])


def made_in_the_sources() -> set[str]:
    """The kinds of every `Warning(…)` in the product, from the literal or the constant that names them."""
    root = Path(__file__).resolve().parents[3]
    found = set()
    for file in (file for package in ("engines", "profiler") for file in (root / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Warning":
                kind = node.args[0]
                found.add(kind.value if isinstance(kind, ast.Constant) else getattr(warning_kinds, ast.unparse(kind)))
    return found


def test_every_kind_is_made_somewhere_and_every_warning_is_of_a_declared_kind():
    assert made_in_the_sources() == set(KINDS)


def test_what_was_disturbed_is_measured_again_once():
    slow, again = (
        Warning("throttled", "hw-slowdown"),
        Warning("remeasured", "the first take was throttled: hw-slowdown"),
    )
    assert is_due([OUTLIERS, slow])
    assert not is_due([slow, again])
    assert not is_due([OUTLIERS, Warning("moonlight", "it was bright")])
    assert warning_kinds.retaken([OUTLIERS, slow, again]) == [slow]
