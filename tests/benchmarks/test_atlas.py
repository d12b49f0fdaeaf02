"""The atlas: its job's shares, and its page made of rows by hand."""

from __future__ import annotations

from pathlib import Path

import handmade
import polars as pl
import pytest

from benchmarks.atlas import ROOT, operator, page, part, shares
from profiler.job.config import load_config

FAMILY = pl.col("model").str.split("_").list.first().alias("family")
LACKING = "Fail: NOT_IMPLEMENTED: Could not find an implementation for Foo(20) node with name 'node_foo'"


def test_the_job_has_the_names_and_every_device_a_share() -> None:
    models = [entry.name for entry in load_config(ROOT / "examples" / "atlas.yaml").models]
    assert len(set(models)) == len(models) >= 120
    parts = shares(models, ["cuda:0", "cuda:1"])
    assert sorted(name for part in parts.values() for name in part) == sorted(models)
    assert shares([0], ["cuda:0", "cuda:1"]) == {"cuda:0": [0], "cuda:1": [0]}


def test_parts_are_all_of_it_and_a_part_that_there_is_not_is_refused() -> None:
    assert [list("abcde")[part(text)] for text in ("1/2", "2/2", "1/1")] == [["a", "c", "e"], ["b", "d"], list("abcde")]
    for wrong in ("0/2", "3/2", "1", "1/2/3", "a/b"):
        with pytest.raises(ValueError):
            part(wrong)


def test_a_reason_s_operator() -> None:
    assert operator(LACKING) == "Foo"
    assert operator("model 'm': the export failed: no conversion of aten.foo.default") == "aten.foo"
    assert operator("model 'm': no luck (at all)") == "no luck"


def test_the_page_says_what_fails_what_is_fastest_and_what_a_cell_took(tmp_path: Path) -> None:
    rows = [
        handmade.row(variant, "fp16", ms, model=model, gpu="H200", reason=None if ms else LACKING)
        for model, times in {"a_1": (4.0, 1.0, 2.0), "a_2": (4.0, 4.0, 2.0), "b_1": (1.0, 3.0, None)}.items()
        for variant, ms in zip(("eager", "compiled", "ort"), times, strict=True)
    ]
    for variant, warnings in {
        "eager": [],
        "compiled": ["disturbed: by others", "inaccurate: by much"],
        "ort": [],
    }.items():
        rows.append(handmade.row(variant, "fp16", 1.0, model="a_3", gpu="H200", warnings=warnings))
    results, _ = handmade.run(*rows)
    seconds = pl.DataFrame(
        [("eager", "open", 1.0), ("eager", "open", 2.0), ("eager", "load", 1.0), ("ort", "open", 0.5)],
        schema=["engine", "phase", "seconds"],
        orient="row",
    )
    text = page(results.with_columns(FAMILY), seconds)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["ort", "4", "1", "3", "75"] in lines
    assert next(line for line in lines if line[0] == "inaccurate")[:5] == ["inaccurate", "0", "1", "0", "a_3"]
    assert next(line for line in lines if line[2] == "Foo")[:5] == ["ort", "failed", "Foo", "1", "b_1"]
    assert ["a", "2", "4.00", "2.00", "2.00", "compiled", "1.00"] in lines
    assert "Left out: 1 model with a row that was disturbed." in text
    assert ["all", "2.00", "0.50"] in lines
    assert ["a", "a_3", "1.00", "1.00 B", "1.00"] in lines
    assert ["b", "b_1", "1.00", "3.00", "failed"] in lines
