"""Measure the planned cases into a run's journal, one forked process a case, one at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engines.base import BuiltAhead, Phase, Warning
from engines.catalog import ENGINES
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case
from profiler.job.config import Config, LargestBatch
from profiler.job.plan import estimate_seconds
from profiler.machine import Target, available_memory_mib
from profiler.nvml import Reading, power_capped, slowdowns, summarize
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, Child, run_one
from profiler.results.result import Result, log_name, result_of
from profiler.results.roofline import excess
from profiler.results.run_folder import RunFolder
from profiler.results.warning_kinds import DISTURBED, REMEASURED, is_due, retaken
from profiler.run.largest_batch import Search, short
from profiler.run.prepare import failure, prepare
from profiler.run.progress import Display
from profiler.run.watch import DeviceLock, Quiet, Watcher
from profiler.tables.numbers import counted, grouped, listed
from profiler.worker.roofline import Measured, precisions_needed
from profiler.worker.task import Task

_RETAKEN = ("ok", "oom", "timeout")
"""Statuses that another take may mend."""
_IN_VAIN = 2
"""After so many takes in a row beside as much other work, no more cases are measured again."""
_ROOFS_SECONDS = 60.0


def is_done(result: Result, budget: Budget, retry: bool) -> bool:
    """Tell whether a resumed run leaves a result; `retry` measures again all that is not ok or is disturbed."""
    if retry:
        return result.status == "ok" and not retaken(result.warnings)
    return result.status not in _RETAKEN or not (budget.repeats > 0 and is_due(result.warnings))


class Takes:
    """The disturbed takes, to be measured once more, within `share` of the time that all else took.

    `known` are the journal's results: their disturbed rows are measured again whatever the share, and replaced only by
    better ones.
    """

    def __init__(self, known: Mapping[str, Result], share: float) -> None:
        self._share = share
        self._disturbed = {id_: result for id_, result in known.items() if _is_disturbed(result)}
        self._known = frozenset(self._disturbed)
        self._spent = {True: 0.0, False: 0.0}
        self._again: set[str] = set()
        self._in_vain = 0

    @property
    def is_in_vain(self) -> bool:
        """Return True if the machine stays as busy as it was before."""
        return self._in_vain >= _IN_VAIN

    def is_due(self, case_id: str) -> bool:
        """Tell whether a case is to be measured again now."""
        if case_id not in self._disturbed or case_id in self._again or self.is_in_vain:
            return False
        return case_id in self._known or self._spent[True] < self._share * self._spent[False]

    def add(self, result: Result) -> bool:
        """Take a result into account; return whether it counts. It is marked where it replaces another one."""
        before = self._disturbed.get(result.case_id)
        self._spent[before is not None and result.case_id not in self._known] += sum(result.phases.values())
        if before is not None:
            self._again.add(result.case_id)
            self._in_vain = self._in_vain + 1 if _is_as_disturbed(result, before) else 0
            if not is_better(result, before):
                return False
            first = "; ".join(map(str, retaken(before.warnings)))
            result.warnings.append(Warning(REMEASURED, f"the first take was {first}"))
        elif _is_disturbed(result):
            # Without its samples, which would fill the memory of a run of many cases.
            self._disturbed[result.case_id] = replace(result, samples={}, warnings=list(result.warnings))
        return True


def is_better(second: Result, first: Result) -> bool:
    """Tell whether the second take of a case counts, and not the first one, which was disturbed.

    Never by latency: the faster of two takes is faster than the case is. Of two that were disturbed as much the first
    one stays.
    """
    if (second.status == "ok") != (first.status == "ok"):
        return second.status == "ok"
    before = _disturbance(first)
    return not retaken(second.warnings) or before == math.inf or _disturbance(second) < before


def _is_disturbed(result: Result) -> bool:
    return result.status in _RETAKEN and bool(retaken(result.warnings))


def _is_as_disturbed(second: Result, first: Result) -> bool:
    """Tell whether other work took more than half as much as before: by chance it takes a little less or more."""
    share = _disturbance(second)
    return any(w.kind == DISTURBED for w in second.warnings) and _disturbance(first) / 2 < share < math.inf


def _disturbance(result: Result) -> float:
    share = result.figures.get("disturbance")
    return math.inf if share is None else share


class Runner:
    """Measures the cases of one run.

    `config` is the job as resolved for `target`, `plan` all of its cases, and `chosen` those to measure; `environment`
    gets the device's roofs. Before each case it waits up to `idle_minutes` until the machine is quiet.
    """

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        target: Target,
        plan: Sequence[Case],
        chosen: Sequence[Case],
        environment: dict[str, Any],
        display: Display,
        idle_minutes: float | None = None,
    ) -> None:
        self.run, self.config, self.target, self.environment, self.display = run, config, target, environment, display
        self.plan, self.chosen, self.budget = plan, chosen, config.budget
        self.started, self.measured_s = time.monotonic(), 0.0
        self.refuses = False
        """True if a model that cannot be had is an error, and no row."""
        self._idle_minutes = idle_minutes
        self._uuid = target.gpu.uuid if target.gpu else None

    def measure(self, cases: Sequence[Case], searched: Sequence[Case] = (), retry: bool = False) -> None:
        """Prepare and measure every case; each Result is in the journal as soon as it is there.

        Disturbed ones are measured again at the end. Then the largest batch is searched for `searched`.

        Raises ConfigError where it `refuses` a model.
        """
        for case in cases:
            if case.unsupported is not None:
                self.run.append(Result(case.id, "unsupported", [case.unsupported]))
        waiting = [case for case in cases if case.unsupported is None]
        families = {case.family for case in waiting}
        searched = [c for c in searched if c.family in families or self._search(c, retry).next_batch() is not None]
        if not waiting and not searched:
            return
        with DeviceLock(self._uuid or "cpu", self.run.path) as lock:
            quiet = Quiet(lock, self._uuid, self._idle_minutes, self.display)
            quiet.begin()
            task = self._prepare(waiting, searched, quiet)
            with Watcher(self._uuid, self.run.path / "telemetry.csv", self.run.logs / "telemetry.log") as watcher:
                measure = _Supervisor(self, watcher, quiet).measure_one
                self._measure_all([task(case) for case in waiting], measure)
                self._search_all([task(case) for case in searched], retry, measure)

    def _prepare(self, waiting: Sequence[Case], searched: Sequence[Case], quiet: Quiet) -> Callable[[Case], Task]:
        """Prepare the models and measure the device's roofs; return what makes a case's task."""
        # An odd batch and an even one, which a reference of the gradients is made for.
        cases = [*waiting, *(replace(case, batch_size=batch) for case in searched for batch in (1, 2))]
        prepared = prepare(cases, self.budget, self.run.logs, self.config.path, self.display.preparing, self._uuid)
        bad = next((one.failures["model"] for one in prepared.values() if "model" in one.failures), None)
        if self.refuses and bad is not None:
            raise ConfigError(str(bad.reason))
        identities = {name: one.identity for name, one in prepared.items() if one.identity}
        self.run.write_models(identities)
        remarked = ((one.remarks, name.partition("/")[0]) for name, one in identities.items() if one.remarks)
        for remarks, models in grouped(remarked).items():
            self.display.announce(f"{listed(dict.fromkeys(models))}: {'; '.join(remarks)}")
        quiet.start()
        self._measure_roofs([c for c in (*waiting, *searched) if failure(c, prepared[c.subject]) is None])
        energy, profile = self.config.energy, self.config.profile
        return lambda case: Task(case, prepared[case.subject], self.budget, self._uuid, energy, profile)

    def _measure_roofs(self, cases: Sequence[Case]) -> None:
        """Measure the roofs that these cases need; a resumed run keeps its own and adds those that it lacks."""
        known, precisions = self.environment.get("roofs") or {}, precisions_needed(self.target.kind, cases)
        if not cases or known.keys() >= {"copy_gb_s", *(f"{each}_tflops" for each in precisions)}:
            return
        self.display.preparing("measuring peak FLOP/s and bandwidth", 0, 1)
        log, argument = self.run.logs / "roofs.log", (self.target.kind, precisions, self.budget.seconds)
        visible = {"CUDA_VISIBLE_DEVICES": self._uuid or ""}
        outcome = run_one(
            Call("profiler.worker.roofline:measure_roofs", argument, log, _ROOFS_SECONDS, environment=visible)
        )
        found: Measured = outcome.value or Measured({}, quiet=False)
        if not found.roofs:
            self.display.announce(f"no roofline: the peaks could not be measured: {outcome.reason or f'see {log}'}")
        quiet = self.environment.get("roofs_quiet", True) and found.quiet
        self.environment |= {"roofs": {**found.roofs, **known}, "roofs_quiet": quiet}
        self.run.write_environment(self.environment)

    def _measure_all(self, tasks: Sequence[Task], measure: _Measure) -> None:
        """Measure every task, and once more what was disturbed, as far as there is time."""
        takes = Takes(self.run.results(), self.budget.repeats)
        # Failures come first: who reads them then can mend them now.
        ordered = sorted(tasks, key=lambda task: failure(task.case, task.prepared) is None)
        self._measure_each([task for task in ordered if not takes.is_due(task.case.id)], measure, takes)
        due = [task for task in ordered if takes.is_due(task.case.id)]
        if due:
            what = counted(len(due), "case")
            self.display.announce(f"measuring {what} again")
            done = self._measure_each(due, measure, takes, again=True)
            if left := len(due) - done:
                why = "the machine was as busy as before" if takes.is_in_vain else "`budget.repeats` was spent"
                self.display.announce(f"{done} of {what} measured again, {left} not ({why})")

    def _measure_each(self, tasks: Sequence[Task], measure: _Measure, takes: Takes, again: bool = False) -> int:
        """Measure tasks; `again` as long as that is due. Return how many were measured."""
        expected = [estimate_seconds(task.case, self.budget) for task in tasks]
        spent, done = 0.0, 0
        for number, task in enumerate(tasks):
            if again and not takes.is_due(task.case.id):
                continue
            # What is left takes longer or shorter than estimated, as what is done did.
            left = sum(expected[number:]) * (spent / sum(expected[:number]) if spent else 1.0)

            def tick(phase: str, task: Task = task, number: int = number, left: float = left) -> None:
                self.display.measuring(task.case, phase, number, len(tasks), left)

            tick("start")
            if (why := failure(task.case, task.prepared)) is not None:
                result = Result(task.case.id, why.status, [str(why.reason)], log=log_name(why.log))
            else:
                result = measure(task, tick)
            spent, done = spent + sum(result.phases.values()), done + 1
            self._keep(task, result, takes)
        return done

    def _keep(self, task: Task, result: Result, takes: Takes) -> None:
        """Write a result that counts. A row far faster than the roofs allow fails, if nothing can have lowered them."""
        if result.status == "ok" and self.environment.get("roofs_quiet"):
            over = excess(task.case, result, self.environment.get("roofs") or {})
            if over is not None and over.is_impossible:
                result.fail(over.rejection())
        counts = takes.add(result)
        self._count(result)
        if counts:
            result = self.run.append(result)
        self.display.ended(task.case, result, counts)

    def _count(self, result: Result) -> None:
        self.measured_s += sum(result.phases.get(phase, 0.0) for phase in (Phase.MEASURE, Phase.ENERGY))

    def _search(self, case: Case, retry: bool) -> Search:
        results = self.run.results()
        planned = [other for other in self.plan if other.family == case.family and other.id in results]
        limits = self.config.largest_batch or LargestBatch()
        search = Search(case, limits, {other.batch_size: results[other.id].status for other in planned})
        for row in self.run.tries_of(case):
            if row["status"] == "ok" or not retry:
                search.add(row["batch_size"], row["status"], row["peak_memory_mib"])
        return search

    def _search_all(self, tasks: Sequence[Task], retry: bool, measure: _Measure) -> None:
        """Search the largest batch of each task's configuration, try after try."""
        for number, task in enumerate(tasks):
            search = self._search(task.case, retry)
            while (batch := search.next_batch()) is not None:
                case = replace(task.case, batch_size=batch)
                if failure(case, task.prepared) is not None:
                    break

                def tick(phase: str, case: Case = case, number: int = number) -> None:
                    self.display.measuring(case, phase, number, len(tasks), 0.0)

                tick("start")
                result = search.refuse(batch, task.prepared.specs, available_memory_mib())
                if result is None:
                    budget = short(self.budget)
                    one = replace(task, case=case, budget=budget, energy=False, profile=False, only_fits=True)
                    result = measure(one, tick)
                search.add(batch, result.status, result.figures.get("peak_memory_mib"))
                self._count(result)
                self.run.append_try(case, result)
                self.display.ended(case, result)


