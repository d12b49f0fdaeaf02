"""A row's loss is over the items that its base scored too, with an interval that its error narrows."""

from __future__ import annotations

from typing import Any

import handmade
import pytest

from profiler.results.losses import with_losses


@pytest.mark.parametrize(
    ("more", "high"),
    [
        ({}, 0.0039),
        ({"rel_l2_error_high": 1e-6, "max_abs_error": 1e-5}, 2e-6),
        ({"rel_l2_error_high": 0.0}, 0.0039),  # Classes alone, whose equality does not show how near they are.
    ],
)
@pytest.mark.parametrize("further", [{"eager": [0.0]}, {"ort": [0.0]}])  # Items that only one side scored.
def test_a_small_error_narrows_a_loss_unless_outputs_are_classes(more: dict[str, Any], high: float, further: Any):
    both = handmade.row("eager"), handmade.row("ort", **more)
    scores = {row["case_id"]: [1.0] * 1000 + further.get(row["variant"], []) for row in both}
    rows = with_losses(handmade.frame(both), scores).to_dicts()
    assert [row["accuracy_loss"] for row in rows] == [0, 0]
    assert rows[0]["accuracy_loss_high"] == 0, "a base loses nothing"
    assert rows[1]["accuracy_loss_high"] == pytest.approx(high, rel=0.05)


def test_a_base_that_is_never_right_has_no_loss_to_compare_with():
    base, ours = handmade.row("eager"), handmade.row("ort")
    rows = with_losses(handmade.frame([base, ours]), {row["case_id"]: [0.0] * 9 for row in (base, ours)}).to_dicts()
    assert [row["accuracy_loss"] for row in rows] == [None, None]
