"""Rules for tests marked `gpu`: without a GPU they are skipped; with one, a run in which none of them ran fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from profiler.nvml import visible_gpus

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


HOSTILE = {
    "resnet18": "<script>window.hacked=1</script>",
    "resnet50": "</script><img src=x onerror=window.hacked=1> `|*_\\ & \"'",
    "alexnet": "${window.hacked=1}{{hacked}} <!-- datum.x]]> \u2028 var(--ink) 網路",
}
"""Names that a page, a specification of a chart or a Markdown file could take for its own."""


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden H200 run with hostile names, an engine's label, a reason and a warning among them."""
    folder, golden = tmp_path_factory.mktemp("hostile"), ROOT / "tests" / "golden" / "h200"
    evil = HOSTILE["resnet18"]
    results = pl.read_parquet(golden / "results.parquet").with_columns(
        pl.col("model").replace(HOSTILE), variant=pl.col("variant").replace("ort", f'"><b onload=1>{evil}')
    )
    failed = results["precision"] == "tf32"
    results = results.with_columns(
        status=pl.when(failed).then(pl.lit("failed")).otherwise("status"),
        reason=pl.when(failed).then(pl.lit(f"it said {evil}")),
        warnings=pl.lit([f"{evil}: odd"], pl.List(pl.String)),
        gpu=pl.lit(f"GPU {evil}"),
    )
    results.write_parquet(folder / "results.parquet")
    (folder / "samples.parquet").write_bytes((golden / "samples.parquet").read_bytes())
    (folder / "bench.yaml").write_text(f"models: ['{evil}']  # ```\n")
    return folder


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
