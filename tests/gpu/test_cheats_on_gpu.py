"""No model that would flatter its figures is believed on a GPU, in any of PyTorch's ways to run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from robustness.cheats import CHEATS, MORE, OF_A_GPU, entries

pytestmark = pytest.mark.gpu
ENGINES = {
    "eager": "eager",
    "eager-graph": "{name: eager, label: eager-graph, cuda_graph: true}",
    "compiled-graphs": "{name: compiled, label: compiled-graphs, mode: reduce-overhead}",
    "compiled": "{name: compiled, label: compiled, mode: default}",
}
MARKS = ("inconsistent", "inaccurate", "unchecked-outputs")
_AT_LEAST = 0.8
"""Of the honest model's time. What is believed computes nothing, or half."""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("engine", ENGINES)
def test_none_is_ok_without_a_mark_and_faster_than_the_honest_one(engine, tmp_path, profiler):
    cheats = CHEATS | MORE | OF_A_GPU
    source = Path(__file__).parents[1] / "robustness" / "cheats.py"
    (tmp_path / "cheats.py").write_text(source.read_text())
    listed = entries(cheats)
    (tmp_path / "job.yaml").write_text(
        f"models:\n{listed}engines: [{ENGINES[engine]}]\ndevice: cuda\nbatch_sizes: [8]\n"
        "budget: {seconds: 0.5, repeats: 0, timeout: 30}\nreplicates: 1\n"
    )
    profiler("job.yaml", cwd=tmp_path)
    (path,) = tmp_path.glob("results/*/results.parquet")
    rows = pl.read_parquet(path).filter(replicate=0).to_dicts()
    assert len(rows) == len(cheats)
    # In eager the host sets the figure, which work on other cores may double: the less disturbed of two counts.
    honest = min(latency(row) for row in rows if row["model"] in ("honest", "set_globals"))
    assert honest, "an honest model has no figure"
    believed = []
    for row in rows:
        said = row["reason"] or "; ".join(row["warnings"])
        taken = latency(row)
        print(f"{row['model']} | {row['variant']} | {row['status']} | {taken and round(taken, 4)} | {said}")
        is_marked = any(warning.startswith(MARKS) for warning in row["warnings"])
        if row["status"] == "ok" and not is_marked and taken < _AT_LEAST * honest:
            believed.append(f"{row['model']} in {engine}: {taken:.4g} of {honest:.4g} ms")
    assert not believed, "\n".join(believed)


def latency(row: dict[str, Any]) -> float:
    """The row's figure by the host's clock, which also sees what another stream or thread has not done yet."""
    return row["latency_ms"] or 0.0
