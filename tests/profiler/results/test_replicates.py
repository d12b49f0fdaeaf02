from __future__ import annotations

import polars as pl
import pytest
from handmade import row, run

from profiler.results.replicates import merge, not_measured, warned, why_not

ROWS = pl.DataFrame(
    {
        "model": ["a", "b", "a", "a", "b", "a"],
        "status": ["failed", "oom", "ok", "ok", "failed", "ok"],
        "reason": ["wrong outputs", "CUDA: out of memory", None, None, "no luck", None],
        "latency_ms": [99.0, None, 3.0, 1.0, None, None],
        "clock": [None, None, "event", "event", None, "event"],
        "samples": [7, None, 10, 20, None, 30],
        "throttled": [True, None, False, None, None, False],
        "warnings": [["drift: by 9 %"], None, ["few-samples: 10"], ["noisy: a: b", "few-samples: 20"], None, []],
    }
)


def test_replicates_are_one_row_with_the_medians_of_those_that_were_measured() -> None:
    columns = ["latency_ms", "clock", "status", "reason", "samples", "throttled", "warnings"]
    a, b = merge(ROWS, ["model"], columns, slowest_ms=pl.col("latency_ms").max()).to_dicts()
    assert a == {
        "model": "a",
        "replicates": 3,
        "latency_ms": 2.0,
        "clock": "event",
        "status": "ok",
        "reason": None,
        "samples": 60,
        "throttled": False,
        "warnings": ["few-samples", "noisy"],
        "slowest_ms": 99.0,
    }
    assert (b["model"], b["replicates"], b["latency_ms"], b["samples"], b["warnings"]) == ("b", 0, None, 0, [])
    assert (b["status"], b["reason"]) == ("oom", "CUDA: out of memory"), "the first one's"


@pytest.mark.parametrize(
    ("carried", "kinds"),
    [
        ([["disturbed: 9 %"], [], []], []),
        ([["disturbed: 9 %"], ["drift: 3 %"], None], ["drift"]),
        ([["disturbed: 9 %"], ["inconsistent: 1"], []], []),
        ([["inconsistent: 1", "inconsistent: 2"], [], []], []),
        ([["disturbed: 9 %"], []], ["disturbed"]),
        ([["disturbed: 9 %"], ["disturbed: 8 %"], [], []], ["disturbed"]),
        ([["disturbed: 9 %"]], ["disturbed"]),
    ],
)
def test_what_forbids_a_factor_counts_where_half_of_the_replicates_carry_it(
    carried: list[list[str] | None], kinds: list[str]
) -> None:
    """A median over processes is moved by half of them; a failed one is none."""
    rows = pl.DataFrame(
        {
            "model": ["a"] * (len(carried) + 2),
            "status": [*["ok"] * len(carried), "failed", "failed"],
            "warnings": [*carried, ["disturbed: 9 %"], None],
        },
        schema_overrides={"warnings": pl.List(pl.String)},
    )
    assert merge(rows, ["model"], ["warnings"])["warnings"].to_list() == [kinds]


def test_a_percentile_counts_only_where_every_measured_replicate_has_it() -> None:
    """The replicates of the first lack p99 where they took fewest samples: the others' may lie below p95."""
    rows = pl.DataFrame(
        {
            "model": ["a", "a", "a", "b", "b", "b"],
            "status": ["ok", "ok", "ok", "ok", "ok", "failed"],
            "latency_p95_ms": [9.0, 2.0, 8.0, 2.0, 3.0, None],
            "latency_p99_ms": [None, 2.5, None, 4.0, 5.0, None],
        }
    )
    a, b = merge(rows, ["model"], ["latency_p95_ms", "latency_p99_ms", "status"]).to_dicts()
    assert (a["latency_p95_ms"], a["latency_p99_ms"]) == (8.0, None)
    assert (b["latency_p95_ms"], b["latency_p99_ms"]) == (2.5, 4.5), "a failed one has no figures"


def test_why_there_are_no_figures() -> None:
    rows = pl.DataFrame({"status": ["ok", "oom", "failed", "skipped"], "reason": [None, "CUDA", "wrong outputs", None]})
    assert rows.select(why_not()).to_series().to_list() == [
        None,
        "out of memory",
        "failed: wrong outputs",
        "skipped: no reason was given",
    ]


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
        {"kind": "drift", "cases": 1, "case_ids": ["a"], "example": "drift: 3 %"},
        {"kind": "outliers", "cases": 2, "case_ids": ["a", "b"], "example": "outliers: 1"},
    ]


def test_cases_of_one_id_in_two_runs_are_two() -> None:
    results, _ = run(*(row("eager", case_id="a", run_id=name, warnings=["drift: 3 %"]) for name in ("one", "two")))
    assert warned(results)["cases"].to_list() == [2]
