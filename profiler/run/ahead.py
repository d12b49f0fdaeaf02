"""Prepare a job ahead on all cores, so that a run on the same machine later has only to measure."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from engines.catalog import ENGINES
from exporters.cache import default_root
from profiler.job.case import Case, CaseId, Role
from profiler.job.config import Config
from profiler.machine import Target
from profiler.processes.messages import Outcome
from profiler.processes.process import Call
from profiler.run.fits import Tick, side_by_side, weight_mib
from profiler.run.prepare import failure, prepare
from profiler.run.progress import open_display
from profiler.tables.numbers import counted, duration
from profiler.tables.writers import print_pairs
from profiler.worker.task import Task


def compile_caches() -> set[str]:
    """The variables of `Engine.compile_cache` by which the user names a folder; a run itself sets them to others."""
    return {engine.compile_cache for engine in ENGINES.values() if os.environ.get(engine.compile_cache)}


def prepare_ahead(config: Config, target: Target, cases: Sequence[Case], caches: set[str], console: Console) -> int:
    """Fill the caches with what the cases need, and print what cannot be had; returns 0, or 1 where nothing can.

    Weights, references and graphs are kept in the profiler's cache; what an engine compiles where its own library
    keeps it, if that is one of `caches`.
    """
    started, logs, path = time.monotonic(), default_root() / "logs", tuple(map(str, config.import_from))
    logs.mkdir(parents=True, exist_ok=True)
    runnable = [case for case in cases if case.unsupported is None]
    uuid = target.gpu.uuid if target.gpu else None
    with open_display(console) as display:
        prepared = prepare(runnable, config.budget, logs, path, display.preparing, uuid)
        outcomes = {case.id: failure(case, prepared[case.subject]) for case in runnable}
        ready = [case for case in runnable if outcomes[case.id] is None]
        # What compiling a cell makes a later process finds; the batches of a sweep share a process.
        here = [case for case in ready if case.role is Role.CELL and case.python is None]
        kept = [case for case in here if ENGINES[case.engine].compile_cache in caches]
        tasks = [Task(case, prepared[case.subject], config.budget, uuid) for case in kept]
        outcomes |= compile_ahead(tasks, path, display.preparing)
    failed = {id_: outcome for id_, outcome in outcomes.items() if outcome is not None and outcome.status != "ok"}
    print_pairs(console, [(Text(f"  {id_}", "yellow"), Text(str(why.reason))) for id_, why in failed.items()])
    console.print(Text(_summary(runnable, len(failed), len(tasks), time.monotonic() - started)), soft_wrap=True)
    return int(bool(runnable) and len(failed) == len(runnable))


def compile_ahead(tasks: Sequence[Task], path: tuple[str, ...], tick: Tick) -> dict[CaseId, Outcome]:
    """Open the tasks' sessions side by side, for what their libraries then keep."""
    calls = {}
    for task in tasks:
        log = default_root() / "logs" / f"compile-{task.case.id.file_name}.log"
        limits, visible = (task.budget.timeout, task.budget.build_timeout), {"CUDA_VISIBLE_DEVICES": task.gpu or ""}
        calls[task.case.id] = Call("profiler.worker.prepare_model:open_ahead", task, log, *limits, visible, path)
    weights = (weight_mib(task.case.source, task.prepared.state) for task in tasks)
    return side_by_side(calls, weights, tick, "compilations")


def _summary(cases: Sequence[Case], failed: int, compiled: int, seconds: float) -> str:
    models = counted(len({case.model for case in cases}), "model")
    text = f"\nPrepared {models} in {duration(seconds)}: {len(cases) - failed} of {counted(len(cases), 'case')} can run"
    if compiled:
        return f"{text}, {compiled} of them compiled"
    variables = " and ".join(sorted({ENGINES[case.engine].compile_cache for case in cases} - {""}))
    return f"{text}; what is compiled is kept only where {variables} names a folder" if variables else text
