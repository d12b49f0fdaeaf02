"""Check who is how many times faster: GPUs, releases of cuDNN, and cuDNN against none."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from profiler.published.claims.evidence import Evidence
from profiler.published.conclusions import (
    Comparison,
    compare,
)

_WITHOUT = "without cuDNN"


def without_cudnn(evidence: Evidence) -> list[str]:
    """Own machines' variant that stands for the published library against the same without cuDNN."""
    found: list[Comparison] = []
    for subject, rows in evidence.times.items():
        none = pl.col("ending").str.contains("no cuDNN", literal=True)
        ending = pl.col("ending").str.replace(", cuDNN", " with cuDNN", literal=True)
        graph = pl.col("implementation").str.contains("graph", literal=True)
        bare = pl.when(graph).then(pl.lit(f"{_WITHOUT} (in a CUDA graph)")).otherwise(pl.lit(_WITHOUT))
        called = pl.when(none).then(bare).otherwise(pl.format("{}{}", "software", ending))
        mine = rows.filter("ours", pl.col("counterpart") | none).with_columns(called=called, none=none)
        mine = mine.sort("none", maintain_order=True)  # A sentence without a factor names them in this order.
        for (machine,), both in mine.group_by("machine", maintain_order=True):
            if both["none"].n_unique() > 1:
                sides = (
                    (pair, {name.startswith(_WITHOUT) for name in (pair.faster, pair.slower)})
                    for pair in compare(both, "called")
                )
                pairs = [pair for pair, bare in sides if len(bare) > 1]
                found += [replace(p, subject=subject, machine=str(machine), article=False) for p in pairs]
    return [pair.sentence() for pair in found]
