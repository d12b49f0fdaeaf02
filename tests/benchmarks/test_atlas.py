"""The page of the atlas, made of rows by hand."""

from __future__ import annotations

import handmade
import polars as pl

from benchmarks.atlas import added, page, whole

FAMILY = pl.col("model").str.split("_").list.first().alias("family")
LACKING = "Fail: NOT_IMPLEMENTED: Could not find an implementation for Foo(20) node with name 'node_foo'"


def test_the_page_says_what_fails_what_is_fastest_and_what_a_cell_took(tmp_path):
    rows = [
        handmade.row(variant, "fp16", ms, model=model, gpu="H200", reason=None if ms else LACKING)
        for model, times in {
            "a_1": (4.0, 1.0, 2.0),
            "a_2": (4.0, 4.0, 2.0),
            "b_1": (1.0, 3.0, None),
            "c_1": (4.0, 1.0, 2.0),
        }.items()
        for variant, ms in zip(("eager", "compiled", "ort"), times, strict=True)
    ]
    rows += [handmade.row(variant, "fp16", 1.0, model="a_3", gpu="H200") for variant in ("eager", "compiled", "ort")]
    results, _ = handmade.run(*rows)
    seconds = pl.DataFrame(
        [("eager", "open", 1.0), ("eager", "open", 2.0), ("eager", "load", 1.0), ("ort", "open", 0.5)],
        schema=["engine", "phase", "seconds"],
        orient="row",
    )
    text = page(results.with_columns(FAMILY), seconds, job=7)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["ort", "5", "1", "4", "80"] in lines
    assert next(line for line in lines if line[2] == "Foo")[:5] == ["ort", "failed", "Foo", "1", "b_1"]
    assert ["a", "3", "2.52", "1.59", "1.59", "compiled", "1.00 (0.99–1.01)"] in lines
    assert next(line[:6] for line in lines if line[0] == "c") == ["c", "1", "4.00", "1.00", "2.00", "compiled"]
    assert "The other 2 of the job's 7 models have not been measured yet." in text
    assert ["all", "2.00", "0.50"] in lines
    assert ["a", "a_3", "1.00", "1.00", "1.00"] in lines
    assert ["b", "b_1", "1.00", "3.00", "failed"] in lines


def test_a_page_grows_by_the_models_that_a_cut_off_run_measured_whole():
    def rows(*cells: tuple[str, str, float]) -> pl.DataFrame:
        return pl.DataFrame(cells, schema=["model", "variant", "ms"], orient="row")

    cut_off = rows(("a", "eager", 1.0), ("a", "ort", 2.0), ("b", "eager", 3.0))
    assert whole(cut_off).rows() == [("a", "eager", 1.0), ("a", "ort", 2.0)]
    page = rows(("a", "eager", 9.0), ("a", "ort", 9.0), ("c", "eager", 4.0))
    assert added(page, whole(cut_off)).rows() == [("c", "eager", 4.0), ("a", "eager", 1.0), ("a", "ort", 2.0)]
