"""Distances of arrays that hold what is not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest

from exporters.distance import finite, is_exact, relative_l2, unlike

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_places_are_counted_by_what_both_sides_have(dtype: type) -> None:
    ours = np.array([1, NAN, INF, -INF, NAN, INF, 5], dtype)
    reference = np.array([1, NAN, INF, -INF, 2, -INF, NAN], dtype)
    assert unlike(ours, reference) == {("NaN", "a number"): 1, ("+inf", "−inf"): 1, ("a number", "NaN"): 1}
    assert unlike(ours, ours) == {}


def test_only_places_where_both_are_finite_have_a_distance() -> None:
    ours, reference = np.array([[3.3, -INF], [4.4, NAN]]), np.array([[3.0, -INF], [4.0, NAN]])
    assert relative_l2(ours, reference) == pytest.approx(0.1)
    assert [side.tolist() for side in finite(ours, reference)] == [[3.3, 4.4], [3.0, 4.0]]
    assert math.isnan(relative_l2(np.nan_to_num(ours), reference))


def test_a_norm_of_zero_gives_the_distance() -> None:
    assert relative_l2(np.array([3.0, 4.0]), np.zeros(2)) == 5.0
    assert relative_l2(np.zeros(2), np.zeros(2)) == 0.0
    assert relative_l2(np.array([-INF]), np.array([-INF])) == 0.0


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [("int64", True), ("int32", True), ("bool", True), ("uint8", False), ("int8", False), ("float32", False)],
)
def test_ids_are_exact_and_images_are_not(dtype: str, exact: bool) -> None:
    assert is_exact(np.zeros(1, dtype)) == exact
