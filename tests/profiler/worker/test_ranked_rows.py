"""Ranked lists are compared row by row, in any order that nearly equal scores allow."""

from __future__ import annotations

import numpy as np
import pytest

from profiler.worker.parity import Outputs, Pair
from profiler.worker.ranked_rows import matched

ROWS = 12
CLOSE = 1 - 1e-6 * np.arange(ROWS)
FAR = 0.9 ** np.arange(ROWS)
SWAPPED = [1, 0, *range(2, ROWS)]
SHIFTED = [*range(1, ROWS), ROWS - 1]


def list_of(scores: np.ndarray, items: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    boxes = random.uniform(0, 640, (items, ROWS, 4)).astype(np.float32)
    return {"boxes": boxes, "scores": np.tile(scores, (items, 1)), "classes": random.integers(80, size=(items, ROWS))}


def joined(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"rows": np.concatenate([a.reshape(*a.shape[:2], -1) for a in outputs.values()], axis=2)}


def differing(ours: dict[str, np.ndarray], truth: dict[str, np.ndarray], precision: str = "fp32") -> set[str]:
    pairs = matched([Pair(ours[name], truth[name], name, by_item=True) for name in truth], precision)
    return {pair.name for pair in pairs if not np.allclose(pair.ours, pair.truth, rtol=1e-5)}


@pytest.mark.parametrize("layout", [dict, joined])
def test_rows_of_nearly_equal_scores_may_change_places(layout):
    truth = list_of(CLOSE)
    ours = {name: array[:, ::-1] for name, array in truth.items()} | {"scores": truth["scores"]}
    assert differing(layout(ours), layout(truth)) == set()
    ours["boxes"] = ours["boxes"] + np.float32(3)
    assert differing(layout(ours), layout(truth)) == ({"boxes"} if layout is dict else {"rows"})


@pytest.mark.parametrize(
    ("scores", "order", "differ"),
    [(FAR, SWAPPED, {"boxes", "classes"}), (np.ones(ROWS), SWAPPED, {"boxes", "classes"}), (CLOSE, SWAPPED, set())],
    ids=["far", "no-score", "close"],
)
def test_rows_that_no_score_explains_keep_their_places(scores, order, differ):
    truth = list_of(scores)
    ours = {name: array[:, order] for name, array in truth.items()} | {"scores": truth["scores"]}
    assert differing(ours, truth) == differ


def test_rows_of_an_output_without_items_may_change_places_too():
    truth = {name: array[0] for name, array in list_of(CLOSE, items=1).items()}
    ours = {name: array[SWAPPED] for name, array in truth.items()} | {"scores": truth["scores"]}
    pairs = [Pair(ours[name], truth[name], name) for name in truth]
    pairs.append(Pair(np.ones((ROWS, 1)), np.ones((ROWS + 1, 1)), "another shape"))
    assert [np.array_equal(pair.ours, pair.truth) for pair in matched(pairs, "fp32")] == [True, True, True, False]


def test_an_item_alone_may_rank_ties_in_another_order():
    together = Outputs({name: array[None] for name, array in list_of(CLOSE).items()}, 3)
    alone = {name: array[:, 2:, SWAPPED] for name, array in together.arrays.items()}
    alone["scores"] = together.arrays["scores"][:, 2:]
    for scores, is_dependent in ((alone["scores"], False), (alone["scores"] * 0.9, True)):
        one = Outputs(alone | {"scores": scores}, 1)
        assert together.with_items(one, 2, lambda pairs: matched(pairs, "fp32")).dependent == is_dependent


def test_few_rows_keep_their_places_since_they_may_descend_by_chance():
    truth = {name: array[:, :7] for name, array in list_of(CLOSE).items()}
    ours = {name: array[:, SWAPPED[:7]] for name, array in truth.items()} | {"scores": truth["scores"]}
    assert differing(ours, truth) == {"boxes", "classes"}


def test_a_precision_decides_which_scores_are_nearly_equal():
    truth = list_of(1 - 1e-3 * np.arange(ROWS))
    ours = {name: array[:, SWAPPED] for name, array in truth.items()} | {"scores": truth["scores"]}
    assert differing(ours, truth, "fp16") == set()
    assert differing(ours, truth, "fp32") == {"boxes", "classes"}


def test_ties_of_ascending_distances_may_change_places():
    truth = list_of(np.array([0.1] * 3 + [0.4] * 9)) | {"boxes": np.zeros((3, ROWS, 4))}
    ours = {name: array[:, SWAPPED] for name, array in truth.items()}
    assert differing(ours, truth) == set()
    ours["classes"] = truth["classes"][:, [3, *range(1, 3), 0, *range(4, ROWS)]]
    assert differing(ours, truth) == {"classes"}, "no tie explains this"


@pytest.mark.parametrize("column", [np.linspace(0, 1, ROWS), np.arange(ROWS) // 4], ids=["time", "index"])
def test_rows_in_the_order_of_time_or_an_index_keep_their_places(column):
    truth = list_of(column)
    ours = {name: array[:, SWAPPED] for name, array in truth.items()} | {"scores": truth["scores"]}
    assert differing(ours, truth, "int8") == {"boxes", "classes"}


def test_a_column_that_descends_in_the_reference_alone_is_no_score():
    truth = list_of(CLOSE)
    truth["boxes"][..., 0] = 640 * FAR
    ours = {name: array[:, SWAPPED] for name, array in truth.items()} | {"scores": truth["scores"]}
    assert differing(ours, truth) == set()


def test_scores_keep_their_places_alone_and_beside_what_they_rank():
    for truth in ({"curve": np.tile(FAR, (3, 1))}, list_of(FAR)):
        ours = {name: array[:, SHIFTED] for name, array in truth.items()}
        assert {"curve", "scores"} & differing(ours, truth, "int8")
