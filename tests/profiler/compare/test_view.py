"""What the cells of a comparison say together, and in which words."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from profiler.compare.cells import compare
from profiler.compare.view import sentences, totals
from profiler.published.references import published_as_results
from profiler.results.columns import RESULTS
from profiler.results.reading import with_all_columns


def cells(times_ms: dict[str, dict[str, float | None]], processes: int = 1, **columns: Any) -> pl.DataFrame:
    """A comparison of sides with one time a model; None is a cell that failed."""
    rows = [
        {
            "run_id": side, "model": model, "variant": "eager", "pass": "training", "precision": "fp32",
            "batch_size": 16, "status": "failed" if ms is None else "ok", "latency_ms": ms, "clock": "host",
            "replicate": replicate, **columns,
        }
        for side, models in times_ms.items()
        for model, ms in models.items()
        for replicate in range(processes)
    ]  # fmt: skip
    return compare(with_all_columns(pl.DataFrame(rows, schema=RESULTS)))


@pytest.mark.parametrize(
    ("base", "side", "said"),
    [
        ((22, 50), (10, 20), "Across all models, B is 2.2× to 2.5× faster than A."),
        ((10, 20), (22, 50), "Across all models, B is 2.2× to 2.5× slower than A."),
        ((10, 10), (10.5, 12.5), "Across all models, B is 1.05× to 1.25× slower than A."),
        ((10, 10), (5, 5), "Across all models, B is 2.0× faster than A."),
        ((10, 10), (8, 11), "Across all models, B is from 1.10× slower to 1.25× faster than A."),
        ((10, 10), (10.1, 9.9), "Across all models, B is within 3 % of A."),
        ((10, None), (5, 5), "For m0, the one model that both ran, B is 2.0× faster than A."),
        ((10, 10, None), (5, 5, 5), "Across the 2 models that both ran, B is 2.0× faster than A."),
        ((10,), (4,), "For m0, B is 2.5× faster than A."),
        ((10, 10), (0.1, 0.07), "Across all models, B is 100× to 143× faster than A."),
    ],
)
def test_the_range_over_models_is_worded_like_the_published(base: Any, side: Any, said: str) -> None:
    given = {name: {f"m{i}": ms for i, ms in enumerate(values)} for name, values in (("A", base), ("B", side))}
    assert sentences(totals(cells(given))) == [said]


def test_cells_that_are_equivalent_are_called_so() -> None:
    given = {"A": {"m0": 10.0, "m1": 20.0}, "B": {"m0": 10.1, "m1": 20.0}}
    found = totals(cells(given, processes=3))
    assert sentences(found) == ["Across all models, B is equivalent to A (0.99× to 1.00×)."]
    assert found[0].verdicts["equivalent"] == 2


def test_geometric_means_are_over_the_cells_that_both_ran() -> None:
    (total,) = totals(cells({"A": {"m0": 4.0, "m1": 1.0, "m2": 1.0}, "B": {"m0": 1.0, "m1": 1.0, "m2": None}}))
    assert (total.cells, total.of) == (2, 3)
    assert total.ratio == pytest.approx(2.0)
    assert (total.low, total.high) == pytest.approx((1.0, 4.0))
    assert total.memory_ratio is None


def test_of_a_model_with_several_cells_the_geometric_mean_stands_in_the_range() -> None:
    parts = [
        cells({"A": {"m": 1.0}, "B": {"m": ms}}, precision=precision)
        for ms, precision in ((0.5, "fp32"), (0.125, "fp16"))
    ]
    (total,) = totals(pl.concat(parts))
    assert (total.low, total.high) == pytest.approx((4.0, 4.0))


def test_each_side_and_pass_has_a_sentence_and_the_pass_is_named_where_there_are_several() -> None:
    given = {"A": {"m": 2.0}, "B": {"m": 1.0}, "C": {"m": 4.0}}
    both = pl.concat([cells(given), cells(given, **{"pass": "inference"})])
    assert sentences(totals(both)) == [
        "In training, for m, B is 2.0× faster than A.",
        "In training, for m, C is 2.0× slower than A.",
        "In inference, for m, B is 2.0× faster than A.",
        "In inference, for m, C is 2.0× slower than A.",
    ]


def test_models_or_passes_that_are_the_sides_themselves_are_not_named() -> None:
    rows = [
        {"run_id": "r", "model": model, "variant": "eager", "pass": pass_, "precision": "fp32", "batch_size": 1,
         "status": "ok", "latency_ms": ms, "clock": "host"}
        for model, pass_, ms in (("a", "inference", 4.0), ("b", "inference", 2.0), ("a", "training", 10.0))
    ]  # fmt: skip
    results = with_all_columns(pl.DataFrame(rows, schema=RESULTS))
    by_model, by_pass = (totals(compare(results, by=by)) for by in ("model", "pass"))
    assert sentences(by_model) == ["b is 2.0× faster than a."]
    assert sentences(by_pass) == ["For a, the one model that both ran, training is 2.5× slower than inference."]
    assert (by_model[0].models, by_pass[0].pass_) == ((), "")


def test_nothing_is_said_where_nothing_was_compared() -> None:
    assert totals(cells({"A": {"m": 1.0}, "B": {"m": None}})) == []


def test_the_published_machines_stand_to_each_other_as_their_tables_say() -> None:
    """Document 001's own conclusion, K80 over M4000, recomputed: each machine with its fastest library."""
    rows = published_as_results("cloud-gpus")
    found = totals(compare(rows, by="machine", base="Tesla K80", best=True))
    by_side = {total.side: total for total in found}
    k520 = by_side["GRID K520"]
    assert k520.high < 1
    assert k520.sentence() == "Across the 4 models that both ran, GRID K520 is 1.81× to 2.2× slower than Tesla K80."
