"""Measure one case in its own process: open, warm up, sample, check, and time its layers."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

import engines
from engines.base import Array, Job, Phase, Renewable, Session, Warning, ignore
from engines.catalog import ENGINES
from engines.device import new_stream
from engines.options import PRECISION_TABLE, Options, float_part
from exporters import build_model
from exporters.dataset import scored_count
from exporters.errors import sentence
from exporters.inputs import distinct_items, seeded_inputs
from exporters.source import ModelError
from profiler.job.case import Case
from profiler.machine.nvml import Nvml
from profiler.processes.messages import Entered, Progress, Report, Salvage
from profiler.results.result import WRONG, Kept, Result, Stage, sample_warnings
from profiler.results.roofline import MIB
from profiler.worker import checks, clock, disturbance
from profiler.worker.accuracy import is_scored, score_items
from profiler.worker.clock import Clock, CpuClock, CudaClock, Samples
from profiler.worker.memory import DeviceMeter, HostMeter, declared_parts
from profiler.worker.prepare_model import refusal
from profiler.worker.sampling import ENERGY_SECONDS, energy_per_call, first_run, measure, warm_up
from profiler.worker.task import Task, check_inputs, graph_of, make_job

_TIMEOUT_SHARE = 0.8
"""Share of a case's timeout after which sampling stops, so that its figures are not lost."""
_REFUSALS = (AssertionError, IndexError, RuntimeError, TypeError, ValueError)
"""Errors of a module that cannot take its inputs; classes derived from these have other causes, such as memory."""
_THREAD_SECONDS = 0.05
"""Pause for the model's threads to finish their work."""


class Bench:
    """The clock, meters and phases of a case. Create it before anything touches the device."""

    def __init__(self, task: Task, report: Report) -> None:
        self.task, self.report, self.nvml = task, report, Nvml(task.gpu)
        self.seconds: dict[Phase, float] = {}
        self._phase, self._since = Phase.OPEN, clock.perf_counter()
        self._started = self._since
        self.host, self.device = HostMeter(), DeviceMeter(self.nvml.memory_mib)
        self.enter(Phase.CONTEXT)
        self.card = disturbance.Card(self.nvml)
        self.clock: Clock = CpuClock()
        if task.case.device == "cuda":
            torch.cuda.init()
            torch.cuda.synchronize()
            self.device.context_created()
            self.card.opened()
            self.clock = CudaClock(new_stream(ENGINES[task.case.engine].uses_pycuda))

    def enter(self, phase: Phase) -> None:
        """Begin a phase, and report it."""
        now = clock.perf_counter()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now
        self.report(Entered(phase, now))

    def keep(self, result: Result, stage: Stage) -> None:
        """Report a result, so that no later failure of the case loses it."""
        self.report(Salvage(Kept(result, stage)))

    def spent(self) -> float:
        """Return the seconds since the case began, without building."""
        return clock.perf_counter() - self._started - self.seconds.get(Phase.BUILD, 0.0)

    def remaining(self) -> float:
        """Return the seconds left for measuring."""
        return max(self.task.budget.timeout * _TIMEOUT_SHARE - self.spent(), 0.01)


def measure_case(task: Task, report: Report) -> Result:
    """Open, warm up, measure and check one case; report the result before the session closes."""
    heap = random_heap()
    check_inputs(task)
    bench = Bench(task, report)
    job = make_job(task, bench.enter, bench.device.read, lambda text: report(Progress(text)))
    bench.enter(Phase.LOAD)
    session = engines.open_session(task.case.engine, job)
    result = Result(task.case.id, "ok", clock=bench.clock.headline)
    expected_ms = _warm_up(session, bench, result)
    _measure(session, bench, expected_ms, result)
    _check(job, session, bench, expected_ms, result)
    if result.status == "ok" and is_scored(task):
        bench.keep(result, Stage.VERIFIED)
        bench.enter(Phase.SCORE)
        _score(task, session, bench, expected_ms, result)
    if task.profile and result.status == "ok":
        bench.keep(result, Stage.CHECKED)
        bench.enter(Phase.PROFILE)
        _profile(session, result)
    bench.enter(Phase.END)
    bench.keep(result, Stage.COMPLETE)  # ONNX Runtime can abort while it frees a session.
    session.close()
    heap.clear()
    return result


