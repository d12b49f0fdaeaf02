"""Compute what it takes to set a configuration up, and after how many items that has paid off."""

from __future__ import annotations

import polars as pl

from profiler.results.columns import parts


def set_up() -> pl.Expr:
    """A row's export, build, load and first run together, in seconds; null where none of them is known.

    Of replicates the median of these sums counts, not the sum of the parts' medians: each is what one process took.
    """
    names = parts("set_up_s")
    return pl.when(pl.any_horizontal(pl.col(names).is_not_null())).then(pl.sum_horizontal(names))


def break_even(
    set_up_s: float | None, item_s: float | None, other_set_up_s: float | None, other_item_s: float | None
) -> float | None:
    """After how many items a configuration has made up for a longer set-up than the other's; 0 where it is no longer.

    None where an item takes it no less time, and where one of the figures is unknown.
    """
    if set_up_s is None or item_s is None or other_set_up_s is None or other_item_s is None or item_s >= other_item_s:
        return None
    return max(0.0, set_up_s - other_set_up_s) / (other_item_s - item_s)
