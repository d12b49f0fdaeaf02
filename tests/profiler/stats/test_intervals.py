"""Intervals and verdicts on simulated cells: how often they hold the truth, and how often they err."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulated_verdicts import LOG_SD, cells, selected, simulated
from profiler.stats.intervals import (
    Processes,
    Spread,
    Verdict,
    figure_interval,
    holm,
    items_needed,
    mean_loss,
    processes_beyond,
    ratio_interval,
    rounds_interval,
    spread_reach,
    typical_spread,
    upper_bound,
    verdict,
)
from profiler.stats.samples import Floats

TRIALS = 2000


def reach_of(spread: Spread | None) -> float:
    assert spread is not None
    return float(spread_reach(spread.sd, spread.free))


def shares(base: Processes, own: Processes, truth: float, within: float) -> tuple[float, float]:
    """How often the ratio's interval holds the truth, and how often the verdict tells the two apart."""
    sides = [tuple(np.exp(part) for part in (side.middle, *side.interval())) for side in (base, own)]
    _, low, high = ratio_interval(*sides)
    told = [verdict(a, b, within) in (Verdict.FASTER, Verdict.SLOWER) for a, b in zip(low, high, strict=True)]
    return float(((low <= truth) & (truth <= high)).mean()), float(np.mean(told))


@pytest.mark.parametrize("kind", LOG_SD)
@pytest.mark.parametrize("processes", [1, 2, 3, 5, 9])
def test_pairs_of_equal_configurations_are_held_also_in_the_noisiest_fifth(kind, processes):
    found = simulated(kind, processes)
    assert found["held"] >= 0.93 and found["cell_held"] >= 0.93
    assert found["noisy_held"] >= 0.90
    assert found["false"] <= 0.05


@pytest.mark.parametrize("kind", LOG_SD)
@pytest.mark.parametrize("configurations", [20, 60])
def test_the_winner_of_equal_configurations_is_held(kind, configurations):
    assert selected(kind, configurations) >= 0.93


def test_more_processes_never_know_less():
    widths = [simulated("lognormal", processes)["width"] for processes in (1, 2, 3, 4, 5, 6, 7, 9, 12)]
    assert widths == sorted(widths, reverse=True)


def test_one_process_has_an_interval_only_where_five_configurations_tell_of_its_spread():
    logs = np.zeros((1, 1))
    assert np.isnan(cells(logs, Spread.of_class(0.01, 4)).interval()).all()
    low, high = cells(logs, Spread.of_class(0.01, 5)).interval()
    assert 0.03 < high.item() == -low.item() < 0.08
    own = cells(np.array([[0.0, 0.01, 0.02]]), None).interval()
    assert np.diff(own, axis=0).item() == pytest.approx(
        2 * 4.303 * 0.01 * (math.pi / 2 * 2 / 3 + 1 / 3) ** 0.5 / 3**0.5, rel=1e-3
    )


def test_a_class_with_more_configurations_is_known_better():
    reaches = [reach_of(Spread.of_class(0.01, number)) for number in (5, 10, 40)]
    assert reaches == sorted(reaches, reverse=True)


@pytest.mark.parametrize("free", [1, 2, 4, 8])
def test_the_typical_spread_is_that_of_any_number_of_processes(free):
    squares = 0.02**2 * np.random.default_rng(2).chisquare(free, TRIALS) / free
    assert typical_spread(squares, np.full(TRIALS, float(free))) == pytest.approx(0.02, rel=0.09)
    assert typical_spread([0.0, 0.0], [2.0, 2.0]) > 0, "equal medians are a clock's resolution"


def test_what_processes_know_of_themselves_adds_in_squares():
    """Half of the error is in each process's own samples, half between processes."""
    rng, spread = np.random.default_rng(3), Spread.of_class(0.01, 40)
    logs = rng.normal(0, 0.01, (TRIALS, 1)) + rng.normal(0, 0.01, (TRIALS, 1))
    found = cells(logs, spread)
    arms = np.full(TRIALS, 1.96 * 0.01)
    low, high = replace(found, below=arms, above=arms).interval()
    assert np.mean((low <= 0) & (high >= 0)) >= 0.95
    assert np.all((high - low) / 2 == pytest.approx(math.hypot(reach_of(spread), 0.0196)))


@pytest.mark.parametrize("count", [3, 5, 7, 9, 20])
def test_processes_that_are_fast_or_slow_have_a_median_that_is_either(count):
    """A third takes 1.8 times as long, as where a hypervisor runs both processors on one core for some seconds."""
    rng, machine = np.random.default_rng(5), Spread(0.1, 1.3)
    slow = (rng.random((TRIALS, count)) < 0.33 for _ in range(2))
    sides = (cells(math.log(1.8) * each + rng.normal(0, 0.01, each.shape), machine) for each in slow)
    held, told = shares(*sides, truth=1.0, within=0.03)
    assert held >= 0.93
    assert told <= 0.05


