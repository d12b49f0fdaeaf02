"""Rules for tests marked `gpu`: without a GPU they are skipped; with one, a run in which none of them ran fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.telemetry import visible_gpus

ROOT = Path(__file__).resolve().parent.parent
Profiler = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def profiler() -> Profiler:
    """`profiler("job.yaml", cwd=folder)` runs `python -m profiler job.yaml` there, as a user would."""

    def run(*arguments: str, cwd: Path, timeout: float = 250, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        return subprocess.run(
            [sys.executable, "-m", "profiler", *arguments],
            cwd=cwd,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail if there is no GPU or no gpu test ran")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not visible_gpus() and not config.getoption("--require-gpu"):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU answers"))


class _GpuTestsRan:
    def __init__(self, config: pytest.Config) -> None:
        self.required = bool(config.getoption("--require-gpu"))
        self.collected = self.ran = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = sum(item.get_closest_marker("gpu") is not None for item in session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and "gpu" in report.keywords and report.outcome != "skipped":
            self.ran += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        expected = self.required or (self.collected and visible_gpus())
        if expected and not self.ran and session.exitstatus in (0, 5):
            print("\nA GPU is there (or was required), and no test marked gpu ran.")
            session.exitstatus = 1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
    config.pluginmanager.register(_GpuTestsRan(config))
