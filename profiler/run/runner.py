"""Measure the planned cases into a run's journal: one forked process a case, one case at a time."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from engines.base import Phase, Warning
from engines.catalog import ENGINES
from exporters.cache import Cache
from profiler.errors import WHEN_IDLE, ConfigError
from profiler.job.case import Case
from profiler.job.config import Config, LargestBatch
from profiler.job.plan import (
    CONFIRMING_PROCESSES,
    builds_long,
    estimate_seconds,
    further,
    in_waves,
    processes_of_winners,
)
from profiler.machine.target import Target, available_memory_mib, usable_cores
from profiler.processes.forkserver import forget_choices
from profiler.processes.holders import Holders
from profiler.processes.process import Call, run_all, run_one
from profiler.results.cells import GROUP, cells
from profiler.results.choice import contenders, wide_bases
from profiler.results.result import Result
from profiler.results.roofline import Measured, excess, precisions_needed, widened
from profiler.results.run_folder import RunFolder
from profiler.results.warning_kinds import DISTURBED, REMEASURED, retaken
from profiler.run.largest_batch import Search, short
from profiler.run.prepare import failure, prepare
from profiler.run.progress import Display
from profiler.run.search import beaten, next_trials, same_programs
from profiler.run.summary import so_far
from profiler.run.supervisor import Supervisor
from profiler.run.watch import DeviceLock, Quiet, Watcher, busy_share
from profiler.tables.numbers import counted, duration
from profiler.worker.task import Task

_ROOFS_SECONDS = 60.0
_MOST_BUILDS = 8
"""Builds side by side: on a GPU each has a context and the model."""
_TRIALS, _CONFIRMING = 0.2, 0.3
"""Shares of --within to keep for a search's trials and for confirming the winner."""
_ENDING_SECONDS, _ENDING = 5.0, 1 / 6
"""Part of --within to keep for writing tables: the seconds of a start, which imports as much, up to that share."""
_FEWEST_ROWS = 3
"""Rows after which a run shows the fastest so far."""
_WAITING = 0.4
"""Share of --within that waiting for a quiet machine may take."""
_HOPELESS, _MOST_HOPELESS = 0.25, 3
"""Share of other work that makes a figure useless, and the number of such cases that stops further processes."""


def _cores_per_build() -> int:
    # A build starts compilers of its own. Not a constant: --threads sets the cores after this file is imported.
    return 2 if usable_cores() > 2 else 1


def is_better(second: Result, first: Result) -> bool:
    """Return whether the second take counts, whatever its latency: choosing the faster one would be biased."""
    return second.status == "ok" and (not retaken(second.warnings) or _disturbance(second) < _disturbance(first))


def _disturbance(result: Result) -> float:
    share = result.figures.get("disturbance")
    return math.inf if share is None else share


