"""Intervals and verdicts on simulated cells: how often they hold the truth, and how often they err."""

from __future__ import annotations

import math

import numpy as np
import pytest

from profiler.stats.intervals import (
    UNMEASURED,
    Processes,
    Spread,
    Verdict,
    common_spread,
    deviations,
    figure_interval,
    pooled,
    processes_beyond,
    ratio_interval,
    rounds_interval,
    spread_reach,
    upper_bound,
    verdict,
)

TRIALS = 2000


def measured(log_medians: np.ndarray, sd: np.ndarray, free: np.ndarray, **more: np.ndarray) -> Processes:
    """Cells of processes with these log medians, shape (cells, processes), whose own intervals are no wider."""
    cells, count = log_medians.shape
    nothing, at = np.zeros(cells), max(0.0, processes_beyond(count)) / max(1, count - 1)
    variance = log_medians.var(axis=1, ddof=1) if count > 1 else np.full(cells, np.nan)
    named = {"below": nothing, "above": nothing, "is_base": nothing, "common_sd": nothing, "common_free": nothing}
    return Processes(
        middle=np.median(log_medians, axis=1),
        count=np.full(cells, float(count)),
        variance=variance,
        lowest=np.quantile(log_medians, at, axis=1),
        highest=np.quantile(log_medians, 1 - at, axis=1),
        sd=sd,
        free=free,
        **(named | more),
    )


def shares(base: Processes, own: Processes, truth: float, within: float) -> tuple[float, float]:
    """How often the ratio's interval holds the truth, and how often the verdict tells the two apart."""
    sides = [tuple(np.exp(part) for part in (side.middle, *side.interval())) for side in (base, own)]
    _, low, high = ratio_interval(*sides)
    told = [verdict(a, b, within) in (Verdict.FASTER, Verdict.SLOWER) for a, b in zip(low, high, strict=True)]
    return float(((low <= truth) & (truth <= high)).mean()), float(np.mean(told))


@pytest.mark.parametrize("sd", [0.003, 0.1])
@pytest.mark.parametrize("bases", [1, 2, 6])
def test_one_process_a_side_leans_on_the_spread_of_the_bases(sd: float, bases: int):
    rng = np.random.default_rng(0)
    found = rng.normal(0, sd, (TRIALS, bases, 3))
    free = np.full(TRIALS, 2.0 * bases)
    spread = np.sqrt(found.var(axis=2, ddof=1).mean(axis=1))
    sides = [measured(rng.normal(0, sd, (TRIALS, 1)), spread, free) for _ in range(2)]
    held, told = shares(*sides, truth=1.0, within=0.03 if sd > 0.03 else 0.01)
    assert held >= 0.93
    assert told <= 0.05


def test_a_base_of_three_processes_is_narrower_than_one_process():
    rng = np.random.default_rng(1)
    sd, truth = 0.05, 2.0
    found = rng.normal(0, sd, (TRIALS, 4, 3))
    spread, free = np.sqrt(found.var(axis=2, ddof=1).mean(axis=1)), np.full(TRIALS, 8.0)
    base = measured(math.log(truth) + found[:, 0], spread, free, is_base=np.ones(TRIALS))
    own = measured(rng.normal(0, sd, (TRIALS, 1)), spread, free)
    held, told = shares(base, own, truth, within=0.03)
    assert held >= 0.93
    assert told >= 0.99, "twice as fast is told apart"
    low, high = base.interval()
    assert np.median(high - low) < 0.75 * np.median(2 * spread_reach(spread, free))


