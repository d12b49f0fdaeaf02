"""What set-up takes, and when it has paid off."""

from __future__ import annotations

import polars as pl
import pytest

from profiler.results.columns import RESULTS
from profiler.results.set_up import break_even, set_up


@pytest.mark.parametrize(
    ("parts", "together"),
    [
        ({"export_s": 2.0, "build_s": 40.0, "load_s": 1.0, "first_run_s": 0.5}, 43.5),
        ({"load_s": 1.0}, 1.0),
        ({"load_s": 0.0}, 0.0),
        ({}, None),
    ],
)
def test_set_up_is_everything_until_the_second_call(parts: dict[str, float], together: float | None) -> None:
    assert pl.DataFrame([parts or {"load_s": None}], schema=RESULTS).select(s=set_up())["s"].to_list() == [together]


@pytest.mark.parametrize(
    ("own", "other", "items"),
    [
        ((44.0, 0.001), (3.0, 0.00125), 164_000),
        ((3.0, 0.001), (3.0, 0.002), 0),
        ((1.0, 0.001), (3.0, 0.002), 0),
        ((1.0, 0.002), (3.0, 0.002), None),
        ((1.0, 0.003), (3.0, 0.002), None),
        ((None, 0.001), (3.0, 0.002), None),
        ((1.0, 0.001), (3.0, None), None),
    ],
)
def test_a_longer_set_up_pays_off_where_an_item_takes_less(
    own: tuple[float | None, float | None], other: tuple[float | None, float | None], items: float | None
) -> None:
    found = break_even(*own, *other)
    assert found == (None if items is None else pytest.approx(items))
