"""Open sessions for tests: a cache next to a factory, torch's switches restored, outputs and their errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from engines.base import Session
from exporters.cache import Cache


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


def switches_put_back() -> Any:
    """A fixture for every test: a session sets its process's switches, which the tests after it would inherit."""

    @pytest.fixture(autouse=True)
    def switches() -> Iterator[None]:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark
        yield
        # These set what torch's newer interface reads, too.
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark = before

    return switches


def outputs(session: Session) -> Any:
    """The only output, after a run."""
    session.run(lambda name: None)
    (output,) = session.outputs()
    assert output.dtype == np.float32
    return output


def error(actual: Any, expected: Any) -> float:
    """How far it is, relative to what was expected."""
    assert actual.shape == expected.shape
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
