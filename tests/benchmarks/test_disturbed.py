"""The benchmark of disturbed runs: what it counts, and that its other work runs and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks.disturbed import burning, judge, measured, ranges
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.columns import RESULTS

ROOT = Path(__file__).resolve().parents[2]
DISTURBED = "disturbed: other processes took 48 % of 2 processors"
AGAIN = "remeasured: first taken while other processes took 48 % of 2 processors"


def frame(**cells: tuple[float | None, list[str]]) -> pl.DataFrame:
    """By case its latency, None for a failed one, and its warnings."""
    rows: list[dict[str, Any]] = [
        {"case_id": name, "latency_ms": ms, "status": "failed" if ms is None else "ok", "warnings": warnings}
        for name, (ms, warnings) in cells.items()
    ]
    return pl.DataFrame(rows, schema={column: RESULTS[column] for column in rows[0]})


def test_the_two_disturbed_runs_have_two_hundred_cells() -> None:
    assert len(make_plan(load_config(ROOT / "benchmarks" / "disturbed.yaml", "cpu"), "cpu")) == 100


def test_every_cell_is_counted_where_it_belongs() -> None:
    names = ("right", "wrong", "drifting", "failed", "marked", "recovered", "recovered_and_wrong", "still_right")
    quiet = frame(**dict.fromkeys(names, (1.0, [])), disturbed_at_first=(1.0, [DISTURBED]), never=(None, []))
    rows = frame(
        right=(1.09, []),
        wrong=(1.11, []),
        drifting=(0.89, ["drift: faster"]),
        failed=(None, []),
        marked=(2.0, [DISTURBED, AGAIN]),
        recovered=(1.0, [AGAIN]),
        recovered_and_wrong=(1.5, [AGAIN]),
        still_right=(1.0, [DISTURBED]),
        disturbed_at_first=(9.0, []),
        never=(None, []),
    )
    found = judge(ranges([quiet]), rows)
    assert found.pop("wrong") == ["wrong +11%", "drifting -11%", "recovered_and_wrong +50%"]
    counts = {"cells": 8, "failed": 1, "wrong_in_all": 4, "wrong_unmarked": 3, "wrong_undoubted": 2}
    assert found == {**counts, "marked": 4, "recovered": 2, "still_marked": 2}
    assert {judge(ranges([quiet]), quiet)[key] for key in ("wrong_unmarked", "failed")} == {0}


def test_a_cell_is_wrong_only_outside_the_range_of_the_quiet_runs() -> None:
    first = frame(above=(1.0, []), below=(1.0, []), between=(1.0, []), disturbed_once=(9.0, [DISTURBED]))
    second = frame(above=(2.0, []), below=(2.0, []), between=(2.0, []), disturbed_once=(1.0, []))
    rows = frame(above=(2.3, []), below=(0.8, []), between=(1.5, []), disturbed_once=(1.0, []))
    assert judge(ranges([first, second]), rows)["wrong"] == ["above +15%", "below -20%"]


@pytest.mark.slow
def test_the_other_work_ends_with_its_block() -> None:
    with burning(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.poll() is not None for process in processes)


def test_the_journal_says_how_many_cells_were_measured(tmp_path: Path) -> None:
    assert measured(tmp_path) == 0
    run = tmp_path / "a-run"
    run.mkdir()
    (run / "journal.jsonl").write_text("{}\n{}\n")
    assert measured(tmp_path) == 2
