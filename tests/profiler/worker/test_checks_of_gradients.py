"""Training cases measured by the real engines on the CPU: their gradients are checked, and wrong ones fail the row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

from engines.catalog import Training
from engines.eager import EagerSession
from exporters.gradients import GradientReference, Gradients
from exporters.source import ModelSource
from profiler import load
from profiler.job.case import Budget, Case
from profiler.results.result import Result
from profiler.run.prepare import prepare
from profiler.worker import sampling
from profiler.worker.measure_case import measure_case
from profiler.worker.prepare_model import prepare_gradients, prepare_model
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow

FACTORIES = """
from pathlib import Path

import torch
from torch import nn


def good():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 10),
    )


class Spoilt(torch.autograd.Function):
    '''Once the marker is there, gradients that come back to it are spoilt.'''

    @staticmethod
    def forward(ctx, x, marker, how):
        ctx.marker, ctx.how = Path(marker), how
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.marker.exists():
            return gradient, None, None
        return {"zeros": gradient * 0, "noise": gradient + 2 * gradient.roll(1, 0).roll(1, 1), "nan": gradient / 0,
                "coarse": gradient.bfloat16().to(gradient.dtype)}[ctx.how], None, None


class Bad(nn.Module):
    def __init__(self, marker, how):
        super().__init__()
        self.first, self.last = good()[:4], good()[4:]
        self.marker, self.how = marker, how

    def forward(self, x):
        return self.last(Spoilt.apply(self.first(x), self.marker, self.how))


class BadFront(nn.Module):
    '''Of all gradients only the input's is spoilt.'''

    def __init__(self, marker, how):
        super().__init__()
        self.model, self.marker, self.how = good(), marker, how

    def forward(self, x):
        return self.model(Spoilt.apply(x, self.marker, self.how))


def bad_front(marker, how):
    torch.manual_seed(0)
    return BadFront(marker, how)


def bad(marker, how):
    torch.manual_seed(0)
    return Bad(marker, how)


class Masked(nn.Module):
    '''Half of its logits are left out.'''

    def __init__(self, value=float("-inf")):
        super().__init__()
        self.model, self.value = good(), value

    def forward(self, x):
        return torch.where(torch.arange(10) % 2 == 0, self.model(x), self.value)


def masked():
    return Masked()


