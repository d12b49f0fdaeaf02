"""A GPU on which another process computes: a real case is disturbed, and one alone on it is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

pytestmark = pytest.mark.gpu

SPIN = """
import torch
a = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
"""
JOB = """
models: [alexnet]
engines: [eager]
precisions: [fp32]
batch_sizes: [16]
device: cuda
output: results
budget: {seconds: 1, repeats: 0}
"""


@pytest.fixture
def busy_gpu() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


def reasons(profiler, folder: Path) -> list[str]:
    (folder / "job.yaml").write_text(JOB)
    done = profiler("job.yaml", cwd=folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = (folder / "results").glob("*/results.parquet")
    (warnings,) = pl.read_parquet(results)["warnings"].to_list()
    return [warning for warning in warnings if warning.startswith("disturbed") and "GPU" in warning]


def test_a_case_next_to_another_process_on_the_gpu_is_disturbed(profiler, tmp_path: Path, busy_gpu: None) -> None:
    (text,) = reasons(profiler, tmp_path)
    assert "of the GPU's time" in text


def test_a_case_alone_on_the_gpu_is_not(profiler, tmp_path: Path) -> None:
    assert reasons(profiler, tmp_path) == []
