"""Ratios between processes and within them: simulated coverage, and verdicts that are right as often as they must."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike

from profiler.stats import ratios
from profiler.stats.ratios import Side, ratio_between, verdict
from profiler.stats.samples import Floats, Interval

SIMULATIONS = 2000


def sides(numerator: Sequence[ArrayLike], denominator: Sequence[ArrayLike]) -> tuple[Side, Side]:
    return Side(numerator, seed=1), Side(denominator, seed=1001)


def ratio_interval(numerator: Sequence[ArrayLike], denominator: Sequence[ArrayLike]) -> Interval | None:
    return ratios.ratio_interval(*sides(numerator, denominator))


@pytest.mark.parametrize(("count", "interval"), [(0, None), (5, None), (29, None), (30, Interval(1.0, 1.0))])
def test_within_processes_an_interval_needs_thirty_samples_of_each(count, interval):
    assert ratio_interval([[1.0] * count], [[1.0] * 30]) == interval
    assert ratio_interval([[1.0] * 30], [[1.0] * 30, [1.0] * count]) == interval


def test_within_processes_an_interval_needs_thirty_effective_samples():
    slow_swings = 10 + np.sin(np.linspace(0, 4 * np.pi, 100))
    assert ratio_interval([slow_swings], [[1.0] * 30]) is None


def test_the_ratios_interval_covers_a_known_ratio_and_not_its_inverse():
    rng = np.random.default_rng(5)
    slow, fast = rng.normal(6.0, 0.3, 200), rng.normal(2.0, 0.1, 300)
    interval = ratio_interval([slow], [fast])
    assert interval.low <= 3.0 <= interval.high
    assert interval.high - interval.low < 0.2


@pytest.mark.slow
def test_the_ratios_interval_within_processes_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(11)
    intervals = [ratio_interval([rng.normal(6.0, 0.6, 80)], [rng.normal(2.0, 0.2, 80)]) for _ in range(SIMULATIONS)]
    given = [interval for interval in intervals if interval is not None]
    assert len(given) >= 0.98 * SIMULATIONS
    assert 0.93 <= np.mean([interval.low <= 3.0 <= interval.high for interval in given]) <= 0.98


def replicates(rng: np.random.Generator, middle: float, between: float, count: int = 3) -> list[Floats]:
    """One series a process: medians lognormal around `middle`, 1 % noise within."""
    return [m * rng.normal(1.0, 0.01, 50) for m in middle * np.exp(rng.normal(0.0, between, count))]


@pytest.mark.parametrize("truth", [1.0, 1.1])
@pytest.mark.parametrize(("one", "other"), [(0.02, 0.02), (0.01, 0.03)])
def test_the_ratios_interval_between_processes_covers_the_truth_as_often_as_it_says(truth, one, other):
    rng = np.random.default_rng(12)
    intervals = [ratio_interval(replicates(rng, truth, one), replicates(rng, 1.0, other)) for _ in range(SIMULATIONS)]
    assert 0.93 <= np.mean([interval.low <= truth <= interval.high for interval in intervals]) <= 0.98


@pytest.mark.parametrize(
    ("truth", "between", "says", "least"),
    [(1.0, 0.02, "indistinguishable", 0.97), (1.1, 0.01, "faster", 0.95), (1 / 1.1, 0.01, "slower", 0.95)],
)
@pytest.mark.parametrize("margin", [0.01, 0.03])
def test_verdicts_are_right_as_often_as_they_must_be(truth, between, says, least, margin):
    rng = np.random.default_rng(13)
    found = [
        verdict(ratio_interval(replicates(rng, truth, between), replicates(rng, 1.0, between)), margin)
        for _ in range(SIMULATIONS)
    ]
    assert found.count(says) >= least * SIMULATIONS


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (1.02, 1.5, "faster"),
        (1.01, 1.5, "indistinguishable"),
        (0.5, 2.0, "indistinguishable"),
        (0.999, 1.001, "indistinguishable"),
        (0.9, 0.995, "indistinguishable"),
        (0.9, 0.98, "slower"),
    ],
)
def test_a_verdict_needs_the_whole_interval_beyond_the_margin(low, high, says):
    assert verdict(Interval(low, high), 0.01) == says


def test_the_ratios_interval_holds_the_spread_between_processes():
    rng = np.random.default_rng(3)
    processes = [rng.normal(middle, 0.01, 100) for middle in (2.0, 2.6, 3.17)]
    base = [rng.normal(2.39, 0.01, 100) for _ in range(3)]
    interval = ratio_interval(base, processes)
    assert interval.low < 2.39 / 2.6 - 0.1
    assert interval.high > 2.39 / 2.6 + 0.1


def test_three_processes_need_no_thirty_samples_and_two_are_no_three():
    fast, slow = [[1.0] * 5, [1.02] * 5, [1.01] * 5], [[2.0] * 5, [2.04] * 5, [2.02] * 5]
    interval = ratio_interval(slow, fast)
    assert 1.9 < interval.low < 2.0 < interval.high < 2.1
    assert ratio_interval(slow, fast[:2]) is None
    assert ratio_interval(slow[:2], fast) is None
    assert ratio_interval(slow, [*fast, []]) is None


def test_the_ratio_between_processes_is_the_middle_of_its_interval():
    # Of ten processes four are faster: the median is that of the six, and the interval lies wholly above its ratio.
    base, modes = [[2.0] * 5] * 10, [[2.0] * 5] * 6 + [[1.54] * 5] * 4
    interval = ratio_interval(base, modes)
    ratio = ratio_between(*sides(base, modes))
    assert ratio == pytest.approx((2.0 / 1.54) ** 0.4)
    assert 1.0 < interval.low < ratio < interval.high
    assert ratio == pytest.approx(np.sqrt(interval.low * interval.high))
    assert ratio_between(*sides(base, [*modes, []])) is None


@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_processes_without_any_spread_give_an_interval_of_numbers(spread):
    constant, other = [[2.0] * 9] * 3, [[1.0 - spread] * 9, [1.0] * 9, [1.0 + spread] * 9]
    interval = ratio_interval(constant, other)
    assert interval.low == pytest.approx(2.0, abs=6 * spread)
    assert interval.low <= interval.high
    assert np.isfinite([interval.low, interval.high]).all()
    assert verdict(interval, 0.01) == "faster"
    assert verdict(ratio_interval(constant, constant), 0.01) == "indistinguishable"
