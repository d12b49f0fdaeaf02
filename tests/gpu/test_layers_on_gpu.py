"""Layers of eager, compiled and ONNX Runtime on the GPU: their kernels' times add up to what the clocks measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

from profiler import load, load_layers

pytestmark = pytest.mark.gpu

JOB = """
models: [resnet18]
engines: [eager, eager-tuned, compiled, ort, ort-tuned]
passes: [inference, training]
precisions: [fp32, fp16]
batch_sizes: [16]
device: cuda
profile: true
budget: {seconds: 0.3, min_samples: 5}
exclude:
  - {engine: ort, pass: training}
  - {engine: compiled, pass: training}
  - {engine: compiled, precision: fp32}
  - {variant: eager-tuned, pass: training}
  - {pass: training, precision: fp32}
"""
CONVOLUTIONS = 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Path:
    return run_job(profiler, tmp_path_factory.mktemp("layers"), JOB)


@pytest.fixture(scope="module")
def rows(run: Path) -> pl.DataFrame:
    layers = load_layers(run).group_by("case_id", maintain_order=True).agg("layer", "kind", "nodes", "ms")
    return load(run)[0].filter(status="ok").join(layers, on="case_id", how="left").collect()


def only(rows: pl.DataFrame, **equal: str) -> list[dict[str, Any]]:
    return rows.filter(*(pl.col(key) == value for key, value in equal.items())).to_dicts()


def test_every_case_has_layers(rows):
    assert len(rows) == 10
    missing = rows.filter(pl.col("ms").is_null()).select("case_id", "warnings").rows()
    assert missing == []


def test_layers_add_up_to_the_time_on_the_device(rows):
    ratios = {row["case_id"]: sum(row["ms"]) / (row["gpu_ms"] or row["latency_ms"]) for row in rows.to_dicts()}
    print(ratios)
    assert all(0.5 < ratio < 1.3 for ratio in ratios.values()), ratios


def test_eager_knows_its_operators_and_their_nodes(rows):
    for row in only(rows, engine="eager", **{"pass": "inference"}):
        kinds = row["kind"]
        assert kinds.count("conv2d") == CONVOLUTIONS, row["case_id"]
        assert kinds.count("batch_norm") == CONVOLUTIONS
        convolutions = [
            (ms, nodes) for kind, ms, nodes in zip(kinds, row["ms"], row["nodes"], strict=True) if kind == "conv2d"
        ]
        assert all(ms > 0 and len(nodes) == 1 for ms, nodes in convolutions), row["case_id"]
        assert len({nodes[0] for _, nodes in convolutions}) == CONVOLUTIONS
        assert row["layer"][0] == "conv1"


def test_onnx_runtimes_kernels_are_its_nodes(rows):
    """The nodes that eager's convolutions became are covered, and their layers have kernels."""
    for row in only(rows, engine="ort"):
        (eager,) = only(rows, variant="eager", precision=row["precision"], **{"pass": "inference"})
        wanted = {
            n for kind, nodes in zip(eager["kind"], eager["nodes"], strict=True) for n in nodes if kind == "conv2d"
        }
        assert len(wanted) == CONVOLUTIONS
        timed = {n for nodes, ms in zip(row["nodes"], row["ms"], strict=True) for n in nodes if ms > 0}
        assert len(wanted & timed) >= 0.95 * CONVOLUTIONS, (row["case_id"], wanted - timed)
        covered = [node for nodes in row["nodes"] for node in nodes]
        assert len(covered) == len(set(covered)), row["case_id"]
