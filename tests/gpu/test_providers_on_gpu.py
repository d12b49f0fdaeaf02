"""ONNX Runtime's TensorRT provider on the GPU: types, TF32, a CUDA graph and a build that is not cached."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runs import Profiler, run_job

from engines.catalog import ENGINES
from engines.requirements import missing
from profiler import load

lacking = missing(ENGINES["ort-trt"], "cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(lacking), reason=lacking)]

JOB = """
models: [resnet18]
engines: [ort, ort-trt, {name: ort-trt, label: no-graph, cuda_graph: false}]
precisions: [fp32, tf32, fp16, int8]
batch_sizes: [8]
device: cuda
budget: {seconds: 0.3, min_samples: 5, build_timeout: 600}
exclude: [{variant: no-graph, precision: [tf32, fp16, int8]}]
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> list[Any]:
    run = run_job(profiler, tmp_path_factory.mktemp("providers"), JOB)
    return [row for row in load(run)[0].collect().to_dicts() if row["engine"] == "ort-trt"]


def test_tensorrt_got_every_product_and_the_row_says_how(rows):
    assert {(row["variant"], row["precision"]) for row in rows} == {
        *(("ort-trt", precision) for precision in ("fp32", "tf32", "fp16", "int8")),
        ("no-graph", "fp32"),
    }
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        proof = json.loads(row["proof"])
        assert proof["compute_providers"] == {"TensorrtExecutionProvider": 21}
        assert proof["tf32"] == (row["precision"] == "tf32")
        assert proof["cuda_graph"] == (row["variant"] == "ort-trt")


def test_errors_are_those_of_the_precision(rows):
    error = {row["precision"]: row["rel_l2_error"] for row in rows}
    assert error["fp32"] < 1e-5 < error["tf32"] < 1e-2
    assert error["fp16"] < 2e-2
