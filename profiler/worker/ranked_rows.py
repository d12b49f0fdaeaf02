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
    column that descends on both sides, or ascends like a distance, and is not constant in the reference. It keeps its
    place, so that a list of scores alone, such as a survival curve, stays as it is.
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
        scores = list(map(_are_scores, ours, truth))
        if not any(map(np.any, scores)) or all(map(np.all, scores)):
            continue
        tolerance = PRECISION_TABLE[precision].usual_error
        order = _order(np.dstack(ours), np.dstack(truth), np.concatenate(scores), tolerance)
        for place, columns, is_score in zip(places, ours, scores, strict=True):
            rows = np.where(is_score, columns, np.take_along_axis(columns, order[..., None], axis=1))
            result[place] = replace(pairs[place], ours=rows.reshape(pairs[place].ours.shape))
    return result


def _are_scores(ours: Array, truth: Array) -> Array:
    """Tell which columns are in order along the rows of both sides, and are not constant in the reference."""
    both = np.concatenate([ours, truth])
    in_order = (both[:, :-1] >= both[:, 1:]).all((0, 1)) | (both[:, :-1] <= both[:, 1:]).all((0, 1))
    return np.asarray(in_order & (truth != truth[:, :1]).any((0, 1)))


def _order(ours: Array, truth: Array, is_score: Array, tolerance: float) -> Array:
    """Return the row of ours for each of the reference's, by item: the nearest of those with about its score."""
    sizes = np.abs(truth).max((0, 1))
    ours, truth = (side / np.where(sizes > 0, sizes, 1) for side in (ours, truth))
    orders = []
    for a, b in zip(ours, truth, strict=True):
        is_near = cdist(b[:, is_score], a[:, is_score], "chebyshev") <= tolerance
        distances = cdist(b[:, ~is_score], a[:, ~is_score], "cityblock")
        far = distances.max() * len(a) + 2 - np.eye(len(a))  # A row without a near one keeps its place.
        orders.append(linear_sum_assignment(np.where(is_near, distances, far))[1])
    return np.array(orders)
