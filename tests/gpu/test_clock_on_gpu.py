"""The CUDA clock on kernels whose nature is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engines.base import Mark
from profiler.stats.samples import median
from profiler.worker.clock import CudaClock, TimedCall

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def clock() -> CudaClock:
    return CudaClock()


@pytest.fixture(scope="module")
def launches(clock: CudaClock) -> Callable[[int], TimedCall]:
    """Makes a call of that many launches of a tiny kernel."""
    tensor = torch.zeros(16, device="cuda")

    def make(count: int) -> TimedCall:
        def run(mark: Mark) -> None:
            for _ in range(count):
                tensor.add_(1)

        return run

    return make


def test_gaps_between_launches_are_not_in_the_gated_time(clock, launches):
    run = launches(100)
    gated = clock.time_gated(run, 1.0, 20)
    assert gated is not None
    assert len(gated["gpu"]) == 20
    synchronized = clock.time_synchronized(run, 20)
    assert median(gated["gpu"]) < median(synchronized["host"])


def test_a_gate_that_opened_too_early_is_tried_again(clock, launches):
    gated = clock.time_gated(launches(500), 0.0, 3)
    assert gated is not None
    assert len(gated["gpu"]) == 3


def test_a_block_is_divided_by_its_calls(clock, launches):
    one = clock.time_gated(launches(40), 1.0, 20)
    block = clock.time_gated(launches(4), 0.1, 20, block=10)
    assert one is not None
    assert block is not None
    assert median(block["gpu"]) == pytest.approx((median(one["gpu"]) or 0) / 10, rel=0.3)
