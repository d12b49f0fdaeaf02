"""Measure the batches of a sweep in one process, and report each as it ends.

The model is loaded once and given one batch after another, where its engine can do that; elsewhere it is opened again
in the same process. A batch that does not fit is a row, its memory is freed, and the next batch runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from dataclasses import replace

import torch

import engines
from engines.base import Phase, Rebatchable, Session
from profiler.processes.messages import CaseEnded, Entered, Message, Report, Salvage, Status
from profiler.processes.process import explain
from profiler.results.result import Result, result_of
from profiler.results.warning_kinds import doubting
from profiler.worker.measure_case import Bench, Phases, open_bench, take_figures
from profiler.worker.task import Task, check_inputs, make_job


def measure_batches(tasks: Sequence[Task], report: Report) -> None:
    """Measure one batch after another.

    Returns early after an error that may have left the process unfit (a CUDA error does): the caller starts another.
    """
    process = _Process(report)
    for task in tasks:
        report(Entered(Phase.OPEN))
        error = process.measure(task)
        # Should the device hang or the process die from here on, this batch did it, not the next one.
        if not process.is_ready_for_another(task, error):
            return
    process.close()


class _Process:
    """What lives from batch to batch: the session, and what the process measures with."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._bench: Bench | None = None
        self._session: Session | None = None

    def measure(self, task: Task) -> Status | None:
        """Measure a batch and report its Result, before anything is freed; how it ended if an error did it."""
        salvage = None

        def report(message: Message) -> None:
            nonlocal salvage
            if isinstance(message, Salvage):
                salvage = message.value
            self._report(message)

        try:
            result = self._measure(task, report)
        except Exception as error:
            outcome = explain(error)
            outcome.salvage = salvage
            self._report(CaseEnded(result_of(task.case.id, outcome)))
            return outcome.status
        self._report(CaseEnded(result))
        return None

    def is_ready_for_another(self, task: Task, error: Status | None) -> bool:
        """Free what the next batch cannot use; whether there may be one."""
        if error is None:
            if not isinstance(self._session, Rebatchable):
                self.close()
            return True
        with contextlib.suppress(Exception):  # The session may be in any state.
            self.close()
        return error == "unsupported" or (error == "oom" and self._recovers(task))

    def close(self) -> None:
        """Close and free the session, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        del session
        gc.collect()
        if torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()

    def _measure(self, task: Task, report: Report) -> Result:
        phases = Phases(report)
        check_inputs(task)
        if self._bench is None:
            self._bench = open_bench(task, phases, report)
        bench = replace(self._bench, report=report, phases=phases)
        bench.clock.forget()
        phases.enter(Phase.LOAD)
        job = make_job(task, phases.enter, bench.device.read)
        rebatched = isinstance(self._session, Rebatchable)
        if isinstance(self._session, Rebatchable):
            self._session.rebatch(job)
        else:
            self._session = engines.open_session(task.case.engine, job)
        result = take_figures(task, job, self._session, bench)
        if rebatched:
            result.figures["load_s"] = None  # Nothing was loaded.
        # Its rows have no figures of memory: its process holds what other batches left.
        result.warnings = [warning for warning in result.warnings if warning.kind not in doubting("memory")]
        return result

    def _recovers(self, task: Task) -> bool:
        """Whether the device works after memory ran out: a CUDA graph's recording that broke off may have harmed it."""
        if task.case.device == "cpu":
            return True
        try:
            torch.cuda.synchronize()
            return bool((torch.ones(1, device="cuda") + 1).item() == 2)
        except RuntimeError:
            return False