class Constant(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.model, self.factor = good(), factor

    def forward(self, x):
        return self.model(x) * self.factor


def constant(factor):
    return Constant(float(factor))


class Single(nn.Module):
    '''Knows no fp64.'''

    def __init__(self):
        super().__init__()
        self.model = good()

    def forward(self, x):
        if x.dtype == torch.float64:
            raise ValueError("no double here")
        return self.model(x)


def single():
    return Single()
"""
QUIET: Any = lambda message: None  # noqa: E731
Measure = Callable[..., Result]


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "training_cases.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sampling, "_THROUGHPUT_SECONDS", 0.05)
    monkeypatch.delitem(sys.modules, "training_cases", raising=False)


def case(factory: str = "good", precision: str = "fp32", training: Training | None = None, **more: Any) -> Case:
    options = more.pop("options", {})
    source = ModelSource(factory, factory=f"training_cases:{factory}", input_shape=(3, 16, 16), options=options)
    given = {"pass_": "training", "batch_size": 4, "source": source, "training": training or Training()} | more
    return Case(factory, "eager", "eager", precision=precision, device="cpu", replicate=0, **given)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, so that the good network is prepared once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def measure(cache: Path) -> Measure:
    """`measure(case(), then=f)` prepares the case, calls f and measures it, all in this process."""

    def run(one: Case, then: Callable[[], object] = lambda: None, checked: bool = True) -> Result:
        prepared: Prepared = prepare_model((one.source, ("cpu",), cache), QUIET)
        if checked:
            items = 1 if one.batch_size % 2 else 2
            argument = (
                one.source,
                prepared,
                one.training.head,
                items,
                one.training.input_gradient,
                [one.precision],
                [4],
                cache,
            )
            prepared = replace(prepared, gradients={(one.training.head, items): prepare_gradients(argument, QUIET)})
        then()
        return measure_case(Task(one, prepared, Budget(seconds=0.05, min_samples=3)), QUIET)

    return run


@pytest.mark.parametrize(
    ("precision", "training", "batch"),
    [
        ("fp32", Training(), 1),
        ("bf16", Training("sgd"), 4),
        ("amp-bf16", Training("adamw"), 1),
        ("fp32", Training("sgd", "logits"), 4),
        ("amp-bf16", Training("none", "logits"), 1),
    ],
)
def test_a_row_says_how_far_its_gradients_are_off(
    measure: Measure, precision: str, training: Training, batch: int
) -> None:
    result = measure(case(precision=precision, training=training, batch_size=batch))
    assert (result.status, result.reason) == ("ok", None)
    assert result.reference == "step-fp64-cpu"
    error = result.figures["gradient_error"] or 0
    assert (1e-9, 1e-3)[precision != "fp32"] < error < (1e-4, 0.2)[precision != "fp32"]
    assert 0 < (result.figures["loss_error"] or 0) < 0.02
    assert not [warning for warning in result.warnings if "gradients" in warning.kind]
    assert {"forward", "backward"} <= result.samples.keys()
    assert ("step" in result.samples) == (training.optimizer != "none")


def test_masked_logits_of_a_training_step_are_right(measure: Measure) -> None:
    result = measure(case("masked", training=Training("sgd", "logits")))
    assert (result.status, result.reason) == ("ok", None)
    assert 0 < (result.figures["gradient_error"] or 0) < 1e-4


def test_masked_logits_that_the_reference_has_not_fail_the_row(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil = EagerSession.gradients

    def spoilt(session: EagerSession, *arguments: Any) -> Any:
        output, gradients = spoil(session, *arguments)
        output[0, 0] = float("inf")
        return output, gradients

    monkeypatch.setattr(EagerSession, "gradients", spoilt)
    result = measure(case("masked", training=Training("sgd", "logits")))
    assert result.status == "failed"
    assert "output 0 has +inf where the reference has a number in 1 of 20 places" in (result.reason or "")


def test_a_reference_whose_gradients_are_not_finite_is_named(measure: Measure) -> None:
    result = measure(case("constant", training=Training("none", "logits"), options={"factor": "nan"}))
    assert result.status == "failed"
    assert "the reference's own gradients in fp64 are not finite in " in (result.reason or "")


def test_a_reference_whose_gradients_are_zero_checks_nothing(measure: Measure) -> None:
    result = measure(case("constant", options={"factor": "0"}))
    assert result.status == "ok"
    (warning,) = (warning for warning in result.warnings if "gradients" in warning.kind)
    assert str(warning).startswith("unchecked-gradients: the reference's gradients are zero: inputs are seeded ")


def test_on_the_cpu_a_row_has_the_parts_of_memory_that_are_known(measure: Measure) -> None:
    parameters = 3 * 8 * 9 + 8 + 8 + 8 + 392 * 10 + 10
    memory = measure(case(training=Training("adamw"))).figures
    assert memory["gradients_mib"] == pytest.approx(4 * parameters / 2**20)
    assert memory["weights_mib"] == pytest.approx((4 * (parameters + 16) + 8) / 2**20)
    assert memory["optimizer_mib"] == pytest.approx((8 * parameters + 6 * 4) / 2**20)
    assert memory["peak_memory_mib"] == memory["host_peak_mib"]


def test_inference_has_no_gradients(measure: Measure) -> None:
    result = measure(case(pass_="inference"), checked=False)
    assert result.status == "ok"
    assert "gradient_error" not in result.figures
    assert "gradients_mib" not in result.figures


@pytest.mark.parametrize(("how", "says"), [("zeros", "of them zeros"), ("noise", "wrong gradients"), ("nan", "finite")])
def test_a_row_whose_gradients_are_wrong_is_failed(measure: Measure, tmp_path: Path, how: str, says: str) -> None:
    """As torch.compile's were on some CPUs, at an unremarkable speed, before every MaxPool2d."""
    marker = tmp_path / "marker"
    spoilt = case("bad", options={"marker": str(marker), "how": how})
    assert measure(spoilt).status == "ok"
    result = measure(spoilt, then=marker.touch)
    assert result.status == "failed"
    assert says in (result.reason or "")
    assert result.samples["host"], "what was measured is kept"


@pytest.mark.parametrize("how", ["zeros", "noise"])
def test_a_wrong_gradient_of_the_input_fails_the_row_that_was_to_compute_it(
    measure: Measure, tmp_path: Path, how: str
) -> None:
    marker = tmp_path / "marker"
    spoilt = case("bad_front", options={"marker": str(marker), "how": how}, training=Training(input_gradient=True))
    assert measure(spoilt).status == "ok"
    result = measure(spoilt, then=marker.touch)
    assert result.status == "failed"
    assert "wrong gradients in 1 of the" in (result.reason or "")
    assert "the worst is input" in (result.reason or "")
    assert measure(replace(spoilt, training=Training())).status == "ok", "it is not computed"


def test_wrong_gradients_and_a_proof_that_contradicts_are_both_reasons(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof, marker = EagerSession.proof, tmp_path / "marker"
    monkeypatch.setattr(EagerSession, "proof", lambda session: replace(proof(session), tf32=True))
    result = measure(case("bad", options={"marker": str(marker), "how": "noise"}), then=marker.touch)
    assert result.status == "failed"
    assert "wrong gradients" in (result.reason or "")
    assert "TF32 was on at fp32" in (result.reason or "")


def test_gradients_that_are_coarser_than_the_precision_are_warned_of(measure: Measure, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    result = measure(case("bad", options={"marker": str(marker), "how": "coarse"}), then=marker.touch)
    assert result.status == "ok"
    assert any(warning.kind == "inaccurate-gradients" for warning in result.warnings)


def test_with_dropout_no_gradients_are_compared(measure: Measure) -> None:
    result = measure(case(training=Training(dropout=True)), checked=False)
    assert result.status == "ok"
    assert [w for w in result.warnings if w.kind == "unchecked-gradients" and w.text.startswith("dropout is on")]
    assert not {"loss_error", "gradient_error"} & result.figures.keys()


def test_a_model_without_reference_gradients_is_measured_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forkserver: None
) -> None:
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    one = case("single")
    prepared = prepare([one], Budget(), tmp_path, (str(tmp_path),), lambda *_: None)["single"]
    reason = prepared.gradients["cross-entropy", 2]
    assert isinstance(reason, str)
    assert "no double here" in reason
    result = measure_case(Task(one, prepared, Budget(seconds=0.05, min_samples=3)), QUIET)
    assert result.status == "ok"
    (warning,) = [w for w in result.warnings if w.kind == "unchecked-gradients"]
    assert "no double here" in warning.text


def test_references_are_made_for_what_will_be_compared_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forkserver: None
) -> None:
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    cases = [
        case(batch_size=2),
        case(batch_size=8, precision="bf16"),
        case(batch_size=3, training=Training("sgd", "logits")),
        case(batch_size=5, training=Training(dropout=True)),
        case(pass_="inference"),
    ]
    prepared = prepare(cases, Budget(), tmp_path, (str(tmp_path),), lambda *_: None)["good"]
    assert set(prepared.gradients) == {("cross-entropy", 2), ("logits", 1)}
    both, one = prepared.gradients["cross-entropy", 2], prepared.gradients["logits", 1]
    assert isinstance(both, GradientReference)
    assert isinstance(one, GradientReference)
    assert (set(both.own), set(one.own)) == ({"fp32", "bf16"}, {"fp32"})
    assert "input" not in Gradients.read(both.path).samples


def test_the_reference_and_the_count_have_the_gradient_of_an_input_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forkserver: None
) -> None:
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    asked = [case(training=Training(input_gradient=True))]
    prepared = prepare(asked, Budget(), tmp_path, (str(tmp_path),), lambda *_: None)["good"]
    reference = prepared.gradients["cross-entropy", 2]
    assert isinstance(reference, GradientReference)
    assert "input" in Gradients.read(reference.path).samples
    assert prepared.cost.inference is not None and prepared.cost.training is not None
    assert prepared.cost.training.item == 3 * prepared.cost.inference.item


