"""The loss of accuracy has an interval that covers, and says how many items would decide."""

from __future__ import annotations

import numpy as np
import pytest

from profiler.stats.paired import items_needed, mean_loss
from profiler.stats.samples import Floats


def hits(lost: int, gained: int, items: int) -> tuple[Floats, Floats]:
    base, ours = np.ones(items), np.ones(items)
    ours[:lost] = 0
    base[lost : lost + gained] = 0
    return base, ours


def test_equal_scores_still_have_a_width():
    for scores in (np.ones(1000), np.full(1000, 0.7)):
        loss, interval = mean_loss(scores, scores)
        assert loss == 0 and interval.high == pytest.approx(0.0039, abs=1e-4) and interval.low == -interval.high
    nearly = mean_loss(scores, np.where(np.arange(1000), 0.7, 0.7 - 1e-9))[1]
    assert nearly.high == pytest.approx(interval.high)


@pytest.mark.parametrize(
    ("error", "high"), [(None, 0.0039), (1.0, 0.0039), (1e-3, 0.00196), (1e-6, 1.96e-6), (0.0, 0.0)]
)
def test_outputs_that_are_nearly_exact_need_fewer_items(error, high):
    assert mean_loss(np.ones(1000), np.ones(1000), error)[1].high == pytest.approx(high, rel=0.02)


@pytest.mark.parametrize("items", [100, 400, 2000])
@pytest.mark.parametrize("expected", [0.01, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0])
def test_losses_up_to_the_error_are_covered(expected, items):
    error = expected / items
    counts, times = np.unique(np.random.default_rng(items).binomial(items, error, 1500), return_counts=True)
    ends = [mean_loss(*hits(lost, 0, items), error)[1] for lost in counts]
    covered = sum(n for end, n in zip(ends, times, strict=True) if end.low <= error <= end.high)
    assert covered / times.sum() >= 0.93


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.01, 0.005), (0.03, 0.02), (0.1, 0.02), (0.002, 0.0), (0.3, 0.05)])
@pytest.mark.parametrize("items", [100, 400, 2000])
def test_hits_are_covered(rates, items):
    lost, gained = rates
    draw = np.random.default_rng(items)
    counts = draw.multinomial(items, [lost, gained, 1 - lost - gained], size=1500)
    covered = 0
    for a, b, _ in np.unique(counts, axis=0):
        interval = mean_loss(*hits(a, b, items))[1]
        times = (counts[:, :2] == (a, b)).all(axis=1).sum()
        covered += (interval.low <= lost - gained <= interval.high) * times
    assert covered / len(counts) >= 0.93


@pytest.mark.parametrize(("share", "items"), [(0.005, 200), (0.01, 100), (0.002, 500), (0.005, 1000), (1.0, 50)])
def test_rare_large_losses_are_covered(share, items):
    draw, covered = np.random.default_rng(1), 0
    for _ in range(500):
        losses = np.where(draw.random(items) < share, 0.5, 0.0) + draw.normal(0, 0.05, items)
        interval = mean_loss(0.25 + losses, np.full(items, 0.25))[1]
        covered += interval.low <= 0.5 * share <= interval.high
    assert covered >= 465


@pytest.mark.parametrize(
    ("lost", "gained", "items", "limit", "error"),
    [
        (0, 0, 100, 0.001, None),
        (0, 0, 1000, 0.001, None),
        (1, 1, 100, 0.005, None),
        (4, 3, 800, 0.005, None),
        (30, 29, 1000, 0.01, None),
        (2, 1, 200, 0.01, 1e-4),
    ],
)
def test_the_number_of_items_brings_the_end_to_the_limit(lost, gained, items, limit, error):
    loss, interval = mean_loss(*hits(lost, gained, items), error)
    needed = items_needed(items, loss, interval.high, limit, error)
    assert needed > items
    grown = mean_loss(*hits(round(lost * needed / items), round(gained * needed / items), needed), error)[1]
    assert grown.high == pytest.approx(limit, rel=0.06)
