"""Match a job's `shapes` with its models, and make the cases."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matrix_product import write_text
from runs import Profiler, run_job

from engines.trt_build import batch_shapes
from exporters.inputs import input_specs
from exporters.source import ModelError, ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Budget, parse_only
from profiler.job.config import Config, config_of
from profiler.job.plan import make_plan, only_of
from profiler.processes.messages import Outcome
from profiler.processes.process import Call
from profiler.run import prepare
from profiler.run.prepare import Stages, with_shapes
from profiler.worker.task import Prepared

FACTORY = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, ids):
        words = self.layer(self.table(ids))
        return (words @ words.transpose(1, 2)).softmax(-1) @ words

def words():
    return Words(), {"ids": torch.randint(9, (8, 12))}, {"ids": {1: torch.export.Dim("sequence")}}
"""
JOB = """
models:
  - {name: words, factory: "nets:words"}
engines: [eager, ort]
device: cpu
shapes: {sequence: [4, 12]}
precisions: [fp32, int8]
exclude: [{engine: eager, precision: int8}]
budget: {seconds: 0.05, min_samples: 3}
"""
KINDS = {"onnx": ".onnx", "state": ".pt", "reference": ".npz"}
"""By kind of what the cache keeps how its files are named."""
TEXT = {"name": "words", "onnx": "words.onnx"}
IMAGE = {"name": "conv", "factory": "nets:conv", "input": [3, 32, 32]}


@pytest.fixture(autouse=True)
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "words (float[n, sequence] x) => (float[n, sequence] y) { y = Relu (x) }"
    write_text(tmp_path / "words.onnx", text)
    monkeypatch.chdir(tmp_path)


def job(*models: Any, **more: Any) -> Config:
    return config_of({"models": list(models), "engines": ["eager"], **more})


def test_every_combination_is_a_case_and_each_model_has_its_own_dimensions():
    config = with_shapes(job(TEXT, IMAGE, shapes={"sequence": [16, 8], "height": [16, 32], "width": [16]}))
    assert [str(case.id) for case in make_plan(config, "cpu")] == [
        "words/eager/inference/fp32/b1/r0/sequence=8",
        "words/eager/inference/fp32/b1/r0/sequence=16",
        "conv/eager/inference/fp32/b1/r0/height=16/width=16",
        "conv/eager/inference/fp32/b1/r0/height=32/width=16",
    ]


def test_inputs_have_the_shape_and_know_which_axes_vary():
    config = with_shapes(job(IMAGE, shapes={"height": [16, 32], "width": [24]}))
    [spec] = input_specs(make_plan(config, "cpu")[0].source)
    assert spec.at(2) == (2, 3, 16, 24)
    assert [(axis.axis, axis.name) for axis in spec.named] == [(2, "height")], "one size of the width needs no symbol"
    assert (spec.end(2, largest=False), spec.end(2, largest=True)) == ((2, 3, 16, 24), (2, 3, 32, 24))


@pytest.mark.parametrize(
    ("models", "shapes", "expected"),
    [
        ([TEXT], {"sequense": [8], "sequence": [8]}, "no model's inputs have a dimension 'sequense'; did you mean"),
        ([TEXT, IMAGE], {"heigth": [8], "sequence": [8]}, "a dimension 'heigth'; did you mean 'height'?"),
        (["vgg16"], {"width": [64]}, "shapes.width: vgg16 is fixed to one shape"),
        (
            [{"name": "resnet18", "shapes": {"widht": [64]}}],
            {},
            "models[0].shapes.widht: its inputs have no dimension 'widht'; did you mean 'width'",
        ),
        (
            [TEXT, {**IMAGE, "shapes": {"sequence": [8]}}],
            {"sequence": [8]},
            "models[1].shapes.sequence: its inputs have no dimension 'sequence'; valid: height, width",
        ),
        ([{"name": "vgg16", "shapes": {"width": [64]}}], {}, "models[0].shapes.width: vgg16 is fixed to one shape"),
    ],
)
def test_a_name_that_no_model_has_is_refused(models, shapes, expected):
    with pytest.raises(ConfigError) as caught:
        with_shapes(job(*models, shapes=shapes))
    assert expected in str(caught.value)


