"""One case measured in this process by the real engines, on the CPU: what its row must and must not hold."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from engines.eager import EagerSession
from engines.ort import OrtSession
from exporters.inputs import TensorSpec, declared_inputs, seeded_inputs
from exporters.source import ModelError, ModelSource
from profiler.job.case import Budget, Case
from profiler.processor import PROC
from profiler.results.result import Result
from profiler.stats.intervals import upper_bound
from profiler.worker import sampling
from profiler.worker.measure_case import measure_case
from profiler.worker.prepare_model import prepare_export, prepare_model
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow

FACTORIES = '''
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 16)
    def forward(self, x):
        q, k = self.project(x).chunk(2, dim=-1)
        return (q @ k.transpose(1, 2)).softmax(-1).mean(1)

def attention():
    return Attention()

def pooling():
    return nn.AvgPool1d(2)

class Masked(nn.Module):
    """Logits of which a fixed half, and one that depends on the input, are left out."""
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 6)
    def forward(self, x):
        logits = self.last(x)
        logits = torch.where(torch.arange(6) % 2 == 0, logits, float("-inf"))
        return logits, logits.argmax(-1)

def masked():
    return Masked()

class Zero(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 6)
    def forward(self, x):
        return self.last(x) * 0

def zero():
    return Zero()

class Deaf(nn.Module):
    """Outputs of about 1, of which the input decides a thousandth."""
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 6)
    def forward(self, x):
        return self.last(x) * 0.001 + 1

def deaf():
    return Deaf()

class Scaled(nn.Module):
    """Each item's outputs are as small as its first value, and their rounding is that of one."""
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(8, 6)
    def forward(self, x):
        y = self.last(x) * x[:, :1, :1].abs() + 1
        return y - 1, self.last.weight.norm()

def scaled():
    return Scaled()

def nan():
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    nn.init.constant_(model[1].weight, float("nan"))
    return model
