"""What a part of a job asks of a cluster, has of the job, and how nodes' cores are shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from profiler.cluster.command import Kind, Share, Side, _ClusterError, _measure, _travelling, kinds_of, shares_of
from profiler.cluster.part import ENDED, ENVIRONMENT, JOURNAL, MODELS, Part, measure, sources
from profiler.errors import ConfigError
from profiler.job import plan
from profiler.job.case import parse_only
from profiler.job.config import DeviceEntry, load_config
from profiler.job.plan import make_plan, only_of
from profiler.machine import nvml
from profiler.machine import target as machine
from profiler.machine.target import Target, cores_of_gpu, host_and_user
from profiler.options import Run
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, as_job
from profiler.run.command import Start
from profiler.run.progress import Display

H100 = {"CPU": 32.0, "GPU": 8.0, "accelerator_type:H100": 1.0, "node:10.0.0.1": 1.0, "memory": 1e9}
PLAIN = {"CPU": 8.0, "node:10.0.0.2": 1.0}
OWN = {"CPU": 4.0, "xeon": 1.0}
RIG = {"CPU": 4.0, "GPU": 1.0, "rig": 1.0}


def found(word: str, *nodes: Mapping[str, float], device: str = "auto") -> Kind:
    entries = [DeviceEntry(kind=word)] if word else []
    (kind,) = kinds_of(entries, device, [_alive(node) for node in nodes])
    return kind


@pytest.mark.parametrize(
    ("word", "device", "asks", "count"),
    [
        ("H100", "cuda", {"num_gpus": 1, "accelerator_type": "H100"}, 8),
        ("xeon", "cpu", {"num_cpus": 3, "resources": {"xeon": 1}}, 1),
        ("rig", "cuda", {"num_gpus": 1, "resources": {"rig": 1}}, 1),
        # The largest has 32 cores: it can have no second task of 17.
        ("cpu", "cpu", {"num_cpus": 17, "scheduling_strategy": "SPREAD"}, 1),
        ("", "cuda", {"num_gpus": 1}, 9),
    ],
)
def test_a_task_takes_one_device_whole(word, device, asks, count):
    kind = found(word, H100, PLAIN, OWN, RIG)
    assert (kind.device, kind.request, kind.count) == (device, asks, count)


def test_without_a_gpu_the_processors_are_the_device_and_a_gpu_cannot_be_had():
    assert found("", PLAIN).device == "cpu"
    assert found("", H100, device="cpu").request["num_cpus"] == 17
    with pytest.raises(ConfigError, match="the cluster has no L4; valid: H100, cpu"):
        found("L4", H100)
    with pytest.raises(ConfigError, match="the cluster has no cuda"):
        found("", PLAIN, device="cuda")
    with pytest.raises(ConfigError, match="say cuda, and start Ray with CUDA_VISIBLE_DEVICES=1"):
        found("", H100, device="cuda:1")


def test_a_node_that_has_ended_counts_no_longer():
    with pytest.raises(ConfigError, match="has no xeon"):
        kinds_of([DeviceEntry(kind="xeon")], "auto", [{"Alive": False, "Resources": OWN}, _alive(PLAIN)])


def _alive(resources: Mapping[str, float]) -> dict[str, Any]:
    return {"Alive": True, "Resources": resources}


def test_cores_next_to_several_gpus_are_shared_with_both_threads_of_each(monkeypatch):
    near = {"a": {0, 1, 4, 5}, "b": {0, 1, 4, 5}, "c": {2, 3, 6, 7}}
    monkeypatch.setattr(nvml, "near_cores", lambda: near)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)))
    assert [cores_of_gpu(card) for card in "abc"] == [[0, 4], [1, 5], [2, 3, 6, 7]]
    assert cores_of_gpu(None) == cores_of_gpu("unknown") == list(range(8))


JOB = """
models: [{name: one, network: alexnet}, {name: two, network: alexnet, batch_sizes: [1, 2]}]
engines: [eager]
device: cpu
exclude: [{model: one, batch_size: 7}, {model: [one, two], batch_size: 8}, {batch_size: 9}]
"""


def side_of(tmp_path: Path, options: Run, count: int = 1, job: str = JOB) -> Side:
    (tmp_path / "job.yaml").write_text(job)
    config = load_config(tmp_path / "job.yaml", "cpu")
    plan = make_plan(config, "cpu")
    chosen = only_of(plan, parse_only(options.only))
    start = Start(options, Console(quiet=True), config, Target("cpu"), {}, plan, chosen)
    return Side(
        Kind(DeviceEntry(kind="cpu"), "cpu", {}, count), start.runner(RunFolder.create(tmp_path)), options, None
    )


def of(model: str, batch_size: int | None = None) -> Share:
    return Share((model,), batch_size)


def test_a_part_has_its_model_and_the_rows_that_are_there(tmp_path):
    options = Run(ray="local", only=["model=one,model=two", "batch_size=1"], wait_for_idle=2.0)
    side = side_of(tmp_path, options)
    config = side.runner.config
    side.run.append(Result(side.runner.plan[0].id, "failed", ["once"]))
    assert side.shares == [of("one"), of("two")]
    # Networks by name need no file, so nothing travels, and no path on a node is one of here.
    assert _travelling(config, tmp_path) == {}
    one, two = map(side.part, side.shares)
    assert one.job == two.job == as_job(config)
    assert one.job["output"] == str(config.output.resolve()), "a resumed run's results lie where they lay"
    assert [part.files[JOURNAL].count("\n") for part in (one, two)] == [1, 0]
    assert one.words == ("--only", "model=one,batch_size=1", "--wait-for-idle", "2")
    assert Side(side.kind, side.runner, options, None).shares == [of("two")]
    side.give_up(of("two"), "crashed", "two nodes")
    rows = side.run.results().values()
    assert [(row.status, row.reason) for row in rows] == [("failed", "once"), ("crashed", "two nodes")]
    trying = side_of(tmp_path, Run(ray="local", retry=True))
    trying.lost[of("one")] += 1
    assert trying.part(of("one")).words[-1] == "--retry"


def test_few_models_for_many_devices_are_cut_by_batch_size(tmp_path):
    side = side_of(tmp_path, Run(ray="local"), count=2)
    cut = [of("two", 1), of("two", 2), of("one", 1)]
    assert side.shares == cut
    assert [side.part(share).words[1] for share in cut] == [f"model={model},batch_size={n}" for (model,), n in cut]
    side.give_up(cut[1], "crashed", "gone")
    assert all("/b2/" in case_id for case_id in side.run.results()) and not side.waiting(cut[1])
    assert side.part(cut[0]).files[JOURNAL] == "" != side.part(cut[1]).files[JOURNAL]
    # One search of the largest batch is enough.
    searched = side_of(tmp_path, Run(ray="local"), 2, JOB + "largest_batch: {}\n")
    assert searched.shares == [of("two"), of("one")]


def test_a_part_takes_a_while_to_start_so_there_are_no_more_than_need_be(tmp_path):
    side = side_of(tmp_path, Run(ray="local"))
    budget, case = side.runner.config.budget, side.runner.chosen[0]

    def cut(batches: Mapping[str, Sequence[int]], least: int, enough: int) -> list[Share]:
        cases = [replace(case, model=model, batch_size=batch) for model in batches for batch in batches[model]]
        return shares_of(cases, budget, least, enough)

    few = {"a": [1, 2], "b": [1, 2, 3], "c": [1, 2]}
    of_b = [of("b", batch) for batch in few["b"]]
    assert cut(few, 0, 4) == [of("b"), of("a"), of("c")]
    assert cut(few, 4, 8) == [of("a"), of("c"), *of_b]
    assert cut(few, 6, 8) == [of("c"), *of_b, of("a", 1), of("a", 2)]
    many = {"a": [1], "b": [1, 2, 3, 4], "c": [1], "d": [1, 2], "e": [1]}
    assert cut(many, 2, 3) == [of("b"), Share(("c", "e", "a")), of("d")]
    (both,) = cut(many, 1, 1)
    assert set(both.models) == set(many)
    assert str(both) == f"{both.models[0]} and 4 other models"
    assert both.has(replace(case, model="e")) and not both.has(replace(case, model="ab"))
    # Where each takes long, a node that ends loses less of many parts.
    long = {name: range(1, 100) for name in many}
    assert cut(long, 2, 3) == list(map(of, long))


@pytest.mark.parametrize(
    ("only", "confirmed"),
    [
        ("batch_size=4", ["two/eager-mine/inference/fp32/b4/r1"]),
        ("batch_size=2,engine=eager-mine", []),
        ("batch_size=4,engine=eager-mine", []),
        ("batch_size=4,replicate=0", []),
    ],
)
def test_what_may_win_is_confirmed_within_a_part(tmp_path, monkeypatch, only, confirmed):
    monkeypatch.setattr(plan, "BASE_PROCESSES", 2)
    monkeypatch.setattr(plan, "CONFIRMING_PROCESSES", 1)
    job = JOB.replace("[eager]", "[eager, {name: eager, label: eager-mine, channels_last: true}]")
    job = job.replace("[1, 2]", "[1, 2, 4]")
    side = side_of(tmp_path, Run(ray="local", only=["model=two", only]), job=job)
    for case in side.runner.chosen:
        ms = 2.0 if case.is_base else 1.0
        right = {"rel_l2_error": 0.0, "rel_l2_error_high": 0.0}
        figures = {"throughput": 1e3 / ms, "samples": {"host": [ms] * 20}, "figures": right}
        side.run.append(Result(case.id, "ok", clock="host", **figures))
    assert [case.id for case in side.runner.missing_replicates()] == confirmed


def test_nodes_must_have_the_same_network(tmp_path):
    side = side_of(tmp_path, Run(ray="local"), count=2)
    first, other = (json.dumps({"two": {"parts": {"weights": digest, "torch": digest}}}) for digest in ("a", "b"))
    assert side.contradicts(first) == ""
    side.take(MODELS, first, side.runner.display)
    assert side.contradicts(first) == ""
    why = "--ray: models differ between nodes: two; give all nodes the same files"
    assert side.contradicts(other) == why


def test_a_node_with_other_sources_says_so():
    ((name, text),) = measure(Part({}, None, "run", {}, (), "elsewhere"))
    assert name == ENDED and text.startswith("2\n") and f"({sources()}, not elsewhere)" in text


def test_an_environment_names_each_node_once(tmp_path):
    side = side_of(tmp_path, Run(ray="local"))
    side.runner.environment["job_folder"] = "here"
    found = [{"host": host, "gpu_uuid": None, "cores": [0, 1], "roofs": {host: 1.0}} for host in "aba"]
    for each in found:
        side.take(ENVIRONMENT, json.dumps(each | {"torch_version": each["host"]}), side.runner.display)
    kept = side.run.read_environment()
    assert [node["host"] for node in kept["nodes"]] == ["a", "b"] and kept["roofs"] == {"a": 1.0, "b": 1.0}
    assert kept["earlier_commands"] == []
    assert (kept["torch_version"], kept["job_folder"], kept["host"]) == ("a", "here", host_and_user()["host"])


@pytest.mark.parametrize("kind", ["OutOfDiskError", "ObjectStoreFullError"])
def test_a_full_object_store_takes_no_part(tmp_path, kind):
    exceptions = pytest.importorskip("ray").exceptions

    def refuse(part: Part) -> None:
        raise getattr(exceptions, kind)("Local disk is full")

    task = SimpleNamespace(options=lambda **asks: SimpleNamespace(remote=refuse))
    head = SimpleNamespace(gcs_address="localhost:1")
    ray = SimpleNamespace(exceptions=exceptions, remote=lambda **_: lambda _: task, get_runtime_context=lambda: head)
    with pytest.raises(_ClusterError, match="object store is full"):
        _measure(ray, [side_of(tmp_path, Run())], Display(Console(quiet=True)))
