"""Explain a case's error, in the worker: bisect its graph, compare outputs, and time the graph before and after."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

import engines
from engines.base import Session, Unsupported, ignore
from engines.catalog import ENGINES
from engines.device import new_stream
from exporters.inputs import distinct_items
from exporters.mixed import MixedGraph
from profiler.processes.messages import Entered, Progress, Report
from profiler.stats.samples import median
from profiler.tables import numbers
from profiler.worker import checks, parity
from profiler.worker.accuracy import has_labels, score_items
from profiler.worker.bisection import Explained, Parts, bisect
from profiler.worker.clock import Clock, CpuClock, CudaClock
from profiler.worker.sampling import warm_up
from profiler.worker.task import Task, check_inputs, graph_of, make_job

_ROUNDS, _ROUND_MS = 15, 30.0
_SCORING_SECONDS = 60.0


def explain(argument: tuple[Task, Path], report: Report) -> Explained:
    """Find the nodes that cost the accuracy, and write the graph that keeps them in float32 to the path.

    Raises Unsupported if no outputs can be compared, and the engine's own errors.
    """
    task, path = argument
    case, fp32, file = task.case, task.prepared.onnx.get("fp32"), task.prepared.reference(task.case)
    check_inputs(task)
    assert file is not None, "an inference case has a reference"
    reference = parity.Outputs.read(file)
    if reference.unsteady:
        raise Unsupported(f"nothing can be compared: {reference.unsteady}")
    if case.device == "cuda":
        torch.cuda.init()
    clock = CudaClock(new_stream(ENGINES[case.engine].uses_pycuda)) if case.device == "cuda" else CpuClock()
    job = make_job(task, lambda phase: report(Entered(phase)), progress=lambda text: report(Progress(text)))
    mixed = MixedGraph(case.source, job.graph, graph_of(case), fp32.path if fp32 else None)

    @contextmanager
    def opened(parts: Parts) -> Iterator[Session]:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            graph = Path(folder) / path.name if parts else job.graph
            if parts:
                mixed.write(parts, graph)
            inputs = tuple(array.copy() for array in job.inputs)  # A session may overwrite its own.
            with closing(engines.open_session(case.engine, replace(job, onnx=graph, inputs=inputs))) as session:
                yield session

    def measure(parts: Parts) -> float:
        with opened(parts) as session:
            bound = _bound(session, task, reference)
        report(Progress(f"error bound {numbers.error(bound)} with {len(parts)} of {len(mixed.parts)} parts in float32"))
        return bound

    parts, errors = bisect(mixed.feeders, measure)
    nothing, everything, *_ = (*errors.values(), math.inf)
    result = Explained(mixed.nodes(parts), len(parts), len(mixed.parts), (nothing, errors[parts], everything))
    if not parts:
        return result
    mixed.write(parts, path)
    with opened(Parts()) as before, opened(parts) as after, opened(Parts(range(len(mixed.parts)))) as whole:
        sessions = before, after, whole
        scores = _scores(task, sessions) if has_labels(task) else ()
        return replace(result, rounds=_time_in_turn(sessions, clock, task), scores=scores)


def _scores(task: Task, sessions: Sequence[Session]) -> tuple[tuple[float, ...], ...]:
    """Return each session's scores of the items that all could score in time."""

    def score(session: Session) -> list[float]:
        end = perf_counter() + _SCORING_SECONDS
        return score_items(task, session, lambda: perf_counter() < end)

    by_item = zip(*map(score, sessions), strict=False)  # Ends with the session that scored the fewest.
    return tuple(zip(*by_item, strict=True))


def _bound(session: Session, task: Task, reference: parity.Outputs) -> float:
    """Return the error bound, as rows have it, over the reference's items; infinity beside NaN."""
    session.run(ignore)
    runs = [[array.copy() for array in session.outputs()]]
    items, batch = reference.items, task.case.batch_size
    runs += parity.further_runs(session, task.prepared.specs, batch, runs[0], lambda number: number < items)
    pairs, problems = checks.pairs_of(task, session.output_names(), runs, reference)
    differences = list(map(parity.compare, pairs))
    if all(difference.is_zero for difference in differences):
        raise Unsupported(f"nothing can be compared: {'; '.join(problems) or 'the reference is zero'}")
    distinct = distinct_items(task.prepared.specs)
    bound = parity.figures(differences, pairs, False, distinct, task.case.precision)["rel_l2_error_high"]
    return math.inf if bound is None else bound


def _time_in_turn(sessions: Sequence[Session], clock: Clock, task: Task) -> tuple[tuple[float, ...], ...]:
    slowest = max(warm_up(session, clock, task.budget)[0] for session in sessions)
    calls, rounds = max(1, int(_ROUND_MS / slowest)), list[tuple[float, ...]]()
    for _ in range(_ROUNDS):
        samples = (clock.time_calls(session.run, calls)[clock.headline] for session in sessions)
        rounds.append(tuple(median(ms) or math.nan for ms in samples))
    return tuple(rounds)
