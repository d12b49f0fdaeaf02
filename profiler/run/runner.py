"""Measure the planned cases into a run's journal, one forked process a case, one at a time.

The largest batch that fits is searched by doubling, then by halving the gap. The next batch follows from the tries
alone, so a resumed search goes on where it was interrupted.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from engines.base import BuiltAhead, Phase, Warning
from engines.catalog import ENGINES
from exporters.cache import Cache
from exporters.errors import sentence, shown
from exporters.inputs import TensorSpec, numpy_dtype
from profiler.errors import WHEN_IDLE, ConfigError
from profiler.job.case import Budget, Case, file_name
from profiler.job.config import Config, LargestBatch
from profiler.job.plan import (
    CONFIRMING_PROCESSES,
    builds_long,
    estimate_seconds,
    further,
    in_waves,
    processes_of_winners,
)
from profiler.machine import Target, available_memory_mib, usable_cores
from profiler.nvml import Reading, power_capped, slowdowns, summarize
from profiler.processes.forkserver import forget_choices
from profiler.processes.holders import Holders, origin_of
from profiler.processes.messages import Outcome, Status
from profiler.processes.process import Call, run_all, run_one
from profiler.results.cells import cells
from profiler.results.choice import contenders
from profiler.results.result import Result, log_name, result_of
from profiler.results.roofline import Measured, excess, precisions_needed
from profiler.results.run_folder import RunFolder
from profiler.results.schema import check_result
from profiler.results.warning_kinds import DISTURBED, REMEASURED, retaken
from profiler.run.prepare import failure, prepare
from profiler.run.progress import Display
from profiler.run.search import next_trials
from profiler.run.summary import so_far
from profiler.run.watch import DeviceLock, Quiet, Watcher, busy_share
from profiler.tables.numbers import count, counted, duration, percent
from profiler.worker.task import Prepared, Task

_ROOFS_SECONDS = 60.0
_CORES_A_BUILD = 2 if usable_cores() > 2 else 1
"""Cores for each of the builds that run side by side: a compiler starts compilers."""
_MOST_BUILDS = 8
"""Builds side by side: on a GPU each has a context and the model."""
_TRIALS, _CONFIRMING = 0.2, 0.3
"""Shares of the time a run may take that are kept for a search's trials, and after them to confirm the winner."""
_ENDING_SECONDS = 5.0
"""What starting the program and writing its tables take, of the time a run may take."""
_FEWEST_ROWS = 3
"""Rows after which a run says what is fastest so far."""
_SHARE = 0.8
"""Share of the available main memory that a try may take: a machine that swaps is of no use to its user."""
_HOPELESS, _MOST_HOPELESS = 0.25, 3
"""Share of other work beside which a figure is hopeless, and how many such cases a run measures before it asks for no
more processes."""
_CURED_BY_SIZE = ("oom", "failed", "crashed")
"""How a try ends that a smaller batch may mend."""


def is_better(second: Result, first: Result) -> bool:
    """Tell whether a second take of a case counts. Never by latency: the faster of two is faster than the case is."""
    return second.status == "ok" and (not retaken(second.warnings) or _disturbance(second) < _disturbance(first))


def _disturbance(result: Result) -> float:
    share = result.figures.get("disturbance")
    return math.inf if share is None else share


def short(budget: Budget) -> Budget:
    """Cut the budget to what shows whether a batch fits."""
    return replace(budget, seconds=min(budget.seconds, 0.3), min_samples=3, max_samples=3)


