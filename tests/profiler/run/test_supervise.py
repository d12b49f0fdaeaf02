"""Real processes that end while they measure or close a session, and the rows that their parent makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hanging import end_once

from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.results.result import Result
from profiler.run.prepare import prepare
from profiler.run.quiet import Quiet
from profiler.run.supervise import Supervisor
from profiler.run.telemetry import Watcher
from profiler.worker.task import Prepared, Task

FACTORY = """
import os
import signal
import time
from pathlib import Path

from torch import nn

from engines.eager import EagerSession


def end(how):
    if how == "raise":
        raise RuntimeError("cannot close")
    if how == "hang":
        Path(os.environ["HANGS"], str(os.getpid())).touch()
        time.sleep(600)
    os.kill(os.getpid(), getattr(signal, how))


class EndsWhenFreed:
    def __del__(self):
        os.abort()


class Net(nn.Sequential):
    def forward(self, x):
        if len(x) == int(os.environ.get("FAILING_BATCH", 0)):
            held = EndsWhenFreed()
            raise RuntimeError("cannot compute")
        return super().forward(x)


def net():
    '''In a process that builds this network a session ends it when it is freed or closed, as ONNX Runtime's can.'''
    if freeing := os.environ.get("FREEING"):
        EagerSession.__del__ = lambda session: end(freeing)
    if closing := os.environ.get("CLOSING"):
        EagerSession.close = lambda session: end(closing)
    return Net(nn.Flatten(), nn.Linear(32, 3))
"""
ENDS = {
    "SIGABRT": "ended by SIGABRT while closing the session",
    "SIGSEGV": "ended by SIGSEGV while closing the session",
    "hang": "closing the session took more than 30 s",
    "raise": "RuntimeError: cannot close",
}
"""How a session ends its process, and the text of the warning."""
BUDGET = Budget(seconds=0.05, min_samples=3)


def case(batch: int) -> Case:
    source = ModelSource("net", factory="aborting_sessions:net", input_shape=(4, 8))
    return Case("net", "eager", "eager", "inference", "fp32", batch, "cpu", 0, source)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forkserver: None) -> Path:
    folder = tmp_path_factory.mktemp("supervise")
    (folder / "aborting_sessions.py").write_text(FACTORY)
    return folder


@pytest.fixture(scope="module")
def prepared(folder: Path) -> Prepared:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROFILER_CACHE", str(folder / "cache"))
        return prepare([case(1)], BUDGET, folder, (str(folder),), lambda *_: None)["net"]


@pytest.fixture(params=[("FREEING", "SIGABRT"), *(("CLOSING", how) for how in ENDS)], ids="-".join)
def warning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Sessions end their process so; the warning that is due."""
    variable, how = request.param
    monkeypatch.setenv(variable, how)
    if how == "hang":
        monkeypatch.setenv("HANGS", str(tmp_path))
        end_once(lambda child: (tmp_path / str(child.process.pid)).exists(), monkeypatch)
    return f"unclosed: {ENDS[how]}"


def closing_warnings(result: Result) -> list[str]:
    """Without the line of code that an error names."""
    return [str(warning).partition(" at /")[0] for warning in result.warnings if warning.kind == "unclosed"]


def test_a_row_outlives_a_session_that_cannot_be_closed(
    folder: Path, prepared: Prepared, warning: str, alone: Quiet
) -> None:
    task = Task(case(2), prepared, BUDGET)
    with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
        result = Supervisor(folder, (str(folder),), watcher, alone).measure_one(task, lambda phase: None)
    assert (result.status, result.reason) == ("ok", None)
    assert closing_warnings(result) == [warning]
    assert result.samples["host"]
    assert result.figures["rel_l2_error"] is not None
    assert result.phases.keys() >= {"load", "measure", "check", "end"}


def test_a_case_that_failed_keeps_its_reason_where_freeing_what_it_left_aborts(
    folder: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, alone: Quiet
) -> None:
    monkeypatch.setenv("FAILING_BATCH", "4")
    with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
        supervisor = Supervisor(folder, (str(folder),), watcher, alone)
        result = supervisor.measure_one(Task(case(4), prepared, BUDGET), lambda phase: None)
    assert result.status == "failed"
    assert str(result.reason).startswith("RuntimeError: cannot compute at /")
    assert result.log == f"{folder.name}/net-eager-inference-fp32-b4-r0.log"
