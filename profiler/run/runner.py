"""Measure the planned cases into a run's journal, one forked process a case, one at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from profiler.job.case import Budget, Case
from profiler.job.config import Config, LargestBatch
from profiler.job.plan import estimate_seconds
from profiler.machine import Target, available_memory_mib
from profiler.processes.messages import Outcome
from profiler.results.result import Result, WallTime, log_name
from profiler.results.run_folder import RunFolder
from profiler.results.warning_kinds import is_due, retaken
from profiler.run.again import RETAKEN, Takes
from profiler.run.device_lock import DeviceLock
from profiler.run.fits import too_large_to_run, weight_mib
from profiler.run.largest_batch import Search, short
from profiler.run.prepare import failure, prepare
from profiler.run.progress import Display
from profiler.run.quiet import Quiet
from profiler.run.roofs import RunRoofs
from profiler.run.supervise import Supervisor
from profiler.run.telemetry import Watcher
from profiler.tables.numbers import counted, grouped, listed
from profiler.worker.task import Task


def is_done(result: Result, budget: Budget, retry: bool) -> bool:
    """Whether a resumed run leaves a result as it is: not one that its warnings say is to be measured again.

    With `retry` that is whatever is not ok or is still disturbed, however often it was measured; without it a budget
    whose `repeats` are 0 has no disturbed one measured again.
    """
    if retry:
        return result.status == "ok" and not retaken(result.warnings)
    return result.status not in RETAKEN or not (budget.repeats > 0 and is_due(result.warnings))


class Runner:
    """Measures the cases of one run; `wall` holds what the time went into, `earlier` the phases of an earlier start's
    results.

    `config` is the job as resolved for `target`, `plan` all of its cases, and `chosen` those to measure; `environment`
    gets the device's roofs, if it has none. Before each case it waits up to `idle_minutes` until the machine is quiet;
    None is not at all.
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
        self.wall = WallTime()
        self.earlier = {id_: result.phases for id_, result in run.results().items()}
        self.roofs = RunRoofs(run, target, config.budget.seconds, environment, display)
        self._limits = config.largest_batch or LargestBatch()
        self._idle_minutes = idle_minutes
        self._uuid = target.gpu.uuid if target.gpu else None

    def measure(self, cases: Sequence[Case], searched: Sequence[Case] = (), retry: bool = False) -> None:
        """Prepare and measure every case; each Result is in the journal as soon as it is there.

        Those that were disturbed are measured again at the end, within `budget.repeats`. Then the largest batch is
        searched for `searched`, with `retry` anew above what fitted.
        """
        for case in cases:
            if case.unsupported is not None:
                self.run.append(Result(case.id, "unsupported", [case.unsupported]))
        waiting = [case for case in cases if case.unsupported is None]
        searched = self._unfinished(searched, waiting, retry)
        if not waiting and not searched:
            return
        with DeviceLock(self._uuid or "cpu", self.run.path) as lock:
            quiet = Quiet(lock, self._uuid, self._idle_minutes, self.display, self.wall)
            quiet.begin()
            task = self._prepare(waiting, searched, quiet)
            with Watcher(self._uuid, self.run.path / "telemetry.csv", self.run.logs / "telemetry.log") as watcher:
                supervisor = Supervisor(self.run.logs, self.config.path, watcher, quiet)
                tasks = list(map(task, waiting))
                self._measure_all(tasks, supervisor)
                self._search_all(list(map(task, searched)), retry, supervisor)

    def _prepare(self, waiting: Sequence[Case], searched: Sequence[Case], quiet: Quiet) -> Callable[[Case], Task]:
        """Prepare the models and measure the device's roofs; return what makes a case's task."""
        # An odd batch and an even one, which a reference of the gradients is made for.
        tries = [replace(case, batch_size=batch) for case in searched for batch in (1, 2)]
        with self.wall.span("prepare"):
            cases, tick = [*waiting, *tries], self.display.preparing
            prepared = prepare(cases, self.budget, self.run.logs, self.config.path, tick, self._uuid)
            identities = {name: one.identity for name, one in prepared.items() if one.identity}
            self.run.write_models(identities)
            remarked = ((one.remarks, name.partition("/")[0]) for name, one in identities.items() if one.remarks)
            for remarks, models in grouped(remarked).items():
                self.display.announce(f"{listed(dict.fromkeys(models))}: {'; '.join(remarks)}")
        quiet.start()
        with self.wall.span("roofs"):
            self.roofs.measure([c for c in (*waiting, *searched) if failure(c, prepared[c.subject]) is None])
        energy, profile = self.config.energy, self.config.profile
        return lambda case: Task(case, prepared[case.subject], self.budget, self._uuid, energy, profile)

    def _measure_all(self, tasks: Sequence[Task], supervisor: Supervisor) -> None:
        """Measure every task, and what was disturbed again: until it is not, or that is in vain, or has no time."""
        takes = Takes(self.run.results(), self.budget.repeats)
        self._measure_once([task for task in tasks if task.case.id not in takes.doubtful], supervisor, takes)
        for number in itertools.count(1):
            due = [task for task in tasks if takes.is_due(task.case.id)]
            if not due:
                return
            what = counted(len(due), "case")
            self.display.announce(f"measuring {what} again{f', round {number}' if number > 1 else ''}")
            done = self._measure_once(due, supervisor, takes, again=True)
            if left := len(due) - done:
                why = "the machine was as busy as before" if takes.is_in_vain else "`budget.repeats` was spent"
                self.display.announce(f"{done} of {what} measured again, {left} not ({why})")

    def _measure_once(self, tasks: Sequence[Task], supervisor: Supervisor, takes: Takes, again: bool = False) -> int:
        """Measure tasks; `again` as long as that is due. Returns how many it measured."""

        def keep(case: Case, result: Result) -> None:
            self.roofs.judge(case, result)
            self._keep(case, result, takes.add(result))

        # What cannot run comes first: who reads it then can mend it now.
        ordered = sorted(tasks, key=lambda task: self._refusal(task) is None)
        pace = _Pace([task.case for task in ordered], self.budget)
        for task in ordered:
            if not again or takes.is_due(task.case.id):
                result = self._measure_case(task, supervisor, pace)
                pace.ended(sum(result.phases.values()))
                keep(task.case, result)
        return pace.done

    def _measure_case(self, task: Task, supervisor: Supervisor, pace: _Pace) -> Result:
        def tick(phase: str) -> None:
            self.display.measuring(task.case, phase, pace.done, pace.total, pace.seconds_left())

        tick("start")
        if (why_not := self._refusal(task)) is not None:
            result = Result(task.case.id, why_not.status, [str(why_not.reason)], log=log_name(why_not.log))
        else:
            result = supervisor.measure_one(task, tick)
        tick("end")
        return result

    def _refusal(self, task: Task) -> Outcome | None:
        """How a case ends that is not started, since its model was not prepared or does not fit; None if it is."""
        weights = weight_mib(task.case.source, task.prepared.state)
        return failure(task.case, task.prepared) or too_large_to_run(task.case, weights, self.target.gpu)

    def _unfinished(self, searched: Sequence[Case], waiting: Sequence[Case], retry: bool) -> list[Case]:
        """Keep the searches with something left to measure or to try."""
        measured, available = {case.id.family for case in waiting}, available_memory_mib()
        searches = [self._search(case, retry) for case in searched]
        return [
            search.case
            for search in searches
            if search.case.id.family in measured or search.next_batch(available) is not None
        ]

    def _search(self, case: Case, retry: bool) -> Search:
        tries = [result for result in self.run.tries().values() if result.status == "ok" or not retry]
        return Search(case, self._limits, self.target.gpu, self.run.results(), tries)

    def _search_all(self, tasks: Sequence[Task], retry: bool, supervisor: Supervisor) -> None:
        """Search the largest batch of each task's configuration, try after try, until it is known where memory ends."""
        for number, task in enumerate(tasks):
            search = self._search(task.case, retry)
            while (batch := search.next_batch(available := available_memory_mib())) is not None:
                case = replace(task.case, batch_size=batch)
                if failure(case, task.prepared) is not None:
                    break

                def tick(phase: str, case: Case = case, number: int = number) -> None:
                    self.display.measuring(case, phase, number, len(tasks), 0.0)

                tick("start")
                result = search.refuse(batch, task.prepared.specs, available)
                if result is None:
                    budget = short(self.budget)
                    one = replace(task, case=case, budget=budget, energy=False, profile=False, only_fits=True)
                    result = supervisor.measure_one(one, tick)
                search.add(result)
                self.wall.add(result.phases)
                self.run.append_try(result)
                self.display.ended(case, result)

    def _keep(self, case: Case, result: Result, counts: bool = True) -> None:
        self.wall.add(result.phases)
        if counts:
            with self.wall.span("write"):
                result = self.run.append(result)
        self.display.ended(case, result, counts)


class _Pace:
    """How long the rest takes: the plan's estimates, scaled by how the cases so far compared with theirs."""

    def __init__(self, cases: Sequence[Case], budget: Budget) -> None:
        self._estimates = [estimate_seconds(case, budget) for case in cases]
        self._spent = 0.0
        self._expected = 0.0
        self.done, self.total = 0, len(cases)

    def ended(self, seconds: float) -> None:
        self._spent += seconds
        self._expected += self._estimates[self.done] if seconds else 0.0  # What cannot run took none.
        self.done += 1

    def seconds_left(self) -> float:
        scale = self._spent / self._expected if self._expected and self._spent else 1.0
        return scale * sum(self._estimates[self.done :])
