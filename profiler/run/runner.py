"""Measure the planned cases into a run's journal, one forked process a case, one at a time.

The cases of a batch sweep share a process; each probe for the largest batch is a case of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.base import Warning
from profiler.job.case import Budget, Case, CaseId, Role
from profiler.job.config import Config, LargestBatch
from profiler.job.plan import estimate_seconds, probe_of
from profiler.machine import Target, available_memory_mib
from profiler.processes.messages import Outcome
from profiler.processes.other_python import OtherPython, other_pythons
from profiler.results.result import Result, log_name
from profiler.results.run_folder import RunFolder
from profiler.results.wall_time import WallTime
from profiler.results.warning_kinds import UNTIMED, disturbances, is_measured_again
from profiler.run.additions import add_reasons, timed, walks
from profiler.run.again import RETAKEN, Takes
from profiler.run.device_lock import DeviceLock
from profiler.run.fits import too_large_to_run, weight_mib
from profiler.run.largest_batch import Search, short
from profiler.run.prepare import failure, prepare
from profiler.run.progress import Display
from profiler.run.quiet import Quiet
from profiler.run.roofs import RunRoofs
from profiler.run.supervise import Supervisor, families
from profiler.run.telemetry import Watcher
from profiler.tables.numbers import counted, grouped, listed
from profiler.worker.task import Task


def is_done(result: Result, budget: Budget, retry: bool) -> bool:
    """Whether a resumed run leaves a result as it is: not one that its warnings say is to be measured again.

    With `retry` that is whatever is not ok or is still disturbed, however often it was measured; without it a budget
    whose `repeats` are 0 has no disturbed one measured again.
    """
    if retry:
        return result.status == "ok" and not disturbances(result.warnings)
    return result.status not in RETAKEN or not (budget.repeats > 0 and is_measured_again(result.warnings))


class Runner:
    """Measures the cases of one run; `wall` holds what the time went into, `earlier` the phases of an earlier start's
    results, `repeated` the ids of cases that were measured again, `why_not_all` why other disturbed ones were not.

    `config` is the job as resolved for `target`, `plan` all of its cases, and `chosen` those that get what they lack of
    first calls at new shapes; `environment` gets the device's roofs, if it has none. Before each case it waits up to
    `idle_minutes` until the machine is quiet; None is not at all.
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
        self.repeated: set[str] = set()
        self.why_not_all = ""
        self._first_calls = timed(run.results())
        self.roofs = RunRoofs(run, target, config.budget.seconds, environment, display)
        self._limits = config.largest_batch or LargestBatch()
        self._idle_minutes = idle_minutes
        self._uuid = target.gpu.uuid if target.gpu else None

    def measure(self, cases: Sequence[Case], searched: Sequence[Case] = (), again: Collection[CaseId] = ()) -> None:
        """Prepare and measure every case; each Result is in the journal as soon as it is there.

        Those that were disturbed are measured again at the end, within `budget.repeats`. Then the largest batch is
        searched in the families of `searched`; the journal's probes named in `again` are left out of account. Last are
        the first calls at new shapes.
        """
        for case in cases:
            if case.unsupported is not None:
                self.run.append(Result(case.id, "unsupported", [case.unsupported]))
        waiting = [case for case in cases if case.unsupported is None]
        searched = self._unfinished(searched, waiting, again)
        walked = walks(self.plan, self.chosen, {case.id for case in waiting}, self.run.results())
        if not waiting and not searched and not walked:
            return
        before = {case.id: case for walk in walked for case in walk} | {case.id: case for case in waiting}
        pythons = [case.python for case in (*before.values(), *searched) if case.python]
        with DeviceLock(self._uuid or "cpu", self.run.path) as lock, other_pythons(pythons, self.run.logs) as others:
            quiet = Quiet(lock, self._uuid, self._idle_minutes, self.display, self.wall)
            quiet.begin()
            task = self._prepare(list(before.values()), searched, quiet, others)
            with Watcher(self._uuid, self.run.path / "telemetry.csv", self.run.logs / "telemetry.log") as watcher:
                supervisor = Supervisor(self.run.logs, self.config.path, watcher, quiet, others)
                tasks = list(map(task, waiting))
                self._measure_all(tasks, supervisor)
                with self.wall.span("kernels"):
                    for result in add_reasons(tasks, self.run.results(), supervisor.kernel_times):
                        self.run.append(result)
                self._search_all(list(map(task, searched)), again, supervisor)
                self._time_first_calls(task, supervisor)

    def _prepare(
        self, waiting: Sequence[Case], searched: Sequence[Case], quiet: Quiet, others: Mapping[Path, OtherPython]
    ) -> Callable[[Case], Task]:
        """Prepare the models while the `others` load their libraries, and measure the device's roofs.

        Returns what makes a case's task.
        """
        # An odd batch and an even one, which a reference of the gradients is made for.
        probes = [probe_of(case, batch) for case in searched for batch in (1, 2)]
        with self.wall.span("prepare"):
            cases, tick = [*waiting, *probes], self.display.preparing
            prepared = prepare(cases, self.budget, self.run.logs, self.config.path, tick, self._uuid)
            identities = {name: one.identity for name, one in prepared.items() if one.identity}
            self.run.write_models(identities)
            remarked = ((one.remarks, name.partition("/")[0]) for name, one in identities.items() if one.remarks)
            for remarks, models in grouped(remarked).items():
                self.display.announce(f"{listed(dict.fromkeys(models))}: {'; '.join(remarks)}")
            self._await(others)
        quiet.start()
        with self.wall.span("roofs"):
            self.roofs.measure([c for c in (*waiting, *searched) if failure(c, prepared[c.subject]) is None])
        energy, profile = self.config.energy, self.config.profile
        return lambda case: Task(case, prepared[case.subject], self.budget, self._uuid, energy, profile)

    def _await(self, others: Mapping[Path, OtherPython]) -> None:
        """Wait until the other interpreters are ready; their rows have the CUDA of their libraries."""
        for done, (python, other) in enumerate(others.items()):
            self.display.preparing("libraries of other interpreters", done, len(others))
            said = other.ready()
            found = {"cuda": said.get("torch_cuda"), "cudnn": said.get("cudnn")} if self.target.gpu else {}
            for facts in self.environment["interpreters"].values():
                facts |= found if facts.get("path") == str(python) else {}
        if others:
            self.run.write_environment(self.environment)

    def _measure_all(self, tasks: Sequence[Task], supervisor: Supervisor) -> None:
        """Measure every task, and what was disturbed again: until it is not, or that is in vain, or has no time."""
        takes = Takes(self.run.results(), self.budget.repeats)
        self._measure_once([task for task in tasks if task.case.id not in takes.disturbed], supervisor, takes)
        for number in itertools.count(1):
            due = [task for task in tasks if takes.is_due(task.case.id)]
            if not due:
                return
            what = counted(len(due), "disturbed case")
            self.display.announce(f"measuring {what} again{f', round {number}' if number > 1 else ''}")
            self.why_not_all = "the run was ended before"
            done = self._measure_once(due, supervisor, takes, again=True)
            self.why_not_all = ""
            if left := len(due) - done:
                spent = "the time for that, `budget.repeats`, was spent"
                self.why_not_all = "the machine was as busy as before" if takes.is_in_vain else spent
                self.display.announce(f"{done} of {what} measured again, {left} not ({self.why_not_all})")

    def _time_first_calls(self, task: Callable[[Case], Task], supervisor: Supervisor) -> None:
        """Add the first call at each new shape that has none yet, or the warning why not, to the rows that are ok."""
        journal = self.run.results()
        walked = [list(map(task, walk)) for walk in walks(self.plan, self.chosen, (), journal)]
        able = [walk for walk in walked if failure(walk[0].case, walk[0].prepared) is None]
        for done, walk in enumerate(able):
            what = f"first calls at new shapes, up to {walk[-1].case.id}"
            self.display.preparing(what, done, len(able))
            with self.wall.span("first calls"):
                found = supervisor.first_calls(walk)
            for id_, call in found.items():
                if id_ not in self._first_calls:
                    result = journal[id_]
                    result.warnings[:] = [warning for warning in result.warnings if warning.kind != UNTIMED]
                    result.warnings += [Warning(UNTIMED, call.why_not)] if call.why_not else []
                    result.figures |= {"first_call_ms": call.ms} if call.ms is not None else {}
                    self.run.append(result)

    def _measure_once(self, tasks: Sequence[Task], supervisor: Supervisor, takes: Takes, again: bool = False) -> int:
        """Measure tasks, family by family; `again` as long as that is due. Returns how many it measured."""

        def keep(case: Case, result: Result) -> None:
            if result.status == "ok" and case.id in self._first_calls:
                result.figures["first_call_ms"] = self._first_calls[case.id]
            if case.id in takes.disturbed:
                self.repeated.add(str(case.id))
            self._keep(case, result, takes.add(result))

        # What cannot run comes first: who reads it then can mend it now.
        ordered = sorted(families(tasks), key=lambda family: self._refusal(family[0]) is None)
        pace = _Pace([task.case for family in ordered for task in family], self.budget)
        for family in ordered:
            if not again or takes.is_due(family[0].case.id):
                self._measure_family(family, supervisor, pace, keep)
        return pace.done

    def _measure_family(
        self, family: Sequence[Task], supervisor: Supervisor, pace: _Pace, keep: Callable[[Case, Result], None]
    ) -> None:
        """Measure one case, or the batches of a sweep."""
        waiting, first = list(family), pace.done

        def tick(ended: int, phase: str) -> None:
            self.display.measuring(family[ended].case, phase, first + ended, pace.total, pace.seconds_left())

        def end(result: Result) -> None:
            tick(len(family) - len(waiting), "end")
            pace.ended(sum(result.phases.values()))
            keep(waiting.pop(0).case, result)

        tick(0, "start")
        if (why_not := self._refusal(family[0])) is not None:
            for task in family:
                end(Result(task.case.id, why_not.status, [str(why_not.reason)], log=log_name(why_not.log)))
        elif family[0].case.role is Role.SWEEP:
            supervisor.measure_sweep(family, tick, end)
        else:
            end(supervisor.measure_one(family[0], lambda phase: tick(0, phase)))

    def _refusal(self, task: Task) -> Outcome | None:
        """How a case ends that is not started, since its model was not prepared or does not fit; None if it is."""
        weights = weight_mib(task.case.source, task.prepared.state)
        return failure(task.case, task.prepared) or too_large_to_run(task.case, weights, self.target.gpu)

    def _unfinished(self, searched: Sequence[Case], waiting: Sequence[Case], again: Collection[CaseId]) -> list[Case]:
        """Those of `searched` in whose families there is something to measure or to search."""
        results, measured = self.run.results(), {case.id.family for case in waiting}
        searches = [(case, Search(case, self._limits, self.target.gpu, results, again)) for case in searched]
        available = available_memory_mib()
        return [
            case for case, search in searches if case.id.family in measured or search.next_batch(available) is not None
        ]

    def _search_all(self, tasks: Sequence[Task], again: Collection[CaseId], supervisor: Supervisor) -> None:
        """Search the largest batch of each family, of which `tasks` has one each: probe after probe, until it is known
        where memory ends."""
        results = self.run.results()
        able = [task for task in tasks if failure(task.case, task.prepared) is None]
        for number, task in enumerate(able):
            search = Search(task.case, self._limits, self.target.gpu, results, again)
            while (batch := search.next_batch(available := available_memory_mib())) is not None:
                case = probe_of(search.case, batch)

                def tick(phase: str, case: Case = case, number: int = number) -> None:
                    self.display.measuring(case, phase, number, len(able), 0.0)

                tick("start")
                result = search.refuse(batch, task.prepared.specs, available)
                if result is None:
                    probe = replace(task, case=case, budget=short(self.budget), energy=False, profile=False)
                    result = supervisor.measure_one(probe, tick)
                search.add(result)
                self._keep(case, result)

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
