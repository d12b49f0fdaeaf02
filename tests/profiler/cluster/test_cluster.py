"""A job on two kinds of nodes, three in all on this machine: one is killed in the middle, then who began it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
from robustness.command_runs import ROOT, Run
from runs import until

from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]
SECONDS = 600  # Of each wait, on a busy machine.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

own = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
nodes = [own.add_node(num_cpus=1, resources={kind: 1}, wait=False) for kind in ("red", "red", "blue")]
own.wait_for_nodes()
print("cluster", own.address, *(node.all_processes["raylet"][0].process.pid for node in nodes), flush=True)
sys.stdin.read()
own.shutdown()
"""
"""In a process of its own: it has threads, and what it starts is not this one's family."""
NETS = """
from torch import nn


def net():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
"""
JOB = """
models: [{name: net, factory: "nets:net", input: [16]}]
engines: [eager]
devices: [red, {kind: blue, usd_per_hour: 2}]
batch_sizes: [1, 2]
replicates: 4
budget: {seconds: 0.02, min_samples: 3, repeats: 0}
"""


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[psutil.Process]]]:
    """A head that measures nothing, and three nodes; its address, and the raylets of the red ones."""
    own = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # A node must have the sources that the run has.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert own.stdin and own.stdout
    try:
        address, *pids = next(line for line in own.stdout if line.startswith("cluster ")).split()[1:]
        yield address, [psutil.Process(int(pid)) for pid in pids[:2]]
    finally:
        own.stdin.close()
        own.wait(SECONDS)


def measures(raylet: psutil.Process) -> bool:
    """Tell whether a node runs a part of a job."""
    return any("profiler-scratch-" in word for below in raylet.children(recursive=True) for word in below.cmdline())


def test_rows_outlive_a_node_and_who_started_the_run(tmp_path, cluster):
    address, reds = cluster
    (tmp_path / "nets.py").write_text(NETS)
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    plan = make_plan(load_config(job), "cpu")

    def results() -> dict[tuple[str, str], Result]:
        folders = [path.parent for path in (tmp_path / "results").glob("*/*/journal.jsonl")]
        return {(folder.name, id_): row for folder in folders for id_, row in RunFolder(folder).results().items()}

    def start(*words: str) -> Run:
        return Run(*words, "--ray", address, "--no-report", cwd=tmp_path)

    first = start("job.yaml")
    until(lambda: first.code is not None or len(results()) >= 4)
    assert first.code is None, first.err
    until(lambda: next(filter(measures, reds), None)).kill()
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


def test_a_head_that_ends_ends_the_run_with_what_goes_on(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    job = JOB.replace("devices: [red, {kind: blue, usd_per_hour: 2}]", "device: cpu")
    # Enough cases that the run does not end before it learns that the head has.
    (tmp_path / "job.yaml").write_text(job.replace("replicates: 4", "replicates: 40"))
    variables = {"PROFILER_CACHE": str(tmp_path / "cache"), "RAY_TMPDIR": "/tmp"}  # Its sockets' paths are long.
    run = Run("job.yaml", "--ray", "local", "--no-report", cwd=tmp_path, **variables)
    until(lambda: run.code is not None or any(tmp_path.glob("results/*/journal.jsonl")), SECONDS)
    assert run.code is None, run.err
    below = psutil.Process(run.pid).children(recursive=True)
    next(process for process in below if process.name() == "gcs_server").kill()
    assert run.wait(SECONDS) == 2
    assert "the cluster's head has ended; go on with:" in run.err
    assert "--resume" in run.err and "--ray local" in run.err
    assert list((tmp_path / "results").glob("*/results.parquet"))
    _, alive = psutil.wait_procs(below, timeout=60)
    assert alive == []
