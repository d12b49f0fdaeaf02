"""Measure one case in a process of its own: open, warm up, sample, check, and time its layers."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

import engines
from engines.base import Array, Job, OwnQueue, Phase, Session, Warning
from engines.catalog import ENGINES, Options, float_part
from engines.memory_watch import HostMeter
from exporters.errors import sentence
from profiler.job.case import Budget, Case
from profiler.nvml import Nvml
from profiler.processes.messages import Entered, Progress, Report, Salvage
from profiler.results.result import Figures, Kept, Result, Stage, layer_warnings, sample_warnings
from profiler.results.roofline import MIB
from profiler.worker import checks, disturbance
from profiler.worker.clock import Clock, CpuClock, CudaClock, QueueClock, Samples
from profiler.worker.memory import DeviceMeter, declared_parts
from profiler.worker.sampling import ENERGY_SECONDS, energy_per_call, first_run, measure, warm_up
from profiler.worker.task import Task, check_inputs, make_job

_PROFILED_CALLS = 20
"""Profiling takes at least as long as this many calls, without its own set-up."""
_GUARD = 0.8
"""Share of a case's timeout after which the worker stops sampling by itself, so that its figures are not lost."""


class Phases:
    """Tells the parent which phase a case is in, and sums the seconds that each took."""

    def __init__(self, report: Report) -> None:
        self._report, self._started = report, time.monotonic()
        self._phase, self._since = Phase.OPEN, time.perf_counter()
        self.seconds: dict[Phase, float] = {}

    def enter(self, phase: Phase) -> None:
        now = time.perf_counter()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now
        self._report(Entered(phase))

    def spent(self) -> float:
        """Seconds since the case began, without building."""
        return time.monotonic() - self._started - self.seconds.get(Phase.BUILD, 0.0)


@dataclass(frozen=True)
class Bench:
    """What a case is measured with, and whom to tell of it."""

    nvml: Nvml
    host: HostMeter
    device: DeviceMeter
    card: disturbance.Card
    clock: Clock
    report: Report
    phases: Phases


def measure_case(task: Task, report: Report) -> Result:
    """Open, warm up, measure and check one case; the Result leaves before the session is closed."""
    phases = Phases(report)
    check_inputs(task)
    bench = open_bench(task, phases, report)
    job = make_job(task, phases.enter, bench.device.read, lambda text: report(Progress(text)))
    phases.enter(Phase.LOAD)
    session = engines.open_session(task.case.engine, job)
    result = take_figures(task, job, session, bench)
    phases.enter(Phase.END)
    # ONNX Runtime can abort while it frees what a session holds.
    report(Salvage(Kept(result, Stage.COMPLETE)))
    session.close()
    return result


def open_bench(task: Task, phases: Phases, report: Report) -> Bench:
    """Clock and meters; called before anything else touches the device."""
    nvml = Nvml(task.gpu)
    host, device = HostMeter(), DeviceMeter(nvml.memory_mib)
    phases.enter(Phase.CONTEXT)
    card = disturbance.Card(nvml)
    if task.case.device == "cpu":
        return Bench(nvml, host, device, card, CpuClock(), report, phases)
    torch.cuda.init()
    torch.cuda.synchronize()
    device.context_created()
    card.opened()
    return Bench(nvml, host, device, card, CudaClock(), report, phases)


def take_figures(task: Task, job: Job[Options], session: Session, bench: Bench) -> Result:
    """Warm up, measure and check a session that has just been opened for `job`."""
    case, phases = task.case, bench.phases
    if case.device == "cuda" and isinstance(session, OwnQueue):
        bench = replace(bench, clock=QueueClock(session.wait))
    result = Result(case.id, "ok", clock=bench.clock.headline)
    expected_ms = _warm_up(task.budget, session, bench, result)
    _measure(task, session, bench, expected_ms, result)
    result.figures["host_peak_mib"] = bench.host.peak_mib()  # Before the engine reads its files to declare its weights.
    phases.enter(Phase.CHECK)
    result.warnings += sample_warnings(result.samples, bench.clock.headline)
    _add_memory(case, session, bench.device, result)
    bench.report(Salvage(Kept(result, Stage.FITTED)))  # Whether or not there is memory for the checks next to it.
    graph = task.prepared.graph(case) if ENGINES[case.engine].needs == "onnx" else None
    result.graph = graph.how if graph else None
    outputs = session.outputs()
    allowance = checks.Allowance(phases.spent(), _left(task, bench), expected_ms / 1000)
    checks.verify(task, session, outputs, result, allowance)
    copied = _bytes(case, job.inputs), _bytes(case, outputs)
    if isinstance(bench.clock, CudaClock) and not task.only_fits:
        result.samples |= bench.clock.time_copies(*copied)
    result.figures |= _least_work(task, sum(copied))
    built = result.proof.build if result.proof else None
    result.figures |= {
        "export_s": graph.seconds if graph else None,
        # Of an engine from a cache what building took when it was done.
        "build_s": built.seconds if built else phases.seconds.get(Phase.BUILD),
        "load_s": phases.seconds.get(Phase.LOAD),
    }
    if task.profile and result.status == "ok":
        bench.report(Salvage(Kept(result, Stage.CHECKED)))  # Whatever profiling runs into, this is not lost.
        phases.enter(Phase.PROFILE)
        _profile(session, result, enough=_left(task, bench) > _PROFILED_CALLS * expected_ms / 1000)
    return result


