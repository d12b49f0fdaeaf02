"""A session that replays a recorded graph computes with the inputs that it is fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sessions import error, outputs, switches_put_back

import engines
from engines.base import Feedable, Job, Movable
from engines.catalog import ENGINES
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import export_onnx
from exporters.source import ModelSource
from exporters.weights import cached_state

pytestmark = pytest.mark.gpu
MODEL, BATCH = ModelSource("resnet18"), 4
OPTIONS: dict[str, dict[str, Any]] = {
    "eager": {"cuda_graph": True, "channels_last": True},
    "compiled": {"mode": "reduce-overhead"},
    "ort": {"cuda_graph": True},
}

switches = switches_put_back()


@pytest.mark.parametrize("engine", OPTIONS)
def test_a_recorded_graph_computes_with_the_inputs_that_it_is_fed(engine: str, tmp_path: Any) -> None:
    cache, specs = Cache(tmp_path), input_specs(MODEL)
    batches = [seeded_inputs(specs, BATCH, first=first) for first in (0, BATCH, 2 * BATCH)]
    state = cached_state(MODEL, cache)
    onnx = export_onnx(MODEL, "fp32", cache).path if ENGINES[engine].needs == "onnx" else None
    own = ENGINES[engine].options(**OPTIONS[engine])
    with torch.no_grad():
        model = restore(MODEL, state)
        truths = [model(torch.from_numpy(x.copy())).numpy() for (x,) in batches]
    with torch.cuda.stream(torch.cuda.Stream()):  # ONNX Runtime takes no default stream.
        job = Job(MODEL, "inference", "fp32", BATCH, "cuda", own, tuple(batches[0]), state, onnx, specs=tuple(specs))
        session = engines.open_session(engine, job)
        for _ in range(4):
            session.run(lambda name: None)
        assert isinstance(session, Feedable)
        for batch, truth in zip(batches, truths, strict=True):
            session.feed(batch)
            assert error(outputs(session), truth) < 1e-3
        for batch, truth in zip(batches, truths, strict=True) if isinstance(session, Movable) else ():
            session.move()
            session.feed(batch)
            assert error(outputs(session), truth) < 1e-3
            session.move()
        session.feed(batches[0])
        again = outputs(session)
        proof = session.proof()
        session.close()
    assert proof.cuda_graph
    assert error(again, truths[0]) < 1e-3 < error(again, truths[1])
    np.testing.assert_array_equal(proof.cuda_graph_skips or 0, 0)
