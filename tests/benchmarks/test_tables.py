"""The runs that the tables' benchmark makes up are runs, and what it measures is what it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import read_runs

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "tables.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def made(script: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    runs: list[Path] = script["make_runs"](tmp_path_factory.mktemp("made"), 1)
    return runs


def test_what_is_made_up_is_a_run(made, script):
    assert dict(pl.read_parquet_schema(made[0] / "results.parquet")) == RESULTS
    assert dict(pl.read_parquet_schema(made[0] / "samples.parquet")) == SAMPLES
    runs = read_runs(made)
    results, samples = runs.results.collect(), runs.samples.collect()
    assert results["case_id"].n_unique() == results.height / 2
    assert samples.height == results.height * sum(script["SAMPLES_PER_CASE"].values())
    assert runs.notes == ()
    medians = samples.filter(clock="gpu").group_by("run_id", "case_id").agg(pl.col("ms").median())
    both = results.filter(status="ok").join(medians, on=["run_id", "case_id"])
    assert ((both["ms"] / both["gpu_ms"]).log().abs() < 0.03).all()


@pytest.mark.slow
def test_a_whole_process_is_measured(script, tmp_path):
    wall, cpu, mib, code = script["measure"](["models"], tmp_path)
    assert code == 0
    assert wall > 0
    assert cpu > 0
    # MiB, not KiB or bytes. What is forked counts the tests' own process, which may have over 1 GiB, until it executes.
    assert 10 < mib < 10_000
    assert "resnet50" in (tmp_path / "output.txt").read_text()
    *_, code = script["measure"](["compare", "missing"], tmp_path)
    assert code == 2
