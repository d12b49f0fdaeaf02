"""Measure cases and batch sweeps in processes of their own, and watch them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engines.base import BuiltAhead, Phase, Warning
from engines.catalog import ENGINES
from profiler.job.case import CaseId, Role, file_name
from profiler.nvml import Reading, power_capped, slowdowns, summarize
from profiler.processes.messages import Outcome, Part, Running
from profiler.processes.other_python import OtherPython, Tick
from profiler.processes.process import Call, Child, run_one
from profiler.processes.temporary import own_folder
from profiler.results.result import Result, log_name, result_of
from profiler.run.quiet import Quiet
from profiler.run.telemetry import Watcher
from profiler.worker.task import FirstCall, Task


@dataclass(frozen=True)
class Supervisor:
    """Measures in processes of their own and watches them; their logs go into `logs`, `path` in front of sys.path.

    A process starts when the machine is `quiet`, as far as the run waits for that.
    """

    logs: Path
    path: tuple[str, ...]
    watcher: Watcher
    quiet: Quiet
    others: Mapping[Path, OtherPython] = field(default_factory=dict)
    """The other interpreters that cases are measured in."""

    def measure_one(self, task: Task, tick: Callable[[str], None]) -> Result:
        """One case, watched from here: its phases, its limits, and the device's telemetry.

        An engine that builds does so in another process before, whose memory does not count.
        """
        log = self.logs / f"{task.case.id.file_name}.log"
        built = None
        if ENGINES[task.case.engine].builds is not None:
            built = self._run("prepare_model:build_ahead", task, task, log, lambda child: tick(child.doing))
            if built.status != "ok":
                return result_of(task.case.id, built)
        self.quiet.start()
        outcome = self._run("measure_case:measure_case", task, task, log, lambda child: tick(child.doing))
        result = result_of(task.case.id, outcome)
        if built is not None:
            _add_build(result, built)
        self._add_telemetry(result)
        self.quiet.mark(result)
        return result

    def first_calls(self, tasks: Sequence[Task]) -> dict[CaseId, FirstCall]:
        """The first call at each task's shape but the first; the tasks are one configuration at several shapes.

        What compiles finds nothing of other cases in its cache on disk. Nothing is called on a machine that is busy.
        """
        case = tasks[0].case
        log = self.logs / f"{case.id.file_name}-first-calls.log"
        variable = ENGINES[case.engine].compile_cache
        self.quiet.start()
        if who := self.quiet.busy():
            return {each.case.id: FirstCall(why_not=f"not timed: {who}") for each in tasks[1:]}
        with own_folder() as folder:
            own = {variable: str(folder)} if variable else {}
            outcome = self._run("extra_calls:first_calls", tasks, tasks[0], log, variables=own)
        found: dict[CaseId, FirstCall] = (outcome.value if outcome.status == "ok" else outcome.salvage) or {}
        lost = FirstCall(why_not=str(outcome.reason))
        return {each.case.id: found.get(each.case.id, lost) for each in tasks[1:]}

    def kernel_times(self, task: Task) -> Outcome:
        """The kernels of a case that has been measured, in a process of its own."""
        log = self.logs / f"{task.case.id.file_name}-kernels.log"
        return self._run("extra_calls:kernel_times", task, task, log)

    def measure_sweep(
        self, tasks: Sequence[Task], tick: Callable[[int, str], None], keep: Callable[[Result], None]
    ) -> None:
        """Measure the batches of a sweep, in one process while it lives; another goes on where a batch ends it.

        `keep` gets a Result a task, in their order, each as soon as it is there; `tick` gets how many there are and
        what the process is doing.
        """
        log = self.logs / f"{file_name(tasks[0].case.id.family)}-sweep.log"
        ended = 0

        def end(result: Result) -> None:
            nonlocal ended
            self._add_telemetry(result)
            self.quiet.mark(result)
            ended += 1
            keep(result)

        while ended < len(tasks):
            self.quiet.start()
            self._measure_in_one_process(tasks[ended:], log, lambda what: tick(ended, what), end)

    def _measure_in_one_process(
        self, tasks: Sequence[Task], log: Path, tick: Callable[[str], None], end: Callable[[Result], None]
    ) -> None:
        """Measure the first tasks, at least one of them."""
        taken = 0
        parts: Sequence[Part] = ()

        def take(count: int) -> None:
            nonlocal taken
            for part in parts[taken:count]:
                taken += 1
                result: Result = part.value
                result.phases, result.entered = part.seconds, part.entered
                result.log = None if result.status == "ok" else log_name(log)
                end(result)

        def look(child: Child | Running) -> None:
            nonlocal parts
            parts = child.parts
            take(len(parts) - child.is_closing)  # A row that waits for its session to be closed may get a warning yet.
            if taken < len(tasks):  # Else the process is about to end.
                tick(child.doing)

        try:
            outcome = self._run("measure_sweep:measure_batches", tasks, tasks[0], log, look)
            parts = outcome.parts
            unclosed = outcome.status != "ok" and outcome.phase == Phase.END and bool(parts)
            if unclosed:
                parts[-1].value.warnings.append(Warning("unclosed", str(outcome.reason)))
        finally:
            take(len(parts))
        if taken == 0 and outcome.status == "ok":  # Another process would be started for ever.
            outcome = Outcome("failed", "its process ended without a result")
        if taken == 0 or (outcome.status != "ok" and not unclosed and taken < len(tasks)):
            end(result_of(tasks[taken].case.id, outcome))

    def _run(
        self,
        function: str,
        argument: object,
        task: Task,
        log: Path,
        look: Tick = lambda child: None,
        variables: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run a worker's function on the device and within the limits of `task`; a log that stays empty is deleted."""
        environment, budget = {"CUDA_VISIBLE_DEVICES": task.gpu or "", **(variables or {})}, task.budget
        name = f"profiler.worker.{function}"
        limits, python = (budget.timeout, budget.build_timeout), task.case.python
        call = Call(name, argument, log, *limits, environment, self.path, python=python)
        outcome = run_one(call, look) if python is None else self.others[python].run(call, look)
        if log.exists() and not log.stat().st_size:
            log.unlink()
        return outcome

    def _add_telemetry(self, result: Result) -> None:
        """The device's readings while the case was measured, by the phases that it `entered`."""
        has_ended = self.watcher.ended()
        if result.status != "ok":
            return
        # The checks open a second session, and none of it is the case's; the energy loop loads the card differently.
        entered = result.entered
        readings = self.watcher.between(min(entered.values()), entered[Phase.CHECK])
        sampled = entered[Phase.MEASURE], entered.get(Phase.ENERGY, entered[Phase.CHECK])
        _add_readings(result, readings, [r for r in readings if sampled[0] <= r.seconds <= sampled[1]])
        if has_ended:
            reason = "the process that reads the GPU's sensors ended; see logs/telemetry.log"
            result.warnings.append(Warning("telemetry", reason))


