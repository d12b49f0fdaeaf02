"""The search for bad units on made-up costs, and the number of its measurements."""

from __future__ import annotations

import math
import random

import pytest

from profiler.worker.bisection import Units, bisect


def chain(count: int) -> list[Units]:
    return [Units({n - 1} if n else ()) for n in range(count)]


@pytest.mark.parametrize("with_feeder", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_bad_unit_alone_or_with_its_feeder_is_found_in_few_measurements(seed, with_feeder):
    draw = random.Random(seed)
    count, wrong = draw.randrange(3, 400), draw.choice([0.3, 1e9, math.inf, math.nan])
    feeders = [Units({draw.randrange(n)} if n else ()) for n in range(count)]
    unit = draw.randrange(1, count)
    bad = Units({unit, *(feeders[unit] if with_feeder else ())})
    kept, errors = bisect(feeders, lambda units: 0.01 if bad <= units else wrong)
    assert kept == bad
    assert errors[kept] == 0.01
    assert len(errors) <= math.ceil(math.log2(count)) + 4


@pytest.mark.parametrize("seed", range(20))
def test_units_that_lie_apart_are_all_found_without_others(seed):
    draw = random.Random(seed)
    count = draw.randrange(10, 60)
    bad = Units(draw.sample(range(count), 3))
    kept, errors = bisect(chain(count), lambda units: 0.01 if bad <= units else math.nan)
    assert kept == bad
    assert len(errors) < 45


def test_error_that_stays_with_everything_in_float32_is_of_no_unit():
    kept, errors = bisect(chain(50), lambda units: 0.3 - 0.1 * len(units) / 50)
    assert (kept, len(errors)) == (Units(), 2)
    assert bisect([], lambda units: 0.3)[0] == Units()


def test_error_of_all_units_ends_in_a_range_after_few_measurements():
    kept, errors = bisect(chain(54), lambda units: 0.3 * math.sqrt(1 - len(units) / 54))
    assert 54 * 0.7 < len(kept) < 54
    assert len(errors) < 35
