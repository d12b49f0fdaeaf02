"""Models with any inputs and outputs are prepared, measured and checked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporters.inputs import declared_inputs
from exporters.source import ModelError, ModelSource
from profiler.job.case import Budget, Case
from profiler.processes.messages import Outcome
from profiler.results.result import Result
from profiler.worker import sampling
from profiler.worker.measure_case import measure_case
from profiler.worker.prepare_model import prepare_export, prepare_gradients, prepare_model
from profiler.worker.task import Prepared, Task, static_graph

pytestmark = pytest.mark.slow

MODELS = '''
import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class Output:
    ids: torch.Tensor
    logits: torch.Tensor
    cache: object


class Text(nn.Module):
    """Token ids under a mask, and what scales them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, ids, *, mask, scale):
        hidden = (self.table(ids) * mask[..., None]).sum(1) * scale[:, None]
        logits = self.head(hidden)
        return Output(logits.argmax(-1), logits, object())


class Boxes(nn.Module):
    """A dict an image: how many boxes there are depends on the image."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        found = []
        for image in images:
            scores = self.scores(image[None])[0].flatten(1).t()
            found.append({"boxes": scores[scores[:, 0] > 0], "best": scores.amax(0)})
        return found


class Nothing(nn.Module):
    def forward(self, x):
        return "nothing"
'''
INPUTS = {
    "ids": {"shape": ["batch", "length"], "dtype": "int64", "range": [0, 50]},
    "mask": {"shape": ["batch", "length"], "dtype": "int32", "fill": "lengths"},
    "scale": {"shape": ["batch"], "range": [1, 2]},
}
TEXT = ModelSource("text", "any_models:Text", inputs=declared_inputs(INPUTS), dimensions={"length": 6})
BOXES = ModelSource("boxes", "any_models:Boxes", input_shape=(3, 8, 8))


def quiet(message: object) -> None:
    """Nobody is told."""


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Measure a case of 2 items of a source, at fp32; with a graph for only these where `fixed`."""
    (tmp_path / "any_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sampling, "_THROUGHPUT_SECONDS", 0.05)
    monkeypatch.delitem(sys.modules, "any_models", raising=False)
    cache = tmp_path / "cache"

    def run(source: ModelSource, engine: str, pass_: Any = "inference", fixed: bool = False) -> Result:
        made: Prepared = prepare_model((source, ("cpu",), cache), quiet)
        onnx, failures = {}, {}
        if engine != "eager":
            batch = 2 if fixed else None
            name = static_graph("fp32", 2) if fixed else "fp32"
            onnx[name] = prepare_export((source, "fp32", batch, cache), quiet)
            failures = {"fp32": Outcome("failed", "its batch is not free")} if fixed else {}
        prepared = replace(made, onnx=onnx, failures=failures)
        gradients: dict[tuple[str, int], Any] = {}
        if pass_ == "training":
            arguments = source, prepared, "cross-entropy", 2, False, ("fp32",), (2,), cache
            gradients["cross-entropy", 2] = prepare_gradients(arguments, quiet)
        prepared = replace(prepared, gradients=gradients)
        case = Case(source.name, engine, engine, pass_, "fp32", 2, "cpu", 0, source)
        return measure_case(Task(case, prepared, Budget(seconds=0.05, min_samples=3)), quiet)

    return run


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_named_inputs_and_a_dataclass(measured: Callable[..., Result], engine: str) -> None:
    result = measured(TEXT, engine)
    assert (result.status, result.reason) == ("ok", None)
    assert result.figures["rel_l2_error"] < 1e-5
    assert not [warning for warning in result.warnings if warning.kind == "no-parity"]


def test_training_starts_from_the_output_that_is_named(measured: Callable[..., Result]) -> None:
    with pytest.raises(
        ModelError, match=r"starts from output 'ids', which is torch.int64: write `outputs: \[logits\]`"
    ):
        measured(TEXT, "eager", "training")
    result = measured(replace(TEXT, outputs=("logits",)), "eager", "training")
    assert (result.status, result.reason) == ("ok", None)
    assert result.figures["gradient_error"] < 1e-4


def test_boxes_are_timed_and_compared_where_their_number_is_the_same(measured: Callable[..., Result]) -> None:
    result = measured(BOXES, "eager")
    assert (result.status, result.reason) == ("ok", None)
    assert not [warning for warning in result.warnings if warning.kind == "no-parity"]
    assert result.figures["rel_l2_error"] < 1e-6
    assert result.figures["error_items"] == 1, "no output has its items first"


def test_a_graph_for_one_batch_size_says_so(measured: Callable[..., Result]) -> None:
    with pytest.raises(ModelError, match="export to ONNX in fp32 failed"):
        measured(BOXES, "ort")
    result = measured(BOXES, "ort", fixed=True)
    assert (result.status, result.reason) == ("ok", None)
    (warning,) = (warning for warning in result.warnings if warning.kind == "static-graph")
    assert warning.text == "the graph is for batch size 2 only, since with a free one its batch is not free"


def test_outputs_that_are_not_there_are_errors_before_anything_is_measured(measured: Callable[..., Result]) -> None:
    with pytest.raises(ModelError, match="no output 'logit'; did you mean 'logits'"):
        measured(replace(TEXT, outputs=("logit",)), "eager")
    with pytest.raises(ModelError, match="it returns no tensor; return one, or some in a tuple or a dict"):
        measured(ModelSource("none", "any_models:Nothing", input_shape=(3,)), "eager")


def test_inputs_that_do_not_fit_are_named_with_what_forward_takes(measured: Callable[..., Result]) -> None:
    wrong = declared_inputs({"tokens": {"shape": ["batch", 6], "dtype": "int64", "range": [0, 50]}})
    says = r"argument 'tokens'.* given: input tokens int64 \[batch, 6\], and forward takes ids, mask, scale"
    with pytest.raises(ModelError, match=says):
        measured(ModelSource("text", "any_models:Text", inputs=wrong), "eager")