def test_the_ranks_in_the_middle_are_the_sign_tests():
    exact = {n: sum(sum(math.comb(n, k) for k in range(r + 1)) / 2**n <= 0.025 for r in range(n)) for n in range(1, 41)}
    left_out = {n: max(0, int(processes_beyond(n))) for n in exact}
    assert {n: (left_out[n], most) for n, most in exact.items() if left_out[n] != max(0, most - 1)} == {17: (3, 5)}


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
def test_verdicts_are_read_off_the_interval(ends, expected):
    assert verdict(*ends, within=0.01) is expected


def test_a_process_knows_the_hull_of_its_samples_and_of_what_contradicts_them():
    rng = np.random.default_rng(3)
    samples = rng.normal(10, 0.2, 400)
    middle = float(np.median(samples))
    alone = figure_interval(middle, samples)
    assert 9.9 < alone.low < middle < alone.high < 10.1
    assert figure_interval(middle, samples, others=[13.0]).high == 13.0
    moved = np.concatenate([samples[:200], samples[200:] + 3])
    hull = figure_interval(float(np.median(moved)), moved)
    assert hull.low < 10.1
    assert hull.high > 12.9
    beside = np.concatenate([samples[:100], samples[:300] + 5])
    assert figure_interval(float(np.median(beside)), beside[::-1], beside_work=0.0).low < 10.2
    assert figure_interval(8.0, [8.0] * 9, beside_work=0.125).low == 7.0, "an eighth of the time was others'"
    assert figure_interval(8.0, [8.0] * 9, beside_work=0.25).low == pytest.approx(0.008), "threads waited for others"
    assert figure_interval(5.0, []) == figure_interval(5.0, [5.0, 5.0]), "too few samples add nothing"


def test_processes_that_have_nothing_in_common_reach_a_factor_of_1000():
    assert np.exp(cells(np.zeros((1, 1)), Spread(3.6, 1.0)).interval()).ravel() == pytest.approx([0.001, 1000.0])


@pytest.mark.parametrize("size", [3, 5, 12])
def test_few_samples_have_an_interval_that_holds(size):
    rng = np.random.default_rng(4)
    held = [
        (interval.low <= 1 <= interval.high)
        for samples in np.exp(rng.normal(0, 0.05, (1000, size)))
        for interval in [figure_interval(float(np.median(samples)), samples)]
    ]
    assert np.mean(held) >= 0.93


@pytest.mark.parametrize("items", [8, 64])
def test_the_bound_of_an_error_holds_for_a_further_item(items):
    rng = np.random.default_rng(5)
    errors = np.exp(rng.normal(math.log(2e-3), 0.8, (TRIALS, items + 1)))
    held = np.mean([row[-1] <= upper_bound(row[:-1]) for row in errors])
    assert 0.93 <= held <= 0.995
    steps = [7.1e-4, 8.3e-4, 6e-8, 6e-8, 7.7e-4, 6e-8, 1.6e-3]
    assert 2e-3 < upper_bound(steps) < 4e-3, "a quantized model is exact, or a step off"
    assert upper_bound([0.0, 0.1]) == 0.1
    assert upper_bound([0.2]) == 0.2


@pytest.mark.parametrize("bursts", [0.0, 0.1])
def test_all_looks_at_rounds_hold_the_ratio_at_once(bursts):
    rng, truth, missed, last = np.random.default_rng(5), 1.1, 0, []
    for _ in range(300):
        logs = math.log(truth) + 0.05 * rng.standard_normal(45)
        logs += rng.exponential(0.3, 45) * rng.choice([-1, 1], 45) * (rng.random(45) < bursts)
        found = [rounds_interval(logs[:n]) for n in range(3, 46, 3)]
        missed += any(not each.low <= truth <= each.high for each in found)
        last.append(math.log(found[-1].high / found[-1].low) / 2)
    assert missed <= 0.08 * 300  # 0.05, and what chance adds
    assert np.median(last) < 0.05  # After 45 rounds that differ by 5 % half a width of the interval is below that.


def test_a_further_round_never_widens_the_interval():
    rng = np.random.default_rng(8)
    for _ in range(50):
        logs = 0.02 * rng.standard_normal(30)
        found = [rounds_interval(logs[:n]) for n in range(3, 31)]
        assert all(a.low <= b.low and b.high <= a.high for a, b in itertools.pairwise(found) if b.low < b.high)


def test_a_family_has_a_false_alarm_as_rarely_as_one_test():
    assert holm([0.001, 0.02, 0.012, float("nan")]) == [True, True, True, False]
    assert holm([0.02, 0.02, 0.02]) == [False] * 3
    chances = np.random.default_rng(9).random((TRIALS, 20))
    assert np.mean([any(holm(each)) for each in chances]) <= 0.035


def test_between_looks_an_interval_of_rounds_stays_and_more_ratios_widen_it():
    logs = list(0.05 * np.random.default_rng(1).standard_normal(40))
    assert rounds_interval(logs[:8]) == rounds_interval(logs[:9]) != rounds_interval(logs)
    one, of_four = rounds_interval(logs), rounds_interval(logs, tests=4)
    assert of_four.low < one.low < one.high < of_four.high
    assert rounds_interval(logs[:2]).high == math.inf
    same = rounds_interval([0.0, 0.0, 0.0])
    assert same.low < 0.996 < 1.004 < same.high


# The loss of accuracy.


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
