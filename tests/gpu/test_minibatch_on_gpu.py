"""Batch sweeps on the GPU: memory really runs out, the process goes on, and the largest batch is where it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

from profiler import load
from profiler.job.case import CaseId, Role
from profiler.results.batch_sweeps import largest
from profiler.results.sentences import sweep_sentences

pytestmark = pytest.mark.gpu

FACTORIES = """
from torch import nn


class Ladder(nn.Module):
    '''Holds 65 maps of 16 MiB an item at once, in whatever order its operators run: the way back needs all of them.'''

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if i == 0 else 16, 16, 1) for i in range(65))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        maps = []
        for step in self.down:
            maps.append(step(maps[-1] if maps else x))
        total = maps[-1]
        for one in reversed(maps[:-1]):
            total = total + one
        return self.head(total.mean((2, 3)))


def small():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 28 * 28, 10),
    )
"""
MIB_AN_ITEM = 65 * 16 + 3
TOO_LARGE = 384
"""More than 384 GiB, in tensors of fewer elements than 32 bits count."""
RESOLUTION = 0.05

LARGEST = f"""
kind: minibatch
models: [{{name: ladder, factory: "minibatch_models:Ladder", input: [3, 512, 512]}}]
engines: [ENGINE, ENGINE-tuned]
passes: [inference, training]
exclude: [{{engine: ort, pass: training}}]
batch_sizes: [1, {TOO_LARGE}, 2]
largest_batch: {{limit: {TOO_LARGE}, resolution: {RESOLUTION}}}
device: cuda
budget: {{seconds: 0.1, min_samples: 5}}
"""

MANY = """
kind: minibatch
models: [{name: small, factory: "minibatch_models:small", input: [3, 32, 32]}]
engines: [eager, eager-tuned, compiled, ort-tuned]
passes: [inference, training]
precisions: [fp32, fp16]
batch_sizes: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
device: cuda
budget: {seconds: 0.1, min_samples: 5}
exclude: [{engine: compiled, pass: training}, {engine: compiled, precision: fp16}]
"""


def start(profiler: Profiler, folder: Path, job: str) -> Path:
    (folder / "minibatch_models.py").write_text(FACTORIES)
    return run_job(profiler, folder, job)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Callable[[str], Path]:
    """The run of an engine, started when a test first asks for it."""

    @cache
    def of(engine: str) -> Path:
        return start(profiler, tmp_path_factory.mktemp("ladder"), LARGEST.replace("ENGINE", engine))

    return of


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Path:
    return start(profiler, tmp_path_factory.mktemp("many"), MANY)


def is_of(case_id: str, family: str, role: Role) -> bool:
    found = CaseId.parse(case_id)
    return (found.family, found.role) == (family, role)


FAMILIES = [
    ("eager", "ladder/eager/inference/fp32/r0"),
    ("eager", "ladder/eager-tuned/inference/fp32/r0"),
    ("eager", "ladder/eager/training/fp32/r0"),
    ("eager", "ladder/eager-tuned/training/fp32/r0"),
    ("ort", "ladder/ort/inference/fp32/r0"),
    ("ort", "ladder/ort-tuned/inference/fp32/r0"),
]


@pytest.mark.parametrize(("engine", "family"), FAMILIES)
def test_memory_runs_out_and_the_next_batch_runs_in_the_same_process(
    ladder: Callable[[str], Path], engine: str, family: str
) -> None:
    own = [line for line in lines(ladder(engine)) if is_of(line["case_id"], family, Role.SWEEP)]
    told = [(CaseId.parse(line["case_id"]).batch_size, line["status"], line["reason"]) for line in own]
    assert [status for _, status, _ in told] == ["ok", "oom", "ok"], told
    assert ["fork" in line["phases"] for line in own] == [True, False, False]
    assert not any(warning.startswith("unchecked") for line in own for warning in line["warnings"])


@pytest.mark.parametrize(("engine", "family"), FAMILIES)
def test_the_largest_batch_fits_and_the_next_does_not(ladder: Callable[[str], Path], engine: str, family: str) -> None:
    own = [line for line in lines(ladder(engine)) if is_of(line["case_id"], family, Role.PROBE)]
    told = [(CaseId.parse(line["case_id"]).batch_size, line["status"], line["reason"]) for line in own]
    good = max(batch for batch, status, _ in told if status == "ok")
    bad, status, reason = min(one for one in told if one[0] > good)
    # Recording its CUDA graph ends in an error of CUDA's, which does not speak of memory.
    assert status == "oom" or ("/ort-tuned/" in family and status == "failed" and "CUDA" in reason), reason
    assert bad - good <= max(1, RESOLUTION * good), told
    # ONNX Runtime gives cuDNN's search what memory there is, so its need is no line over the batch.
    assert len(own) <= (14 if "/ort" in family else 9), told
    assert all("fork" in line["phases"] for line in own), "each in a process of its own"


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_the_largest_batch_fills_the_card(ladder: Callable[[str], Path], engine: str) -> None:
    results = load(ladder(engine))[0].collect()
    card = json.loads((ladder(engine) / "environment.json").read_text())["gpu_memory_mib"]
    found = largest(results)
    print("\n".join(sweep_sentences(results)))
    assert len(found) == [one for one, _ in FAMILIES].count(engine)
    for row in found.to_dicts():
        assert 0.85 < row["peak_memory_mib"] / card <= 1.0, row
        if row["variant"] == "ort-tuned":
            continue  # Half of it and more is workspace.
        # Of the context and the library's kernels there are some hundreds of MiB, of gradients at most a few maps.
        assert 0.95 < row["peak_memory_mib"] / (row["largest"] * MIB_AN_ITEM) < 1.3, row


def test_a_graph_fits_as_much_as_eager_does(ladder: Callable[[str], Path]) -> None:
    """The iteration that proves the types, without the graph, needs no second batch's memory."""
    rows = largest(load(ladder("eager"))[0].collect()).to_dicts()
    found = {(row["variant"], row["pass"]): row["largest"] for row in rows}
    for pass_ in ("inference", "training"):
        assert found["eager-tuned", pass_] == pytest.approx(found["eager", pass_], rel=0.1)


