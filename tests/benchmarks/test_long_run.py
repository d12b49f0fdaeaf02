"""The job of benchmarks/long_run.py is one that may be asked for, and has as many cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import long_run
from profiler.job.config import load_config
from profiler.job.plan import make_plan


@pytest.mark.parametrize("cases", [7, long_run.CASES])
def test_the_job_has_as_many_cases(tmp_path: Path, cases: int) -> None:
    assert len(make_plan(load_config(long_run.write_job(tmp_path, cases), "cpu"), "cpu")) >= cases