@pytest.mark.parametrize("configurations", [4, 16])
def test_three_replicates_a_side_rely_on_their_own_spread(configurations: int):
    """The spread varies by configuration, mostly between 0.4 and 2.7 %; the machine's is that of noisy bases."""
    rng = np.random.default_rng(2)
    held, told, found = [], [], []
    for _ in range(TRIALS // configurations):
        sds = 0.01 * np.exp(rng.normal(0, 0.7, configurations))
        logs, others = (rng.normal(0, sds[:, None], (configurations, 3)) for _ in range(2))
        lent = common_spread(logs.var(axis=1, ddof=1), np.full(configurations, 3.0))
        machine = np.full(configurations, 0.15), np.full(configurations, 4.0)
        common = {
            f"common_{name}": np.full(configurations, one) for name, one in zip(("sd", "free"), lent, strict=True)
        }
        for truth, into in ((1.0, told), (1.05, found)):
            sides = (measured(each, *machine, **common) for each in (logs + math.log(truth), others))
            share, differ = shares(*sides, truth=truth, within=0.01)
            held.append(share)
            into.append(differ)
    assert np.mean(held) >= 0.93
    assert np.mean(told) <= 0.05
    assert np.mean(found) >= (0.7 if configurations == 16 else 0.3), "5 % are found"


@pytest.mark.parametrize("count", [3, 5, 7, 9, 20])
def test_processes_that_are_fast_or_slow_have_a_median_that_is_either(count: int) -> None:
    """A third takes 1.8 times as long, as where a hypervisor runs both processors on one core for some seconds."""
    rng = np.random.default_rng(5)
    machine = np.full(TRIALS, 0.1), np.full(TRIALS, 10.0)
    slow = (rng.random((TRIALS, count)) < 0.33 for _ in range(2))
    sides = (measured(math.log(1.8) * each + rng.normal(0, 0.01, each.shape), *machine) for each in slow)
    held, told = shares(*sides, truth=1.0, within=0.03)
    assert held >= 0.93
    assert told <= 0.05


def test_the_ranks_in_the_middle_are_the_sign_tests_and_more_processes_never_know_less() -> None:
    exact = {n: sum(sum(math.comb(n, k) for k in range(r + 1)) / 2**n <= 0.025 for r in range(n)) for n in range(1, 41)}
    left_out = {n: max(0, int(processes_beyond(n))) for n in exact}
    assert {n: (left_out[n], most) for n, most in exact.items() if left_out[n] != max(0, most - 1)} == {17: (3, 5)}
    rng, machine = np.random.default_rng(6), (np.full(TRIALS, 0.1), np.full(TRIALS, 10.0))
    found = [measured(rng.normal(0, 0.1, (TRIALS, count)), *machine).interval() for count in range(3, 13)]
    widths = [np.median(high - low) for low, high in found]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((1.02, 1.1), Verdict.FASTER),
        ((0.8, 0.98), Verdict.SLOWER),
        ((0.995, 1.005), Verdict.EQUIVALENT),
        ((0.9, 1.2), Verdict.UNCLEAR),
        ((1.005, 1.1), Verdict.UNCLEAR),
    ],
)
def test_verdicts_are_read_off_the_interval(ends: tuple[float, float], expected: Verdict):
    assert verdict(*ends, within=0.01) is expected


def test_an_interval_is_the_hull_of_all_that_is_known():
    rng = np.random.default_rng(3)
    samples = rng.normal(10, 0.2, 400)
    middle = float(np.median(samples))
    alone = figure_interval(middle, samples, between=0.0)
    assert 9.9 < alone.low < middle < alone.high < 10.1
    spread = figure_interval(middle, samples, between=math.log(1.1))
    assert (spread.low, spread.high) == pytest.approx((middle / 1.1, middle * 1.1))
    assert figure_interval(middle, samples, 0.0, others=[13.0]).high == 13.0
    moved = np.concatenate([samples[:200], samples[200:] + 3])
    hull = figure_interval(float(np.median(moved)), moved, 0.0)
    assert hull.low < 10.1
    assert hull.high > 12.9
    beside = np.concatenate([samples[:100], samples[:300] + 5])
    assert figure_interval(float(np.median(beside)), beside[::-1], 0.0, beside_work=0.0).low < 10.2
    assert figure_interval(8.0, [8.0] * 9, 0.0, beside_work=0.25).low == 6.0, "a quarter of the time was others'"
    assert figure_interval(8.0, [8.0] * 9, 0.0, beside_work=1.0).low == pytest.approx(0.08)
    assert figure_interval(5.0, [], 0.0) == figure_interval(5.0, [5.0, 5.0], 0.0), "too few samples add nothing"


