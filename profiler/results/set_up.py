"""Compute what it takes to set a configuration up, once and at every start.

Once: the export and the build, which are kept. At every start: loading and the first run. An engine that compiles in
the process that runs the model, as torch.compile does, builds at every start.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from engines.catalog import ENGINES
from profiler.results.columns import parts

Part = Literal["once_s", "start_s"]
PARTS: tuple[Part, ...] = ("once_s", "start_s")


def parts_of(part: Part, compiles: bool) -> list[str]:
    """The columns that add up to `once_s` or `start_s`, of an engine that compiles at every start or of another."""
    once = [name for name in parts("once_s") if not (compiles and name == "build_s")]
    return once if part == "once_s" else [name for name in parts("set_up_s") if name not in once]


def set_up() -> dict[str, pl.Expr]:
    """A row's `set_up_s`, all of it, and its two parts `once_s` and `start_s`, in seconds; null where nothing is known.

    Of replicates the median of these sums counts, not the sum of the parts' medians: each is what one process took.
    """
    compiles = pl.col("engine").is_in([engine.name for engine in ENGINES.values() if engine.compiles])
    sums = {"set_up_s": pl.sum_horizontal(parts("set_up_s"))}
    for part in PARTS:
        own, other = (pl.sum_horizontal(parts_of(part, each)) for each in (True, False))
        sums[part] = pl.when(compiles).then(own).otherwise(other)
    is_known = pl.any_horizontal(pl.col(parts("set_up_s")).is_not_null())
    return {name: pl.when(is_known).then(seconds) for name, seconds in sums.items()}
