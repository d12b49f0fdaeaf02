"""Call cases apart from measuring them: for the first call at each new shape, and for the kernels that they run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

import engines
from engines.base import OwnQueue, Phase, Reshapable, Session, ignore
from engines.layer_profile.torch_modules import read_operators
from engines.layer_profile.torch_trace import record
from profiler import processor
from profiler.job.case import CaseId
from profiler.processes.messages import Entered, Report, Salvage
from profiler.tables.numbers import significant
from profiler.worker import disturbance
from profiler.worker.measure_case import Phases, open_bench
from profiler.worker.task import FirstCall, Task, check_inputs, make_job

_CALLS = 3
"""So many at each shape, before the next one comes: a compiler that records graphs needs as many until it replays."""


def first_calls(tasks: Sequence[Task], report: Report) -> dict[CaseId, FirstCall]:
    """Time the first call at each task's shape but the first, or say what disturbed it.

    The tasks are one configuration at several shapes. From when the inputs of the new shape are on the host until the
    outputs are there: copying them, and all that the engine does for a shape that it has not seen. One that is made for
    a shape is opened again, which counts. What was timed until a failure is kept.
    """
    phases, found, moments = Phases(report), dict[CaseId, FirstCall](), list[disturbance.Moment]()
    session: Session | None = None
    for number, task in enumerate(tasks):
        check_inputs(task)
        if session is None:
            bench = open_bench(task, phases, report)
        job = replace(make_job(task, phases.enter), keeps_free=True)
        moments.append(disturbance.Moment())
        start = time.perf_counter()
        if isinstance(session, Reshapable):
            session.reshape(job)
        else:
            if session is not None:
                session.close()
            session = engines.open_session(task.case.engine, job)
        wait = session.wait if isinstance(session, OwnQueue) else bench.clock.synchronize
        session.run(ignore)
        wait()
        if number:
            ms = 1000 * (time.perf_counter() - start)
            others = disturbance.beside_call(moments, processor.read(), bench.card)
            why_not = f"it took {significant(ms)} ms while {others[0].text}" if others else ""
            found[task.case.id] = FirstCall(None if others else ms, why_not)
            report(Salvage(dict(found)))
        for _ in range(_CALLS - 1):
            session.run(ignore)
            wait()
    if session is not None:
        session.close()
    return found


def kernel_times(task: Task, report: Report) -> dict[str, float]:
    """Milliseconds a call by kernel, in a session of its own; on the CPU by operator of torch.

    Raises what opening the session does, and RuntimeError where a GPU's kernels cannot be seen.
    """
    check_inputs(task)
    if task.case.device == "cuda":
        # As while it was measured: nothing can be captured on the stream that is there by default.
        torch.cuda.set_stream(torch.cuda.Stream())
    session = engines.open_session(task.case.engine, make_job(task, lambda phase: report(Entered(phase))))
    report(Entered(Phase.PROFILE))
    iterations = record(lambda: session.run(ignore), task.case.device).iterations
    if task.case.device == "cuda":
        ran = [(kernel.name.removeprefix("void "), kernel.ms) for each in iterations for kernel in each.kernels]
    else:
        ran = [(each.kind, each.ms) for iteration in iterations for each in read_operators(iteration.spans)[0]]
    total = defaultdict[str, float](float)
    for name, ms in ran:
        total[name] += ms / len(iterations)
    return dict(total)