'''


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`measure("attention", engine="ort")`: the Result of one case of that factory's model."""
    (tmp_path / "worker_factories.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sampling, "_THROUGHPUT_SECONDS", 0.05)
    monkeypatch.delitem(sys.modules, "worker_factories", raising=False)

    def run(
        factory: str,
        engine: str = "eager",
        pass_: str = "inference",
        seconds: float = 0.05,
        precision: str = "fp32",
        then: Callable[[], None] = lambda: None,
    ) -> Result:
        source = ModelSource(factory, factory=f"worker_factories:{factory}", input_shape=(4, 8))
        prepared: Prepared = prepare_model((source, ("cpu",), tmp_path / "cache"), lambda message: None)
        if engine == "ort":
            export = prepare_export((source, "fp32", None, tmp_path / "cache"), lambda message: None)
            prepared = replace(prepared, onnx={"fp32": export})
        then()
        case = Case(factory, engine, engine, pass_, precision, 2, "cpu", 0, source)  # type: ignore[arg-type]
        return measure_case(Task(case, prepared, Budget(seconds=seconds, min_samples=3)), lambda message: None)

    return run


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_products_of_two_activations_are_proved(measure, engine: str) -> None:
    result = measure("attention", engine)
    assert (result.status, result.reason) == ("ok", None)
    assert set(result.proof.compute_types) == {"float32"}
    assert result.proof.compute_types["float32"] >= 2


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_a_model_without_products_is_unproven_and_no_failure(measure, engine: str) -> None:
    result = measure("pooling", engine)
    assert result.status == "ok"
    assert any(warning.kind == "unproven" for warning in result.warnings)


@pytest.mark.skipif(not (PROC / "stat").exists(), reason="/proc is Linux's")
def test_a_case_that_others_took_the_processors_from_is_disturbed(measure, busy_processors: list[int]) -> None:
    result = measure("attention", seconds=1.0)
    (warning,) = (warning for warning in result.warnings if warning.kind == "disturbed")
    assert warning.text.startswith("other processes took ")
    assert f" % of {len(busy_processors)} processors" in warning.text or len(busy_processors) == 1
    assert result.figures["disturbance"] > 0.05


def test_the_error_of_a_row_has_a_width(measure) -> None:
    result = measure("scaled", precision="bf16", seconds=0.3)
    figures, items = result.figures, int(result.figures["error_items"])
    assert (result.status, 8 <= items <= 64, items % 2) == ("ok", True, 0), result.reason
    errors, models = [], [sys.modules["worker_factories"].scaled().to(t) for t in (torch.float32, torch.bfloat16)]
    for first in range(0, items, 2):
        (x,) = seeded_inputs([TensorSpec("x", ("batch", 4, 8), "float32")], 2, first=first)
        with torch.no_grad():
            calls = [model(torch.from_numpy(x).to(model.last.weight.dtype)) for model in models]
        (truth, norm), (ours, norm_in_bf16) = ([part.float() for part in call] for call in calls)
        pairs = zip(ours, truth, strict=True)
        errors += [max(float((a - b).norm() / b.norm()), float(abs(norm_in_bf16 / norm - 1))) for a, b in pairs]
    assert figures["rel_l2_error"] == pytest.approx(np.median(errors), rel=1e-3)
    assert figures["rel_l2_error_high"] == pytest.approx(upper_bound(errors), rel=1e-3)
    assert figures["rel_l2_error_high"] >= max(errors) * 0.999 > 2 * figures["rel_l2_error"]


def test_a_loss_that_is_not_finite_fails_the_row(measure) -> None:
    result = measure("nan", pass_="training")
    assert (result.status, result.reason) == ("failed", "the loss is not finite")


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_masked_logits_are_right(measure, engine: str) -> None:
    result = measure("masked", engine)
    assert (result.status, result.reason) == ("ok", None)
    assert result.figures["rel_l2_error"] < 1e-6
    assert [warning.kind for warning in result.warnings if "inaccurate" in warning.kind] == []


@pytest.mark.parametrize(("engine", "session"), [("eager", EagerSession), ("ort", OrtSession)])
def test_logits_that_are_masked_in_another_way_are_wrong(
    measure, monkeypatch: pytest.MonkeyPatch, engine: str, session: type
) -> None:
    outputs = session.outputs

    def spoil() -> None:
        monkeypatch.setattr(session, "outputs", lambda own: [np.abs(array) for array in outputs(own)])

    result = measure("masked", engine, then=spoil)
    assert result.status == "failed"
    assert result.reason == (
        "the outputs are wrong where they are not finite: output y0 has +inf where the reference has −inf in 24 of 48 "
        "places"
    )


def tokens(path: Path, rows: int, factor: int = 1, batch: int | str = "n") -> ModelSource:
    """A graph that looks `ids` up in a table of so many rows, and returns the places of the largest logits."""
    generator = np.random.default_rng(0)
    tables = {"table": (rows, 8), "weight": (8, 6)}
    constants = [numpy_helper.from_array(generator.normal(size=s).astype(np.float32), n) for n, s in tables.items()]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weight"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["place"], axis=-1, keepdims=0),
        helper.make_node("Mul", ["place", "factor"], ["next"]),
    ]
    ids, following = (helper.make_tensor_value_info(n, TensorProto.INT64, [batch, 4]) for n in ("ids", "next"))
    constants.append(numpy_helper.from_array(np.array(factor, np.int64), "factor"))
    graph = helper.make_graph(nodes, "tokens", [ids], [following], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return ModelSource("tokens", onnx=path, inputs=declared_inputs({"ids": {"range": [0, 2]}}))


def measure_graph(source: ModelSource, cache: Path) -> Result:
    prepared = prepare_model((source, ("cpu",), cache), lambda message: None)
    case = Case("tokens", "ort", "ort", "inference", "native", 2, "cpu", 0, source)
    return measure_case(Task(case, prepared, Budget(seconds=0.05, min_samples=3)), lambda message: None)


def test_a_graph_of_a_fixed_batch_is_compared_over_further_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tokens(tmp_path / "tokens.onnx", rows=2, batch=2)
    result = measure_graph(source, tmp_path)
    assert (result.status, result.figures["rel_l2_error"]) == ("ok", 0.0), result.reason
    assert 8 <= result.figures["error_items"] <= 64
    feed, given = OrtSession.feed, []

    def spoiled(session: OrtSession, inputs: list[np.ndarray]) -> None:
        given.append(inputs[0].copy())
        feed(session, [1 - ids for ids in inputs])

    monkeypatch.setattr(OrtSession, "feed", spoiled)
    result = measure_graph(source, tmp_path)
    assert result.reason is not None and result.reason.startswith("the outputs are wrong: ")
    (own,) = seeded_inputs([TensorSpec("ids", ("batch", 4), "int64", range=(0, 2))], 8)
    np.testing.assert_array_equal(np.concatenate(given)[:6], own[2:])


def test_further_items_that_do_not_run_are_told_and_lose_nothing(measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: EagerSession, inputs: object) -> None:
        raise RuntimeError("no other inputs")

    result = measure("attention", then=lambda: monkeypatch.setattr(EagerSession, "feed", refuse))
    assert (result.status, result.figures["error_items"]) == ("ok", 2)
    (warning,) = (warning for warning in result.warnings if warning.kind == "no-parity")
    assert warning.text.startswith("items beyond 2 were not compared: RuntimeError: no other inputs")


def test_token_ids_are_compared_place_by_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tokens(tmp_path / "tokens.onnx", rows=2)
    result = measure_graph(source, tmp_path)
    assert (result.status, result.reason) == ("ok", None)
    assert (result.figures["rel_l2_error"], result.figures["max_abs_error"]) == (0.0, None)
    outputs = OrtSession.outputs
    monkeypatch.setattr(OrtSession, "outputs", lambda session: [ids ^ 1 for ids in outputs(session)])
    result = measure_graph(source, tmp_path)
    assert result.reason == "the outputs are wrong: 100.0 % of the places of an integer output differ"


def test_an_error_that_hides_what_the_inputs_decide_is_no_check(measure) -> None:
    for precision, warned in (("fp32", False), ("bf16", True)):
        result = measure("deaf", precision=precision)
        assert (result.status, result.figures["rel_l2_error"] < 1e-2) == ("ok", True)
        texts = [warning.text for warning in result.warnings if warning.kind == "unchecked-outputs"]
        assert [", and other inputs change the outputs by only " in text for text in texts] == [True] * warned


def test_token_ids_that_are_all_zero_name_the_inputs_that_are_seeded(tmp_path: Path) -> None:
    result = measure_graph(tokens(tmp_path / "tokens.onnx", rows=2, factor=0), tmp_path)
    (warning,) = (warning for warning in result.warnings if warning.kind == "unchecked-outputs")
    assert "`ids` is drawn from 0 to below 2; in a job `inputs` gives others" in warning.text


def test_ids_that_are_out_of_range_name_the_inputs_that_are_seeded(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"(?s)its reference outputs cannot be made: .*indices.* `ids` is drawn from 0 to below 2"
    ):
        measure_graph(tokens(tmp_path / "tokens.onnx", rows=1), tmp_path)


def test_wrong_outputs_and_a_proof_that_contradicts_are_both_reasons(measure, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = EagerSession.proof
    monkeypatch.setattr(EagerSession, "proof", lambda session: replace(proof(session), tf32=True))
    result = measure("nan")
    assert result.status == "failed"
    assert "nothing can be compared" in result.reason
    assert "TF32 was on at fp32" in result.reason


def test_what_the_bookkeeping_needs_is_not_the_models_memory(measure, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = EagerSession.memory

    def costly(session: EagerSession):
        np.ones(400 * 2**17).sum()  # 400 MiB
        return declared(session)

    monkeypatch.setattr(EagerSession, "memory", costly)
    assert measure("attention").figures["host_peak_mib"] < 300
