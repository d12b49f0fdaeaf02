"""A job on a cluster of three nodes on this machine, of which one is killed in the middle, then who started it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from robustness.command_runs import Run

from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.run_folder import RunFolder

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = pytest.mark.slow
MODELS, CORES, SECONDS = 3, 2, 200
NETS = """
from torch import nn


def net(width):
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))


def bad():
    raise ValueError("no such net")
"""
JOB = """
models:
{models}
  - {{name: bad, factory: "nets:bad", input: [16]}}
engines: [eager]
device: cpu
batch_sizes: [1, 2]
replicates: 5
budget: {{seconds: 0.02, min_samples: 3, repeats: 0}}
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that measures nothing, and three nodes, whose sessions end with the test."""
    own = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(3):
            own.add_node(num_cpus=CORES, wait=False)
        own.wait_for_nodes()
        yield own
    finally:
        own.shutdown()


def until(holds: Callable[[], Any]) -> Any:
    """Wait for what must come true; return it."""
    end = time.monotonic() + SECONDS
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def test_rows_outlive_a_node_and_who_started_the_run(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    models = "\n".join(
        f'  - {{name: net{n}, factory: "nets:net", input: [16], options: {{width: {8 + n}}}}}' for n in range(MODELS)
    )
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(models=models))
    plan = make_plan(load_config(job), "cpu")

    def results() -> dict[str, Any]:
        folders = list((tmp_path / "results").glob("*/journal.jsonl"))
        return RunFolder(folders[0].parent).results() if folders else {}

    def start(*words: str) -> Run:
        return Run(*words, "--ray", cluster.address, cwd=tmp_path)

    first = start("job.yaml")
    until(lambda: len(results()) >= 4)
    cluster.remove_node(list(cluster.worker_nodes)[0], allow_graceful=False)
    seen = len(results())
    until(lambda: len(results()) >= seen + 6)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(SECONDS)
    before = results()
    assert len(before) < len(plan)
    (folder,) = (tmp_path / "results").glob("2*")
    second = start("--resume", str(folder))
    assert second.wait(SECONDS) == 0, second.out + second.err

    rows = pl.read_parquet(folder / "results.parquet")
    assert Counter(rows["case_id"]) == {case.id: 1 for case in plan}
    assert {row["case_id"]: row["status"] for row in rows.to_dicts()} == {
        case.id: "failed" if case.model == "bad" else "ok" for case in plan
    }
    assert "no such net" in rows.filter(model="bad")["reason"][0]
    after = results()
    assert all(after[id_].samples == result.samples for id_, result in before.items() if result.status == "ok")
    assert "Interrupted" not in second.out
    until(lambda: not second.others())
