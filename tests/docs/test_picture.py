"""The README's picture shows what the published results hold; docs/results/README.md says how it is made."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
BAR = re.compile(
    r'aria-label="[^"]*: (?P<speedup>[\d.]+); configuration: (?P<configuration>[^;]+); side: (?P<model>[^;]+);'
)


def test_the_picture_shows_the_published_speedups() -> None:
    drawn = {}
    for bar in BAR.finditer((RESULTS / "vit-and-resnet50.svg").read_text()):
        drawn[bar["model"], bar["name"]] = float(bar["speedup"])
    published = {}
    for folder, model in (("h200", "resnet50"), ("h200-vit", "vit-base")):
        rows = pl.read_parquet(RESULTS / folder / "results.parquet").filter(model=model, batch_size=16, status="ok")
        ms = {f"{row['variant']} {row['precision']}": row["latency_ms"] for row in rows.to_dicts()}
        base = ms["eager fp32"]
        published |= {(model, name): base / own for name, own in ms.items() if not name.endswith("bf16")}
    assert len(drawn) == 30
    assert drawn == pytest.approx(published)
