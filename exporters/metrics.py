"""Score outputs by labels: 0 to 1 for each item, higher is better."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporters.source import ModelError

Array = NDArray[Any]
Scores = NDArray[np.float64]
"""One for each item."""
Metric = Callable[[Any, Array], Any]
"""Takes outputs and labels, items first; a single output comes alone, several as a tuple."""
IGNORED = -100
"""Label of a token that does not count, as in torch.nn.CrossEntropyLoss."""


def metric_of(word: str | None, labels: Array) -> Metric:
    """Return the metric, by default "top1" for classes, also as floats or one-hot, else "relative-error".

    Imports a user's function.
    """
    if word is None:
        word = "top1" if labels.dtype.kind in "biu" or np.array_equal(labels, np.round(labels)) else "relative-error"
    if word in METRICS:
        return METRICS[word]
    module, _, name = word.partition(":")
    function: Metric = getattr(importlib.import_module(module), name)
    return function


def score(metric: Metric, outputs: Any, labels: Array) -> Scores:
    """Return the items' scores. Raises ModelError if they are not one number from 0 to 1 an item."""
    array = np.asarray(metric(outputs, labels), np.float64)
    if array.shape != (len(labels),) or not ((array >= 0) & (array <= 1)).all():
        actual = f"{array.min()} to {array.max()}" if array.shape == (len(labels),) else f"shape {array.shape}"
        raise ModelError(f"the metric returned {actual} for {len(labels)} items; return a score from 0 to 1 for each")
    return array


def _top1(outputs: Any, labels: Array) -> Scores:
    """Return the share of each item's labels that have the highest score; outputs that are not finite miss.

    An output of classes themselves, as scikit-learn's graphs have it, is compared with the labels.
    """
    for scores in outputs if isinstance(outputs, tuple) else (outputs,):
        if scores.shape == labels.shape and scores.ndim == 2 and _is_one_hot(labels):
            labels = labels.argmax(axis=1)
        if scores.shape == labels.shape and scores.dtype.kind in "biu":
            return _share(scores == labels, labels)
        shapes = (labels.shape, labels.shape[:1]) if labels.shape[1:] == (1,) else (labels.shape,)
        if scores.shape[:-1] in shapes and scores.shape[-1] > 1:
            return _share(_hits(scores, labels.reshape(scores.shape[:-1]), axis=-1), labels)
        if scores.ndim > 2 and scores.shape[:1] + scores.shape[2:] == labels.shape:
            return _share(_hits(scores, labels, axis=1), labels)
    raise ModelError(
        f"no output holds scores of classes for labels of shape {labels.shape}; give `metric`: relative-error, or a "
        "function of outputs and labels"
    )


def _is_one_hot(labels: Array) -> bool:
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all())


def _hits(scores: Array, labels: Array, axis: int) -> Array:
    classes = scores.shape[axis]
    counted = labels[labels != IGNORED]
    if counted.size and not 0 <= counted.min() <= counted.max() < classes:
        bad = counted.max() if counted.max() >= classes else counted.min()
        raise ModelError(f"there is a label {bad:g}, and the output has classes 0 to {classes - 1}")
    return np.asarray((scores.argmax(axis=axis) == labels) & np.isfinite(scores.max(axis=axis)))


def _share(hits: Array, labels: Array) -> Scores:
    counts = np.asarray(labels != IGNORED).reshape(len(labels), -1)
    hit = hits.reshape(len(labels), -1) & counts
    return np.asarray(hit.sum(axis=1) / np.maximum(counts.sum(axis=1), 1))


def _closeness(outputs: Any, labels: Array) -> Scores:
    """Return 1 less the relative L2 distance to the labels, at least 0."""
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        if output.size == labels.size:
            ours, truth = (np.asarray(a, np.float64).reshape(len(labels), -1) for a in (output, labels))
            distance = np.linalg.norm(ours - truth, axis=1) / np.maximum(np.linalg.norm(truth, axis=1), 1e-30)
            return np.asarray(1 - np.minimum(np.nan_to_num(distance, nan=1.0), 1.0))
    raise ModelError(f"no output has the labels' shape {labels.shape}; give `metric`")


METRICS: dict[str, Metric] = {"top1": _top1, "relative-error": _closeness}
