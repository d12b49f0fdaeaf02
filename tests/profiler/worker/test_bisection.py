"""The search for bad parts on made-up costs, and the number of its measurements."""

from __future__ import annotations

import math
import random

import pytest

from profiler.worker.bisection import Parts, bisect


def chain(count: int) -> list[Parts]:
    return [Parts({n - 1} if n else ()) for n in range(count)]


@pytest.mark.parametrize("with_feeder", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_bad_part_alone_or_with_its_feeder_is_found_in_few_measurements(seed, with_feeder):
    draw = random.Random(seed)
    count, wrong = draw.randrange(3, 400), draw.choice([0.3, 1e9, math.inf, math.nan])
    feeders = [Parts({draw.randrange(n)} if n else ()) for n in range(count)]
    part = draw.randrange(1, count)
    bad = Parts({part, *(feeders[part] if with_feeder else ())})
    kept, errors = bisect(feeders, lambda parts: 0.01 if bad <= parts else wrong)
    assert kept == bad
    assert errors[kept] == 0.01
    assert len(errors) <= math.ceil(math.log2(count)) + 4


@pytest.mark.parametrize("seed", range(20))
def test_parts_that_lie_apart_are_all_found_without_others(seed):
    draw = random.Random(seed)
    count = draw.randrange(10, 60)
    bad = Parts(draw.sample(range(count), 3))
    kept, errors = bisect(chain(count), lambda parts: 0.01 if bad <= parts else math.nan)
    assert kept == bad
    assert len(errors) < 45


def test_error_that_stays_with_everything_in_float32_is_of_no_part():
    kept, errors = bisect(chain(50), lambda parts: 0.3 - 0.1 * len(parts) / 50)
    assert (kept, len(errors)) == (Parts(), 2)
    assert bisect([], lambda parts: 0.3)[0] == Parts()


def test_error_of_all_parts_ends_in_a_range_after_few_measurements():
    kept, errors = bisect(chain(54), lambda parts: 0.3 * math.sqrt(1 - len(parts) / 54))
    assert 54 * 0.7 < len(kept) < 54
    assert len(errors) < 35