JOB = """
models: [{name: net, factory: "training_cases:good", input: [3, 16, 16]}]
import_from: [.]
engines: [eager]
passes: [training]
precisions: [fp32, amp-bf16]
batch_sizes: [2]
device: cpu
training: {optimizers: [none, sgd]}
budget: {seconds: 0.05, min_samples: 3}
"""


def test_a_run_from_the_command_line_has_it_all_in_its_table(tmp_path: Path, profiler: Profiler) -> None:
    path = run_job(profiler, tmp_path, JOB, PROFILER_CACHE=str(tmp_path / "cache"))
    rows, samples = (frame.collect() for frame in load(path))
    assert rows["status"].to_list() == ["ok"] * 4
    assert rows["reference"].to_list() == ["step-fp64-cpu"] * 4
    assert rows["gradient_error"].is_between(1e-9, 0.1).all()
    for row in rows.to_dicts():
        assert (row["step_ms"] is not None) == (row["optimizer"] == "sgd")
        assert row["optimizer_mib"] == pytest.approx(row["gradients_mib"] if row["optimizer"] == "sgd" else 0)
        clocks = samples.filter(case_id=row["case_id"]).pivot("clock", index="index", values="ms")
        parts = clocks.select(pl.sum_horizontal(pl.exclude("index", "host")))
        assert (parts.to_series() <= clocks["host"] + 1e-9).all(), "a call is not shorter than its parts"
    wide = rows.filter(pl.col("precision") == "fp32")["gradient_error"].max()
    assert wide < rows.filter(pl.col("precision") == "amp-bf16")["gradient_error"].min()  # type: ignore[operator]
