"""--machine: what a machine is called and costs, in the rows and the environment, and still there after --resume."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import run_job

from profiler.errors import ConfigError
from profiler.job.config import JobFile, load_config
from profiler.machine import target as machine
from profiler.options import Run
from profiler.processes import process
from profiler.run.command import read_job

JOB = """
models: [{name: good, factory: "small_factories:small", input: [3, 16, 16]}]
engines: [eager]
device: cpu
batch_sizes: [1, 2]
machine: {label: from the file, cloud: Some Cloud, usd_per_hour: 1}
budget: {seconds: 0.05, min_samples: 3}
"""


MIB = 2**20


def test_memory_is_what_the_control_groups_leave(tmp_path, monkeypatch):
    own = tmp_path / "sys/fs/cgroup/outer/inner"
    for folder, most in ((own.parent, str(300 * MIB)), (own, "max")):
        folder.mkdir(parents=True, exist_ok=True)
        files = {"memory.max": most, "memory.current": str(100 * MIB)}
        for name, text in (files | {"memory.stat": f"anon 5\ninactive_file {30 * MIB}\n"}).items():
            (folder / name).write_text(text)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("9:name=systemd:/elsewhere\n0::/outer/inner\n")
    groups = machine.control_groups(tmp_path)
    assert groups == [own, own.parent, own.parent.parent]
    monkeypatch.setattr(machine, "control_groups", lambda: groups)
    assert machine.available_memory_mib() == 230
    (own / "memory.max").write_text(str(MIB))
    assert machine.available_memory_mib() == 0, "more is used than a limit that was lowered allows"
    monkeypatch.setattr(machine, "control_groups", list)
    assert machine.available_memory_mib() > 230


def test_memory_and_kills_are_those_of_the_first_versions_control_groups_too(tmp_path, monkeypatch):
    own = tmp_path / "sys/fs/cgroup/memory/outer"
    own.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/outer\n1:cpu:/\n0::/\n")
    groups = machine.control_groups(tmp_path)
    assert groups[0] == own
    for name, text in {
        "memory.limit_in_bytes": str(300 * MIB),
        "memory.usage_in_bytes": str(100 * MIB),
        "memory.stat": f"inactive_file {9 * MIB}\ntotal_inactive_file {30 * MIB}\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    }.items():
        (own / name).write_text(text)
    for module in (machine, process):
        monkeypatch.setattr(module, "control_groups", lambda: groups)
    assert machine.available_memory_mib() == 230
    assert process._oom_kills() == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lable=H200", r"--machine: unknown key 'lable'; did you mean 'label'\?"),
        ("price_source=https://a/?b=c,usd_per_hor=7", "--machine: unknown key 'usd_per_hor'; did you mean"),
        ("H200", "--machine: 'H200' is not of the form key=value"),
        ("label=", "--machine: 'label=' is not of the form key=value"),
        ("usd_per_hour=cheap", "^--machine: must be a number, got 'cheap'"),
        ("usd_per_hour=0", "^--machine: must be greater than 0, got '0'"),
    ],
)
def test_what_cannot_be_understood_is_an_error(workplace, text, message):
    with pytest.raises(ConfigError, match=message):
        read_job(Run(machine=text), JobFile(workplace / "job.yaml"), "cpu")


@pytest.fixture
def workplace(tmp_path: Path, factories: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def machines(run: Path) -> set[tuple[Any, ...]]:
    rows = pl.read_parquet(run / "results.parquet")
    return set(rows.select("machine", "cloud", "instance", "usd_per_hour").rows())


def test_what_is_told_stands_in_every_row_and_stays_on_resume(profiler, workplace):
    run = partial(run_job, profiler, workplace, None, PROFILER_CACHE=str(workplace / "cache"))
    folder = run("job.yaml", "--only", "batch_size=1", "--machine", "label=mine, of May,instance=small")
    # Key by key: what is not told stays as the file has it.
    assert machines(folder) == {("mine, of May", "Some Cloud", "small", 1.0)}
    told = {"label": "mine, of May", "cloud": "Some Cloud", "instance": "small", "usd_per_hour": 1.0}
    assert json.loads((folder / "environment.json").read_text())["machine"] == told
    assert load_config(folder / "bench.yaml").machine.model_dump(exclude_none=True) == told

    run("--resume", str(folder), "--machine", "usd_per_hour=2")
    assert machines(folder) == {("mine, of May", "Some Cloud", "small", 2.0)}
    rows = pl.read_parquet(folder / "results.parquet")
    assert rows.height == 2
    # A million items at so many a second, and two dollars an hour.
    for row in rows.to_dicts():
        assert row["usd_per_million_items"] == pytest.approx(1e6 / row["throughput"] / 3600 * 2)
        assert row["items_per_usd"] * row["usd_per_million_items"] == pytest.approx(1e6)


def test_threads_run_on_idle_cores(monkeypatch):
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda *_, percpu: [90.0, 12.0, 0.0, 95.0])
    usable = set(range(4))
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: usable)
    monkeypatch.setattr(machine.os, "sched_setaffinity", lambda _, cores: usable.intersection_update(cores))
    with machine.on_cores(2):
        assert usable == {1, 2}
    usable.update(range(4))
    assert list(machine.core_loads()) == [1, 2, 0, 3]


def test_threads_are_cores_for_all_that_is_started():
    before = os.sched_getaffinity(0)
    with machine.on_cores(1):
        assert machine.usable_cores() == 1
        with machine.on_cores(None):
            assert machine.usable_cores() == 1
        with pytest.raises(ConfigError, match="--threads 2: this process may use 1 core"), machine.on_cores(2):
            pass
    assert os.sched_getaffinity(0) == before
