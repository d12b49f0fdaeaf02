"""Which cases have no figures and why, and which warnings the others carry, of small runs made by hand."""

from __future__ import annotations

import polars as pl
from handmade import row, run

from profiler.results.replicates import not_measured, warned


def test_problems_say_status_reason_and_where() -> None:
    results, _ = run(
        row("eager", ms=1.0),
        row("ort", ms=None, status="oom", reason="out of memory", batch_size=16),
        row("ort", ms=None, status="oom", reason="out of memory", batch_size=4, case_id="b"),
        row("ort", "tf32", ms=None, status="unsupported", reason="TF32 needs a GPU"),
    )
    found = not_measured(results).to_dicts()
    assert [(one["status"], one["reason"], one["batch_size"]) for one in found] == [
        ("oom", "out of memory", [4, 16]),
        ("unsupported", "TF32 needs a GPU", [1]),
    ]
    by = not_measured(results.lazy(), ["reason"], pl.len().alias("cases")).collect()
    assert by.rows() == [("out of memory", [4, 16], 2), ("TF32 needs a GPU", [1], 1)]


def test_a_kind_of_warning_is_counted_once_a_case_and_never_of_probes_and_failed_rows() -> None:
    results, _ = run(
        row("eager", case_id="a", warnings=["drift: 3 %", "outliers: 1", "outliers: 2"]),
        row("ort", case_id="b", warnings=["outliers: 9"]),
        row("ort", case_id="c", extra="probe=largest", batch_size=64, warnings=["outliers: 5"]),
        row("ort", "tf32", case_id="d", ms=None, status="failed", reason="no", warnings=["drift: 4 %"]),
    )
    assert warned(results).to_dicts() == [
        {"kind": "drift", "cases": 1, "case_id": "a", "example": "drift: 3 %"},
        {"kind": "outliers", "cases": 2, "case_id": "a", "example": "outliers: 1"},
    ]


def test_cases_of_one_id_in_two_runs_are_two() -> None:
    results, _ = run(*(row("eager", case_id="a", run_id=name, warnings=["drift: 3 %"]) for name in ("one", "two")))
    assert warned(results)["cases"].to_list() == [2]
