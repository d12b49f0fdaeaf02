"""Add each row's loss of accuracy: its base's scores on the user's items less its own, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from profiler.results.cells import GROUP
from profiler.results.columns import RESULTS
from profiler.results.result import ends_of
from profiler.stats.intervals import mean_loss

_LOSS = ("accuracy_loss", *ends_of("accuracy_loss"))


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the batch size, and what else must be equal in a row and its base."""
    return row["batch_size"], *(row[key] for key in GROUP if key != "batch_size")


def telling_error(row: Mapping[str, Any]) -> float | None:
    """Return the bound of the outputs' error, or None: classes alone do not show how near the next one is."""
    return None if row.get("max_abs_error") is None else row["rel_l2_error_high"]


def loss_over(base: Sequence[float], ours: Sequence[float], error: float | None) -> dict[str, float | None]:
    """Return the loss and its interval over the items that both scored; null beside a base that is never right."""
    if not any(base):
        return dict.fromkeys(_LOSS)
    items = min(len(base), len(ours))
    loss, interval = mean_loss(np.array(base[:items]), np.array(ours[:items]), error)
    return dict(zip(_LOSS, (loss, interval.low, interval.high), strict=True))


def with_losses(rows: pl.DataFrame, scores: Mapping[str, Sequence[float]]) -> pl.DataFrame:
    """Return a run's rows with the loss and its interval, over the items that both sides scored."""
    scored = [row for row in rows.to_dicts() if scores.get(row["case_id"])]
    # The base may have failed at one batch size; an item's score hardly depends on it.
    bases = {key: row["case_id"] for row in scored if row["is_base"] for key in (_place(row), _place(row)[1:])}
    losses = []
    for row in scored:
        base, ours = bases.get(_place(row)) or bases.get(_place(row)[1:]), row["case_id"]
        if base is not None:
            error = 0.0 if base == ours else telling_error(row)
            losses.append({"case_id": ours, **loss_over(scores[base], scores[ours], error)})
    columns = pl.DataFrame(losses, {"case_id": pl.String} | dict.fromkeys(_LOSS, pl.Float64))
    return rows.drop(_LOSS).join(columns, on="case_id", how="left", maintain_order="left").select(*RESULTS)