def test_processes_that_have_nothing_in_common_reach_a_factor_of_1000() -> None:
    own = figure_interval(0.0724, [], Spread(3.6, 1.0).reach)
    assert (own.low, own.high) == pytest.approx((0.0000724, 72.4))
    one = np.array([0.0])
    of_two = Processes(one, one + 1, one + np.nan, one, one, one, one, one + 9.0, one + 1, one, one, one)
    assert np.exp(of_two.interval()).ravel() == pytest.approx([0.001, 1000.0])


@pytest.mark.parametrize("size", [3, 5, 12])
def test_few_samples_have_an_interval_that_holds(size: int):
    rng = np.random.default_rng(4)
    held = [
        (interval.low <= 1 <= interval.high)
        for samples in np.exp(rng.normal(0, 0.05, (1000, size)))
        for interval in [figure_interval(float(np.median(samples)), samples, 0.0)]
    ]
    assert np.mean(held) >= 0.93


def test_deviations_are_pooled():
    assert pooled(0.0, 0.0) is None
    squares, free = deviations([[1.0, 1.1, 0.9], [2.0], [5.0, 5.5]])
    assert free == 3
    assert pooled(squares, free) == Spread(math.sqrt(squares / 3), 3.0)
    assert UNMEASURED.host.reach > UNMEASURED.device.reach


@pytest.mark.parametrize("items", [8, 64])
def test_the_bound_of_an_error_holds_for_a_further_item(items: int):
    rng = np.random.default_rng(5)
    errors = np.exp(rng.normal(math.log(2e-3), 0.8, (TRIALS, items + 1)))
    held = np.mean([row[-1] <= upper_bound(row[:-1]) for row in errors])
    assert 0.93 <= held <= 0.995
    steps = [7.1e-4, 8.3e-4, 6e-8, 6e-8, 7.7e-4, 6e-8, 1.6e-3]
    assert 2e-3 < upper_bound(steps) < 4e-3, "a quantized model is exact, or a step off"
    assert upper_bound([0.0, 0.1]) == 0.1
    assert upper_bound([0.2]) == 0.2


@pytest.mark.parametrize("bursts", [0.0, 0.1])
def test_all_looks_at_rounds_hold_the_ratio_at_once(bursts: float) -> None:
    rng, truth, missed, last = np.random.default_rng(5), 1.1, 0, []
    for _ in range(300):
        logs = math.log(truth) + 0.05 * rng.standard_normal(45)
        logs += rng.exponential(0.3, 45) * rng.choice([-1, 1], 45) * (rng.random(45) < bursts)
        found = [rounds_interval(logs[:n]) for n in range(3, 46)]
        missed += any(not each.low <= truth <= each.high for each in found)
        last.append(math.log(found[-1].high / found[-1].low) / 2)
    assert missed <= 0.08 * 300  # 0.05, and what chance adds
    assert np.median(last) < 0.05  # After 45 rounds that differ by 5 % half a width of the interval is below that.


def test_between_looks_an_interval_of_rounds_stays_and_more_ratios_widen_it() -> None:
    logs = list(0.05 * np.random.default_rng(1).standard_normal(12))
    assert rounds_interval(logs[:10]) == rounds_interval(logs[:11]) != rounds_interval(logs)
    one, of_four = rounds_interval(logs), rounds_interval(logs, tests=4)
    assert of_four.low < one.low < one.high < of_four.high
    assert rounds_interval(logs[:2]).high == math.inf
    same = rounds_interval([0.0, 0.0, 0.0])
    assert same.low < 0.996 < 1.004 < same.high
