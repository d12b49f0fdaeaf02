"""Real processes that end while they measure or close a session, and the rows of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hanging import end_once

from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.processes.holders import Holders
from profiler.results.result import Result
from profiler.run.prepare import prepare
from profiler.run.supervisor import Supervisor
from profiler.run.watch import Quiet, Watcher
from profiler.worker.task import Prepared, Task

pytestmark = pytest.mark.slow

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
    "SIGABRT": "ended by SIGABRT in phase end",
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
        with Holders() as holders:
            return prepare([case(1)], BUDGET, folder, (str(folder),), lambda *_: None, holders)["net"]


@pytest.fixture(params=[("FREEING", "SIGABRT"), *(("CLOSING", how) for how in ENDS)], ids="-".join)
def warning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Sessions end their process so; the warning that is due."""
    variable, how = request.param
    monkeypatch.setenv(variable, how)
    if how == "hang":
        monkeypatch.setenv("HANGS", str(tmp_path))
        end_once(lambda child: (tmp_path / str(child.process.pid)).exists(), monkeypatch)
    return f"unclosed: {ENDS[how]}"


Measured = Callable[[int], Result]


@pytest.fixture
def measured(folder: Path, prepared: Prepared, alone: Quiet) -> Measured:
    """Measure the case of a batch size."""

    def measured(batch: int) -> Result:
        with Watcher(None, folder / "telemetry.csv", folder / "telemetry.log") as watcher:
            supervisor = Supervisor(folder, (str(folder),), watcher, alone, Holders())
            return supervisor.measure_one(Task(case(batch), prepared, BUDGET), lambda phase: None, math.inf)

    return measured


def test_a_row_outlives_a_session_that_cannot_be_closed(measured, warning):
    result = measured(2)
    assert (result.status, result.reason) == ("ok", None)
    # Without the line of code that an error names.
    told = [str(each).partition(" at /")[0] for each in result.warnings if each.kind == "unclosed"]
    assert told == [warning]
    assert result.samples["host"]
    assert result.figures["rel_l2_error"] is not None
    assert result.phases.keys() >= {"load", "measure", "check", "end"}


def test_a_case_that_failed_keeps_its_reason_where_freeing_what_it_left_aborts(measured, folder, monkeypatch):
    monkeypatch.setenv("FAILING_BATCH", "4")
    result = measured(4)
    assert result.status == "failed"
    assert str(result.reason).startswith("RuntimeError: cannot compute at /")
    assert result.log == f"{folder.name}/net,eager,inference,fp32,b4,r0.log"


VANISHING = """
import os, shutil, sys
from pathlib import Path
from torch import nn

class Net(nn.Linear):
    '''Spoils a folder in the first case that is measured.'''

    def forward(self, x):
        frame = sys._getframe()
        while frame and frame.f_code.co_name != "measure_case":
            frame = frame.f_back
        if frame and not (self.root / "spoilt").exists():
            (self.root / "spoilt").touch()
            if self.spoiling == "truncated":
                for file in (self.root / "cache").glob("*/*.*"):
                    os.truncate(file, 0)
            else:
                shutil.rmtree(self.root / self.spoiling)
        return super().forward(x)

def net(root, spoiling):
    made = Net(8, 4)
    made.root, made.spoiling = Path(root), spoiling
    return made
"""
VANISHING_JOB = """
models: [{{name: net, factory: "vanishing:net", input: [8], options: {{root: "{}", spoiling: {}}}}}]
engines: [eager, ort]
device: cpu
budget: {{seconds: 0.02, min_samples: 3, repeats: 0}}
exclude: [{{replicate: [1, 2]}}]
"""


@pytest.mark.parametrize("spoiling", ["cache", "truncated", "results"])
def test_what_vanishes_during_a_run_is_made_again_or_ends_it_in_a_sentence(profiler, tmp_path, spoiling):
    (tmp_path / "vanishing.py").write_text(VANISHING)
    (tmp_path / "job.yaml").write_text(VANISHING_JOB.format(tmp_path, spoiling))
    done = profiler("job.yaml", cwd=tmp_path, PROFILER_CACHE=str(tmp_path / "cache"))
    assert (tmp_path / "spoilt").exists()
    assert "Traceback" not in done.stderr
    if spoiling == "results":
        assert done.returncode == 2, done.stderr
        assert "was removed while the run measured into it; start a new run" in done.stderr
        return
    (path,) = (tmp_path / "results").glob("*/results.parquet")
    assert {row["variant"]: (row["status"], row["reason"]) for row in pl.read_parquet(path).to_dicts()} == {
        "eager": ("ok", None),
        "ort": ("ok", None),
    }
    assert "prepared again, since the cache lost files" in done.stdout + done.stderr
