"""Scores are one number from 0 to 1 an item, whatever form outputs and labels have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporters.metrics import metric_of, score
from exporters.source import ModelError

CLASSES = np.array([2, 0])
SCORES = np.array([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7]])
TOKENS = np.array([[1, 0, -100], [0, 0, 1]])


def tokens(axis: int) -> Any:
    """Scores of two classes that are right but for the last token."""
    right = np.stack([1 - np.clip(TOKENS, 0, 1), np.clip(TOKENS, 0, 1)], axis=axis).astype(float)
    right[(1, slice(None), 2) if axis == 1 else (1, 2)] = (1, 0)
    return right


@pytest.mark.parametrize(
    ("outputs", "labels", "scores"),
    [
        (SCORES, CLASSES, [1, 0]),
        ((np.array([2, 1]), SCORES), CLASSES, [1, 0]),
        ((np.zeros((2, 5, 7)), SCORES), CLASSES, [1, 0]),
        (tokens(2), TOKENS, [1, 2 / 3]),
        (tokens(1), TOKENS, [1, 2 / 3]),
        (SCORES, CLASSES.astype(float), [1, 0]),
        (SCORES, CLASSES[:, None], [1, 0]),
        (SCORES[:, None], CLASSES[:, None], [1, 0]),
        (SCORES, np.eye(3)[CLASSES], [1, 0]),
        (np.where(np.arange(2)[:, None] == 0, np.nan, SCORES), np.array([0, 2]), [0, 1]),
        (np.array([[3.5, 4.0], [7.0, 0.0]]), np.array([[3.5, 4.0], [3.5, 0.0]]), [1, 0]),
        (np.array([[3.3, 3.3]]), np.array([[3.3, 4.4]]), [0.8]),
        (np.array([[np.nan, 3.0]]), np.array([[3.3, 4.0]]), [0]),
    ],
)
def test_defaults_follow_the_labels(outputs, labels, scores):
    assert score(metric_of(None, labels), outputs, labels).tolist() == pytest.approx(scores)


@pytest.mark.parametrize(
    ("metric", "outputs", "labels", "message"),
    [
        (lambda outputs, labels: outputs, SCORES, CLASSES, r"shape \(2, 3\) for 2 items"),
        (lambda outputs, labels: labels, SCORES, CLASSES, "0.0 to 2.0"),
        (lambda outputs, labels: [float("nan"), 1], SCORES, CLASSES, "nan"),
        (None, np.zeros((2, 1)), CLASSES, "give `metric`"),
        ("relative-error", np.zeros((2, 7)), CLASSES, "give `metric`"),
        (None, SCORES, np.array([3, 0]), "a label 3, and the output has classes 0 to 2"),
        (None, SCORES, np.array([-1, 0]), "a label -1"),
    ],
)
def test_a_metric_or_labels_of_another_form_are_refused(metric, outputs, labels, message):
    with pytest.raises(ModelError, match=message):
        score(metric if callable(metric) else metric_of(metric, CLASSES), outputs, labels)