@dataclass
class Search:
    """The search for the configuration of `case`; its `measured` batches ran as cases."""

    case: Case
    limits: LargestBatch
    measured: Mapping[int, Status]
    tried: dict[int, tuple[Status, float | None]] = field(default_factory=dict)
    """By batch the status and the peak of memory in MiB."""

    def add(self, batch: int, status: Status, memory_mib: float | None) -> None:
        """Take a try into account."""
        self.tried[batch] = status, memory_mib

    def next_batch(self) -> int | None:
        """Return the next batch to try; None once the largest is known, or if nothing but other failures ran."""
        fitting = [batch for batch, status in self.measured.items() if status == "ok"]
        if not fitting and "oom" not in self.measured.values():
            return None
        tried = {batch: status for batch, (status, _) in self.tried.items()}
        return next_batch(tried, self.limits.limit, self.limits.resolution, max(fitting, default=1))

    def refuse(self, batch: int, specs: Sequence[TensorSpec], available_mib: float) -> Result | None:
        """Refuse a batch that the main memory is too small to try; None if it may run."""
        needed = sum(math.prod(spec.at(batch)) * numpy_dtype(spec.dtype).itemsize for spec in specs) / 2**20
        known = sorted((size, mib) for size, (status, mib) in self.tried.items() if status == "ok" and mib)
        if self.case.device == "cpu" and len(known) > 1:
            (small, less), (large, more) = known[-2:]
            needed = max(needed, more + (more - less) / (large - small) * (batch - large))
        if needed <= _SHARE * available_mib:
            return None
        most = f"{percent(_SHARE)} % of the {count(available_mib)} MiB of main memory that are available"
        reason = f"not tried: it would take about {count(needed)} MiB, more than {most}"
        return Result(replace(self.case, batch_size=batch).id, "oom", [reason])


def next_batch(tried: Mapping[int, Status], limit: int, resolution: float, start: int = 1) -> int | None:
    """Return the next batch: twice the largest that fitted, or the middle between that and the first that did not.

    None once those are at most max(1, `resolution` of the batch) apart, at `limit`, and after a failure of another kind
    than memory, such as a timeout.
    """
    good = max((batch for batch, status in tried.items() if status == "ok"), default=0)
    bad = min((batch for batch, status in tried.items() if status != "ok" and batch > good), default=None)
    if bad is None:
        return None if good >= limit else min(limit, 2 * good or start)
    if tried[bad] not in _CURED_BY_SIZE or bad - good <= max(1, int(resolution * good)):
        return None
    return (good + bad) // 2


