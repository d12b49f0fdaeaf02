"""Sessions compute with renewed inputs, and with those that they are fed afterwards, also in a recorded graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sessions import error, make_job, outputs

import engines
from engines.base import Renewable
from exporters.build_model import restore
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelSource
from exporters.weights import cached_state

pytestmark = pytest.mark.gpu
MODEL, BATCH = ModelSource("resnet18"), 4

RENEWED: list[tuple[str, dict[str, Any]]] = [
    ("eager", {}),
    ("eager", {"cuda_graph": True}),
    ("compiled", {"mode": "default"}),
    ("compiled", {"mode": "reduce-overhead"}),
]


@pytest.mark.parametrize(("engine", "options"), RENEWED)
def test_a_session_computes_with_renewed_inputs_and_with_what_it_is_fed_afterwards(engine, options, cache):
    specs = input_specs(MODEL)
    batches = [seeded_inputs(specs, BATCH, first=first) for first in (0, BATCH, 2 * BATCH)]
    with torch.no_grad():
        model = restore(MODEL, cached_state(MODEL, cache))
        truths = [model(torch.from_numpy(x.copy())).numpy() for (x,) in batches]
    job = make_job(MODEL, cache, engine, "fp32", batch=BATCH, device="cuda", **options)
    with torch.cuda.stream(torch.cuda.Stream()):
        session = engines.open_session(engine, replace(job, specs=tuple(specs)))
        assert isinstance(session, Renewable)
        for _ in range(4):
            session.run(lambda name: None)
        found = []
        for calls in (1, 1, 3):
            session.renew(calls)
            found += [outputs(session) for _ in range(calls)]
        distinct = {array.tobytes() for array in found}
        assert len(distinct) == (1 if options.get("cuda_graph") else len(found)), "a graph's inputs stay"
        session.move()
        outputs(session)
        for batch, truth in zip(batches, truths, strict=True):
            session.feed(batch)
            assert error(outputs(session), truth) < 1e-3
        session.close()
