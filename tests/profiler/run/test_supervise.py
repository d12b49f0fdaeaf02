"""Real processes that end while they measure or close a session, and the rows that their parent makes of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hanging import end_once

from exporters.source import ModelSource
from profiler.job.case import Budget, Case, Role
from profiler.processes.messages import Outcome
from profiler.processor import read
from profiler.results.result import Result
from profiler.run import supervise
from profiler.run.prepare import prepare
from profiler.run.quiet import Quiet
from profiler.run.supervise import Supervisor
from profiler.run.telemetry import Watcher
from profiler.worker.task import FirstCall, Prepared, Task

FACTORY = """
import os
import signal
import time
from pathlib import Path

from torch import nn

from engines.pytorch.eager import EagerSession


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
        time.sleep(float(os.environ.get("SLOW", 0)))
        return super().forward(x)


def net():
    '''In a process that builds this network a session ends it when it is freed or closed, as ONNX Runtime's can.'''
    if freeing := os.environ.get("FREEING"):
        EagerSession.__del__ = lambda session: end(freeing)
    if closing := os.environ.get("CLOSING"):
        EagerSession.close = lambda session: end(closing)
    if "REBATCH" not in os.environ and hasattr(EagerSession, "rebatch"):
        del EagerSession.rebatch  # So that every batch of a sweep has a session of its own.
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROFILER_CACHE", str(folder / "cache"))
        return prepare([case(1, Role.CELL)], BUDGET, folder, (str(folder),), lambda *_: None)["net"]


@pytest.fixture(params=[("FREEING", "SIGABRT"), *(("CLOSING", how) for how in ENDS)], ids="-".join)
def warning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Sessions end their process so; the warning that is due."""
    variable, how = request.param
    monkeypatch.setenv(variable, how)
    if how == "hang":
        monkeypatch.setenv("HANGS", str(tmp_path))
        end_once(lambda child: (tmp_path / str(child.process.pid)).exists(), monkeypatch)
    return f"unclosed: {ENDS[how]}"


def sweep(folder: Path, prepared: Prepared, alone: Quiet, batches: Sequence[int] = (1, 2, 4)) -> list[Result]:
    tasks = [Task(case(batch, Role.SWEEP), prepared, BUDGET) for batch in batches]
    results: list[Result] = []
    with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
        Supervisor(folder, (str(folder),), watcher, alone).measure_sweep(
            tasks, lambda ended, what: None, results.append
        )
    assert [result.case_id.batch_size for result in results] == list(batches)
    return results


def closing_warnings(result: Result) -> list[str]:
    """Without the line of code that an error names."""
    return [str(warning).partition(" at /")[0] for warning in result.warnings if warning.kind == "unclosed"]


def test_a_row_outlives_a_session_that_cannot_be_closed(
    folder: Path, prepared: Prepared, warning: str, alone: Quiet
) -> None:
    task = Task(case(2, Role.CELL), prepared, BUDGET)
    with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
        result = Supervisor(folder, (str(folder),), watcher, alone).measure_one(task, lambda phase: None)
    assert (result.status, result.reason) == ("ok", None)
    assert closing_warnings(result) == [warning]
    assert result.samples["host"]
    assert result.figures["rel_l2_error"] is not None
    assert result.phases.keys() >= {"load", "measure", "check", "end"}


def test_a_batch_is_not_lost_when_the_session_before_it_cannot_be_closed(
    folder: Path, prepared: Prepared, warning: str, alone: Quiet
) -> None:
    results = sweep(folder, prepared, alone)
    assert [(result.status, result.reason) for result in results] == [("ok", None)] * 3
    assert [closing_warnings(result) for result in results] == [[warning]] * 3


def test_a_session_that_took_every_batch_is_closed_after_the_last(
    folder: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, warning: str, alone: Quiet
) -> None:
    monkeypatch.setenv("REBATCH", "yes")
    results = sweep(folder, prepared, alone)
    assert [result.status for result in results] == ["ok"] * 3
    assert [closing_warnings(result) for result in results] == [[], [], [warning]]


def test_a_batch_that_failed_keeps_its_reason_where_freeing_what_it_left_aborts(
    folder: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, alone: Quiet
) -> None:
    monkeypatch.setenv("FAILING_BATCH", "4")
    results = sweep(folder, prepared, alone, (1, 4, 8))
    assert [result.status for result in results] == ["ok", "failed", "ok"]
    assert str(results[1].reason).startswith("RuntimeError: cannot compute at /")
    assert results[1].log == f"{folder.name}/net-eager-inference-fp32-r0-sweep.log"
    assert closing_warnings(results[1]) == ["unclosed: ended by SIGABRT while closing the session"]


def test_a_shape_that_was_not_timed_says_why_beside_one_that_was(
    folder: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, alone: Quiet
) -> None:
    monkeypatch.setenv("FAILING_BATCH", "4")
    monkeypatch.setattr(alone, "busy", lambda: None)
    timed, *failed = first_calls(folder, prepared, alone, 1, 2, 4, 8)
    assert timed.ms or timed.why_not.startswith("it took ")  # Where this machine is busy.
    assert all(call.ms is None and "cannot compute" in call.why_not for call in failed)


def first_calls(folder: Path, prepared: Prepared, alone: Quiet, *batches: int) -> list[FirstCall]:
    tasks = [Task(case(batch, Role.CELL), prepared, BUDGET) for batch in batches]  # A batch is a shape, too.
    with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
        found = Supervisor(folder, (str(folder),), watcher, alone).first_calls(tasks)
    assert list(found) == [task.case.id for task in tasks[1:]]
    return list(found.values())


@pytest.mark.usefixtures("busy_processors")
@pytest.mark.skipif(read().since(read()).others is None, reason="nothing is known of other processes here")
def test_a_first_call_beside_other_work_is_no_figure(
    folder: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, alone: Quiet
) -> None:
    monkeypatch.setenv("SLOW", "0.5")  # The kernel's counts may be 0.1 s late.
    [call] = first_calls(folder, prepared, alone, 1, 2)
    assert call.ms is None
    assert re.fullmatch(r"not timed: other processes took \d+ % of .*", call.why_not)
    monkeypatch.setattr(alone, "busy", lambda: None)  # As where the other work begins later.
    [call] = first_calls(folder, prepared, alone, 1, 2)
    assert call.ms is None
    assert re.fullmatch(r"it took [\d,.]+ ms while other processes took \d+ % of .*", call.why_not)


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (Outcome("ok"), "failed", "its process ended without a result"),
        (Outcome("crashed", "wrote what is no message", phase="end"), "crashed", "wrote what is no message"),
    ],
)
def test_a_process_that_measured_no_batch_is_a_row_and_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Quiet, outcome: Outcome, status: str, reason: str
) -> None:
    monkeypatch.setattr(supervise, "run_one", lambda call, look: outcome)
    found = sweep(tmp_path, Prepared(), alone)
    assert [(result.status, result.reason) for result in found] == [(status, reason)] * 3
