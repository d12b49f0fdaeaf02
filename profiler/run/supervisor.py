"""Measure one case in its own process, and add the telemetry of the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from engines.base import BuiltAhead, Phase, Warning
from engines.catalog import ENGINES
from exporters.errors import sentence, shown
from profiler.job.case import Case, file_name
from profiler.machine.nvml import Reading, power_capped, slowdowns, summarize
from profiler.processes.holders import Holders, origin_of
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, run_one
from profiler.results.result import Result, log_name, result_of
from profiler.results.schema import check_result
from profiler.results.warning_kinds import DISTURBED
from profiler.run.prepare import failure
from profiler.run.watch import Quiet, Watcher
from profiler.worker.task import Task


@dataclass
class Supervisor:
    """Measures a case in its own process on a quiet machine, and adds the device's telemetry."""

    logs: Path
    path: tuple[str, ...]
    """Folders of a user's factories."""
    watcher: Watcher
    quiet: Quiet
    holders: Holders
    cold: dict[str, float | None] = field(default_factory=dict)
    """Seconds of each configuration's first build, by the id of its first replicate; later builds reuse it.
    Other builds may have run beside it."""

    def has_built(self, case: Case) -> bool:
        """Return whether the case's configuration was built, so that a build now reuses it."""
        return replace(case, replicate=0).id in self.cold

    def measure_one(self, task: Task, tick: Callable[[str], None], deadline: float) -> Result:
        """Measure one case, until the deadline; build its engine in an earlier process, whose memory does not count."""
        if (outcome := failure(task.case, task.prepared)) is not None:
            return Result(task.case.id, outcome.status, [str(outcome.reason)], log=log_name(outcome.log))
        built = None
        if ENGINES[task.case.engine].builds is not None:
            built = self._run("prepare_model:build_ahead", task, tick, deadline)
            if built.status != "ok":
                return result_of(task.case.id, built)
        self.quiet.start()
        was_shared = self.quiet.is_shared()
        outcome = self._run("measure_case:measure_case", task, tick, deadline)
        result = self._result(task.case.id, outcome)
        if was_shared or self.quiet.is_shared():
            result.warnings.append(Warning(DISTURBED, "another run measured on the same device"))
        if built is not None:
            _add_build(result, built)
        is_reused = built is not None and not task.case.options.get("rebuild")
        if (ENGINES[task.case.engine].shares_kernels or is_reused) and result.status == "ok":
            configuration = replace(task.case, replicate=0).id
            result.figures["build_s"] = self.cold.setdefault(configuration, result.figures.get("build_s"))
        self._add_telemetry(result)
        return result

    def _result(self, case_id: str, outcome: Outcome) -> Result:
        """Return the result that the process sent; an invalid one becomes a crashed row."""
        try:
            result = result_of(case_id, outcome)
            check_result(result)
            if result.case_id != case_id:
                raise ValueError(f"a result of {shown(result.case_id)}")
            is_measured = result.latency_ms is not None and {Phase.MEASURE, Phase.CHECK} <= outcome.entered.keys()
            if result.status == "ok" and not is_measured:
                raise ValueError("a result without measuring")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"its process sent an invalid result: {sentence(error)}"
            return Result(case_id, "crashed", [reason], phases=outcome.seconds, entered=outcome.entered)
        return result

    def _run(self, function: str, task: Task, tick: Callable[[str], None], deadline: float) -> Outcome:
        """Run a worker's function within the task's limits; delete a log that stays empty."""
        call = self.call(function, task, deadline)
        outcome = run_one(call, lambda child: tick(child.progress or child.phase))
        if call.log.exists() and not call.log.stat().st_size:
            call.log.unlink()
        return outcome

    def call(self, function: str, task: Task, deadline: float, environment: Mapping[str, str] | None = None) -> Call:
        """Make the call of a worker's function, within the task's limits and the deadline."""
        return Call(
            f"profiler.worker.{function}",
            task,
            self.logs / f"{file_name(task.case.id)}{'-largest-batch' if task.only_fits else ''}.log",
            timeout=task.budget.timeout,
            build_timeout=task.budget.build_timeout,
            environment={"CUDA_VISIBLE_DEVICES": task.gpu or "", **(environment or {})},
            path=self.path,
            origin=origin_of(self.logs, task.case.source.name) if ENGINES[task.case.engine].needs == "torch" else None,
            returns=BuiltAhead if function.endswith("build_ahead") else object,
            deadline=deadline,
        )

    def _add_telemetry(self, result: Result) -> None:
        """Add the device's readings from while the case was measured."""
        if result.status != "ok":
            return
        # Leave out the checks, which open a second session, and the energy loop, which loads the card differently.
        entered = result.entered
        readings = self.watcher.between(min(entered.values()), entered[Phase.CHECK])
        start, end = entered[Phase.MEASURE], entered.get(Phase.ENERGY, entered[Phase.CHECK])
        _add_readings(result, readings, [reading for reading in readings if start <= reading.seconds <= end])


def _add_build(result: Result, built: Outcome) -> None:
    ahead: BuiltAhead = built.value
    result.warnings[:0] = ahead.warnings
    if result.proof is not None and result.proof.build is not None:
        result.proof.build.cached = ahead.cached
    for phase, seconds in built.seconds.items():
        result.phases[phase] = result.phases.get(phase, 0.0) + seconds


def _add_readings(result: Result, readings: Sequence[Reading], measured: Sequence[Reading]) -> None:
    """Add telemetry of the `measured` phase, and raise the memory's peak to the highest of all `readings`."""
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
        excess_mib = max(0.0, max(used) - baseline - peak)
        for name in ("peak_memory_mib", "other_mib", "library_mib"):
            if (before := result.figures.get(name)) is not None:
                result.figures[name] = before + excess_mib
