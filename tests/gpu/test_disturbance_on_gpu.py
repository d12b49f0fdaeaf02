"""A GPU on which another process computes: a real case is disturbed, and one alone on it is not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from other_work import on_gpu

pytestmark = pytest.mark.gpu

JOB = """
models: [alexnet]
engines: [eager]
precisions: [fp32]
batch_sizes: [16]
device: cuda
output: results
budget: {seconds: 1, repeats: 0}
"""


def reasons(profiler, folder: Path) -> list[str]:
    (folder / "job.yaml").write_text(JOB)
    done = profiler("job.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = (folder / "results").glob("*/results.parquet")
    (warnings,) = pl.read_parquet(results)["warnings"].to_list()
    return [warning for warning in warnings if warning.startswith("disturbed") and "GPU" in warning]


def test_a_case_next_to_another_process_on_the_gpu_is_disturbed(profiler, tmp_path: Path) -> None:
    with on_gpu():
        (text,) = reasons(profiler, tmp_path)
    assert "of the GPU's time" in text


def test_a_case_alone_on_the_gpu_is_not(profiler, tmp_path: Path) -> None:
    assert reasons(profiler, tmp_path) == []
