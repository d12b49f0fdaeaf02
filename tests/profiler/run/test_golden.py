"""Two real runs of bench.yaml, on an H200 and on a 2-core CPU: what the tables make of them must not change unseen.

After a change that is meant: UPDATE_GOLDEN=1 pytest tests/profiler/run/test_golden.py, then read the difference.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import polars as pl
import pytest
from runs import on_console

from profiler.results.cells import cells
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import load
from profiler.results.run_folder import write_tables
from profiler.run.summary import print_results
from profiler.stats.intervals import CONTRADICTION, figure_interval, spread_reach

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_terminal_and_tables_show_the_run_as_before(name, tmp_path):
    results, samples = (frame.collect() for frame in load(GOLDEN / name))
    assert set(results.schema.items()) <= set(RESULTS.items())
    assert dict(samples.schema) == SAMPLES
    lines = on_console(print_results, results, cells(results)).splitlines()
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    assert max(map(len, text.splitlines())) <= 120
    expected = GOLDEN / name / "terminal.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(text)
    assert text == expected.read_text()
    write_tables(tmp_path, results, cells(results))
    assert pl.read_csv(tmp_path / "latency.csv").height == results.filter(status="ok").height


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_intervals_are_what_this_code_makes_of_the_samples(name):
    results, samples = (frame.collect() for frame in load(GOLDEN / name))
    series = samples.partition_by(["case_id", "clock"], as_dict=True)
    for row in results.filter(status="ok").iter_rows(named=True):
        is_disturbed = any(text.startswith("disturbed:") for text in row["warnings"])
        reach = float(spread_reach(row["latency_spread"], row["latency_spread_free"]))
        times = series[row["case_id"], row["clock"]]["ms"]
        middle, ends = row["latency_ms"], (row["latency_low_ms"], row["latency_high_ms"])
        alone = figure_interval(middle, times, beside_work=row["disturbance"] if is_disturbed else None)
        arms = (math.hypot(reach, math.log(end / middle)) for end in (alone.low, alone.high))
        low, high = (middle * math.exp(sign * arm) for sign, arm in zip((-1, 1), arms, strict=True))
        # Only a throughput that contradicts the latency widens it further.
        by_throughput = 1000 * row["batch_size"] / row["throughput"]
        if abs(math.log(by_throughput / row["latency_ms"])) <= math.log(CONTRADICTION):
            assert ends == pytest.approx((low, high), rel=1e-9), row["case_id"]
        assert ends[0] <= low * (1 + 1e-9) and ends[1] >= high * (1 - 1e-9), row["case_id"]
