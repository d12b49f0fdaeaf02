"""Columns and kinds of warnings, which outside tools rely on, are declared whole and have their tables in the docs."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import polars as pl

from engines.base import Warning
from profiler.options import Recommend
from profiler.results import columns, warning_kinds
from profiler.results.columns import COLUMNS, LAYERS, LIMITED_BY, RESULTS, SAMPLES, kind_of_warning
from profiler.results.result import RANGED, ends_of
from profiler.results.warning_kinds import KINDS
from profiler.stats.samples import PERCENTILE_NEEDS
from profiler.tables.numbers import UNITS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "columns.md"
ENDS_OF_NAMES = {"ms": "_ms", "MiB": "_mib", "s": "_s", "W": "_w", "MHz": "_mhz", "°C": "_c", "error": "_error"}
OUTLIERS = Warning("outliers", "7 of 40: far from the median")


def test_published_runs_have_the_columns_with_their_types():
    """Outside tools rely on the names and types that published runs have."""
    for path in (ROOT / "tests" / "golden").glob("*/results.parquet"):
        assert pl.read_parquet_schema(path).items() <= RESULTS.items()
    assert list(SAMPLES) == ["run_id", "case_id", "clock", "index", "ms"]
    assert list(LAYERS) == ["run_id", "case_id", "order", "layer", "kind", "nodes", "ms", "share"]


def test_a_column_is_declared_whole():
    named = [(c.name.removesuffix("_high"), c.unit) for c in COLUMNS.values()]
    assert [name for name, unit in named if unit in ENDS_OF_NAMES and not name.endswith(ENDS_OF_NAMES[unit])] == []
    measured = [c for c in COLUMNS.values() if c.type == columns.MEASURE and not c.name.endswith("_free")]
    assert [c.name for c in measured if not (c.unit and c.heading)] == []
    assert {c.unit for c in columns.FIGURES.values()} == {*UNITS}
    assert {c.percentile for c in COLUMNS.values()} - {None} == set(PERCENTILE_NEEDS)
    assert {*LIMITED_BY} >= {"latency_ms", "latency_p99_ms", "throughput", "peak_memory_mib", "error"}
    options = {field.name for field in fields(Recommend)}
    assert {option.removeprefix("--").replace("-", "_") for option in LIMITED_BY.values()} <= options


def test_the_page_has_the_tables():
    rows = PAGE.read_text().partition("| columns | meaning |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    ends = {end for name in RANGED for end in ends_of(name)}
    assert sorted(listed) == sorted({*COLUMNS} - ends)
    assert all(row.split("|")[2].strip() for row in rows)
    lines = [f"| `{kind.kind}` | {kind.meaning} |" for kind in KINDS.values()]
    table = "\n".join(["| warning | meaning |", "| --- | --- |", *lines])
    assert PAGE.read_text().endswith(f"\n\n{table}\n"), f"put this at the end of docs/columns.md:\n{table}"


def test_every_kind_has_a_short_footnote():
    assert all(0 < len(kind.meaning.split()) <= 15 for kind in KINDS.values())
    assert str(OUTLIERS) == "outliers: 7 of 40: far from the median"
    assert [Warning.parse(text) for text in (str(OUTLIERS), "unsteady")] == [OUTLIERS, Warning("unsteady", "")]
    assert pl.select(kind_of_warning(pl.lit(str(OUTLIERS)))).item() == OUTLIERS.kind


def test_every_kind_is_made_somewhere_and_every_warning_is_of_a_declared_kind():
    found = set()
    for file in (file for package in ("engines", "profiler") for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Warning":
                kind = node.args[0]
                found.add(kind.value if isinstance(kind, ast.Constant) else getattr(warning_kinds, ast.unparse(kind)))
    assert found == set(KINDS)


def test_what_was_disturbed_is_measured_again():
    slow, again = Warning("throttled", "hw-slowdown"), Warning("remeasured", "the first take was throttled")
    assert warning_kinds.retaken([OUTLIERS, slow, again, Warning("moonlight", "it was bright")]) == [slow]
