"""The loss of accuracy has an interval that covers, and says how many items would tell."""

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


def statistic(loss: float, lost: int, gained: int, items: int) -> float:
    """Tango's statistic, with the most likely share of gained items searched on a grid."""
    shares = np.linspace(max(0.0, -loss), (1 - loss) / 2, 200_001)[1:-1]
    likelihood = np.zeros_like(shares)
    for count, share in ((lost, shares + loss), (gained, shares), (items - lost - gained, 1 - 2 * shares - loss)):
        likelihood += count * np.log(np.maximum(share, 1e-300)) if count else 0
    share = shares[likelihood.argmax()]
    return float((lost - gained - items * loss) / np.sqrt(items * (2 * share + loss - loss**2)))


@pytest.mark.parametrize(("lost", "gained", "items"), [(0, 0, 100), (3, 0, 50), (12, 5, 160), (2, 9, 300), (1, 1, 20)])
def test_hits_have_the_score_interval(lost: int, gained: int, items: int) -> None:
    loss, interval = mean_loss(*hits(lost, gained, items))
    assert loss == pytest.approx((lost - gained) / items)
    assert abs(statistic(interval.high, lost, gained, items)) == pytest.approx(1.96, abs=0.01)
    swapped = mean_loss(*reversed(hits(lost, gained, items)))[1]
    assert (swapped.low, swapped.high) == pytest.approx((-interval.high, -interval.low))


def test_equal_hits_still_have_a_width() -> None:
    loss, interval = mean_loss(*hits(0, 0, 100))
    assert loss == 0 and interval.high == pytest.approx(1.96**2 / (100 + 1.96**2), rel=1e-3)
    assert interval.low == -interval.high


@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.01, 0.005), (0.03, 0.02), (0.1, 0.02), (0.002, 0.0)])
@pytest.mark.parametrize("items", [100, 400, 2000])
def test_the_interval_covers(rates: tuple[float, float], items: int) -> None:
    lost, gained = rates
    draw = np.random.default_rng(items)
    counts = draw.multinomial(items, [lost, gained, 1 - lost - gained], size=1500)
    covered = []
    for a, b, _ in np.unique(counts, axis=0):
        interval = mean_loss(*hits(a, b, items))[1]
        covered.append((interval.low <= lost - gained <= interval.high) * (counts[:, :2] == (a, b)).all(axis=1).sum())
    assert sum(covered) / len(counts) >= 0.93


def test_other_scores_have_students_interval() -> None:
    draw, covered = np.random.default_rng(1), 0
    for _ in range(500):
        base = draw.beta(8, 2, 200)
        covered += _covers(base, np.clip(base - draw.normal(0.02, 0.05, 200), 0, 1))
    assert covered >= 465


def _covers(base: Floats, ours: Floats) -> bool:
    loss, interval = mean_loss(base, ours)
    assert loss == pytest.approx((base - ours).mean())
    # Clipping at 1 takes a little of the loss.
    return interval.low <= 0.0194 <= interval.high


def test_more_items_bring_the_end_below_the_limit() -> None:
    base, ours = hits(4, 3, 800)
    loss, interval = mean_loss(base, ours)
    needed = items_needed(800, loss, interval.high, limit=0.005)
    assert needed > 800 and needed % 100 == 0
    assert 0.004 < mean_loss(*hits(4 * needed // 800, 3 * needed // 800, needed))[1].high <= 0.005
