"""Measure cases in processes of their own, and watch them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.base import BuiltAhead, Phase, Warning
from engines.catalog import ENGINES
from profiler.nvml import Reading, power_capped, slowdowns, summarize
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, Child, run_one
from profiler.results.result import Result, result_of
from profiler.run.quiet import Quiet
from profiler.run.telemetry import Watcher
from profiler.worker.task import Task


@dataclass(frozen=True)
class Supervisor:
    """Measures in processes of their own and watches them; their logs go into `logs`, `path` in front of sys.path.

    A process starts when the machine is `quiet`, as far as the run waits for that.
    """

    logs: Path
    path: tuple[str, ...]
    watcher: Watcher
    quiet: Quiet

    def measure_one(self, task: Task, tick: Callable[[str], None]) -> Result:
        """One case, watched from here: its phases, its limits, and the device's telemetry.

        An engine that builds does so in another process before, whose memory does not count.
        """
        log = self.logs / f"{task.case.id.file_name}{'-largest-batch' if task.only_fits else ''}.log"
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

    def _run(
        self, function: str, argument: object, task: Task, log: Path, look: Callable[[Child], None] = lambda child: None
    ) -> Outcome:
        """Run a worker's function on the device and within the limits of `task`; a log that stays empty is deleted."""
        environment, budget = {"CUDA_VISIBLE_DEVICES": task.gpu or ""}, task.budget
        name, limits = f"profiler.worker.{function}", (budget.timeout, budget.build_timeout)
        outcome = run_one(Call(name, argument, log, *limits, environment, self.path), look)
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
