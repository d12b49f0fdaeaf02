"""Name the kernels that a case runs, for a row that takes the device longer than eager does."""

from __future__ import annotations

from collections import Counter

import torch

import engines
from engines.base import Phase, ignore
from engines.layer_profile.torch_modules import read_operators
from engines.layer_profile.torch_trace import record
from profiler.processes.messages import Entered, Report
from profiler.worker.task import Task, check_inputs, make_job


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
    total: Counter[str] = Counter()
    for iteration in iterations:
        if task.case.device == "cuda":
            for kernel in iteration.kernels:
                total[kernel.name.removeprefix("void ")] += kernel.ms  # type: ignore[assignment]
        else:
            for operator in read_operators(iteration.spans)[0]:
                total[operator.kind] += operator.ms  # type: ignore[assignment]
    return {name: ms / len(iterations) for name, ms in total.items()}
