"""Measure batch sweeps: several batch sizes in one process, which is watched from here.

A sweep is one model in one engine over several batch sizes: loaded once, then given one batch after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from engines.base import Phase, Warning
from profiler.job.case import Role
from profiler.processes.messages import Part
from profiler.processes.process import Child, run_one
from profiler.results.result import Result, result_of
from profiler.run.supervise import Supervisor, drop_if_empty
from profiler.worker.task import Task


def families(tasks: Sequence[Task]) -> list[list[Task]]:
    """The tasks in running order: those of one sweep together, in the place of its first; any other by itself."""
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.case.id.family if task.case.role is Role.SWEEP else str(task.case.id), []).append(task)
    return list(found.values())


def measure_sweep(
    tasks: Sequence[Task],
    supervisor: Supervisor,
    tick: Callable[[int, str], None],
    keep: Callable[[Result], None],
) -> None:
    """Measure the batches of a sweep, in one process as long as it lives; another goes on where one of them ends it.

    `keep` gets a Result a task, in their order, each as soon as it is there; `tick` gets how many there are and what
    the process is doing.
    """
    log = supervisor.logs / f"{tasks[0].case.id.family.replace('/', '-')}-sweep.log"
    ended = 0

    def end(result: Result) -> None:
        nonlocal ended
        supervisor.add_telemetry(result)
        ended += 1
        keep(result)

    while ended < len(tasks):
        before = ended
        _measure_in_one_process(tasks[ended:], log, supervisor, lambda what: tick(ended, what), end)
        assert ended > before, "a process that did nothing would be started for ever"
    drop_if_empty(log)


def _measure_in_one_process(
    tasks: Sequence[Task],
    log: Path,
    supervisor: Supervisor,
    tick: Callable[[str], None],
    end: Callable[[Result], None],
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
            end(result)

    def look(child: Child) -> None:
        nonlocal parts
        parts = child.parts
        take(len(parts) - child.is_closing)  # A row that waits for its session to be closed may get a warning yet.
        if taken < len(tasks):  # Else the process is about to end.
            tick(child.doing)

    try:
        outcome = run_one(supervisor.call("profiler.worker.measure_sweep:measure_batches", tasks, tasks[0], log), look)
        parts = outcome.parts
        if outcome.status != "ok" and outcome.phase == Phase.END:
            parts[-1].value.warnings.append(Warning("unclosed", str(outcome.reason)))
    finally:
        take(len(parts))
    if outcome.status != "ok" and outcome.phase != Phase.END and taken < len(tasks):
        end(result_of(tasks[taken].case.id, outcome))
