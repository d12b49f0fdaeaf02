"""Single layers from the YAML to the table, as a user asks for them; and what a YAML may not ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

from engines.options import PLAIN, Training
from exporters.catalog import LAYERS
from profiler.job.config import load_config
from profiler.job.plan import make_plan

JOB = """
layers: [L4, {name: L5, batch_sizes: [2]}]
engines: [eager, eager-channels-last, eager-nocudnn, ort]
passes: [inference, training]
exclude: [{model: L4, variant: [eager-channels-last, eager-nocudnn, ort]}]
batch_sizes: [3]
device: cpu
profile: true
budget: {seconds: 0.05, min_samples: 3}
"""
PARTS = ("forward", "grad_input", "grad_weight")


@pytest.fixture(scope="module")
def run(profiler: Profiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    return run_job(profiler, folder, JOB, PROFILER_CACHE=str(folder / "cache"))


@pytest.fixture(scope="module")
def results(run: Path) -> pl.DataFrame:
    return pl.read_parquet(run / "results.parquet")


def only(results: pl.DataFrame, **equal: str) -> list[dict[str, Any]]:
    return results.filter(*(pl.col(key) == value for key, value in equal.items())).to_dicts()


def test_training_pass_of_a_layer_is_measured_and_checked(results):
    rows = only(results, engine="eager", status="ok", **{"pass": "training"})
    ran = {row["case_id"].replace("/training/fp32", "").removesuffix("/r0") for row in rows}
    assert ran == {"L4/eager/b3", "L5/eager/b2", "L5/eager-channels-last/b2"}
    for row in rows:
        assert row["model_kind"] == "layer"
        assert all(row[f"{part}_ms"] > 0 for part in PARTS), row["case_id"]
        assert row["backward_ms"] is None
        assert row["reference"] == "step-fp64-cpu"
        assert max(row["loss_error"], row["gradient_error"]) < 1e-5
        assert json.loads(row["proof"])["compute_types"] == {"float32": 3}
        assert not [w for w in row["warnings"] if w.startswith(("no-layers", "unchecked", "inaccurate"))]


def test_work_of_a_layer_is_its_three_parts(results):
    for name, layer in (("L4", LAYERS["L4"]), ("L5", LAYERS["L5"])):
        (training,) = only(results, model=name, variant="eager", **{"pass": "training"})
        (inference,) = only(results, model=name, variant="eager", **{"pass": "inference"})
        (channels, height, width), (kernel, _) = layer.input_shape, layer.kernel
        multiply_adds = channels * kernel**2 * layer.out_channels * (height - kernel + 1) * (width - kernel + 1)
        assert inference["flops_per_item"] == 2 * multiply_adds
        assert training["flops_per_item"] == 6 * multiply_adds
        rate = training["flops_per_item"] * training["batch_size"] / training["latency_ms"] / 1e9
        assert training["tflops"] == pytest.approx(rate)


def test_inference_pass_is_the_forward_part_of_every_engine(results):
    for variant in ("eager", "eager-channels-last", "ort"):
        rows = only(results, variant=variant, **{"pass": "inference"})
        assert [row["status"] for row in rows] == ["ok"] * (2 if variant == "eager" else 1)
        assert all(row["rel_l2_error"] < 1e-5 for row in rows)


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def test_training_pass_of_a_layer_has_no_loss_and_no_word_of_it_in_its_id(tmp_path):
    cases = make_plan(load_config(write(tmp_path, JOB)), "cpu")
    for case in cases:
        assert case.training == (Training(head="logits") if case.pass_ == "training" else PLAIN)
        assert str(case.id).endswith("/r0")
