"""A job on two kinds of nodes, three in all on this machine: one is killed in the middle, then who began it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from robustness.command_runs import Run

from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = pytest.mark.slow
CORES, SECONDS = 2, 200
NETS = """
from torch import nn


def net():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
"""
JOB = """
models: [{name: net, factory: "nets:net", input: [16]}]
engines: [eager]
devices: [red, {kind: blue, usd_per_hour: 2}]
batch_sizes: [1, 2, 4]
replicates: 5
budget: {seconds: 0.02, min_samples: 3, repeats: 0}
"""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that measures nothing, and three nodes, whose sessions end with the test."""
    own = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [own.add_node(num_cpus=CORES, resources={kind: 1}, wait=False) for kind in ("red", "red", "blue")]
        own.wait_for_nodes()
        yield own, nodes[:2]
    finally:
        own.shutdown()


def until(holds: Callable[[], Any]) -> Any:
    """Wait for what must come true; return it."""
    end = time.monotonic() + SECONDS
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


def measures(node: Any) -> bool:
    """Tell whether a node runs a part of a job."""
    (raylet,) = node.all_processes["raylet"]
    below = psutil.Process(raylet.process.pid).children(recursive=True)
    return any("profiler-part-" in word for process in below for word in process.cmdline())


def test_rows_outlive_a_node_and_who_started_the_run(tmp_path: Path, cluster: tuple[Any, list[Any]]) -> None:
    own, reds = cluster
    (tmp_path / "nets.py").write_text(NETS)
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    plan = make_plan(load_config(job), "cpu")

    def results() -> dict[tuple[str, str], Result]:
        folders = [path.parent for path in (tmp_path / "results").glob("*/*/journal.jsonl")]
        return {(folder.name, id_): row for folder in folders for id_, row in RunFolder(folder).results().items()}

    def start(*words: str) -> Run:
        return Run(*words, "--ray", own.address, cwd=tmp_path)

    first = start("job.yaml")
    until(lambda: len(results()) >= 4)
    own.remove_node(until(lambda: next(filter(measures, reds), None)), allow_graceful=False)
    seen = len(results())
    until(lambda: len(results()) >= seen + 6)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(SECONDS)
    before = results()
    assert len(before) < 2 * len(plan)
    (folder,) = (tmp_path / "results").glob("2*")
    second = start("--resume", str(folder))
    assert second.wait(SECONDS) == 0, second.out + second.err

    found = read_runs([folder])
    assert sorted(found.labels.values()) == ["blue", "red"]
    for (machine,), rows in found.results.collect().group_by("machine"):
        assert Counter(rows["case_id"]) == {case.id: 1 for case in plan}
        assert set(rows["status"]) == {"ok"}
        assert set(rows["usd_per_hour"]) == ({2.0} if machine == "blue" else {None})
    after = results()
    assert all(after[key].samples == row.samples for key, row in before.items() if row.status == "ok")
    assert "Machine" in second.out
    until(lambda: not second.others())
