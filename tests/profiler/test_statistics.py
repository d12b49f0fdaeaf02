"""Statistics against known truths: simulated coverage, correlated noise, exact gates; the stop rule in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from profiler.statistics import (
    PERCENTILE_NEEDS,
    StopRule,
    bootstrap_medians,
    median,
    median_interval,
    outliers,
    percentile,
    ratio_interval,
)


@pytest.mark.parametrize(
    ("samples", "expected"), [([3.0], 3.0), ([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5), ([], None)]
)
def test_median(samples, expected):
    assert median(samples) == expected


@pytest.mark.parametrize(("q", "needs"), [(90, 64), (95, 130), (99, 662)])
def test_a_percentile_is_given_from_exactly_so_many_samples(q, needs):
    assert percentile(range(needs - 1), q) is None
    assert percentile(range(needs), q) == pytest.approx(q / 100 * (needs - 1))


@pytest.mark.parametrize("q", [90, 95, 99])
def test_a_percentiles_interval_lies_inside_its_samples(q):
    # All n samples lie below quantile p with probability p^n; 2.5 % is what the upper end of a 95 % interval allows.
    assert (q / 100) ** PERCENTILE_NEEDS[q] <= 0.025


def test_samples_beyond_tukeys_fences_are_counted():
    # Quartiles 3 and 7, so the fences stand at -3 and 13.
    inside = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert outliers(inside) == 0
    assert outliers([-3.0, *inside[1:-1], 13.0]) == 0
    assert outliers([-3.1, *inside[1:-1], 13.1]) == 2


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 1.0, 99.0]])
def test_too_few_samples_have_no_outliers(samples):
    assert outliers(samples) == 0


def test_equal_samples_have_no_outliers_and_an_interval_without_width():
    assert outliers([2.0] * 50) == 0
    interval = median_interval([2.0] * 50)
    assert (interval.low, interval.high) == (2.0, 2.0)


def test_the_medians_interval_covers_the_truth_as_often_as_it_says():
    series = np.random.default_rng(7).normal(10.0, 1.0, size=(300, 100))
    intervals = [median_interval(one, resamples=400) for one in series]
    coverage = np.mean([interval.low <= 10.0 <= interval.high for interval in intervals])
    assert 0.90 <= coverage <= 0.99


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_fewer_than_six_samples_have_no_interval(count):
    assert median_interval([1.0] * count) is None
    assert ratio_interval([[1.0] * count], [[1.0] * 9]) is None
    assert ratio_interval([[1.0] * 9], [[1.0] * 9, [1.0] * count]) is None


def test_an_interval_is_the_same_every_time():
    samples = np.random.default_rng(1).normal(5.0, 1.0, 64)
    assert median_interval(samples) == median_interval(samples)


def test_blocks_of_correlated_samples_give_a_wider_interval_than_single_samples_would():
    rng = np.random.default_rng(3)
    noise = rng.normal(size=1000)
    series = np.zeros(1000)
    for i in range(1, 1000):
        series[i] = 0.8 * series[i - 1] + noise[i]
    blocks = np.std(bootstrap_medians(series))
    singles = np.std(np.median(rng.choice(series, size=(1000, 1000)), axis=1))
    assert blocks > 1.5 * singles


def test_resampled_medians_stay_within_the_samples():
    samples = np.random.default_rng(2).uniform(1.0, 2.0, 31)
    medians = bootstrap_medians(samples, resamples=50)
    assert medians.shape == (50,)
    assert samples.min() <= medians.min() < medians.max() <= samples.max()


def test_the_ratios_interval_covers_a_known_ratio_and_not_its_inverse():
    rng = np.random.default_rng(5)
    slow, fast = rng.normal(6.0, 0.3, 200), rng.normal(2.0, 0.1, 300)
    interval = ratio_interval([slow], [fast])
    assert interval.low <= 3.0 <= interval.high
    assert interval.high - interval.low < 0.2


def test_the_ratios_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(150):
        interval = ratio_interval([rng.normal(6.0, 0.6, 60)], [rng.normal(2.0, 0.2, 60)])
        covered += interval.low <= 3.0 <= interval.high
    assert 0.88 <= covered / 150 <= 0.99


def test_the_ratios_interval_holds_the_spread_between_processes():
    rng = np.random.default_rng(3)
    processes = [rng.normal(middle, 0.01, 100) for middle in (2.0, 2.6, 3.17)]
    base = [rng.normal(2.39, 0.01, 100) for _ in range(3)]
    interval = ratio_interval(base, processes)
    assert interval.low < 2.39 / 2.6 - 0.1
    assert interval.high > 2.39 / 2.6 + 0.1


def test_neither_precision_nor_plateau_before_the_least_time():
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3, min_seconds=1.5)
    assert rule.reason([1.0] * 100, 1.4) is None
    assert rule.reason([1.0] * 101, 1.6) == "precision"


def test_equal_samples_stop_for_precision_at_the_fewest_allowed():
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3)
    assert rule.reason([1.0] * 19, 0.0) is None
    assert rule.reason([1.0] * 20, 0.0) == "precision"


@pytest.mark.parametrize(("spread", "expected"), [(0.004, "precision"), (0.2, None)])
def test_precision_means_half_a_percent_of_the_median(spread, expected):
    # Ten samples a side: the median's interval can be no wider than ± spread, and is that wide.
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3)
    assert rule.reason([1 - spread, 1 + spread] * 10, 0.0) == expected


@pytest.mark.parametrize(
    ("count", "elapsed", "expected"), [(2, 99.0, None), (3, 99.0, "budget"), (3, 2.9, None), (19, 3.0, "budget")]
)
def test_the_budget_wins_after_three_samples_and_not_before(count, elapsed, expected):
    rule = StopRule(min_samples=20, max_samples=5000, seconds=3)
    assert rule.reason([1.0, 2.0] * 10 if count == 20 else [1.0] * count, elapsed) == expected


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
    assert rule.reason([1.0, 2.0] * 10, 0.0) is None
    assert rule.reason([1.0] * 30, 0.0) is None
    assert rule.reason([1.0] * 31, 0.0) == "precision"
