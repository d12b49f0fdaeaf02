"""Outputs find the reference's by name, with the items that both have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.base import Array
from exporters.inputs import TensorSpec, seeded_inputs
from profiler.worker.outputs import (
    align,
    can_grow,
    grown,
    read_outputs,
    read_reference,
    without_padding,
    write_outputs,
)

pytestmark = pytest.mark.slow

LOGITS = np.arange(24.0).reshape(8, 3)
PAIRS = np.arange(64.0).reshape(8, 8)
BOXES = np.ones((5, 4))


def test_a_reference_keeps_names_and_order(tmp_path: Path) -> None:
    write_outputs(tmp_path / "r.npz", ["b", "a", "file"], [LOGITS, PAIRS, BOXES])
    assert [(name, array.shape) for name, array in read_outputs(tmp_path / "r.npz").items()] == [
        ("b", (8, 3)),
        ("a", (8, 8)),
        ("file", (5, 4)),
    ]


def test_items_of_a_smaller_batch_are_compared_along_every_axis_that_is_the_batch() -> None:
    reference = {"logits": LOGITS, "pairs": PAIRS, "boxes": BOXES, "steps": LOGITS.T}
    ours = [LOGITS.T[:, :2], BOXES, PAIRS[:2, :2], LOGITS[:2]]
    found = align(ours, ["steps", "boxes", "pairs", "logits"], reference, [], 2, 8)
    assert (found.names, found.apart) == (["logits", "pairs", "boxes", "steps"], [])
    for output, truth in zip(found.outputs, found.reference, strict=True):
        np.testing.assert_array_equal(output, truth)
    assert align(ours, ["steps", "boxes", "pairs", "logits"], reference, ["pairs"], 2, 8).names == ["pairs"]


def test_outputs_without_the_references_names_go_by_their_order() -> None:
    found = align([LOGITS, BOXES], ["0", "1"], {"logits": LOGITS, "boxes": BOXES}, ["boxes"], 8, 8)
    assert (found.names, found.outputs[0].shape) == (["boxes"], (5, 4))
    with pytest.raises(ValueError, match="1 outputs, the reference has 2"):
        align([LOGITS], ["0"], {"logits": LOGITS, "boxes": BOXES}, [], 8, 8)


def test_what_depends_on_the_values_is_left_out_where_shapes_differ() -> None:
    found = align([LOGITS, BOXES[:3]], ["logits", "boxes"], {"logits": LOGITS, "boxes": BOXES}, [], 8, 8)
    assert (found.names, found.apart) == (["logits"], ["boxes has shape (3, 4), the reference's is (5, 4)"])
    found = align([BOXES], ["y0.boxes"], {"y0.boxes": BOXES, "y1.boxes": BOXES}, [], 1, 8)
    assert (found.names, found.apart) == (["y0.boxes"], ["y1.boxes is not among the outputs at this batch size"])


def test_where_each_item_has_outputs_of_its_own_those_of_further_items_are_left_out() -> None:
    reference = {f"y{item}.{name}": BOXES + item for item in range(8) for name in ("boxes", "scores")}
    ours = {name: reference[name] for name in ("y0.boxes", "y0.scores", "y1.boxes", "y1.scores")}
    found = align(list(ours.values()), list(ours), reference, [], 2, 8)
    assert (found.names, found.apart) == (list(ours), [])
    named = align(list(ours.values()), list(ours), reference, ["y0.boxes", "y2.boxes"], 2, 8)
    assert (named.names, named.apart) == (["y0.boxes"], ["y2.boxes is not among the outputs at this batch size"])
    ours["y1.boxes"] = BOXES[:3]
    found = align(list(ours.values()), list(ours), reference, [], 2, 8)
    assert found.apart == ["y1.boxes has shape (3, 4), the reference's is (5, 4)"]


def test_further_runs_give_their_items_to_outputs_that_have_items_first(tmp_path: Path) -> None:
    """Of 20 items that ran 8 at a time; a state has its items second, pairs need the whole batch, a scale has none."""
    rows, state, scale = np.arange(60.0).reshape(20, 3), np.arange(48.0).reshape(2, 8, 3), np.array(2.0)
    names, first = ["logits", "pairs", "state", "scale"], [rows[:8], PAIRS, state, scale]
    write_outputs(tmp_path / "r.npz", names, first, further={0: rows[8:], 1: np.ones((12, 8))})
    reference = read_reference(tmp_path / "r.npz", 8, 20)
    assert {name: array.shape for name, array in reference.rows.items()} == {"logits": (20, 3), "pairs": (20, 8)}
    assert read_reference(tmp_path / "r.npz", 8, 8).rows.keys() == {"logits", "pairs"}

    def run(start: int, batch: int) -> list[Array]:
        return [np.resize(rows[start:], (batch, 3)), PAIRS[:batch, :batch], state[:, :batch], scale]

    for batch, runs, items in ((2, 1, 2), (2, 3, 6), (3, 7, 20), (16, 1, 16), (16, 2, 20), (32, 1, 20)):
        taken = [run(number * batch, batch) for number in range(runs)]
        aligned = align(taken[0], names, reference.first, [], batch, 8)
        assert can_grow(aligned, taken[0], reference, batch) == [True, False, False, False]
        all_runs = grown(aligned, taken, reference, batch)
        for output, truth in zip(all_runs.outputs, all_runs.reference, strict=True):
            np.testing.assert_array_equal(output, truth)
        assert len(all_runs.outputs[0]) == items
        assert all_runs.by_item == [True, items == batch <= 8, False, False]
    pairs = align([PAIRS], ["pairs"], reference.first, ["pairs"], 8, 8)
    assert can_grow(pairs, [PAIRS], reference, 8) == [True], "batches are the reference's own"


def test_items_of_another_shape_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"output logits has shape \(2, 4\), the reference \(8, 3\)"):
        align([np.ones((2, 4))], ["logits"], {"logits": LOGITS}, [], 2, 8)


def test_tokens_that_every_mask_leaves_out_are_not_compared() -> None:
    text = TensorSpec("attention_mask", ("batch", 16), "int64", fill="lengths")
    masks = [seeded_inputs([text, text], 8)[each] != 0 for each in (0, 1)]
    hidden, classes = np.ones((8, 16, 3)), np.ones((8, 16))
    assert not masks[0].all()
    kept, same = without_padding([hidden, classes], [text])
    np.testing.assert_array_equal(kept, np.repeat(masks[0][..., None], 3, axis=2))
    np.testing.assert_array_equal(same, classes)
    np.testing.assert_array_equal(hidden, 1)
    (either,) = without_padding([hidden], [text, text])
    np.testing.assert_array_equal(either[..., 0], masks[0] | masks[1])
    image, one_for_all = TensorSpec("x", ("batch", 16), "float32"), TensorSpec("m", (16,), "int64", fill="lengths")
    for others in ([], [image], [one_for_all]):
        assert without_padding([hidden], others)[0] is hidden
