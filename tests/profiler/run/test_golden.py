"""Two real runs of bench.yaml, on an H200 and on a 2-core CPU: what the tables make of them must not change unseen.

After a change that is meant: UPDATE_GOLDEN=1 pytest tests/profiler/run/test_golden.py, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from runs import on_console

from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import load
from profiler.results.run_tables import write_tables
from profiler.results.speedups import summary
from profiler.run.summary import print_results
from profiler.stats.samples import median_interval

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def golden(name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    results, samples = load(GOLDEN / name)
    return results.collect(), samples.collect()


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_terminal_shows_the_run_as_before(name: str) -> None:
    results, samples = golden(name)
    lines = on_console(print_results, results, summary(results, samples)).splitlines()
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    assert max(map(len, text.splitlines())) <= 120
    expected = GOLDEN / name / "terminal.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(text)
    assert text == expected.read_text()


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_tables_hold_every_measured_row(name: str, tmp_path: Path) -> None:
    results, samples = golden(name)
    assert set(results.schema.items()) <= set(RESULTS.items())
    assert dict(samples.schema) == SAMPLES
    write_tables(tmp_path, results, summary(results, samples))
    assert pl.read_csv(tmp_path / "latency.csv").height == results.filter(status="ok").height


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_intervals_are_what_this_code_makes_of_the_samples(name: str) -> None:
    results, samples = golden(name)
    series = samples.partition_by(["case_id", "clock"], as_dict=True)
    for row in results.filter(status="ok").iter_rows(named=True):
        interval = median_interval(series[row["case_id"], row["clock"]]["ms"])
        found = row["latency_ci_low_ms"], row["latency_ci_high_ms"]
        if interval is None:
            assert found == (None, None), row["case_id"]
        else:
            assert found == pytest.approx((interval.low, interval.high), rel=1e-9), row["case_id"]
