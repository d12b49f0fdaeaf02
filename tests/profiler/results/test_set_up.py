"""What set-up takes, once and at every start."""

from __future__ import annotations

import polars as pl
import pytest

from profiler.results.columns import RESULTS
from profiler.results.set_up import parts_of, set_up

ALL = {"export_s": 2.0, "build_s": 40.0, "load_s": 1.0, "first_run_s": 0.5}


@pytest.mark.parametrize(
    ("engine", "parts", "together", "once", "start"),
    [
        ("trt", ALL, 43.5, 42.0, 1.5),
        ("eager", {"load_s": 1.0}, 1.0, 0.0, 1.0),
        ("ort", {"export_s": 2.0}, 2.0, 2.0, 0.0),
        ("eager", {"load_s": 0.0}, 0.0, 0.0, 0.0),
        ("eager", {}, None, None, None),
        (None, {"load_s": 1.0}, 1.0, 0.0, 1.0),
        # It compiles in the process that runs the model: nothing is kept.
        ("compiled", {"build_s": 40.0, "load_s": 1.0, "first_run_s": 0.5}, 41.5, 0.0, 41.5),
    ],
)
def test_set_up_is_everything_until_the_second_call_some_of_it_once(
    engine: str | None, parts: dict[str, float], together: float | None, once: float | None, start: float | None
) -> None:
    (row,) = pl.DataFrame([{"engine": engine, **parts}], schema=RESULTS).select(**set_up()).to_dicts()
    assert row == {"set_up_s": together, "once_s": once, "start_s": start}


def test_the_parts_of_both_are_all_there_are() -> None:
    for compiles in (True, False):
        assert {*parts_of("once_s", compiles), *parts_of("start_s", compiles)} == set(ALL)
        assert ("build_s" in parts_of("start_s", compiles)) is compiles
