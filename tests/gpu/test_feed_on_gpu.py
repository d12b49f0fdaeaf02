"""Sessions compute with renewed inputs, and with those that they are fed afterwards, also in a recorded graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sessions import error, outputs

import engines
from engines.base import Job, Renewable, Session
from engines.catalog import ENGINES
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import export_onnx
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


@contextmanager
def opened(engine: str, options: dict[str, Any], folder: Path) -> Iterator[tuple[Session, list[list[Any]], list[Any]]]:
    cache, specs = Cache(folder), input_specs(MODEL)
    batches = [seeded_inputs(specs, BATCH, first=first) for first in (0, BATCH, 2 * BATCH)]
    state = cached_state(MODEL, cache)
    onnx = export_onnx(MODEL, "fp32", cache).path if ENGINES[engine].needs == "onnx" else None
    own = ENGINES[engine].options(**options)
    with torch.no_grad():
        model = restore(MODEL, state)
        truths = [model(torch.from_numpy(x.copy())).numpy() for (x,) in batches]
    with torch.cuda.stream(torch.cuda.Stream()):  # ONNX Runtime takes no default stream.
        job = Job(MODEL, "inference", "fp32", BATCH, "cuda", own, tuple(batches[0]), state, onnx, specs=tuple(specs))
        session = engines.open_session(engine, job)
        for _ in range(4):
            session.run(lambda name: None)
        yield session, batches, truths
        session.close()


@pytest.mark.parametrize(("engine", "options"), RENEWED)
def test_a_session_computes_with_renewed_inputs_and_with_what_it_is_fed_afterwards(engine, options, tmp_path):
    with opened(engine, options, tmp_path) as (session, batches, truths):
        assert isinstance(session, Renewable)
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
