"""A run reuses what an earlier one prepared of a factory, only while the model is the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
from runs import Profiler

from exporters.source import ModelSource
from profiler.job.case import Budget
from profiler.run.prepare import Stages

FACTORY = """
import helper
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return helper.head(self.layer(x))
"""
HELPER = "def head(y):\n    return y * 2\n"
JOB = """
models: [{name: net, factory: "mine:Net", input: [8]}]
engines: [eager, ort]
device: cpu
batch_sizes: [1]
budget: {seconds: 0.05, min_samples: 3}
"""
Start = Callable[[], dict[str, dict[str, Any]]]


@pytest.fixture
def start(tmp_path: Path, profiler: Profiler) -> Start:
    """Starts a run; returns its fp32 rows by variant."""
    (tmp_path / "mine.py").write_text(FACTORY)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "job.yaml").write_text(JOB)

    def run() -> dict[str, dict[str, Any]]:
        done = profiler("job.yaml", cwd=tmp_path, PROFILER_CACHE=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stdout + done.stderr
        newest = max(tmp_path.glob("results/*"), key=lambda folder: folder.stat().st_mtime_ns)
        rows = pl.read_parquet(newest / "results.parquet").filter(precision="fp32").to_dicts()
        return {row["variant"]: row for row in rows}

    return run


def test_a_changed_helper_is_a_new_graph_and_an_unchanged_one_is_none(start: Start, tmp_path: Path) -> None:
    def graphs() -> set[Path]:
        return set((tmp_path / "cache" / "onnx").glob("*.onnx"))

    def outputs(graph: Path) -> Any:
        return onnxruntime.InferenceSession(graph).run(None, {"x": np.ones((1, 8), np.float32)})[0]

    first, before = start(), graphs()
    again = start()
    assert graphs() == before
    assert again["ort"]["export_s"] == first["ort"]["export_s"], "what the first run's export took"

    (tmp_path / "helper.py").write_text(HELPER.replace("2", "1000"))
    changed = start()
    assert {variant: row["status"] for variant, row in changed.items()} == {"eager": "ok", "ort": "ok"}
    (old,), (new,) = before, graphs() - before
    np.testing.assert_allclose(outputs(new), outputs(old) * 500, rtol=1e-4)


@pytest.mark.parametrize(("most", "option"), [(math.inf, "budget.build_timeout"), (8.0, None)])
def test_the_option_to_raise_is_the_one_that_limits(tmp_path: Path, most: float, option: str | None) -> None:
    stages = Stages({"m": ModelSource("m")}, Budget(timeout=8, build_timeout=20), tmp_path, (), lambda *_: None)
    call = stages._call("prepare_model", "log", "m", most=most)
    assert (call.timeout, call.option) == (min(most, 20), option)