def random_heap() -> list[bytes]:
    """Allocate half a megabyte in blocks of random sizes; keep it while the case is measured.

    The heap's layout decides how many pages an eager call on a CPU returns to the system and faults in again: 575 to
    1,032 for one network, the same in all forks of a holder. Without random blocks, these would agree with each other,
    but not with the next holder's forks (docs/method.md).
    """
    draw = random.SystemRandom()
    return [bytes(draw.randrange(1, 64_000)) for _ in range(draw.randrange(1, 32))]


def _warm_up(session: Session, bench: Bench, result: Result) -> float:
    """Run until timings are steady; return a call's expected milliseconds.

    Each call gets new inputs, if the session runs the model's Python code, and that accepts them.
    """
    bench.clock.synchronize()
    bench.device.loaded()
    bench.enter(Phase.WARM_UP)
    task, specs = bench.task, bench.task.prepared.specs
    if renews := isinstance(session, Renewable) and task.case.pass_ == "inference" and not task.only_fits:
        bench.clock.renew = session.renew
    try:
        expected_ms, is_steady = _first_runs(session, bench, result)
    except Exception as error:
        if task.case.pass_ == "training" and type(error) in _REFUSALS:
            model = getattr(session, "model", None)
            raise ModelError(refusal(task.case.source, error, specs, task.case.batch_size, model)) from error
        if not renews or not any(spec.data for spec in specs):
            raise
        traceback.print_exc()
        del bench.clock.renew
        session.feed(seeded_inputs(specs, task.case.batch_size))
        expected_ms, is_steady = _first_runs(session, bench, result)
        text = "the model fails with inputs that differ from the given ones"
        result.warnings.append(Warning("same-inputs", text))
    if not is_steady:
        result.warnings.append(Warning("unsteady", "timings had not settled when measuring began"))
    result.figures["set_up_peak_mib"] = bench.host.peak_mib()
    bench.host.start_measuring()
    return expected_ms


def _first_runs(session: Session, bench: Bench, result: Result) -> tuple[float, bool]:
    bench.clock.renew(1)
    # A second first run, after inputs were refused, is warm: the first one's time stays.
    result.figures.setdefault("first_run_s", first_run(session, bench.clock))
    bench.device.read()
    return warm_up(session, bench.clock, bench.task.budget)


def _measure(session: Session, bench: Bench, expected_ms: float, result: Result) -> None:
    """Add samples, throughput, and the energy if requested and if the timeout allows."""
    task, case = bench.task, bench.task.case
    bench.enter(Phase.MEASURE)
    remaining = bench.remaining()
    budget = replace(task.budget, seconds=min(task.budget.seconds, remaining), timeout=remaining)

    def keep(samples: Samples) -> None:
        bench.keep(Result(case.id, "ok", samples=samples), Stage.SAMPLED)

    start = time.time()
    measured = measure(session, bench.clock, budget, expected_ms, keep, headline_only=task.only_fits)
    keep(measured.samples)
    bench.device.read()
    result.stop_reason, result.samples = measured.stop_reason, measured.samples
    result.warnings += measured.warnings
    host_counts = disturbance.counts(case.device, result.samples, [warning.kind for warning in result.warnings])
    loads, card = measured.loads if host_counts else [], bench.card.share(start)
    result.figures["disturbance"] = disturbance.share(loads, card)
    result.warnings += disturbance.warnings_of(loads, card)
    result.throughput = None if measured.throughput is None else measured.throughput * case.batch_size
    has_time = bench.remaining() > ENERGY_SECONDS + 2 * expected_ms / 1000
    if task.energy and has_time and bench.nvml.energy_mj() is not None:
        bench.enter(Phase.ENERGY)
        energy_mj = energy_per_call(session, bench.clock, lambda: bench.nvml.energy_mj() or 0.0, expected_ms)
        result.figures["energy_mj_per_item"] = energy_mj / case.batch_size
    result.figures["host_peak_mib"] = bench.host.peak_mib()  # Before memory() reads files, which would count.


