"""Decide when to stop sampling a clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from profiler.stats.samples import (
    EFFECTIVE_NEEDS,
    Floats,
    block_count,
    bootstrap_medians,
    effective_size,
    expanded_interval,
    median,
)

_LEAST = 3
"""Samples that are taken however long they take."""


@dataclass
class StopRule:
    """When to stop sampling one clock; the reason is kept in the row.

    `precision`: the median's interval is within ±`tolerance`, and all its resamples within twice that, since one of two
    modes may lead by luck. There is no precision without an interval, so not below 30 effective samples. `plateau`:
    three checks, each of half as many samples again, brought the interval less than 15 % closer (independent samples:
    some 40 %), so more would not help. Neither holds before `min_seconds`, which a drift needs to show. `max_samples`
    and `budget` are limits: the budget is spent after `seconds`, or where `min_samples` take longer, with those, but
    after `longest` seconds with three.
    """

    min_samples: int
    max_samples: int
    seconds: float
    min_seconds: float = 0.0
    longest: float = math.inf
    tolerance: float = 0.005
    _next_check: int = 0
    _ripe: bool = False
    _widths: list[float] = field(default_factory=list)

    def reason(self, samples: Sequence[float] | Floats, elapsed: float) -> str | None:
        """Why to stop now, after `elapsed` seconds, or None to go on."""
        n = len(samples)
        if n >= self.max_samples:
            return "max_samples"
        if elapsed >= self.seconds and n >= (self.min_samples if elapsed < self.longest else _LEAST):
            return "budget"
        ripe = elapsed >= self.min_seconds
        if n < max(self.min_samples, EFFECTIVE_NEEDS) or (n < self._next_check and self._ripe == ripe):
            return None
        self._next_check, self._ripe = int(n * 1.5) + 1, ripe
        middle = median(samples)
        if not middle or effective_size(samples) < EFFECTIVE_NEEDS:
            return None
        medians = bootstrap_medians(samples, resamples=400)
        interval = expanded_interval(medians, block_count(samples))
        self._widths.append((interval.high - interval.low) / 2 / middle)
        if not ripe:
            return None
        if self._widths[-1] <= self.tolerance and float(np.ptp(medians)) / 2 / middle <= 2 * self.tolerance:
            return "precision"
        if len(self._widths) > 3 and self._widths[-1] > 0.85 * self._widths[-4]:
            return "plateau"
        return None
