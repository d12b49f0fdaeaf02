"""A model's run is ended after its time, wherever it is."""

from __future__ import annotations

import math
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from exporters.time_limit import TooLong, limited


class Endless(nn.Module):
    """One module, which calls no other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while True:
            x = x + 1


def test_a_loop_inside_one_module_is_ended() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TooLong, match=r"ended after 0\.05 s"), limited(0.05):
        Endless()(torch.zeros(1))
    assert signal.getsignal(signal.SIGALRM) is handler


@pytest.mark.parametrize("seconds", [100.0, math.inf])
def test_what_is_done_in_time_is_not_touched(seconds: float) -> None:
    before = signal.getitimer(signal.ITIMER_REAL)
    with limited(seconds):
        assert nn.Identity()(3) == 3
    remaining, interval = signal.getitimer(signal.ITIMER_REAL)
    assert (remaining > 0, interval) == (before[0] > 0, before[1]), "whoever else had the timer has it again"


def test_another_thread_goes_without() -> None:
    def run() -> int:
        with limited(0.01):
            return int(nn.Identity()(3))

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result() == 3
