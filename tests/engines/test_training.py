"""Training iterations on a tiny network: heads, optimizers, autocast and loss scale, and the gradients they show."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from able_engines import needs
from sessions import cache_beside, make_job

import engines
from engines.base import Job, Trainable
from engines.options import EagerOptions, Training
from exporters.cache import Cache
from exporters.gradient_reference import cached_gradients
from exporters.gradients import Deviation, Gradients, Step, corner, deviation, deviation_name, reference_items
from exporters.inputs import TensorSpec, input_specs, seeded_inputs
from exporters.source import ModelError, ModelSource
from exporters.weights import cached_state

FACTORIES = """
import torch
from torch import nn

def tiny():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Dropout(0.5),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(288, 10),
    )

class Shaped(nn.Module):
    '''Returns what `how` names; a force comes from a gradient inside forward.'''
    def __init__(self, how):
        super().__init__()
        self.how, self.model = how, tiny()
        self.model[-1] = nn.Linear(288, 24)
    def forward(self, x):
        if self.how == "forces":
            with torch.enable_grad():
                x = x.requires_grad_()
                energy = self.model(x).square().sum(1)
                forces, = torch.autograd.grad(energy.sum(), x, create_graph=True)
            return {"forces": forces, "energy": energy}
        y = self.model(x)
        shapes = {
            "tokens": lambda: y.view(-1, 4, 6), "rows": lambda: y.view(-1, 6),
            "first": lambda: y.view(-1, 4, 6).transpose(0, 1), "pixels": lambda: y.view(-1, 6, 2, 2),
            "item": lambda: y.mean(1), "one": lambda: y[:, :1], "scalar": lambda: y.square().mean(),
            "own": lambda: {"logits": y, "loss": y.tanh().mean()},
        }
        return shapes[self.how]()

def smooth(y): return y.log_softmax(1).mean().neg()
def rebuilt(y, x): return (y.mean() - x.mean()).square()

def loud():
    '''Its gradients are some 1e4: times a loss scale of 65536 no fp16 holds them.'''
    model = tiny()
    with torch.no_grad():
        model[8].weight.mul_(3e3)
    return model
