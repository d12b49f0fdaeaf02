"""What enters: the planned Cases. What leaves: a journal of Results, one forked process a Case, one at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from profiler.case import Budget, Case
from profiler.environment import Target
from profiler.plan import estimate_seconds
from profiler.prepare import failure, prepare
from profiler.process import Call, Child, Outcome
from profiler.result import Result
from profiler.store import RunFolder
from profiler.task import Task
from profiler.telemetry import Poller, Readings, throttle_reasons

_TICK_SECONDS = 0.2


class Display(Protocol):
    """What a run tells of its progress."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Called a few times a second while models are prepared."""

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        """Called a few times a second while a case runs."""

    def ended(self, case: Case, result: Result) -> None:
        """Called once a case has ended."""


def run_cases(
    cases: Sequence[Case], run: RunFolder, budget: Budget, target: Target, path: tuple[str, ...], display: Display
) -> None:
    """Prepare and measure every case; each Result is in the journal before the next case starts."""
    for case in cases:
        if case.unsupported is not None:
            run.append(Result(case.id, "unsupported", case.unsupported))
    waiting = [case for case in cases if case.unsupported is None]
    prepared = prepare(waiting, budget, run.logs, path, display.preparing)
    pace = _Pace(waiting, budget)
    for number, case in enumerate(waiting):

        def tick(phase: str, case: Case = case, number: int = number) -> None:
            display.measuring(case, phase, number, len(waiting), pace.seconds_left(number))

        tick("start")
        why_not = failure(case, prepared[case.model])
        if why_not is not None:
            result = Result(case.id, *why_not)
        else:
            task = Task(case, prepared[case.model], budget, target.gpu.uuid if target.gpu else None)
            result = measure_one(task, run.logs, path, tick)
        run.append(result)
        pace.ended(number, sum(result.phases.values()))
        display.ended(case, result)


def measure_one(task: Task, logs: Path, path: tuple[str, ...], tick: Callable[[str], None]) -> Result:
    """One case in a process of its own, watched from here: its phases, its limits, and the device's telemetry."""
    log = logs / f"{task.case.id.replace('/', '-')}.log"
    environment = {"CUDA_VISIBLE_DEVICES": task.gpu or ""}
    call = Call(
        "profiler.worker:measure_case", task, log, task.budget.timeout, task.budget.build_timeout, environment, path
    )
    poller, readings = Poller(task.gpu), Readings()
    before = poller.memory_mib()
    child = Child(call)
    try:
        while (outcome := child.poll(_TICK_SECONDS)) is None:
            if child.phase not in ("check", "end"):  # The checks open a second session, and none of it is the case's.
                poller.read(readings, busy=child.phase == "measure")
            tick(child.phase)
    finally:
        child.kill()
    result = _result(task.case, outcome)
    _add_readings(result, readings, before)
    if log.exists() and not log.stat().st_size:
        log.unlink()
    return result


def _result(case: Case, outcome: Outcome) -> Result:
    if isinstance(outcome.value, Result):
        result = outcome.value
    else:
        result = Result(case.id, outcome.status, outcome.reason, samples=outcome.partial.get("samples", {}))
    result.phases = outcome.seconds
    return result


def _add_readings(result: Result, readings: Readings, before: float | None) -> None:
    """Telemetry's medians, and the device memory's peak where a poll saw more than the boundaries did."""
    for name in ("power_w", "sm_clock_mhz", "temperature_c"):
        values = getattr(readings, name)
        result.telemetry[name] = statistics.median(values) if values else None
    if readings.power_w:
        reasons = throttle_reasons(readings.reasons)
        result.telemetry["throttled"] = bool(reasons)
        result.warnings += [f"throttled: {reason}" for reason in reasons]
    peak = result.memory.get("peak_memory_mib")
    if readings.memory_mib and before is not None and peak is not None and result.memory.get("context_mib") is not None:
        seen = max(readings.memory_mib) - before
        if seen > peak:
            result.memory["peak_memory_mib"] = seen
            result.memory["other_mib"] = (result.memory.get("other_mib") or 0.0) + seen - peak


class _Pace:
    """How long the rest takes: the plan's estimates, scaled by how the cases so far compared with theirs."""

    def __init__(self, cases: Sequence[Case], budget: Budget) -> None:
        self._estimates = [estimate_seconds(case, budget) for case in cases]
        self._spent = 0.0
        self._expected = 0.0

    def ended(self, number: int, seconds: float) -> None:
        self._spent += seconds
        self._expected += self._estimates[number]

    def seconds_left(self, number: int) -> float:
        scale = self._spent / self._expected if self._expected and self._spent else 1.0
        return scale * sum(self._estimates[number:])