_Measure = Callable[[Task, Callable[[str], None]], Result]


class _Supervisor:
    """Measures a case in a process of its own, once the machine is quiet, and adds the device's telemetry."""

    def __init__(self, runner: Runner, watcher: Watcher, quiet: Quiet) -> None:
        self._logs, self._path, self._watcher, self._quiet = runner.run.logs, runner.config.path, watcher, quiet

    def measure_one(self, task: Task, tick: Callable[[str], None]) -> Result:
        """Measure one case. An engine that builds does so in another process before, whose memory does not count."""
        built = None
        if ENGINES[task.case.engine].builds is not None:
            built = self._run("prepare_model:build_ahead", task, tick)
            if built.status != "ok":
                return result_of(task.case.id, built)
        self._quiet.start()
        result = result_of(task.case.id, self._run("measure_case:measure_case", task, tick))
        if built is not None:
            _add_build(result, built)
        self._add_telemetry(result)
        self._quiet.mark(result)
        return result

    def _run(self, function: str, task: Task, tick: Callable[[str], None]) -> Outcome:
        """Run a worker's function within the task's limits; a log that stays empty is deleted."""
        log = self._logs / f"{task.case.file_name}{'-largest-batch' if task.only_fits else ''}.log"
        limits, visible = (task.budget.timeout, task.budget.build_timeout), {"CUDA_VISIBLE_DEVICES": task.gpu or ""}

        def look(child: Child) -> None:
            tick(child.doing)

        outcome = run_one(Call(f"profiler.worker.{function}", task, log, *limits, visible, self._path), look)
        if log.exists() and not log.stat().st_size:
            log.unlink()
        return outcome

    def _add_telemetry(self, result: Result) -> None:
        """Add the device's readings while the case was measured, by the phases that it `entered`."""
        if result.status != "ok":
            return
        # The checks open a second session, and none of it is the case's; the energy loop loads the card differently.
        entered = result.entered
        readings = self._watcher.between(min(entered.values()), entered[Phase.CHECK])
        sampled = entered[Phase.MEASURE], entered.get(Phase.ENERGY, entered[Phase.CHECK])
        _add_readings(result, readings, [r for r in readings if sampled[0] <= r.seconds <= sampled[1]])


def _add_build(result: Result, built: Outcome) -> None:
    """Add what the process that built the engine reported, and the time that it took."""
    ahead: BuiltAhead = built.value
    result.warnings[:0] = ahead.warnings
    if result.proof is not None and result.proof.build is not None:
        result.proof.build.cached = ahead.cached
    for phase, seconds in built.seconds.items():
        result.phases[phase] = result.phases.get(phase, 0.0) + seconds


def _add_readings(result: Result, readings: Sequence[Reading], measured: Sequence[Reading]) -> None:
    """Add telemetry while it was `measured`, and the memory's peak where a poll saw more than the boundaries did."""
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