def test_a_dimension_of_a_model_without_any_is_refused_with_the_reason():
    with pytest.raises(ModelError, match="no dimension 'shape'; vgg16 is fixed to one shape"):
        input_specs(ModelSource("vgg16", dimensions={"shape": 1}))


def test_a_resnet_takes_other_images():
    config = with_shapes(job("resnet18", shapes={"height": [64], "width": [96]}))
    assert input_specs(make_plan(config, "cpu")[0].source)[0].at(1) == (1, 3, 64, 96)


def test_a_condition_chooses_a_shape():
    config = with_shapes(job(TEXT, shapes={"sequence": [8, 16]}))
    [case] = only_of(make_plan(config, "cpu"), parse_only(["shape=sequence=16"]))
    assert case.source.shape == {"sequence": 16}


def test_an_optimization_profile_goes_over_the_range_of_sizes():
    [spec] = input_specs(make_plan(with_shapes(job(IMAGE, shapes={"height": [16, 32]})), "cpu")[0].source)
    assert batch_shapes([spec], 4) == {"x": ((4, 3, 16, 32), (4, 3, 32, 32), (4, 3, 32, 32))}


def test_int8_is_quantized_at_the_first_shape_that_its_calibration_data_fit(monkeypatch):
    Path("images").mkdir()
    np.save("images/a.npy", np.zeros((2, 3, 24, 32), np.float32))
    model = {**IMAGE, "calibration": "images"}
    cases = make_plan(with_shapes(job(model, shapes={"height": [16, 24, 32]})), "cpu")
    sources, called = {}, list[Any]()
    for case in cases:
        sources[case.subject] = replace(case.source, specs=tuple(input_specs(case.source)))
    stages = Stages(sources, Budget(), Path(), (), lambda *_: None, cases, {name: Prepared() for name in sources})

    def run(calls: dict[Any, Call], *_: object) -> dict[Any, Outcome]:
        called.extend(call.argument[0].dimensions["height"] for call in calls.values())
        return {key: Outcome("ok", "an export") for key in calls}

    monkeypatch.setattr(prepare, "side_by_side", run)
    for graph in ("fp32", "int8"):
        stages._run_parts("", stages._exports([(name, graph) for name in sources]))
    assert called == [16, 24]
    assert all(set(one.onnx) == {"fp32", "int8"} for one in stages.prepared.values())


def test_counting_flops_takes_a_tenth_of_the_time_and_lack_of_time_is_no_news():
    told, source = list[str](), ModelSource("resnet18")
    stages = Stages({"m": source}, Budget(), Path(), (), lambda text, *_: told.append(text), [], {"m": Prepared()})
    for seconds, most in ((math.inf, 60.0), (100.0, 10.0), (5000.0, 60.0)):
        ((call, take),) = replace(stages, deadline=time.monotonic() + seconds)._costs()
        assert most - 1 < call.timeout <= most
        take(Outcome("timeout", "stopped"))
    assert len(told) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Path:
    """Measure a layer with attention at two lengths, with the run's cache."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "nets.py").write_text(FACTORY)
    run_job(profiler, folder, JOB, PROFILER_CACHE=str(folder / "cache"))
    return folder


def test_every_shape_is_measured_and_checked(folder):
    [path] = folder.glob("results/*/results.parquet")
    rows = {row["case_id"]: row for row in pl.read_parquet(path).to_dicts()}
    kinds = [("eager", "fp32"), ("ort", "fp32"), ("ort", "int8")]
    assert list(rows) == [f"words/{e}/inference/{p}/b1/r0/sequence={n}" for n in (4, 12) for e, p in kinds]
    for id_, row in rows.items():
        assert (row["status"], id_.rpartition("/")[2]) == ("ok", row["shape"]), row["reason"]
        assert row["rel_l2_error"] < {"fp32": 1e-5, "int8": 0.5}[row["precision"]], (
            "compared with the reference outputs of this length"
        )
        assert "static-graph" not in str(row["warnings"])


def test_one_graph_a_precision_and_one_file_of_weights_serve_every_shape(folder):
    counts = {kind: len(list((folder / "cache" / kind).glob(f"*{suffix}"))) for kind, suffix in KINDS.items()}
    assert counts == {"onnx": 2, "state": 1, "reference": 2}
