"""What is made of the golden H200 run, and of the hostile one, once for all tests of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.report.data import Data, gather
from profiler.report.page import page
from profiler.report.sections import Report, compose
from profiler.results.reading import read_runs

H200 = Path(__file__).resolve().parents[2] / "golden" / "h200"


@pytest.fixture(scope="session")
def h200_data() -> Data:
    return gather(read_runs([H200]))


@pytest.fixture(scope="session")
def h200_report(h200_data: Data) -> Report:
    return compose(h200_data)


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
