"""Training on the GPU: every precision, optimizer and way to run, their gradients, clocks and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch
from runs import Profiler, run_job
from sessions import make_job

import engines
from engines.options import Training
from exporters.cache import Cache
from exporters.source import ModelSource
from profiler import load
from profiler.worker.clock import CudaClock

pytestmark = pytest.mark.gpu

JOB = """
models: [resnet18]
engines: [eager, eager-tuned, compiled]
passes: [training]
precisions: [fp32, tf32, fp16, bf16, amp-fp16, amp-bf16]
batch_sizes: [16]
device: cuda
training: {optimizers: [none, sgd, adamw]}
budget: {seconds: 0.3, min_samples: 5}
exclude:
  - {variant: eager, precision: [tf32, fp16, bf16, amp-bf16], optimizer: [sgd, adamw]}
  - {variant: eager-tuned, precision: [tf32, bf16], optimizer: [none, adamw]}
  - {variant: compiled, precision: [tf32, fp16, bf16, amp-bf16]}
  - {variant: compiled, optimizer: [none, adamw]}
"""
CASES = (2 * 3 + 4) + (4 * 3 + 2) + 2
PARAMETERS_MIB = 11_689_512 * 4 / 2**20
TYPES = {"fp16": "float16", "amp-fp16": "float16", "bf16": "bfloat16", "amp-bf16": "bfloat16"}
HALF = ("fp16", "bf16")


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> tuple[pl.DataFrame, pl.DataFrame]:
    rows, samples = (each.collect() for each in load(run_job(profiler, tmp_path_factory.mktemp("training"), JOB)))
    assert len(rows) == CASES
    return rows, samples


@pytest.fixture(scope="module")
def rows(frames: tuple[pl.DataFrame, pl.DataFrame]) -> list[dict[str, Any]]:
    return frames[0].to_dicts()


def test_everything_ran_and_no_gradient_is_wrong(rows):
    bad = [(row["case_id"], row["status"], row["reason"]) for row in rows if row["status"] != "ok"]
    assert bad == []
    for row in rows:
        assert row["reference"] == "step-fp64-cpu", row["case_id"]
        assert 0 < row["gradient_error"] < 0.5, row["case_id"]
        assert 0 <= row["loss_error"] < 0.05, row["case_id"]


def test_proof_says_what_ran(rows):
    for row in rows:
        proof = json.loads(row["proof"])
        assert proof["compute_types"].keys() == {TYPES.get(row["precision"], "float32")}, row["case_id"]
        weights = TYPES[row["precision"]] if row["precision"] in HALF else "float32"
        assert proof["weight_types"].keys() == {weights}, row["case_id"]
        assert proof["tf32"] == (row["precision"] == "tf32"), row["case_id"]
        assert proof["cuda_graph"] == (row["variant"] != "eager"), row["case_id"]


def test_the_parts_of_an_iteration_add_up(frames):
    rows, samples = frames
    for row in rows.to_dicts():
        parts = ["forward", "backward", *(["step"] if row["optimizer"] != "none" else [])]
        own = samples.filter(case_id=row["case_id"])
        clocks = {name: own.filter(clock=name)["ms"] for name in own["clock"].unique()}
        assert all((row[f"{part}_ms"] or 0) > 0 for part in parts), row["case_id"]
        if "gpu" in clocks:  # A gate was long enough.
            whole = sum((clocks[f"gpu_{part}"] for part in parts), 0 * clocks["gpu"])
            assert (whole / clocks["gpu"]).min() > 0.98, row["case_id"]
            assert (whole / clocks["gpu"]).max() < 1.001, row["case_id"]
        else:
            assert any("gate-overrun" in warning for warning in row["warnings"]), row["case_id"]
        if len(clocks["forward"]) == len(clocks["event"]):
            whole = sum((clocks[part] for part in parts), 0 * clocks["event"])
            assert (whole / clocks["event"]).median() > 0.98, row["case_id"]
        else:  # A captured graph's boundaries are read in calls of their own, and those of eager ones overlap.
            assert row["variant"] == "eager-tuned", row["case_id"]
        if row["optimizer"] == "none":
            assert row["step_ms"] is None


def test_memory_is_split_into_what_training_holds(rows):
    for row in rows:
        names = ("context", "weights", "gradients", "optimizer", "activations", "other")
        parts = {name: row[f"{name}_mib"] for name in names}
        assert sum(parts.values()) == pytest.approx(row["peak_memory_mib"]), row["case_id"]
        assert min(parts.values()) >= 0, (row["case_id"], parts)
        size = PARAMETERS_MIB / (2 if row["precision"] in HALF else 1)
        assert parts["weights"] == pytest.approx(size, rel=0.01), row["case_id"]
        assert parts["gradients"] == pytest.approx(size, rel=0.01), row["case_id"]
        states = {"none": 0, "sgd": 1, "adamw": 2}[row["optimizer"]]
        assert parts["optimizer"] == pytest.approx(states * size, rel=0.01, abs=0.01), row["case_id"]
        assert parts["activations"] > 50, row["case_id"]


@pytest.fixture(scope="module")
def clock() -> CudaClock:
    return CudaClock()


MODEL, BATCH = ModelSource("resnet18"), 4


@pytest.fixture
def open_session(cache: Cache, clock: CudaClock) -> Callable[..., Any]:
    """`open_session("amp-fp16", "sgd", cuda_graph=True)`."""

    def start(precision: str, optimizer: Any = "none", engine: str = "eager", **options: Any) -> Any:
        clock._captured.clear()
        job = make_job(MODEL, cache, engine, precision, "training", BATCH, Training(optimizer), "cuda", **options)
        return engines.open_session(engine, job)

    return start


def weights(session: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in session.model.parameters()]


@pytest.mark.parametrize("optimizer", ["none", "sgd", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_an_iteration_never_waits_for_the_device(open_session, precision, optimizer):
    session = open_session(precision, optimizer)
    for _ in range(3):
        session.run(lambda name: None)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            session.run(lambda name: None)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16", "fp16"])
def test_every_replay_of_a_graph_is_a_step(open_session, clock, precision, optimizer):
    session = open_session(precision, optimizer, cuda_graph=True)
    session.run(clock.mark)
    assert session.graph is not None
    assert [name for name, _ in clock._captured] == ["forward", "backward", "step"]
    if precision == "fp16":
        return  # A step is less than what separates two numbers there.
    for _ in range(3):
        before = weights(session)
        session.run(clock.mark)
        after = weights(session)
        assert all(bool(torch.isfinite(p).all()) for p in after)
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