@dataclass
class Runner:
    """Measures the cases of one run.

    `config` is the job as resolved for `target`, `plan` has all of its cases, and `chosen` those to measure. Adds the
    device's roofs to `environment`. Waits up to `idle_minutes` for a quiet machine before each case.
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
    """True for a bare model on the command line: failing to load it is an error, and likely winners come first."""
    firsts: dict[str, Result] = field(default_factory=dict)
    """First takes to measure again, by case id."""
    tasks: dict[str, Task] = field(default_factory=dict)
    """Prepared tasks, by case id."""
    first_seconds: float = 0.0
    second_seconds: float = 0.0
    """Seconds of all first takes, and of all second takes."""
    done: int = 0
    """Number of cases measured so far, with second takes."""
    started: float = field(default_factory=lambda: time.monotonic())
    """Start of the command, on time.monotonic()."""
    within: float = math.inf
    deadline: float = math.inf
    """End of measuring, on time.monotonic()."""
    last_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each engine's last case, without its configuration's first build."""
    last_builds: dict[str, float] = field(default_factory=dict)
    """Seconds of each engine's last usual build that was its configuration's first."""
    search_ended: bool = True
    """False if a search ran out of time."""
    supervisor: Supervisor = field(init=False)
    """Set while the run has the device."""
    compiled: set[str] = field(default_factory=set)
    """Cases that were compiled ahead, even in vain."""

    @property
    def _uuid(self) -> str | None:
        return self.target.gpu.uuid if self.target.gpu else None

    def measure(self, cases: Sequence[Case], searched: Sequence[Case] = (), retry: bool = False) -> None:
        """Prepare and measure every case, then search the largest batch of `searched`.

        Measures disturbed cases again, and likely winners in further processes. Appends each Result to the journal at
        once. Raises ConfigError if a bare model cannot be loaded.
        """
        self.append_unsupported(cases)
        runnable = [case for case in cases if case.unsupported is None]
        families = {case.family for case in runnable}
        searched = [case for case in searched if case.family in families or self._search(case, retry).next_batch()]
        if not (runnable or searched or self.config.search or self.missing_replicates()):
            return
        with self.supervised():
            self.firsts = self.first_takes()
            # A profile takes its layers' names from graphs, which later waves would export.
            is_sorted = self.by_name or self.config.skip or math.isfinite(self.deadline)
            is_sorted &= not self.config.profile
            waves, late = in_waves(runnable) if is_sorted else ([runnable], [])
            if self.config.search:
                self._measure_with_trials(waves, late)
            else:
                with self._reserving(_CONFIRMING):  # Confirming a winner is worth more than a further case.
                    self._measure_waves([*waves, late])
                    self._measure_again()  # A disturbed figure must not decide who may win.
                self._measure_winners()
                if rest := self._unmeasured(runnable):
                    self._measure_waves([sorted(rest, key=lambda case: case.is_base)])
                    self._measure_winners()
            self._measure_again()
            if searched and not self.is_over():
                self.supervisor.holders.give_up()  # The search needs their memory.
                # An odd and an even batch make the two references of gradients.
                batches = [replace(case, batch_size=batch) for batch in (1, 2) for case in searched]
                self._search_all(self._make_ready(batches)[: len(searched)], retry)

    def append_unsupported(self, cases: Iterable[Case]) -> None:
        for case in cases:
            if case.unsupported is not None:
                self.run.append(Result(case.id, "unsupported", [case.unsupported]))

    @contextlib.contextmanager
    def supervised(self) -> Iterator[None]:
        """Claim the device, read its telemetry, and hold models until the run ends."""
        with DeviceLock(self._uuid or "cpu") as lock, Holders() as holders:
            # Of --within, most is for measuring.
            quiet = Quiet(lock, self._uuid, self.idle_minutes, self.display, _WAITING * self.within)
            quiet.start()
            with Watcher(self._uuid, self.run.path / "telemetry.csv", self.run.logs / "telemetry.log") as watcher:
                self.supervisor = Supervisor(self.run.logs, self.config.path, watcher, quiet, holders)
                yield

    def begin_in(self, seconds: float) -> None:
        """Limit the run to `seconds` after its start; a slow start makes its end begin sooner."""
        ending = max(_ENDING_SECONDS, min(time.monotonic() - self.started, _ENDING * seconds))
        self.within, self.deadline = seconds, self.started + seconds - ending

    @contextlib.contextmanager
    def _reserving(self, share: float) -> Iterator[None]:
        """Keep a share of --within for later steps."""
        end = self.deadline
        self.deadline -= share * self.within if math.isfinite(self.within) else 0.0
        try:
            yield
        finally:
            self.deadline = end

    def is_over(self, seconds: float = 0.0) -> bool:
        """Return whether another `seconds` of work would exceed the run's time."""
        return time.monotonic() + seconds > self.deadline

    def prepare(self, cases: Sequence[Case]) -> list[Task]:
        """Prepare the cases' models; return a task for each. Raises ConfigError if a bare model cannot be loaded."""
        config, holders, limits = self.config, self.supervisor.holders, (self._uuid, self.deadline)
        prepared = prepare(cases, config.budget, self.run.logs, config.path, self.display.doing, holders, *limits)
        failures = [model.failures["model"] for model in prepared.values() if "model" in model.failures]
        if self.by_name and failures and not self.first_seconds and not self.is_over():
            raise ConfigError(str(failures[0].reason))
        self.run.write_models({name: model.identity for name, model in prepared.items() if model.identity})
        settings = config.budget, self._uuid, config.energy, config.profile
        tasks = [Task(case, prepared[case.subject], *settings) for case in cases]
        self.tasks |= {task.case.id: task for task in tasks}
        return tasks

    def _make_ready(self, cases: Sequence[Case]) -> list[Task]:
        """Prepare the cases, and wait for a quiet machine."""
        tasks = self.prepare(cases)
        self.supervisor.quiet.start()
        return tasks

    def _measure_roofs(self, cases: Sequence[Case]) -> None:
        """Measure the roofs that these cases need and the run lacks, and hold its rows against them."""
        roofs, precisions = self.environment.get("roofs") or {}, precisions_needed(self.target.kind, cases)
        needed = {"copy_gb_s", *(f"{precision}_tflops" for precision in precisions)}
        if not cases or self.is_over() or roofs.keys() >= needed:
            return
        precisions = tuple(precision for precision in precisions if f"{precision}_tflops" not in roofs)
        self.display.doing("measuring peak FLOP/s and bandwidth")
        log, argument = self.run.logs / "roofs.log", (self.target.kind, precisions, self.config.budget.seconds)
        visible = {"CUDA_VISIBLE_DEVICES": self._uuid or ""}
        function = "profiler.worker.roofline:measure_roofs"
        outcome = run_one(
            Call(function, argument, log, _ROOFS_SECONDS, deadline=self.deadline, environment=visible, returns=Measured)
        )
        if outcome.status == "timeout" and self.is_over():
            return
        measured: Measured = outcome.value or Measured({}, quiet=False)
        if not measured.roofs:
            self.display.announce(f"no roofline: the peaks could not be measured: {outcome.reason or f'see {log}'}")
        quiet = self.environment.get("roofs_quiet", True) and measured.quiet
        self.environment |= {"roofs": widened({**measured.roofs, **roofs}), "roofs_quiet": quiet}
        self.run.write_environment(self.environment)
        results = self.run.results()
        for case in self.run.ended_cases(self.plan):
            if self._reject_impossible(case, results[case.id]):
                self.display.ended(self.run.append(results[case.id]))

    def first_takes(self) -> dict[str, Result]:
        """Return the journal's rows that deserve a second take."""
        results = self.run.results().values()
        return {r.case_id: _without_samples(r) for r in results if r.status == "ok" and retaken(r.warnings)}

    def _measure_waves(self, waves: Sequence[Sequence[Case]]) -> None:
        waves, ready, are_all_ready = [wave for wave in waves if wave], list[Task](), False
        measured: list[Case] = []
        for number, wave in enumerate(waves):
            if self.is_over():
                break
            is_first, later = not number, [case for following in waves[number + 1 :] for case in following]
            if not are_all_ready:
                # The first wave's rows come soonest; then idle cores prepare and compile all that follows at once.
                are_all_ready = not is_first and _cores_per_build() > 1 and math.isinf(self.deadline)
                ready = self._make_ready([*wave, *later] if are_all_ready else wave)
                ready = self._skip(ready, same_programs(ready, self.chosen))
            now = {case.id for case in wave}
            tasks, ready = ([t for t in ready if (t.case.id in now) == is_now] for is_now in (True, False))
            tasks = self._skip(tasks, beaten(tasks, self.chosen, self._merged()) if self.config.skip else [])
            later = [task.case for task in ready] if are_all_ready else later
            tasks.sort(key=lambda task: failure(task.case, task.prepared) is None)  # Failures first: users can act.
            self.build_ahead(tasks, ready)
            runnable = [task.case for task in tasks if failure(task.case, task.prepared) is None]
            if is_first:  # Show the first row before the roofs, which take seconds.
                first = len(tasks) - len(runnable) + 1
                after = [*(task.case for task in tasks[first:]), *later]
                self.first_seconds += self.measure_each(tasks[:first], later=after)
                tasks = tasks[first:]
            measured += runnable
            if math.isinf(self.deadline):
                self._measure_roofs(measured)
            self.first_seconds += self.measure_each(tasks, later=later)
            if math.isfinite(self.deadline) and not (is_first and waves[1:]):  # Rows of rivals come before roofs.
                self._measure_roofs(measured)

    def _skip(self, tasks: Sequence[Task], results: Sequence[Result]) -> list[Task]:
        """Journal these results of skipped cases, if the job skips any; return the other tasks.

        A failure to prepare is told all the same, and an earlier row with figures stays.
        """
        needed = {task.case.id for task in tasks if failure(task.case, task.prepared) is not None}
        needed |= {id_ for id_, result in self.run.results().items() if result.status == "ok"}
        skipped = [result for result in results if result.case_id not in needed] if self.config.skip else []
        for result in skipped:
            self.run.append(result)
        if skipped:
            why = "; ".join(dict.fromkeys(str(result.reason) for result in skipped))
            self.display.announce(f"skipping {counted(len(skipped), 'case')} (--all measures them): {why}")
        return [task for task in tasks if task.case.id not in {result.case_id for result in skipped}]

    def _measure_with_trials(self, waves: Sequence[Sequence[Case]], late: Sequence[Case]) -> None:
        planned = [case for wave in waves for case in wave]
        with self._reserving(_TRIALS + _CONFIRMING):
            self._measure_waves(waves)
        with self._reserving(_CONFIRMING):
            # Another preset is worth more than a trial, unless it compiles.
            quick = [case for case in self._unmeasured(planned) if not ENGINES[case.engine].compiles]
            self._measure_waves([quick])
        self._try_options()
        self._measure_waves([self._unmeasured(planned), late])
        self._try_options()

    def _try_options(self) -> None:
        """Try new neighbours of the best configurations, then confirm the winner."""
        with self._reserving(_CONFIRMING):
            while (trials := next_trials(self._merged(), self.plan, self.run.results())) and not self.is_over():
                before, planned = len(self.run.results()), {case.id for case in self.plan}
                new = [case for case in trials if case.id not in planned]
                self.plan, self.chosen = [*self.plan, *new], [*self.chosen, *new]
                self.display.announce(f"searching: {counted(len(trials), 'configuration')} next to the best")
                self._measure_waves([trials])
                if len(self.run.results()) == before:
                    break
        self._measure_winners()
        self.search_ended = not trials and not self.is_over()

    def _unmeasured(self, cases: Iterable[Case]) -> list[Case]:
        results = self.run.results()
        return [case for case in cases if case.id not in results]

    def _merged(self) -> pl.DataFrame:
        return cells(self._rows()).filter(pl.col("model_kind") != "layer")

    def missing_replicates(self, limit: int = 0) -> list[Case]:
        """Return the replicates that likely winners still need, up to `limit` while several may win.

        A base whose processes leave no factor needs more, too, and waits until a rival was measured. Returns none if
        only some cases of a model and batch size were chosen.
        """
        by_id, results = {case.id: case for case in self.chosen}, self.run.results()
        groups = {(case.model, case.batch_size) for case in self.chosen}
        if any(case.id not in by_id and (case.model, case.batch_size) in groups for case in self.plan):
            return []
        rivals = [case for case in self.chosen if case.unsupported is None and not case.is_base]
        untried = {_group(case) for case in rivals} - {_group(case) for case in rivals if case.id in results}
        merged = self._merged()
        likely = contenders(merged, with_equals=limit <= CONFIRMING_PROCESSES)
        unsettled = [(cell, limit if len(group) > 1 else 0, False) for group in likely for cell in group]
        unsettled += [(base, 0, True) for base in wide_bases(merged)]
        replicates = dict[str, Case]()
        for cell, processes, is_wide in unsettled:
            for case in [by_id[id_] for id_ in cell["case_ids"] if id_ in by_id]:
                if not case.replicate and _group(case) not in untried:
                    new = further(case, self.config.replicates, processes, is_wide)
                    replicates |= {replicate.id: replicate for replicate in new if replicate.id not in results}
        return sorted(replicates.values(), key=lambda case: case.replicate)

    def _measure_winners(self) -> None:
        """Measure likely winners in further processes; after a search until one verdict remains."""
        for processes in processes_of_winners(self.config.search):
            cases = self.missing_replicates(processes)
            if self.is_over() or (cases and self._is_hopeless()):
                break
            if not cases:
                continue
            self.display.announce(f"confirming likely winners in further processes: {counted(len(cases), 'case')}")
            tasks = self._make_ready(cases)
            self._measure_roofs(cases)
            seconds = self.measure_each(tasks)
            if not seconds:
                break
            self.first_seconds += seconds

    def _measure_again(self) -> None:
        """Measure disturbed cases once more, bases first, within the job's share of the time."""
        again = [task for id_, task in self.tasks.items() if id_ in self.firsts]
        again.sort(key=lambda task: not task.case.is_base)
        allowed = self.config.budget.repeats * self.first_seconds - self.second_seconds
        if again and allowed > 0 and not self.is_over() and not self._is_hopeless():
            self.display.announce(f"measuring {counted(len(again), 'case')} again, for at most {duration(allowed)}")
            self.second_seconds += self.measure_each(again, allowed)

    def _is_hopeless(self) -> bool:
        """Return whether further processes would be useless because the machine stays busy; announce it."""
        shares = [_disturbance(result) for result in self.run.results().values() if result.has(DISTURBED)]
        number = sum(_HOPELESS <= share < math.inf for share in shares)
        if self.idle_minutes or number < _MOST_HOPELESS or not busy_share():
            return False
        cases = counted(number, "case")
        problem = f"{cases} ran beside too much other work, so likely winners get no further processes"
        self.display.announce(f"{problem}; {WHEN_IDLE} waits for its end")
        return True

    def measure_each(
        self,
        tasks: Sequence[Task],
        allowed: float = math.inf,
        later: Sequence[Case] = (),
        is_estimated: bool = True,
    ) -> float:
        """Measure tasks until the `allowed` seconds are spent; return the seconds spent.

        The display also counts the `later` cases. If `is_estimated`, skips a case whose estimate exceeds the run's
        time; otherwise only starts none after that time.
        """
        spent = 0.0
        for number, task in enumerate(tasks):
            if spent >= allowed:
                break
            if self.is_over(self.estimate(task.case) if is_estimated else 0.0):
                continue  # A shorter one may still fit.
            remaining = *(task.case for task in tasks[number:]), *later
            place = self.done, self.done + len(remaining), sum(map(self.estimate, remaining))

            def tick(phase: str, case: Case = task.case, place: tuple[int, int, float] = place) -> None:
                self.display.measuring(case, phase, *place)

            tick("start")
            task, was_built = self._intact(task), self.supervisor.has_built(task.case)
            result = self.supervisor.measure_one(task, tick, self.deadline)
            if result.status != "ok" and (again := self._intact(task)) is not task:
                result = self.supervisor.measure_one(again, tick, self.deadline)
            if result.status == "timeout" and self.is_over():
                break  # The run was too short, not the case too long.
            seconds, engine = sum(result.phases.values()), task.case.engine
            spent += seconds
            if result.status == "ok":
                build = 0.0 if was_built else result.phases.get(Phase.BUILD, 0.0)
                self.last_seconds[engine] = seconds - build - result.phases.get(Phase.SCORE, 0.0)
                is_cached = result.proof is not None and result.proof.build is not None and result.proof.build.cached
                is_usual = not (was_built or is_cached or builds_long(task.case))
                self.last_builds |= {engine: build} if is_usual else {}
            self._record(task, result)
            self.done += 1
            if self.by_name and self.done >= _FEWEST_ROWS:
                self.display.so_far(*so_far(cells(self._rows())))
        return spent

    def build_ahead(self, tasks: Sequence[Task], later: Sequence[Task] = ()) -> None:
        """Compile cases side by side if their engines share kernels; idle cores compile `later` cases, too.

        Ignores failures: measuring reports them.
        """
        ahead = {task.case.id: task for task in tasks if self._compiles_ahead(task)}
        limit = max(1, min(usable_cores() // _cores_per_build(), _MOST_BUILDS))
        room = max(0, limit - len(ahead)) if ahead else 0
        ahead |= {task.case.id: task for task in [task for task in later if self._compiles_ahead(task)][:room]}
        slots = min(limit, len(ahead) or 1)
        # Cases that compile nothing are measured first.
        seconds = sum(self.estimate(t.case) for t in tasks if not ENGINES[t.case.engine].compiles)
        for id_, task in list(ahead.items()):
            seconds += self.estimate(task.case) / slots
            if self.is_over(seconds):
                del ahead[id_]
        if len(ahead) > 1:
            self.compiled |= ahead.keys()
            workers = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, usable_cores() // slots))}
            make = self.supervisor.call
            calls = [make("prepare_model:build_ahead", task, self.deadline, workers) for task in ahead.values()]
            outcomes = run_all(calls, slots, lambda done: self.display.doing("compiling", done, len(calls)))
            forget_choices()
            built = zip(ahead, outcomes, strict=True)
            self.supervisor.cold |= {id_: outcome.seconds.get(Phase.BUILD) for id_, outcome in built if outcome.value}

    def _compiles_ahead(self, task: Task) -> bool:
        is_first = ENGINES[task.case.engine].shares_kernels and not task.case.replicate
        return is_first and task.case.id not in self.compiled and failure(task.case, task.prepared) is None

    def _intact(self, task: Task) -> Task:
        """Return the task, prepared again if the cache lost its files."""
        if all(map(Cache().has, task.prepared.files(task.case))):
            return task
        self.display.announce(f"{task.case.model}: prepared again, since the cache lost files")
        self.supervisor.holders.forget()
        (again,) = self.prepare([task.case])
        self.supervisor.holders.give_up()  # A gate must not fork its processes from holders.
        return replace(task, prepared=again.prepared)

    def estimate(self, case: Case) -> float:
        """Estimate a case's seconds by its engine's last case and usual build; guess if either is unknown."""
        if (task := self.tasks.get(case.id)) and failure(case, task.prepared) is not None:
            return 0.0
        is_built, last = self.supervisor.has_built(case), self.last_seconds.get(case.engine)
        build = 0.0 if is_built else None if builds_long(case) else self.last_builds.get(case.engine)
        if last is None or build is None:
            return estimate_seconds(case, self.config.budget, is_built)
        return last + build

    def _rows(self) -> pl.DataFrame:
        return self.run.ended(self.config.suite, self.plan, self.environment)[1]

    def _record(self, task: Task, result: Result) -> None:
        """Append a result to the journal, unless it is a second take that is no better than the first."""
        self._reject_impossible(task.case, result)
        first = self.firsts.pop(result.case_id, None)
        counts = first is None or is_better(result, first)
        if first is None and result.status == "ok" and retaken(result.warnings):
            self.firsts[result.case_id] = _without_samples(result)
        elif first is not None and counts:
            why = "; ".join(map(str, retaken(first.warnings)))
            result.warnings.append(Warning(REMEASURED, f"the first take was {why}"))
        if counts:
            result = self.run.append(result)
        self.display.ended(result, counts)

    def _reject_impossible(self, case: Case, result: Result) -> bool:
        """Fail a row that is far faster than the roofs allow, and return whether it is.

        Roofs whose measurement other work disturbed reject nothing.
        """
        over = excess(case, result, self.environment.get("roofs") or {}) if result.status == "ok" else None
        if over is None or not over.is_impossible or not self.environment.get("roofs_quiet"):
            return False
        advice = "check that the call does all its work, and that the clock waits for it"
        result.fail(f"rejected: {over.text}; {advice}")
        return True

    def _search(self, case: Case, retry: bool) -> Search:
        results = self.run.results()
        planned = [other for other in self.plan if other.family == case.family and other.id in results]
        limits = self.config.largest_batch or LargestBatch()
        measured = {other.batch_size: results[other.id].status for other in planned}
        search = Search(case, limits, measured, gpu_mib=self.target.gpu.memory_mib if self.target.gpu else None)
        axes = {name: getattr(case, name) for name in ("model", "variant", "precision", "setting")}
        for row in self.run.largest_batches().filter(**axes, **{"pass": case.pass_}).iter_rows(named=True):
            if row["status"] == "ok" or not retry:
                search.tried[row["batch_size"]] = row["status"], row["peak_memory_mib"]
        return search

    def _search_all(self, tasks: Sequence[Task], retry: bool) -> None:
        for number, task in enumerate(tasks):
            search = self._search(task.case, retry)
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
                    attempt = replace(task, case=case, budget=budget, energy=False, profile=False, only_fits=True)
                    result = self.supervisor.measure_one(attempt, tick, self.deadline)
                    if result.status == "timeout" and self.is_over():
                        break
                search.tried[batch] = result.status, result.figures.get("peak_memory_mib")
                self.run.append_try(case, result)
                self.display.ended(result)


def _group(case: Case) -> tuple[Any, ...]:
    return tuple(map(case.value, GROUP))


def _without_samples(result: Result) -> Result:
    """Copy a first take without its largest parts, since many may stay in memory."""
    return replace(result, samples={}, layers=[], warnings=list(result.warnings))
