"""The suites' own table: what is lost fails the test that lost it, and trials can be repeated."""

from __future__ import annotations

import pytest


def test_a_trial_has_the_same_numbers_whatever_their_number(soak):
    first = [rng.random() for rng in soak.trials(3)]
    assert first == [rng.random() for rng in soak.trials(5)][: len(first)]
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("found", [{"survived": 1}, {"rows_lost": 1}, {"orphans": 2}, {"code_run": 1}])
def test_what_was_lost_fails_its_test(request, soak, found):
    with pytest.raises(AssertionError, match="seed"):
        soak.count("nothing", tried=2, **found)
    request.node.user_properties.clear()
