"""Match the rows of lists that a score ranks, such as a detector's boxes: nearly equal scores change places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from engines.base import Array
from engines.options import PRECISION_TABLE
from profiler.worker.parity import Pair

_ROWS = range(8, 1001)
"""Fewer rows may descend by chance, and each is compared with each."""


def matched(pairs: Sequence[Pair], precision: str) -> list[Pair]:
    """Put our rows of ranked lists into the reference's order, where their scores differ less than the precision does.

    Rows are on axis 1 of outputs by item, on axis 0 of others, and lists of equal length share them. A score is a
    column in order on both sides, and is not constant in the reference. It keeps its place, so that a list of scores
    alone, such as a survival curve, stays as it is.
    """
    lists: dict[tuple[int, ...], list[int]] = {}
    for place, pair in enumerate(pairs):
        shape = pair.truth.shape if pair.by_item else (1, *pair.truth.shape)
        is_list = len(shape) > 1 and shape[1] in _ROWS and pair.truth.size and pair.ours.shape == pair.truth.shape
        if is_list and np.isfinite(pair.ours).all() and np.isfinite(pair.truth).all():
            lists.setdefault(shape[:2], []).append(place)
    result = list(pairs)
    for shape, places in lists.items():
        sides = ([getattr(pairs[place], side) for place in places] for side in ("ours", "truth"))
        ours, truth = ([array.reshape(*shape, -1) for array in arrays] for arrays in sides)
        tolerances = [_tolerances(*columns, precision) for columns in zip(ours, truth, strict=True)]
        if not any(map(np.any, tolerances)) or all(map(np.all, tolerances)):
            continue
        order = _order(np.dstack(ours), np.dstack(truth), np.concatenate(tolerances))
        for place, columns, tolerance in zip(places, ours, tolerances, strict=True):
            rows = np.where(tolerance > 0, columns, np.take_along_axis(columns, order[..., None], axis=1))
            result[place] = replace(pairs[place], ours=rows.reshape(pairs[place].ours.shape))
    return result


def _tolerances(ours: Array, truth: Array, precision: str) -> Array:
    """Return by how much each column's nearly equal scores differ; 0 for a column that is no score.

    A column that ascends may be a distance, but also time or an index, so at any precision only its ties are equal.
    """
    both = np.concatenate([ours, truth])
    descends = (both[:, :-1] >= both[:, 1:]).all((0, 1))
    ascends = (both[:, :-1] <= both[:, 1:]).all((0, 1)) & (both.dtype.kind == "f")
    usual = np.where(descends, PRECISION_TABLE[precision].usual_error, PRECISION_TABLE["fp32"].usual_error)
    return np.asarray(usual * ((descends | ascends) & (truth != truth[:, :1]).any((0, 1))))


def _order(ours: Array, truth: Array, tolerances: Array) -> Array:
    """Return the row of ours for each of the reference's, by item: the nearest of those with about its score."""
    sizes, is_score = np.abs(truth).max((0, 1)), tolerances > 0
    ours, truth = (side / np.where(sizes > 0, sizes, 1) / np.where(is_score, tolerances, 1) for side in (ours, truth))
    orders = []
    for a, b in zip(ours, truth, strict=True):
        is_near = cdist(b[:, is_score], a[:, is_score], "chebyshev") <= 1
        distances = cdist(b[:, ~is_score], a[:, ~is_score], "cityblock")
        far = distances.max() * len(a) + 2 - np.eye(len(a))  # A row without a near one keeps its place.
        orders.append(linear_sum_assignment(np.where(is_near, distances, far))[1])
    return np.array(orders)
