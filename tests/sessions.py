"""Open sessions for tests: a cache next to a factory, outputs and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engines.base import Job, Session
from engines.catalog import ENGINES
from engines.options import PLAIN, Training
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import export_onnx
from exporters.source import ModelSource
from exporters.weights import cached_state


def cache_beside(module: str, factories: str) -> Any:
    """A fixture: a cache, while these factories can be imported from a module of that name."""

    @pytest.fixture(scope="module")
    def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
        folder = tmp_path_factory.mktemp(module)
        (folder / f"{module}.py").write_text(factories)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            yield Cache(folder / "cache")

    return cache


def make_job(
    source: ModelSource,
    cache: Cache,
    engine: str,
    precision: str,
    pass_: Any = "inference",
    batch: int = 2,
    training: Training = PLAIN,
    device: Any = "cpu",
    phase: Any = lambda name: None,
    **options: Any,
) -> Job[Any]:
    """Make a job of a source, with the prepared weights, and the graph where the engine needs one."""
    inputs = tuple(seeded_inputs(input_specs(source), batch))
    onnx = export_onnx(source, precision, cache).path if ENGINES[engine].needs == "onnx" else None
    own, state = ENGINES[engine].options(**options), cached_state(source, cache)
    return Job(
        source, pass_, precision, batch, device, own, inputs, state, onnx, phase, training=training, engine=engine
    )


def outputs(session: Session) -> Any:
    session.run(lambda name: None)
    (output,) = session.outputs()
    assert output.dtype == np.float32
    return output


def error(actual: Any, expected: Any) -> float:
    """How far it is, relative to what was expected."""
    assert actual.shape == expected.shape
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
