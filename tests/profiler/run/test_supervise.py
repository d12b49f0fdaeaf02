"""Real processes that end while they measure or close a session, and the rows that their parent makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporters.source import ModelSource
from profiler.job.case import Budget, Case, Role
from profiler.results.result import Result
from profiler.run.prepare import prepare
from profiler.run.supervise import Supervisor
from profiler.run.telemetry import Watcher
from profiler.worker.task import Prepared, Task

FACTORY = """
import os

from torch import nn

from engines.pytorch.eager import EagerSession


def abort(session):
    os.abort()


def net():
    '''In a process that builds this network a session aborts when it is freed, as ONNX Runtime's can.'''
    EagerSession.__del__ = abort
    if hasattr(EagerSession, "rebatch"):
        del EagerSession.rebatch  # So that every batch of a sweep has a session of its own.
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
"""
BUDGET = Budget(seconds=0.05, min_samples=3)


def case(batch: int, role: Role) -> Case:
    source = ModelSource("net", factory="aborting_sessions:net", input_shape=(4, 8))
    return Case("net", "eager", "eager", "inference", "fp32", batch, "cpu", 0, source, role=role)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forkserver: None) -> Path:
    folder = tmp_path_factory.mktemp("supervise")
    (folder / "aborting_sessions.py").write_text(FACTORY)
    return folder


@pytest.fixture(scope="module")
def prepared(folder: Path) -> Prepared:
    """Made by processes that leave by os._exit without closing their sessions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROFILER_CACHE", str(folder / "cache"))
        return prepare([case(1, Role.CELL)], BUDGET, folder, (str(folder),), lambda *_: None)["net"]


def test_a_row_outlives_a_session_that_aborts_when_it_is_freed(folder: Path, prepared: Prepared) -> None:
    task = Task(case(2, Role.CELL), prepared, BUDGET)
    with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
        result = Supervisor(folder, (str(folder),), watcher).measure_one(task, lambda phase: None)
    assert (result.status, result.reason) == ("ok", None)
    assert str(result.warnings[-1]) == "unclosed: ended by SIGABRT in phase end"
    assert result.samples["host"]
    assert result.figures["rel_l2_error"] is not None
    assert result.phases.keys() >= {"load", "measure", "check", "end"}


def test_a_batch_is_not_lost_when_the_session_before_it_aborts(folder: Path, prepared: Prepared) -> None:
    tasks = [Task(case(batch, Role.SWEEP), prepared, BUDGET) for batch in (1, 2, 4)]
    results: list[Result] = []
    with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
        Supervisor(folder, (str(folder),), watcher).measure_sweep(tasks, lambda ended, what: None, results.append)
    assert [(result.case_id.batch_size, result.status, result.reason) for result in results] == [
        (1, "ok", None),
        (2, "ok", None),
        (4, "ok", None),
    ]
    assert [str(result.warnings[-1]) for result in results] == ["unclosed: ended by SIGABRT in phase end"] * 3
