"""Reports of the golden H200 run and of the hostile one, made once, and small runs made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from profiler.report.command import Report, compose, page
from profiler.report.data import Data, gather
from profiler.results.columns import LAYERS, RESULTS
from profiler.results.reading import read_runs

H200 = Path(__file__).resolve().parents[2] / "golden" / "h200"
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write rows as a run's folder."""

    def write(*rows: dict[str, Any], name: str = "run", layers: Any = None, **environment: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        table = pl.DataFrame([{key: r.get(key) for key in RESULTS} for r in rows], schema=RESULTS)
        table.write_parquet(folder / "results.parquet")
        if layers:
            pl.DataFrame(layers, schema=LAYERS).write_parquet(folder / "layers.parquet")
        (folder / "environment.json").write_text(json.dumps({"cpu": "a CPU", "device": "cpu", **environment}))
        return folder

    return write


@pytest.fixture
def gathered(save: Save) -> Callable[..., Data]:
    def read(*rows: dict[str, Any], **more: Any) -> Data:
        return gather(read_runs([save(*rows, **more)]))

    return read


@pytest.fixture(scope="session")
def h200_report() -> Report:
    return compose(gather(read_runs([H200])))


@pytest.fixture(scope="session")
def h200(h200_report: Report) -> str:
    """The page."""
    return page(h200_report)


@pytest.fixture(scope="session")
def hostile_report(hostile_run: Path) -> Report:
    return compose(gather(read_runs([hostile_run])))


@pytest.fixture(scope="session")
def hostile(hostile_report: Report) -> str:
    """The page."""
    return page(hostile_report)
