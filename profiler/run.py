"""What enters: the planned Cases. What leaves: a journal of Results, one forked process a Case, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from engines.catalog import ENGINES
from profiler.case import Budget, Case
from profiler.environment import Target
from profiler.plan import estimate_seconds
from profiler.prepare import failure, prepare
from profiler.process import Call, Child, Outcome, run_all
from profiler.result import Result
from profiler.roofline import Roofs, wanted
from profiler.store import RunFolder
from profiler.task import Task
from profiler.telemetry import Reading, Watcher, power_capped, slowdowns, summarize
from profiler.walltime import WallTime

_TICK_SECONDS = 0.2
_ROOF_SECONDS = 60.0
REMEASURED = "remeasured"
"""The warning of a row that was measured a second time."""


class Display(Protocol):
    """What a run tells of its progress."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Called a few times a second while models are prepared."""

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        """Called a few times a second while a case runs."""

    def ended(self, case: Case, result: Result) -> None:
        """Called once a case has ended."""


class Runner:
    """Measures the cases of one run; `wall` tells what the time went into.

    `path` are folders where a user's factories are found; `environment` gets the device's roofs, if it has none.
    """

    def __init__(
        self,
        run: RunFolder,
        budget: Budget,
        target: Target,
        display: Display,
        path: tuple[str, ...] = (),
        energy: bool = False,
        environment: dict[str, Any] | None = None,
        profile: bool = False,
    ) -> None:
        self.run, self.budget, self.target, self.display = run, budget, target, display
        self.path, self.energy, self.environment, self.profile = path, energy, environment, profile
        self.wall = WallTime()
        self._uuid = target.gpu.uuid if target.gpu else None

    def measure(self, cases: Sequence[Case]) -> None:
        """Prepare and measure every case; each Result is in the journal before the next case starts.

        Those measured while the card slowed down (for heat, or a hardware reason) are measured once more at the end.
        """
        for case in cases:
            if case.unsupported is not None:
                self.run.append(Result(case.id, "unsupported", case.unsupported))
        waiting = [case for case in cases if case.unsupported is None]
        with self.wall.span("prepare"):
            prepared = prepare(waiting, self.budget, self.run.logs, self.path, self.display.preparing)
        with self.wall.span("roofs"):
            roofs = self._roofs([case for case in waiting if failure(case, prepared[case.model]) is None])
        tasks = [
            Task(case, prepared[case.model], self.budget, self._uuid, self.energy, self.profile, roofs)
            for case in waiting
        ]
        pace = _Pace(waiting, self.budget)
        slowed: list[Task] = []
        with Watcher(self._uuid, self.run.path / "telemetry.csv", self.run.logs / "telemetry.log") as watcher:
            for number, task in enumerate(tasks):
                result = self._measure_one(task, watcher, number, len(tasks), pace.seconds_left(number))
                if result.telemetry.get("throttled"):
                    slowed.append(task)
                pace.ended(number, sum(result.phases.values()))
                self._keep(task.case, result)
            for number, task in enumerate(slowed):
                result = self._measure_one(task, watcher, number, len(slowed), 0.0)
                # A second time that failed is no reason to lose the first.
                if result.status == "ok":
                    result.warnings.append(f"{REMEASURED}: first taken while the card slowed down")
                    self._keep(task.case, result)

    def _measure_one(self, task: Task, watcher: Watcher, number: int, total: int, seconds_left: float) -> Result:
        def tick(phase: str) -> None:
            self.display.measuring(task.case, phase, number, total, seconds_left)

        tick("start")
        why_not = failure(task.case, task.prepared)
        if why_not is not None:
            return Result(task.case.id, *why_not)
        return measure_one(task, self.run.logs, self.path, tick, watcher)

    def _keep(self, case: Case, result: Result) -> None:
        self.wall.add(result.phases)
        with self.wall.span("write"):
            self.run.append(result)
        self.display.ended(case, result)

    def _roofs(self, cases: Sequence[Case]) -> Roofs:
        """The device's roofs that these cases need: a resumed run's own, and those that it lacks measured now."""
        if self.environment is None:
            return {}
        known: Roofs = self.environment.get("roofs") or {}
        precisions = wanted(self.target.kind, cases)
        if not cases or known.keys() >= {"copy_gb_s", *(f"{precision}_tflops" for precision in precisions)}:
            return known
        self.display.preparing("roofs of the device", 0, 1)
        log, argument = self.run.logs / "roofs.log", (self.target.kind, precisions, self.budget.seconds)
        variables = {"CUDA_VISIBLE_DEVICES": self._uuid or ""}
        call = Call("profiler.roofline:measure_roofs", argument, log, _ROOF_SECONDS, environment=variables)
        (outcome,) = run_all([call], 1)
        what = "roofs of the device" if outcome.value else f"no roofs, so no roofline: {outcome.reason or f'see {log}'}"
        self.display.preparing(what, 1, 1)
        self.environment["roofs"] = roofs = {**(outcome.value or {}), **known}
        self.run.write_environment(self.environment)
        return roofs