def _warm_up(budget: Budget, session: Session, bench: Bench, result: Result) -> float:
    """Run until timings have settled; returns milliseconds a call."""
    bench.clock.synchronize()
    bench.device.loaded()
    bench.phases.enter(Phase.WARM_UP)
    result.figures["first_run_s"] = first_run(session, bench.clock)
    bench.device.read()
    expected_ms, is_steady = warm_up(session, bench.clock, budget)
    if not is_steady:
        result.warnings.append(Warning("unsteady", "timings had not settled when measuring began"))
    result.figures["set_up_peak_mib"] = peak = bench.host.peak_mib()
    if not bench.host.start_measuring() and peak is not None:
        reason = "the kernel does not reset its count, so host_peak_mib includes the set-up"
        result.warnings.append(Warning("host-peak", reason))
    return expected_ms


def _measure(task: Task, session: Session, bench: Bench, expected_ms: float, result: Result) -> None:
    """Add samples, throughput, and energy where it is asked for."""
    case = task.case
    bench.phases.enter(Phase.MEASURE)
    left = _left(task, bench)
    budget = replace(task.budget, seconds=min(task.budget.seconds, left), timeout=left)

    def keep(samples: Samples) -> None:
        bench.report(Salvage(Kept(Result(case.id, "ok", samples=samples), Stage.SAMPLED)))

    start = time.time()
    measured = measure(session, bench.clock, budget, expected_ms, keep, headline_only=task.only_fits)
    keep(measured.samples)  # Whatever the checks run into, these are not lost.
    bench.device.read()
    result.stop_reason, result.samples = measured.stop_reason, measured.samples
    result.warnings += measured.warnings
    host_counts = disturbance.counts(case.device, result.samples, [warning.kind for warning in result.warnings])
    loads, card = measured.loads if host_counts else [], bench.card.load(start)
    result.figures["disturbance"] = disturbance.share(loads, card)
    result.warnings += disturbance.disturbed(loads, card)
    result.throughput = None if measured.throughput is None else measured.throughput * case.batch_size
    if task.energy and bench.nvml.energy_mj() is not None:
        bench.phases.enter(Phase.ENERGY)
        _add_energy(task, session, bench, expected_ms, result)


def _add_energy(task: Task, session: Session, bench: Bench, expected_ms: float, result: Result) -> None:
    if _left(task, bench) <= ENERGY_SECONDS + 2 * expected_ms / 1000:
        reason = f"budget.timeout leaves no time for the loop of {ENERGY_SECONDS:g} s"
        result.warnings.append(Warning("no-energy", reason))
        return
    energy_mj = energy_per_call(session, bench.clock, lambda: bench.nvml.energy_mj() or 0.0, expected_ms)
    result.figures["energy_mj_per_item"] = energy_mj / task.case.batch_size


def _add_memory(case: Case, session: Session, device: DeviceMeter, result: Result) -> None:
    """Add the parts of the memory that are known on the case's device; on the CPU the peak is the process's."""
    if case.device == "cuda":
        result.figures |= device.parts(session.memory())
    else:
        parts = declared_parts(session.memory()) if case.pass_ == "training" else {}
        result.figures |= parts | {"peak_memory_mib": result.figures["host_peak_mib"]}


def _least_work(task: Task, copied_bytes: int) -> Figures:
    """What a call must compute and move at least, where its FLOPs could be counted."""
    cost, case = task.prepared.cost, task.case
    flops, weights = cost.flops(case.pass_), cost.weight_bytes(case.precision)
    if flops is None:
        return {}
    return {"flops_per_item": flops, "moved_mib": None if weights is None else (weights + copied_bytes) / MIB}


def _left(task: Task, bench: Bench) -> float:
    """Seconds that the timeout still leaves for taking figures."""
    return max(task.budget.timeout * _GUARD - bench.phases.spent(), 0.01)


def _profile(session: Session, result: Result, enough: bool) -> None:
    """Add the layers, or a warning why there are none: they are no reason to lose what was measured."""
    if not enough:
        result.warnings.append(Warning("no-layers", "budget.timeout leaves no time to profile them"))
        return
    try:
        layers = session.layers()
    except Exception as error:
        traceback.print_exc()
        result.warnings.append(Warning("no-layers", sentence(error)))
        return
    result.layers = [
        {"layer": layer.name, "kind": layer.kind, "nodes": list(layer.nodes), "ms": layer.ms} for layer in layers
    ]
    result.warnings += layer_warnings(result.layers, result.samples, result.clock or "")
    if streams := result.proof and result.proof.details.get("auxiliary_streams"):
        text = f"auxiliary streams of the engine, on which layers run beside others: {streams}"
        result.warnings.append(Warning("parallel-layers", text))


def _bytes(case: Case, arrays: Sequence[Array]) -> int:
    """The arrays' size on the device: floats, which the host holds as float32, are of the precision's type there."""
    is_module = ENGINES[case.engine].needs == "torch"
    half = (float_part(case.precision, case.device) if is_module else case.precision) in ("fp16", "bf16")
    return sum(a.nbytes // 2 if half and a.dtype == np.float32 else a.nbytes for a in arrays)
