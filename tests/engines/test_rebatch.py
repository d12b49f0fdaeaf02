"""A session that takes another batch gives what one gives that was opened at that batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from able_engines import needs
from sessions import cache_beside, outputs
from torch._dynamo.utils import counters

import engines
from engines.base import Job, Rebatchable, Session
from engines.catalog import PLAIN, CompiledOptions, EagerOptions, Training
from engines.pytorch.compiled import CompiledSession
from engines.pytorch.eager import EagerSession
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelSource
from exporters.weights import cached_state

FACTORY = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
"""
SOURCE = ModelSource("tiny", factory="tiny_to_rebatch:tiny", input_shape=(3, 8, 8))
SGD = Training("sgd")

MakeJob = Callable[..., Job]


cache = cache_beside("tiny_to_rebatch", FACTORY)


@pytest.fixture
def make_job(cache: Cache) -> MakeJob:
    def make(batch: int, pass_: Any = "inference", training: Training = PLAIN, **options: Any) -> Job:
        inputs = tuple(seeded_inputs(input_specs(SOURCE), batch))
        state = cached_state(SOURCE, cache)
        return Job(SOURCE, pass_, "fp32", batch, "cpu", EagerOptions(**options), inputs, state, training=training)

    return make


def rebatch(session: Session, job: Job) -> None:
    assert isinstance(session, Rebatchable)
    session.rebatch(job)


@pytest.mark.parametrize("channels_last", [False, True])
def test_outputs_are_those_of_a_session_opened_at_that_batch(make_job: MakeJob, channels_last: bool) -> None:
    jobs = {batch: make_job(batch, channels_last=channels_last) for batch in (2, 5, 3)}
    session = engines.open_session("eager", jobs[2])
    for batch, job in jobs.items():
        if batch != 2:
            rebatch(session, job)
        expected = outputs(engines.open_session("eager", job))
        assert expected.shape == (batch, 10)
        np.testing.assert_array_equal(outputs(session), expected)
        proof = session.proof()
        assert proof.compute_types == {"float32": 2}
        assert proof.details["channels_last"] == channels_last


@pytest.mark.parametrize("training", [PLAIN, SGD, Training("adamw", "logits")])
def test_a_training_iteration_is_that_of_a_session_opened_at_that_batch(make_job: MakeJob, training: Training) -> None:
    session = engines.open_session("eager", make_job(2, "training", training))
    outputs(session)
    job = make_job(6, "training", training)
    rebatch(session, job)
    assert isinstance(session, EagerSession)
    memory = session.memory()
    assert memory.gradients == 0, "those of the old batch are gone"
    fresh = engines.open_session("eager", job)
    assert isinstance(fresh, EagerSession)
    found, expected = (one.gradients(job.inputs, one.training.target.numpy()) for one in (session, fresh))
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1].keys() == expected[1].keys() != set()
    for name, gradient in expected[1].items():
        np.testing.assert_array_equal(found[1][name], gradient)


def test_the_weights_stay_where_they_are(make_job: MakeJob) -> None:
    session = engines.open_session("eager", make_job(1, "training", SGD))
    assert isinstance(session, EagerSession)
    before = [weight.data_ptr() for weight in session.model.parameters()]
    rebatch(session, make_job(4, "training", SGD))
    outputs(session)
    assert [weight.data_ptr() for weight in session.model.parameters()] == before


@needs("compiled")
def test_a_compiled_session_compiles_for_each_batch_anew(make_job: MakeJob) -> None:
    """With its own counters: after torch's limit of recompilations it would run in eager without a word."""
    seen: list[str] = []
    jobs = [replace(make_job(batch), phase=seen.append, options=CompiledOptions()) for batch in (1, 3)]
    session = engines.open_session("compiled", jobs[0])
    assert isinstance(session, CompiledSession)
    rebatch(session, jobs[1])
    assert seen == ["build", "load"] * 2
    np.testing.assert_allclose(
        outputs(session), outputs(engines.open_session("eager", make_job(3))), rtol=1e-4, atol=1e-5
    )
    assert session.proof().details["compiled_graphs"] == counters["stats"]["unique_graphs"] == 1
