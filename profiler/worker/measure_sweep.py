"""What enters: the Tasks of one batch sweep, in a process of their own. What leaves: a Result a batch, as it ends.

The model is loaded once and given one batch after another, where its engine can do that; elsewhere it is opened anew in
the same process. A batch that does not fit is a row, its memory is freed, and the next batch runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

import engines
from engines.base import Rebatchable, Session
from profiler.processes.process import Report, explain
from profiler.results.result import Result
from profiler.results.warning_kinds import doubting
from profiler.run.supervise import result_of
from profiler.worker.measure_case import Bench, Phases, check_batch, make_job, open_bench, take_figures
from profiler.worker.task import Task


def measure_batches(tasks: Sequence[Task], report: Report) -> None:
    """Measure one batch after another, and report each as a "case".

    Returns early after a failure that may have left the process unfit (a CUDA error does): the caller starts another.
    """
    process = _Process(report)
    for task in tasks:
        result, sound = process.measure(task)
        report("case", result)
        if not sound:
            return


class _Process:
    """What lives from batch to batch: the session, and what the process measures with."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._bench: Bench | None = None
        self._session: Session | None = None

    def measure(self, task: Task) -> tuple[Result, bool]:
        """A batch's Result, and whether another one may follow."""
        partial: dict[str, Any] = {}

        def report(kind: str, value: Any) -> None:
            if kind not in ("phase", "progress"):
                partial[kind] = value
            self._report(kind, value)

        try:
            return self._measure(task, report), True
        except Exception as error:
            outcome = explain(error)
        # The error is gone by now, and with it the tensors in its frames.
        outcome.partial = partial
        self._close()
        sound = outcome.status == "unsupported" or (outcome.status == "oom" and self._recovers(task))
        return result_of(task.case, outcome), sound

    def _measure(self, task: Task, report: Report) -> Result:
        phases = Phases(report)
        check_batch(task)
        if self._bench is None:
            self._bench = open_bench(task, phases, report)
        bench = replace(self._bench, report=report)
        bench.clock.forget()
        phases.enter("load")
        job = replace(make_job(task, phases.enter, bench.device.read), engine=task.case.engine)
        rebatched = isinstance(self._session, Rebatchable)
        if isinstance(self._session, Rebatchable):
            self._session.rebatch(job)
        else:
            self._close()
            self._session = engines.open_session(task.case.engine, job)
        assert self._session is not None
        result = take_figures(task, job, self._session, bench, phases)
        if rebatched:
            result.seconds.load_s = None  # Nothing was loaded.
        # Its rows have no figures of memory: its process holds what other batches left.
        result.warnings = [warning for warning in result.warnings if warning.kind not in doubting("memory")]
        return result

    def _close(self) -> None:
        """Free the session, whatever state it is in."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()
        del session
        gc.collect()
        if torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()

    def _recovers(self, task: Task) -> bool:
        """Whether the device works after memory ran out: a CUDA graph's recording that broke off may have harmed it."""
        if task.case.device == "cpu":
            return True
        try:
            torch.cuda.synchronize()
            return bool((torch.ones(1, device="cuda") + 1).item() == 2)
        except RuntimeError:
            return False