@dataclass
class Runner:
    """Measures the cases of one run.

    `config` is the job as resolved for `target`, `plan` all of its cases, and `chosen` those to measure; `environment`
    gets the device's roofs. Before each case it waits up to `idle_minutes` until the machine is quiet.
    """

    run: RunFolder
    config: Config
    target: Target
    plan: Sequence[Case]
    chosen: Sequence[Case]
    environment: dict[str, Any]
    display: Display
    idle_minutes: float = 0.0
    by_name: bool = False
    """True of one model's run: a model that cannot be had is an error, and no row; what often wins comes first."""
    firsts: dict[str, Result] = field(default_factory=dict)
    """First takes of cases that are to be measured again, by id."""
    spent: float = 0.0
    """Seconds of all first takes."""
    repeated: float = 0.0
    """Seconds of all second takes."""
    within: float = math.inf
    """Seconds that all of the run may take."""
    deadline: float = math.inf
    """When nothing more is measured, on time.monotonic()."""
    took: dict[str, float] = field(default_factory=dict)
    """Seconds of each engine's last case, besides building what is kept."""
    hopeless: int = 0
    """Cases that ran beside too much other work."""
    search_ended: bool = True
    """False where there was no time for all of a search."""

    @property
    def _uuid(self) -> str | None:
        return self.target.gpu.uuid if self.target.gpu else None

    def measure(self, cases: Sequence[Case], searched: Sequence[Case] = (), retry: bool = False) -> None:
        """Prepare and measure every case; each Result is in the journal as soon as it is there.

        Those beside other work are measured again, then what may win in further processes. Then the largest batch is
        searched for `searched`.

        Raises ConfigError for a model by name that cannot be had.
        """
        for case in cases:
            if case.unsupported is not None:
                self.run.append(Result(case.id, "unsupported", [case.unsupported]))
        waiting = [case for case in cases if case.unsupported is None]
        families = {case.family for case in waiting}
        known = self.run.results() if searched else {}
        searched = [c for c in searched if c.family in families or self._search(c, retry, known).next_batch()]
        if not waiting and not searched and not self.config.search and not self.lacking():
            return
        with self.supervised() as (measure, holders):
            self.firsts = self.taken_first()
            waves, late = [list(waiting)] if waiting else [], list[Case]()
            # Layers get their names from graphs of later waves.
            if (self.by_name or math.isfinite(self.deadline)) and not self.config.profile:
                waves, late = in_waves(waiting)
            tasks = list[Task]()
            if self.config.search:
                with self._leaving(_TRIALS + _CONFIRMING):
                    tasks += self._measure_waves(waves, measure, holders)
                # Another preset is worth more than a trial, if nothing is compiled for it.
                left = self._left(case for wave in waves for case in wave)
                with self._leaving(_CONFIRMING):
                    quick = [case for case in left if not ENGINES[case.engine].compiles]
                    tasks += self._measure_waves([quick] if quick else [], measure, holders)
                tasks += self._search_options(measure, holders)
                waves = [self._left(left)]
            waves = [wave for wave in (*waves, late) if wave]
            if self.config.search:
                tasks += self._measure_waves(waves, measure, holders)
                tasks += self._search_options(measure, holders)
            else:
                with self._leaving(_CONFIRMING):  # A winner in several processes is worth more than a further case.
                    tasks += self._measure_waves(waves, measure, holders)
                    self._measure_again(tasks, measure)  # What other work slowed down does not decide what may win.
                tasks += self._measure_winners(measure, holders)
                late = self._left(waiting)
                tasks += self._measure_waves([late] if late else [], measure, holders)
            self._measure_again(tasks, measure)
            if searched and not self.is_over():
                holders.give_up()  # Their memory is what is searched in.
                task = self._prepare([], searched, measure.quiet, holders)
                self._search_all([task(case) for case in searched], retry, measure)

    @contextlib.contextmanager
    def supervised(self) -> Iterator[tuple[Supervisor, Holders]]:
        """Have the device for this run, its telemetry read, and holders for its models."""
        with DeviceLock(self._uuid or "cpu") as lock, Holders() as holders:
            quiet = Quiet(lock, self._uuid, self.idle_minutes, self.display)
            quiet.start()
            with Watcher(self._uuid, self.run.path / "telemetry.csv", self.run.logs / "telemetry.log") as watcher:
                yield Supervisor(self, watcher, quiet, holders), holders

    def begin_in(self, seconds: float, started: float) -> None:
        """Have the run take so many seconds from then on."""
        self.within, self.deadline = seconds, started + seconds - _ENDING_SECONDS

    @contextlib.contextmanager
    def _leaving(self, share: float) -> Iterator[None]:
        """Leave a share of the time that the run may take, if that is limited, to what comes after."""
        end = self.deadline
        self.deadline -= share * self.within if math.isfinite(end) else 0.0
        try:
            yield
        finally:
            self.deadline = end

    def is_over(self, seconds: float = 0.0) -> bool:
        """Tell whether what takes so many more seconds would end after the time that the run may take."""
        return time.monotonic() + seconds > self.deadline

    def _prepare(
        self, waiting: Sequence[Case], searched: Sequence[Case], quiet: Quiet, holders: Holders
    ) -> Callable[[Case], Task]:
        """Prepare the models and measure the device's roofs; return what makes a case's task."""
        # An odd batch and an even one, which a reference of the gradients is made for.
        cases = [*waiting, *(replace(case, batch_size=batch) for case in searched for batch in (1, 2))]
        prepared, task = self.prepare(cases, holders)
        quiet.start()
        self._measure_roofs([c for c in (*waiting, *searched) if failure(c, prepared[c.subject]) is None])
        return task

    def prepare(self, cases: Sequence[Case], holders: Holders) -> tuple[dict[str, Prepared], Callable[[Case], Task]]:
        """Prepare the models; return what of them is prepared, and what makes a case's task.

        Raises ConfigError for a model by name that cannot be had.
        """
        config = self.config
        doing, deadline = self.display.doing, self.deadline
        prepared = prepare(cases, config.budget, self.run.logs, config.path, doing, holders, self._uuid, deadline)
        bad = next((one.failures["model"] for one in prepared.values() if "model" in one.failures), None)
        if self.by_name and bad is not None and not self.spent and not self.is_over():
            raise ConfigError(str(bad.reason))
        identities = {name: one.identity for name, one in prepared.items() if one.identity}
        self.run.write_models(identities)
        energy, profile = config.energy, config.profile
        return prepared, lambda case: Task(case, prepared[case.subject], config.budget, self._uuid, energy, profile)

    def _measure_roofs(self, cases: Sequence[Case]) -> None:
        """Measure the roofs that these cases need; a resumed run keeps its own and adds those that it lacks."""
        known, precisions = self.environment.get("roofs") or {}, precisions_needed(self.target.kind, cases)
        if not cases or self.is_over() or known.keys() >= {"copy_gb_s", *(f"{each}_tflops" for each in precisions)}:
            return
        self.display.doing("measuring peak FLOP/s and bandwidth")
        log, argument = self.run.logs / "roofs.log", (self.target.kind, precisions, self.config.budget.seconds)
        visible = {"CUDA_VISIBLE_DEVICES": self._uuid or ""}
        function = "profiler.worker.roofline:measure_roofs"
        outcome = run_one(
            Call(function, argument, log, _ROOFS_SECONDS, deadline=self.deadline, environment=visible, returns=Measured)
        )
        if outcome.status == "timeout" and self.is_over():
            return
        found: Measured = outcome.value or Measured({}, quiet=False)
        if not found.roofs:
            self.display.announce(f"no roofline: the peaks could not be measured: {outcome.reason or f'see {log}'}")
        quiet = self.environment.get("roofs_quiet", True) and found.quiet
        self.environment |= {"roofs": {**found.roofs, **known}, "roofs_quiet": quiet}
        self.run.write_environment(self.environment)

    def taken_first(self) -> dict[str, Result]:
        """Return the journal's rows that have a cause to be measured again."""
        ok = (result for result in self.run.results().values() if result.status == "ok" and retaken(result.warnings))
        return {result.case_id: _first(result) for result in ok}

    def _measure_waves(self, waves: Sequence[Sequence[Case]], measure: Supervisor, holders: Holders) -> list[Task]:
        done: list[Task] = []
        for number, wave in enumerate(waves):
            if self.is_over():
                break
            task = self._prepare(wave, (), measure.quiet, holders)
            # Failures come first: who reads them then can mend them now.
            tasks = sorted(map(task, wave), key=lambda task: failure(task.case, task.prepared) is None)
            measure.build_ahead(tasks)
            later = [case for of in waves[number + 1 :] for case in of]
            self.spent += self.measure_each(tasks, measure, done=len(done), later=later)
            done += tasks
        return done

    def _search_options(self, measure: Supervisor, holders: Holders) -> list[Task]:
        """Try the neighbours of what is the best, until none of them is new, then confirm it; returns the tasks."""
        tasks, known = list[Task](), self.run.results()
        with self._leaving(_CONFIRMING):
            while (trials := next_trials(self._merged(), self.plan, known)) and not self.is_over():
                there = {case.id for case in self.plan}
                new = [case for case in trials if case.id not in there]
                self.plan, self.chosen = [*self.plan, *new], [*self.chosen, *new]
                self.display.announce(f"searching: {counted(len(trials), 'configuration')} next to the best")
                tasks += self._measure_waves([trials], measure, holders)
                before, known = known, self.run.results()
                if len(before) == len(known):
                    break
        tasks += self._measure_winners(measure, holders)
        self.search_ended = not trials and not self.is_over()
        return tasks

    def _left(self, cases: Iterable[Case]) -> list[Case]:
        known = self.run.results()
        return [case for case in cases if case.id not in known]

    def _merged(self) -> pl.DataFrame:
        return cells(self._rows()).filter(pl.col("model_kind") != "layer")

    def lacking(self, most: int = 0) -> list[Case]:
        """Return the further replicates that likely winners still need, up to `most` where several may win.

        Return none if only some cases of a model and batch size were chosen.
        """
        by_id, known, planned = {case.id: case for case in self.chosen}, self.run.results(), self.config.replicates
        groups = {(case.model, case.batch_size) for case in self.chosen}
        if any(case.id not in by_id and (case.model, case.batch_size) in groups for case in self.plan):
            return []
        replicates = []
        for group in contenders(self._merged(), with_equals=most <= CONFIRMING_PROCESSES):
            cases = [by_id[id_] for cell in group for id_ in cell["case_ids"] if id_ in by_id]
            processes = most if len(group) > 1 else 0
            replicates += [
                case for first in cases if not first.replicate for case in further(first, planned, processes)
            ]
        return sorted((case for case in replicates if case.id not in known), key=lambda case: case.replicate)

    def _measure_winners(self, measure: Supervisor, holders: Holders) -> list[Task]:
        """Measure likely winners in further processes; after a search until they are told apart."""
        tasks: list[Task] = []
        for processes in processes_of_winners(self.config.search):
            more = self.lacking(processes)
            if self.is_over() or (more and self._is_hopeless()):
                break
            if not more:
                continue
            self.display.announce(f"measuring what may win in further processes: {counted(len(more), 'case')}")
            new = list(map(self._prepare(more, (), measure.quiet, holders), more))
            seconds = self.measure_each(new, measure)
            if not seconds:
                break
            self.spent += seconds
            tasks += new
        return tasks

    def _measure_again(self, tasks: Sequence[Task], measure: Supervisor) -> None:
        """Measure once more the cases with a cause for it, for the job's share of the time at most."""
        # What a search left for later is there twice.
        again = list({task.case.id: task for task in tasks if task.case.id in self.firsts}.values())
        again.sort(key=lambda task: not task.case.is_base)  # All factors are over them.
        allowed = self.config.budget.repeats * self.spent - self.repeated
        if again and allowed > 0 and not self.is_over() and not self._is_hopeless():
            self.display.announce(f"measuring {counted(len(again), 'case')} again, for at most {duration(allowed)}")
            self.repeated += self.measure_each(again, measure, allowed)

    def _is_hopeless(self) -> bool:
        """Tell whether a further process would be as useless as those before it."""
        if self.idle_minutes or self.hopeless < _MOST_HOPELESS or not busy_share():
            return False
        told = f"{counted(self.hopeless, 'case')} ran beside too much other work: no further processes of them"
        self.display.announce(f"{told}; {WHEN_IDLE} waits for its end")
        return True

    def measure_each(
        self,
        tasks: Sequence[Task],
        measure: Supervisor,
        allowed: float = math.inf,
        done: int = 0,
        later: Sequence[Case] = (),
        is_estimated: bool = True,
    ) -> float:
        """Measure tasks until the `allowed` seconds are spent; return the seconds.

        So many were `done` before them, and `later` will be measured after them. What is estimated not to end in the
        time of the run does not begin.
        """
        expected = [self.estimate(task.case, measure) for task in tasks]
        after = sum(self.estimate(case, measure) for case in later)
        total = done + len(tasks) + len(later)
        spent = 0.0
        for number, task in enumerate(tasks):
            # What is left takes longer or shorter than estimated, as what is done did.
            rate = spent / sum(expected[:number]) if spent else 1.0
            if spent >= allowed:
                break
            if self.is_over(self.estimate(task.case, measure) if is_estimated else 0.0):
                continue  # A shorter one may still fit.
            left = (sum(expected[number:]) + after) * rate

            def tick(phase: str, task: Task = task, number: int = number, left: float = left) -> None:
                self.display.measuring(task.case, phase, done + number, total, left)

            tick("start")
            task = self._intact(task, measure)
            result = self._measure_or_fail(task, measure, tick)
            if result.status != "ok" and (again := self._intact(task, measure)) is not task:
                result = self._measure_or_fail(again, measure, tick)
            if result.status == "timeout" and self.is_over():
                break  # It is the run's time that was short, not the case's.
            if result.status == "ok":
                self.took[task.case.engine] = _seconds(task.case, result)
            spent += sum(result.phases.values())
            self._keep(task, result)
            if self.by_name and done + number + 1 >= _FEWEST_ROWS:
                self.display.so_far(*so_far(cells(self._rows())))
        return spent

    def _measure_or_fail(self, task: Task, measure: Supervisor, tick: Callable[[str], None]) -> Result:
        if (why := failure(task.case, task.prepared)) is not None:
            return Result(task.case.id, why.status, [str(why.reason)], log=log_name(why.log))
        return measure.measure_one(task, tick)

    def _intact(self, task: Task, measure: Supervisor) -> Task:
        """Prepare the case again where somebody has removed or damaged its files in the cache."""
        if all(map(Cache().has, task.prepared.files(task.case))):
            return task
        self.display.announce(f"{task.case.model}: prepared again, since the cache lost files")
        measure.holders.forget()
        prepared = self.prepare([task.case], measure.holders)[0]
        measure.holders.give_up()  # A gate holds no models.
        return replace(task, prepared=prepared[task.case.subject])

    def estimate(self, case: Case, measure: Supervisor) -> float:
        """Expect what the engine's last case took, of one that has been built; else guess."""
        is_built = replace(case, replicate=0).id in measure.cold
        known = self.took.get(case.engine) if is_built or not builds_long(case) else None
        return known or estimate_seconds(case, self.config.budget, is_built)

    def _rows(self) -> pl.DataFrame:
        return self.run.ended(self.config.suite, self.plan, self.environment)[1]

    def _keep(self, task: Task, result: Result) -> None:
        """Write a result, unless it is a second take and no better than the first.

        A row far faster than the roofs allow fails, if nothing can have lowered them.
        """
        if result.status == "ok" and self.environment.get("roofs_quiet"):
            over = excess(task.case, result, self.environment.get("roofs") or {})
            if over is not None and over.is_impossible:
                advice = "check that the call does all its work, and that the clock waits for it"
                result.fail(f"rejected: {over.text}; {advice}")
        self.hopeless += result.has(DISTURBED) and _HOPELESS <= _disturbance(result) < math.inf
        first = self.firsts.pop(result.case_id, None)
        counts = first is None or is_better(result, first)
        if first is None and result.status == "ok" and retaken(result.warnings):
            self.firsts[result.case_id] = _first(result)
        elif first is not None and counts:
            why = "; ".join(map(str, retaken(first.warnings)))
            result.warnings.append(Warning(REMEASURED, f"the first take was {why}"))
        if counts:
            result = self.run.append(result)
        self.display.ended(result, counts)

    def _search(self, case: Case, retry: bool, known: Mapping[str, Result]) -> Search:
        planned = [other for other in self.plan if other.family == case.family and other.id in known]
        limits = self.config.largest_batch or LargestBatch()
        search = Search(case, limits, {other.batch_size: known[other.id].status for other in planned})
        axes = {name: getattr(case, name) for name in ("model", "variant", "precision", "setting")}
        for row in self.run.largest_batches().filter(**axes, **{"pass": case.pass_}).iter_rows(named=True):
            if row["status"] == "ok" or not retry:
                search.add(row["batch_size"], row["status"], row["peak_memory_mib"])
        return search

    def _search_all(self, tasks: Sequence[Task], retry: bool, measure: Supervisor) -> None:
        """Search the largest batch of each task's configuration, try after try."""
        known = self.run.results() if tasks else {}
        for number, task in enumerate(tasks):
            search = self._search(task.case, retry, known)
            while not self.is_over() and (batch := search.next_batch()) is not None:
                case = replace(task.case, batch_size=batch)
                if failure(case, task.prepared) is not None:
                    break

                def tick(phase: str, case: Case = case, number: int = number) -> None:
                    self.display.measuring(case, phase, number, len(tasks), 0.0)

                tick("start")
                result = search.refuse(batch, task.prepared.specs, available_memory_mib())
                if result is None:
                    budget = short(self.config.budget)
                    one = replace(task, case=case, budget=budget, energy=False, profile=False, only_fits=True)
                    result = measure.measure_one(one, tick)
                    if result.status == "timeout" and self.is_over():
                        break
                search.add(batch, result.status, result.figures.get("peak_memory_mib"))
                self.run.append_try(case, result)
                self.display.ended(result)


