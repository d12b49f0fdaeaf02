"""The stop rule in numbers: precision, plateau, limits."""

from __future__ import annotations

import numpy as np
import pytest

from profiler.stats.samples import Floats, StopRule


def test_neither_precision_nor_plateau_before_the_least_time():
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3, min_seconds=1.5)
    assert rule.reason([1.0] * 100, 1.4) is None
    assert rule.reason([1.0] * 101, 1.6) == "precision"


def test_equal_samples_stop_for_precision_at_the_fewest_allowed():
    rule = StopRule(min_samples=40, max_samples=5000, seconds=3)
    assert rule.reason([1.0] * 39, 0.0) is None
    assert rule.reason([1.0] * 40, 0.0) == "precision"


@pytest.mark.parametrize("fewest", [3, 5, 30])
@pytest.mark.parametrize(("count", "expected"), [(5, None), (29, None), (30, "precision")])
def test_there_is_no_precision_without_an_interval(count, expected, fewest):
    assert StopRule(min_samples=fewest, max_samples=5000, seconds=3).reason([1.0] * count, 0.0) == expected


def test_swings_that_are_no_thirty_effective_samples_are_neither_precise_nor_a_plateau():
    swings = 1 + 1e-6 * np.sin(np.linspace(0, 4 * np.pi, 2000))
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3)
    assert [rule.reason(list(swings[:n]), 0.0) for n in range(100, 2000, 100)] == [None] * 19


@pytest.mark.parametrize(("spread", "expected"), [(0.004, "precision"), (0.2, None)])
def test_precision_means_half_a_percent_of_the_median(spread, expected):
    # Fifty samples a side: the median's interval can be no wider than ± spread, and is that wide.
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3)
    assert rule.reason([1 - spread, 1 + spread] * 50, 0.0) == expected


def stop_reason(samples: Floats) -> str:
    """Why sampling a clock stops in three seconds of calls of 1 ms, in chunks of 100."""
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3, min_seconds=1.5)
    return next(filter(None, (rule.reason(samples[:n], n / 1000) for n in range(100, 3001, 100))))


@pytest.mark.slow
@pytest.mark.parametrize(("share", "least", "most"), [(0.5, 0.0, 0.02), (0.2, 0.98, 1.0)])
def test_two_modes_of_equal_weight_are_not_called_precise_and_a_larger_mode_is(share, least, most):
    # By luck one of two equal modes leads by more than the 95 % interval shows in one of twenty checks.
    rng = np.random.default_rng(16)
    noise = rng.normal(1.0, 0.003, size=(200, 3000))
    series = np.where(rng.random(noise.shape) < share, 1.1, 1.0) * noise
    reasons = [stop_reason(one) for one in series]
    assert least <= reasons.count("precision") / len(reasons) <= most


def test_a_drifting_series_is_not_called_precise():
    rng = np.random.default_rng(17)
    series = np.linspace(1.0, 1.05, 3000) * rng.normal(1.0, 0.003, size=(50, 3000))
    assert {stop_reason(one) for one in series} == {"budget"}


@pytest.mark.parametrize(
    ("count", "elapsed", "expected"), [(2, 99.0, None), (3, 99.0, "budget"), (3, 2.9, None), (19, 3.0, "budget")]
)
def test_the_budget_wins_after_three_samples_and_not_before(count, elapsed, expected):
    rule = StopRule(min_samples=3, max_samples=5000, seconds=3)
    assert rule.reason([1.0] * count, elapsed) == expected


@pytest.mark.parametrize(
    ("count", "elapsed", "expected"),
    [(9, 3.0, None), (10, 3.0, "budget"), (9, 59.0, None), (9, 60.0, "budget"), (2, 60.0, None)],
)
def test_the_fewest_samples_are_taken_for_as_long_as_they_may_take(count, elapsed, expected):
    rule = StopRule(min_samples=10, max_samples=5000, seconds=3, longest=60)
    assert rule.reason([1.0] * count, elapsed) == expected


def test_the_most_samples_are_a_limit():
    rule = StopRule(min_samples=20, max_samples=40, seconds=3)
    assert rule.reason([1.0, 2.0] * 19, 0.0) is None
    assert rule.reason([1.0, 2.0] * 20, 0.0) == "max_samples"


def test_noise_that_has_stopped_falling_is_a_plateau():
    # Slow and fast stretches that grow longer and longer: the median may be either, however many samples there are.
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3)
    samples: list[float] = []
    reason = None
    while reason is None and len(samples) < 5000:
        samples += [1.0 if len(samples) % 14 else 2.0] * 7
        reason = rule.reason(samples, 0.0)
    assert reason == "plateau"
    assert 20 < len(samples) < 5000


def test_falling_noise_is_no_plateau():
    rng = np.random.default_rng(13)
    rule = StopRule(min_samples=20, max_samples=100_000, seconds=3)
    samples = list(rng.normal(1.0, 0.03, 5000))
    reasons = [rule.reason(samples[:n], 0.0) for n in range(20, 5000, 10)]
    assert next(reason for reason in reasons if reason) == "precision"


def test_a_slow_check_is_not_made_after_every_sample():
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3)
    assert rule.reason([1.0, 2.0] * 20, 0.0) is None
    assert rule.reason([1.0] * 60, 0.0) is None
    assert rule.reason([1.0] * 61, 0.0) == "precision"
