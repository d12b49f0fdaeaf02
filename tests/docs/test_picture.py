"""The README's picture and output come from the published results."""

from __future__ import annotations

import io
import re
from pathlib import Path

import polars as pl
from rich.console import Console

from benchmarks import picture
from profiler.results.cells import cells
from profiler.results.reading import read_runs
from profiler.run.summary import print_results

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_shows_the_picture_and_what_a_run_prints():
    drawn = (picture.RESULTS / "speedups.svg").read_text()
    assert drawn == picture.svg(), "draw it again: PYTHONPATH=. python benchmarks/picture.py"
    rows = picture.best()
    assert len(rows) == len(picture.COLORS) * len(picture.MODELS)
    assert all(f">{round(factor, 1)}×<" in drawn for factor in rows["factor"])
    page, printed = (ROOT / "README.md").read_text(), io.StringIO()
    assert "docs/results/speedups.svg" in page
    for place, model, batch, width in (
        ("h200", "resnet50", 16, 80),
        ("suites/2-core-epyc/cloud-gpus", "resnet50", 16, 80),
    ):
        results = read_runs([picture.RESULTS / place]).results.collect()
        kept = [pl.col("model") == model, pl.col("pass") == "inference", pl.col("batch_size") == batch]
        console = Console(file=printed, width=width)
        print_results(console, results.filter(kept), cells(results, by=()).filter(kept))
    (section,) = re.findall(r"## What it prints\n(.*?)\n## ", page, re.DOTALL)
    shown = {line.rstrip() for block in section.split("```")[1::2] for line in block.splitlines()}
    assert len(shown) > 12 and shown <= {line.rstrip() for line in printed.getvalue().splitlines()}
    assert "docs/results/terminal.svg" in page
    assert (picture.RESULTS / "terminal.svg").read_text() == picture.terminal()