@dataclass
class Supervisor:
    """Measures a case in a process of its own, once the machine is quiet, and adds the device's telemetry."""

    runner: Runner
    watcher: Watcher
    quiet: Quiet
    holders: Holders = field(default_factory=Holders)
    cold: dict[str, float | None] = field(default_factory=dict)
    """Seconds of each configuration's first build, which may have been beside others, by the id of its first replicate:
    later ones find its kernels."""

    def build_ahead(self, tasks: Sequence[Task]) -> None:
        """Have what compiles into a cache of its own do so side by side; what fails says why when it is measured."""
        first = {task.case.id: task for task in tasks if ENGINES[task.case.engine].shares_kernels}
        first = {id_: t for id_, t in first.items() if not t.case.replicate and failure(t.case, t.prepared) is None}
        slots = max(1, min(usable_cores() // _CORES_A_BUILD, _MOST_BUILDS, len(first)))
        # What compiles nothing takes its time first.
        seconds = sum(self.runner.estimate(t.case, self) for t in tasks if not ENGINES[t.case.engine].compiles)
        for id_, task in list(first.items()):
            seconds += self.runner.estimate(task.case, self) / slots
            if self.runner.is_over(seconds):
                del first[id_]
        if len(first) > 1:
            workers = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, usable_cores() // slots))}
            calls = [self._call("prepare_model:build_ahead", task, workers) for task in first.values()]
            shown = self.runner.display.doing
            ended = run_all(calls, slots, lambda done: shown("compiling", done, len(calls)))
            forget_choices()
            built = {id_: one.seconds.get(Phase.BUILD) for id_, one in zip(first, ended, strict=True) if one.value}
            self.cold |= built

    def measure_one(self, task: Task, tick: Callable[[str], None]) -> Result:
        """Measure one case. An engine that builds does so in another process before, whose memory does not count."""
        built = None
        if ENGINES[task.case.engine].builds is not None:
            built = self._run("prepare_model:build_ahead", task, tick)
            if built.status != "ok":
                return result_of(task.case.id, built)
        self.quiet.start()
        was_shared = self.quiet.is_shared()
        result = self._result(task.case.id, self._run("measure_case:measure_case", task, tick))
        if was_shared or self.quiet.is_shared():
            result.warnings.append(Warning(DISTURBED, "another run measured on the same device"))
        if built is not None:
            _add_build(result, built)
        if ENGINES[task.case.engine].shares_kernels and result.status == "ok":
            own = replace(task.case, replicate=0).id
            result.figures["build_s"] = self.cold.setdefault(own, result.figures.get("build_s"))
        self._add_telemetry(result)
        return result

    def _result(self, case_id: str, outcome: Outcome) -> Result:
        """Return the process's result for its case; make a crashed row of an invalid one."""
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

    def _run(self, function: str, task: Task, tick: Callable[[str], None]) -> Outcome:
        """Run a worker's function within the task's limits; a log that stays empty is deleted."""
        call = self._call(function, task)
        outcome = run_one(call, lambda child: tick(child.progress or child.phase))
        if call.log.exists() and not call.log.stat().st_size:
            call.log.unlink()
        return outcome

    def _call(self, function: str, task: Task, environment: Mapping[str, str] | None = None) -> Call:
        log = self.runner.run.logs / f"{file_name(task.case.id)}{'-largest-batch' if task.only_fits else ''}.log"
        limits, end = (task.budget.timeout, task.budget.build_timeout), self.runner.deadline
        visible = {"CUDA_VISIBLE_DEVICES": task.gpu or ""}
        path, origin = self.runner.config.path, None
        if ENGINES[task.case.engine].needs == "torch":
            origin = origin_of(self.runner.run.logs, task.case.source.name)
        variables = {**visible, **(environment or {})}
        returns = BuiltAhead if function.endswith("build_ahead") else object
        name = f"profiler.worker.{function}"
        return Call(name, task, log, *limits, variables, path, origin=origin, returns=returns, deadline=end)

    def _add_telemetry(self, result: Result) -> None:
        """Add the device's readings while the case was measured, by the phases that it `entered`."""
        if result.status != "ok":
            return
        # The checks open a second session, and none of it is the case's; the energy loop loads the card differently.
        entered = result.entered
        readings = self.watcher.between(min(entered.values()), entered[Phase.CHECK])
        sampled = entered[Phase.MEASURE], entered.get(Phase.ENERGY, entered[Phase.CHECK])
        _add_readings(result, readings, [r for r in readings if sampled[0] <= r.seconds <= sampled[1]])


def _seconds(case: Case, result: Result) -> float:
    """Return what a case took; what it built is kept for its next process, unless it is built alone."""
    engine, seconds = ENGINES[case.engine], sum(result.phases.values())
    is_kept = engine.shares_kernels or engine.builds is not None
    return seconds - (result.phases.get(Phase.BUILD, 0.0) if is_kept else 0.0)


def _first(result: Result) -> Result:
    """Keep a first take without what would fill the memory of a run of many cases."""
    return replace(result, samples={}, layers=[], warnings=list(result.warnings))


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
