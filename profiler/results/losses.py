"""Add each row's loss of accuracy: its base's scores on the user's items less its own, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from profiler.results.cells import GROUP
from profiler.results.columns import RESULTS
from profiler.results.result import ends_of
from profiler.stats.paired import mean_loss

_LOSS = ("accuracy_loss", *ends_of("accuracy_loss"))


def with_losses(rows: pl.DataFrame, scores: Mapping[str, Sequence[float]]) -> pl.DataFrame:
    """Return a run's rows with the loss and its interval, over the items that both sides scored."""
    scored = [row for row in rows.select("case_id", "is_base", *GROUP).to_dicts() if scores.get(row["case_id"])]
    bases = {tuple(row[key] for key in GROUP): row["case_id"] for row in scored if row["is_base"]}
    losses = []
    for row in scored:
        base = bases.get(tuple(row[key] for key in GROUP))
        if base == row["case_id"]:
            losses.append((base, 0.0, 0.0, 0.0))
        elif base is not None:
            sides = zip(scores[base], scores[row["case_id"]], strict=False)
            loss, interval = mean_loss(*np.array(list(sides)).T)
            losses.append((row["case_id"], loss, interval.low, interval.high))
    columns = pl.DataFrame(losses, {"case_id": pl.String} | dict.fromkeys(_LOSS, pl.Float64), orient="row")
    return rows.drop(_LOSS).join(columns, on="case_id", how="left", maintain_order="left").select(*RESULTS)