def _check(job: Job[Options], session: Session, bench: Bench, expected_ms: float, result: Result) -> None:
    task, case = bench.task, bench.task.case
    bench.enter(Phase.CHECK)
    result.warnings += sample_warnings(result.samples, bench.clock.headline)
    if case.device == "cuda":
        result.figures |= bench.device.parts(session.memory())
    else:
        parts = declared_parts(session.memory()) if case.pass_ == "training" else {}
        result.figures |= parts | {"peak_memory_mib": result.figures["host_peak_mib"]}
    bench.keep(result, Stage.FITTED)  # The checks may run out of memory.
    graph = task.prepared.graph(case) if ENGINES[case.engine].needs == "onnx" else None
    result.graph = graph.origin if graph else None
    if isinstance(session, Renewable) and vars(bench.clock).pop("renew", None):
        _run_own_inputs(session, bench, expected_ms)
    outputs = session.outputs()
    checks.verify(task, session, outputs, result, lambda: bench.remaining() > 2 * expected_ms / 1000)
    copied = _bytes(case, job.inputs), _bytes(case, outputs)
    if isinstance(bench.clock, CudaClock) and not task.only_fits:
        result.samples |= bench.clock.time_copies(*copied)
    cost, built = task.prepared.cost, result.proof.build if result.proof else None
    if (flops := cost.flops(case.pass_)) is not None:
        weights = cost.weight_bytes(PRECISION_TABLE[case.precision].bits)
        moved_mib = None if weights is None else (weights + _moved(task, job, session, outputs)) / MIB
        result.figures |= {"flops_per_item": flops, "moved_mib": moved_mib}
    result.figures |= {
        "export_s": graph.seconds if graph else None,
        # For a cached engine, the seconds of its original build.
        "build_s": built.seconds if built else bench.seconds.get(Phase.BUILD),
        "load_s": bench.seconds[Phase.LOAD] + build_model.spared_seconds,
    }


def _run_own_inputs(session: Renewable, bench: Bench, expected_ms: float) -> None:
    """Run the job's inputs after others, and at another address, so that a remembered output is wrong."""
    inputs = seeded_inputs(bench.task.prepared.specs, bench.task.case.batch_size)
    if bench.remaining() > 4 * expected_ms / 1000:
        session.move()
        for _ in range(2):
            session.run(ignore)
            bench.clock.synchronize()
            time.sleep(_THREAD_SECONDS)
    session.feed(inputs)
    session.run(ignore)


def _score(task: Task, session: Session, bench: Bench, expected_ms: float, result: Result) -> None:
    try:
        result.scores = score_items(task, session, lambda: bench.remaining() > 2 * expected_ms / 1000)
    except Exception as error:
        traceback.print_exc()
        result.warnings.append(Warning("no-accuracy", sentence(error)))
    if not result.scores and (result.figures.get("rel_l2_error") or 0.0) >= WRONG:
        result.fail("the outputs are wrong, and no label scored them")
    if not result.scores:
        return
    result.data_items = distinct_items(task.prepared.specs)
    if len(result.scores) < (total := scored_count(result.data_items or 0)):
        text = f"{len(result.scores):,} of {total:,} items were scored before the timeout"
        result.warnings.append(Warning("few-items", text))


def _profile(session: Session, result: Result) -> None:
    try:
        layers = session.layers()
    except Exception as error:
        traceback.print_exc()
        result.warnings.append(Warning("no-layers", sentence(error)))
        return
    if not layers:
        result.warnings.append(Warning("no-layers", "this runtime reports none on this device"))
    result.layers = [
        {"layer": layer.name, "kind": layer.kind, "nodes": list(layer.nodes), "ms": layer.ms} for layer in layers
    ]
    if streams := result.proof and result.proof.details.get("auxiliary_streams"):
        text = f"auxiliary streams of the engine, on which layers run beside others: {streams}"
        result.warnings.append(Warning("parallel-layers", text))


def _moved(task: Task, job: Job[Options], session: Session, outputs: Sequence[Array]) -> int:
    """Return the bytes of the inputs and outputs that a call must read and write."""
    names = [spec.name for spec in job.specs], session.output_names()
    pairs = (*zip(names[0], job.inputs, strict=False), *zip(names[1], outputs, strict=False))
    return _bytes(task.case, [array for name, array in pairs if name in task.prepared.cost.moved])


def _bytes(case: Case, arrays: Sequence[Array]) -> int:
    """Return the arrays' bytes on the device, with floats in the precision's type."""
    is_module = ENGINES[case.engine].needs == "torch"
    half = (float_part(case.precision, case.device) if is_module else graph_of(case)) in ("fp16", "bf16")
    return sum(a.nbytes // 2 if half and a.dtype == np.float32 else a.nbytes for a in arrays)