def measure_one(task: Task, logs: Path, path: tuple[str, ...], tick: Callable[[str], None], watcher: Watcher) -> Result:
    """One case in a process of its own, watched from here: its phases, its limits, and the device's telemetry.

    An engine that builds does so in another process before, whose memory does not count.
    """
    log = logs / f"{task.case.id.replace('/', '-')}.log"
    environment = {"CUDA_VISIBLE_DEVICES": task.gpu or ""}
    limits = task.budget.timeout, task.budget.build_timeout
    built = None
    if ENGINES[task.case.engine].builds is not None:
        built, _ = _watch(Call("profiler.worker:build_ahead", task, log, *limits, environment, path), tick)
        if built.status != "ok":
            return _result(task.case, built)
    outcome, entered = _watch(Call("profiler.worker:measure_case", task, log, *limits, environment, path), tick)
    result = _result(task.case, outcome)
    result.entered = entered
    if built is not None:
        _add_build(result, built)
    if result.status == "ok":
        # The checks open a second session, and none of it is the case's; the energy loop loads the card differently.
        readings = watcher.between(entered["fork"], entered["check"])
        sampled = entered["measure"], entered.get("energy", entered["check"])
        _add_readings(result, readings, [r for r in readings if sampled[0] <= r.seconds <= sampled[1]])
        if watcher.ended():
            result.warnings.append("telemetry: the process that reads the GPU's sensors ended; see logs/telemetry.log")
    if log.exists() and not log.stat().st_size:
        log.unlink()
    return result


def _watch(call: Call, tick: Callable[[str], None]) -> tuple[Outcome, dict[str, float]]:
    """How a process ended, and when it entered each phase; `tick` is told what it is doing."""
    child = Child(call)
    try:
        while (outcome := child.poll(_TICK_SECONDS)) is None:
            tick(child.progress or child.phase)
    finally:
        child.kill()
    return outcome, child.entered


def _add_build(result: Result, built: Outcome) -> None:
    """What the process said that built the engine, and the time that it took."""
    result.warnings[:0] = built.value["warnings"]
    if "build" in result.proof:
        result.proof["build"]["cached"] = built.value["cached"]
    for phase, seconds in built.seconds.items():
        result.phases[phase] = result.phases.get(phase, 0.0) + seconds


def _result(case: Case, outcome: Outcome) -> Result:
    if isinstance(outcome.value, Result):
        result = outcome.value
    elif isinstance(measured := outcome.partial.get("result"), Result):
        # Everything was measured and checked when profiling the layers ended the process.
        result = measured
        result.warnings.append(f"no-layers: {outcome.reason}")
    else:
        result = Result(case.id, outcome.status, outcome.reason, samples=outcome.partial.get("samples", {}))
    result.phases = outcome.seconds
    return result


def _add_readings(result: Result, readings: Sequence[Reading], measured: Sequence[Reading]) -> None:
    """Telemetry while it was `measured`, and the device memory's peak where a poll saw more than the boundaries did."""
    result.telemetry |= summarize(measured)
    reasons = 0
    for reading in measured:
        reasons |= reading.reasons or 0
    result.warnings += [f"throttled: {name}" for name in slowdowns(reasons)]
    if power_capped(reasons):
        result.warnings.append("power-cap: the card was at its power limit, which lowers its clocks")
    peak, baseline = result.memory.get("peak_memory_mib"), result.memory.get("baseline_mib")
    used = [reading.memory_mib for reading in readings if reading.memory_mib is not None]
    if used and peak is not None and baseline is not None:
        more = max(used) - baseline - peak
        if more > 0:
            for name in ("peak_memory_mib", "other_mib", "library_mib"):
                before = result.memory.get(name)
                result.memory[name] = None if before is None else before + more


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
