"""The README's picture and output are of the published results; docs/results/README.md says how the picture is made."""

from __future__ import annotations

import io
import re
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from benchmarks import publish
from profiler.results.cells import cells
from profiler.results.reading import read_runs
from profiler.run.summary import print_results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
SHOWN = {"h200": "resnet50", "h200-vit": "vit-base"}
"""By folder the model that the README shows, at batch 16."""
DOT = re.compile(
    r'aria-label="factor: (?P<factor>[\d.]+); model: (?P<model>[^;]+); '
    r'Engine: (?P<variant>[^;]+); Precision: (?P<precision>[^;"]+)"'
)


def test_the_picture_shows_the_published_speedups(tmp_path: Path) -> None:
    publish.draw([RESULTS / folder for folder in SHOWN], tmp_path / "drawn.svg")
    picture = (RESULTS / "speedups.svg").read_text()
    assert picture == (tmp_path / "drawn.svg").read_text(), "draw it again: docs/results/README.md says how"
    drawn = {}
    for dot in DOT.finditer(picture):
        drawn[dot["model"], f"{dot['variant']} {dot['precision']}"] = float(dot["factor"])
    published = {}
    for folder in SHOWN:
        rows = pl.read_parquet(RESULTS / folder / "results.parquet").filter(batch_size=16, status="ok").to_dicts()
        ms = {(row["model"], f"{row['variant']} {row['precision']}"): row["latency_ms"] for row in rows}
        published |= {case: ms[case[0], "eager fp32"] / own for case, own in ms.items() if not case[1].endswith("bf16")}
    assert len(published) == 14 * 15
    assert drawn == pytest.approx(published)


def test_the_readme_shows_the_picture_and_what_a_run_prints() -> None:
    page, printed = (ROOT / "README.md").read_text(), io.StringIO()
    assert "docs/results/speedups.svg" in page
    for folder, model in SHOWN.items():
        results = read_runs([RESULTS / folder]).results.filter(model=model, batch_size=16).collect()
        print_results(Console(file=printed, width=80), results, cells(results))
    (output,) = re.findall(r"## What it prints\n.*?```\n(.*?)```", page, re.DOTALL)
    assert {line.rstrip() for line in output.splitlines()} - {" …"} <= {
        line.rstrip() for line in printed.getvalue().splitlines()
    }