"""
PARAMETERS = 3 * 8 * 9 + 8 + 8 + 8 + 8 * 8 * 9 + 8 + 288 * 10 + 10
BATCH = 6


cache = cache_beside("training_factories", FACTORIES)


def source(name: str) -> ModelSource:
    factory, options = (name, {}) if name in ("tiny", "loud") else ("Shaped", {"how": name})
    return ModelSource(name, factory=f"training_factories:{factory}", input_shape=(3, 16, 16), options=options)


@pytest.fixture
def open_session(cache: Cache) -> Callable[..., Any]:
    """`open_session("bf16", optimizer="sgd", channels_last=True)`."""

    def start(
        precision: str = "fp32",
        engine: str = "eager",
        optimizer: Any = "none",
        head: Any = "cross-entropy",
        dropout: bool = False,
        input_gradient: bool = False,
        accumulation: int = 1,
        frozen: tuple[str, ...] = (),
        name: str = "tiny",
        batch: int = BATCH,
        **options: Any,
    ) -> Any:
        training = Training(optimizer, head, dropout, input_gradient, accumulation, frozen)
        job = make_job(source(name), cache, engine, precision, "training", batch, training, **options)
        return engines.open_session(engine, job)

    return start


def ignore(name: str) -> None:
    pass


def compared(
    cache: Cache, session: Any, precision: str, head: str = "cross-entropy", name: str = "tiny", batch: int = BATCH
) -> tuple[Deviation, Deviation]:
    """The session's deviation from the reference, and the reference's own at that precision."""
    asked, model = session.job.training, source(name)
    items = reference_items(batch // asked.accumulation)
    specs, state = input_specs(model), cached_state(model, cache)
    step = Step(head, items, asked.input_gradient, [precision], [batch], asked.frozen)
    reference = cached_gradients(model, specs, state, step, cache)
    truth = Gradients.read(reference.path)
    output, found = session.gradients(seeded_inputs(specs, batch, items), truth.target)
    assert all(sample.dtype == np.float32 for sample in found.values())
    return deviation(corner(output, truth.result.shape), found, truth), reference.deviations[
        deviation_name(precision, batch)
    ]


def weights(session: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in session.model.parameters()]


def test_sgd_is_what_torch_does_by_default(open_session):
    """Fused, and with a momentum that was made beforehand, it gives the plain optimizer's weights."""
    session, plain = open_session(optimizer="sgd"), open_session()
    optimizer = torch.optim.SGD(plain.model.parameters(), lr=1e-6, momentum=0.9, weight_decay=1e-4, foreach=False)
    for _ in range(3):
        session.run(ignore)
        plain.run(ignore)
        optimizer.step()
    for ours, theirs in zip(session.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def test_the_prepared_weights_are_not_written_to(open_session, cache):
    """A canonical network's weights are mapped from the file, on the CPU right under the optimizer."""
    model = ModelSource("resnet18")
    state = cached_state(model, cache)
    before = hashlib.sha256(state.read_bytes()).hexdigest()
    inputs = tuple(seeded_inputs([TensorSpec("x", ("batch", 3, 64, 64), "float32")], 1))
    job = Job(model, "training", "fp32", 1, "cpu", EagerOptions(), inputs, state, training=Training("adamw"))
    session: Any = engines.open_session("eager", job)
    first = session.model.get_parameter("fc.bias").detach().clone()
    session.run(ignore)
    assert not torch.equal(first, session.model.get_parameter("fc.bias"))
    assert hashlib.sha256(state.read_bytes()).hexdigest() == before


@pytest.mark.parametrize("dropout", [False, True])
def test_dropout_is_off_unless_asked_for(open_session, dropout):
    session = open_session(dropout=dropout)
    assert session.model[1].training, "batch normalization computes its statistics"
    assert session.model[5].training == dropout
    session.run(ignore)
    first = session.outputs()[0]
    session.run(ignore)
    assert (session.outputs()[0] != first) == dropout


SHOWN: list[tuple[str, int, dict[str, Any]]] = [
    *[("fp32", BATCH, each) for each in ({"head": "logits"}, {"optimizer": "adamw"})],
    *[("bf16", BATCH, each) for each in ({}, {"optimizer": "sgd", "head": "logits"})],
    *[("amp-bf16", BATCH, each) for each in ({"optimizer": "sgd"}, {"optimizer": "adamw", "head": "logits"})],
    *[("amp-fp16", BATCH, each) for each in ({"head": "logits"}, {"optimizer": "sgd"})],
    ("amp-fp16", BATCH, {"optimizer": "adamw", "head": "logits"}),
    ("fp32", BATCH, {"accumulation": 3, "optimizer": "sgd-foreach"}),
    ("fp32", BATCH, {"accumulation": 2, "input_gradient": True}),
    ("amp-fp16", BATCH, {"accumulation": 6, "optimizer": "adamw-foreach"}),
    ("bf16", BATCH, {"accumulation": 3, "head": "logits"}),
    ("fp32", 4, {"input_gradient": True}),
    ("fp32", 3, {"input_gradient": True, "optimizer": "sgd", "channels_last": True}),
    ("bf16", 6, {"input_gradient": True, "head": "logits"}),
    ("amp-fp16", 6, {"input_gradient": True, "optimizer": "adamw"}),
    ("amp-fp16", 4, {"input_gradient": True, "name": "loud"}),
]
"""Precision, batch and what else a session is asked for."""
ALL: dict[str, Any] = {"accumulation": 3, "engine": "compiled", "optimizer": "adamw", "input_gradient": True}
COMPILED = pytest.param("amp-bf16", BATCH, ALL, marks=needs("compiled"))
TYPES = {"fp32": "float32", "bf16": "bfloat16", "amp-bf16": "bfloat16", "amp-fp16": "float16"}


@pytest.mark.parametrize(("precision", "batch", "options"), [*SHOWN, COMPILED])
def test_the_iteration_that_was_measured_shows_the_references_gradients(open_session, cache, precision, batch, options):
    session = open_session(precision, batch=batch, **options)
    assert isinstance(session, Trainable)
    before = weights(session)
    for _ in range(3):
        marks: list[str] = []
        session.run(marks.append)
        assert marks == ["forward", "backward"] * options.get("accumulation", 1) + ["step"] * ("optimizer" in options)
    moved = max(float((a - b).abs().max()) for a, b in zip(before, weights(session), strict=True))
    assert (moved > 0) == ("optimizer" in options) and moved < 0.01, "by little, so that no time changes"
    head, name = options.get("head", "cross-entropy"), options.get("name", "tiny")
    found, own = compared(cache, session, precision, head, name, batch)
    assert found.gradient < 3 * max(own.gradient, 1e-6)
    assert found.result < 0.02
    assert found.zeros == []
    if "input_gradient" in options:
        assert 0 < found.tensors["input"] < 3 * max(own.tensors["input"], 1e-6)
    proof = session.proof()
    assert proof.compute_types.keys() == {TYPES[precision]} and not proof.tf32
    assert proof.weight_types.keys() == {"bfloat16" if precision == "bf16" else "float32"}


@pytest.mark.parametrize(
    ("name", "head", "form", "shape"),
    [
        ("tiny", "cross-entropy", "cross-entropy", ()),
        ("tiny", "mean-square", "mean-square", ()),
        ("tokens", "cross-entropy", "token-cross-entropy", ()),
        ("pixels", "cross-entropy", "pixel-cross-entropy", ()),
        ("own", "cross-entropy", "own", ()),
        *[(name, "cross-entropy", "mean-square", ()) for name in ("item", "one", "scalar")],
        *[("tiny", f"training_factories:{loss}", f"training_factories:{loss}", ()) for loss in ("smooth", "rebuilt")],
        ("item", "logits", "logits", (BATCH,)),
        ("scalar", "logits", "logits", ()),
        ("rows", "logits", "logits", (4 * BATCH, 6)),
        ("first", "logits", "logits", (4, BATCH, 6)),
        ("forces", "logits", "logits", (BATCH, 3, 16, 16)),
    ],
)
def test_the_backward_pass_starts_from_what_the_proof_names(open_session, cache, name, head, form, shape):
    session = open_session(name=name, head=head)
    session.run(ignore)
    (output,) = session.outputs()
    assert output.shape == shape
    found, own = compared(cache, session, "fp32", head, name)
    assert found.gradient < 3 * max(own.gradient, 1e-6) and found.result < 1e-5
    assert session.proof().head == form


def test_what_is_frozen_has_no_gradient_and_no_state(open_session, cache):
    session = open_session(optimizer="adamw", frozen=("0", "*.bias"))
    session.run(ignore)
    trained = {name for name, p in session.model.named_parameters() if p.grad is not None}
    assert trained == {"1.weight", "3.weight", "8.weight"}
    assert session.memory().optimizer == 2 * session.memory().gradients + 4 * len(trained)
    found, _ = compared(cache, session, "fp32")
    assert found.gradient < 1e-5 and found.tensors.keys() == trained
    with pytest.raises(ModelError, match=r"frozen: the model has no parameter '8\.weigth'; did you mean '8\.weight'"):
        open_session(frozen=("8.weigth",))


def test_weights_that_have_moved_are_put_back_where_they_are(open_session, cache):
    session = open_session(optimizer="adamw")
    places = [p.data_ptr() for p in session.model.parameters()]
    before = weights(session)
    with torch.no_grad():
        for parameter in session.model.parameters():
            parameter.mul_(1.5)
    found, _ = compared(cache, session, "fp32")
    assert found.gradient < 1e-4
    assert [p.data_ptr() for p in session.model.parameters()] == places
    for ours, theirs in zip(weights(session), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["none", "adamw"])
def test_a_loss_scale_that_overflows_is_halved_before_anything_is_timed(open_session, cache, optimizer):
    session = open_session("amp-fp16", optimizer=optimizer, name="loud")
    before = weights(session)
    session.run(ignore)
    scale = session.training.scaler.get_scale()
    assert scale < 65536
    assert all(bool(torch.isfinite(p).all()) for p in session.model.parameters())
    if optimizer != "none":
        assert any(not torch.equal(a, b) for a, b in zip(before, weights(session), strict=True)), "no step was skipped"
    found, own = compared(cache, session, "amp-fp16", name="loud")
    assert found.gradient < 3 * own.gradient


def test_a_first_step_that_is_skipped_leaves_no_garbage_in_the_momentum(open_session):
    session = open_session("amp-fp16", optimizer="sgd")
    session.training.scaler = torch.amp.GradScaler("cpu", init_scale=1e30)
    session.training._scale = 1e30  # It is not searched for.
    before = weights(session)
    session.run(ignore)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(session), strict=True)), "it was skipped"
    session.training.scaler.update(64.0)
    session.run(ignore)
    moved = [float((a - b).abs().max()) for a, b in zip(before, weights(session), strict=True)]
    assert 0 < max(moved) < 1e-4


@pytest.mark.parametrize(
    ("optimizer", "precision", "floats"),
    [("none", "fp32", 0), ("sgd", "fp32", 1), ("adamw", "fp32", 2), ("sgd", "bf16", 1), ("adamw", "amp-bf16", 2)],
)
def test_memory_of_gradients_and_optimizer(open_session, optimizer, precision, floats):
    session = open_session(precision, optimizer=optimizer)
    session.run(ignore)
    size = 2 if precision == "bf16" else 4
    memory = session.memory()
    assert memory.gradients == size * PARAMETERS
    steps = 4 * 8 if optimizer == "adamw" else 0  # AdamW counts the steps of each of eight tensors.
    assert memory.optimizer == floats * size * PARAMETERS + steps
