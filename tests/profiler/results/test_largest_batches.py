"""The largest batch that fits, from the tries of its search."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from profiler.results.columns import LARGEST_BATCH
from profiler.results.largest_batches import largest


def tried(batch: int, mib: float | None, **other: Any) -> dict[str, Any]:
    search = {"run_id": "run", "model": "net", "variant": "eager", "pass": "inference", "precision": "fp32"}
    ended = {"status": "oom" if mib is None else "ok", "reason": "CUDA out of memory" if mib is None else None}
    return {**search, "setting": "", "batch_size": batch, "peak_memory_mib": mib, **ended, **other}


def test_what_does_not_fit_below_the_largest_batch_that_does_says_nothing() -> None:
    rows = [tried(32, 100.0), tried(512, None), tried(77, 230.0), tried(79, None), tried(40, None)]
    (found,) = largest(pl.DataFrame(rows, schema=LARGEST_BATCH)).to_dicts()
    assert (found["largest"], found["peak_memory_mib"], found["refused"]) == (77, 230.0, 79)


@pytest.mark.parametrize(
    ("rows", "ends", "why"),
    [
        ([tried(64, 9.0)], (64, None), None),
        ([tried(1, None)], (None, 1), "out of memory"),
        ([tried(7, 9.0), tried(8, None, reason="not tried: 20 MiB")], (7, 8), "not tried: 20 MiB"),
        ([tried(7, 9.0), tried(8, None, status="failed", reason="33 bits")], (7, 8), "failed: 33 bits"),
    ],
)  # fmt: skip
def test_a_search_says_why_no_more_fits(
    rows: list[dict[str, Any]], ends: tuple[int | None, int | None], why: str | None
) -> None:
    (found,) = largest(pl.DataFrame(rows, schema=LARGEST_BATCH)).to_dicts()
    assert ((found["largest"], found["refused"]), found["why"]) == (ends, why)


def test_settings_and_runs_keep_searches_apart() -> None:
    rows = [
        tried(size, 1.0, setting=setting, run_id=run)
        for run, setting, size in (("a", "", 1), ("a", "x=y", 2), ("b", "", 3))
    ]
    assert largest(pl.DataFrame(rows, schema=LARGEST_BATCH))["largest"].to_list() == [1, 2, 3]
