"""The tables of a run's folder, from small runs made by hand."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from handmade import row, run

from profiler.results import run_tables
from profiler.results.cells import cells
from profiler.results.reading import load


@pytest.fixture
def written(tmp_path: Path) -> Path:
    frames = run(
        row("eager", ms=6.123456789, warnings=["outliers: 3", "host-bound: a; b"]),
        row("ort", ms=3.0, rel_l2_error=3.2e-7, peak_memory_mib=123.4),
        row("ort", "tf32", ms=None, status="unsupported", reason="no TF32"),
        row("compiled", ms=None, reason="expected Tensor | None,\nwhich is a long story: " + "x" * 1500),
    )
    run_tables.write_tables(tmp_path / "tables", frames[0], cells(frames[0]))
    return tmp_path / "tables"


def test_each_table_is_written_as_csv_and_as_markdown(written):
    names = {"latency", "memory", "speedup", "not-measured"}
    assert {path.name for path in written.iterdir()} == {f"{name}.{end}" for name in names for end in ("csv", "md")}


def test_csv_reads_back_with_all_digits(written):
    latency = pl.read_csv(written / "latency.csv")
    assert latency["latency_ms"].to_list() == [6.123456789, 3.0]
    assert latency["warnings"].to_list()[0] == "outliers: 3; host-bound: a; b"
    assert pl.read_csv(written / "memory.csv")["peak_memory_mib"].to_list() == [None, 123.4]
    speedup = pl.read_csv(written / "speedup.csv")
    assert speedup["factor"].to_list() == pytest.approx([1.0, 6.123456789 / 3])
    assert (speedup["factor_low"] <= speedup["factor"]).all() and (speedup["factor"] <= speedup["factor_high"]).all()
    assert speedup.select("base", "verdict").rows() == [("eager fp32", None), ("eager fp32", "faster")]
    assert speedup["footnotes"].to_list()[0] == "outliers; host-bound"
    assert pl.read_csv(written / "not-measured.csv")["status"].to_list() == ["unsupported", "failed"]


def parts(path: Path) -> list[list[str]]:
    """The Markdown's rows, its ruler left out."""
    rows = [text for text in path.read_text().splitlines() if text]
    return [
        [cell.strip() for cell in text.replace(r"\|", "¦").strip("|").split("|")]
        for i, text in enumerate(rows)
        if i != 1
    ]


@pytest.mark.parametrize(("name", "rows"), [("latency", 2), ("memory", 2), ("speedup", 2), ("not-measured", 2)])
def test_markdown_has_one_line_a_row_and_as_many_cells_as_the_head(written, name, rows):
    head, *body = parts(written / f"{name}.md")
    assert head == pl.read_csv(written / f"{name}.csv").columns
    assert len(body) == rows
    assert {len(one) for one in body} == {len(head)}


def test_layers_and_batch_sweeps_have_tables_of_their_own(tmp_path):
    layer = row("eager", model="L1", model_kind="layer", **{"pass": "training"}, forward_ms=1.0, machine="here")
    sweep = [row("eager", case_id=f"s{b}", batch_size=b, machine="here") for b in (1, 2, 4)]
    results, _ = run(layer, *sweep)
    run_tables.write_tables(tmp_path, results, cells(results))
    assert pl.read_csv(tmp_path / "layer-passes.csv")["layer"].to_list() == ["L1"]
    assert (tmp_path / "best-per-layer.md").is_file()
    assert pl.read_csv(tmp_path / "minibatch.csv")["batch_size"].to_list() == [1, 2, 4]
    assert (tmp_path / "minibatch-knees.csv").is_file()


def test_markdown_cuts_nothing_off(written):
    for path in written.glob("*.md"):
        assert "…" not in path.read_text()
    assert "x" * 1500 in (written / "not-measured.md").read_text()


def test_markdown_shows_a_small_error_as_what_it_is(written):
    head, _, ort = parts(written / "latency.md")
    assert float(ort[head.index("rel_l2_error")]) == pytest.approx(3.2e-7, rel=0.01)


def test_a_run_in_which_nothing_could_be_measured_has_its_tables_too(tmp_path):
    results, _ = run(row("ort", ms=None, reason="no"))
    run_tables.write_tables(tmp_path / "tables", results, cells(results))
    assert pl.read_csv(tmp_path / "tables" / "latency.csv").height == 0
    assert pl.read_csv(tmp_path / "tables" / "not-measured.csv").height == 1


def test_no_name_breaks_out_of_a_cell_of_markdown(hostile_run, tmp_path):
    results = load(hostile_run)[0].collect()
    run_tables.write_tables(tmp_path, results, cells(results))
    for path in tmp_path.glob("*.md"):
        rows = path.read_text().splitlines()
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1, path.name
        assert not re.search(r"(?<!\\)[<`*]", path.read_text()), path.name