def test_every_batch_of_a_long_sweep_is_what_was_asked_for(many: Path) -> None:
    """Beyond eight shapes torch.compile would run in eager; a captured graph is of the batch at hand."""
    rows = load(many)[0].collect()
    bad = rows.filter(~pl.col("status").is_in(["ok", "unsupported"]))
    assert bad.is_empty(), bad.select("case_id", "status", "reason").rows()
    measured = rows.filter(status="ok")
    assert measured.group_by("variant", "pass", "precision").len()["len"].unique().to_list() == [10]
    for row in measured.to_dicts():
        proof = json.loads(row["proof"])
        assert proof["cuda_graph"] == (row["variant"] != "eager"), row["case_id"]
        kinds = {warning.split(":")[0] for warning in row["warnings"]}
        assert not kinds & {"no-cuda-graph", "graph-breaks", "unchecked"}, (row["case_id"], row["warnings"])
        assert row["peak_memory_mib"] is None


def test_parts_of_a_graphs_iteration_are_those_of_its_own_batch(many: Path) -> None:
    """The events of an earlier batch's graph must not be read with those of this one's."""
    rows = load(many)[0].filter(pl.col("status") == "ok", pl.col("pass") == "training").collect()
    assert set(rows["variant"]) == {"eager", "eager-tuned"}
    samples = load(many)[1].collect()
    for row in rows.filter(variant="eager-tuned").to_dicts():
        assert row["forward_ms"] + row["backward_ms"] == pytest.approx(row["latency_ms"], rel=0.25), row["case_id"]
        own = samples.filter(case_id=row["case_id"])
        counts = {clock: len(own.filter(clock=clock)) for clock in ("forward", "backward")}
        assert counts["forward"] == counts["backward"], row["case_id"]