def families(tasks: Sequence[Task]) -> list[list[Task]]:
    """The tasks in running order: those of one sweep together, in the place of its first; any other by itself."""
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.case.id.family if task.case.role is Role.SWEEP else str(task.case.id), []).append(task)
    return list(found.values())


def _add_build(result: Result, built: Outcome) -> None:
    """Add what the process that built the engine reported, and the time that it took."""
    ahead: BuiltAhead = built.value
    result.warnings[:0] = ahead.warnings
    if result.proof is not None and result.proof.build is not None:
        result.proof.build.cached = ahead.cached
    for phase, seconds in built.seconds.items():
        result.phases[phase] = result.phases.get(phase, 0.0) + seconds


def _add_readings(result: Result, readings: Sequence[Reading], measured: Sequence[Reading]) -> None:
    """Telemetry while it was `measured`, and the device memory's peak where a poll saw more than the boundaries did."""
    result.figures |= summarize(measured)
    reasons = 0
    for reading in measured:
        reasons |= reading.reasons or 0
    result.warnings += [Warning("throttled", name) for name in slowdowns(reasons)]
    if power_capped(reasons):
        result.warnings.append(Warning("power-cap", "the card was at its power limit, which lowers its clocks"))
    used = [reading.memory_mib for reading in readings if reading.memory_mib is not None]
    peak, baseline = (result.figures.get(name) for name in ("peak_memory_mib", "baseline_mib"))
    if used and peak is not None and baseline is not None:
        more = max(0.0, max(used) - baseline - peak)
        for name in ("peak_memory_mib", "other_mib", "library_mib"):
            if (before := result.figures.get(name)) is not None:
                result.figures[name] = before + more
