"""What enters: a `Task`, in a process of its own. What leaves: a `Result` (or what a case needs before it can run)."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

import engines
from engines.base import Array, BuiltAhead, Job, Phase, Session, Unsupported, Warning
from engines.catalog import ENGINES, EagerOptions, Options, OrtOptions
from exporters import inputs
from exporters.cache import Cache, file_sha256
from exporters.flops import Cost, cached_cost
from exporters.gradient_reference import cached_gradients
from exporters.gradients import GradientReference
from exporters.inputs import TensorSpec, fixed_batch, input_specs, repeated_inputs, seeded_inputs
from exporters.int8 import quantize
from exporters.onnx_export import check_onnx, export_onnx
from exporters.source import ModelSource
from exporters.weights import cached_state, source_key
from profiler.job.case import Budget, Case, Role
from profiler.nvml import Nvml
from profiler.processes.messages import Entered, Progress, Report, Salvage
from profiler.results.result import Kept, MemoryParts, Result, SetUp, Stage, sample_warnings
from profiler.stats.samples import median
from profiler.worker import checks, roofline
from profiler.worker.clock import Clock, CpuClock, CudaClock, Samples
from profiler.worker.gradient_check import check_gradients
from profiler.worker.memory import DeviceMeter, HostMeter, declared_parts
from profiler.worker.sampling import ENERGY_SECONDS, energy_per_call, first_run, measure, warm_up
from profiler.worker.task import Prepared, Task, graph_of

REFERENCE_ITEMS = 8
_REFERENCE_PACKAGES = ("torch", "onnxruntime-gpu")
_PROFILED_CALLS = 20
"""How many calls profiling may take as long as, at least, its own set-up left out."""
_GUARD = 0.8
"""Share of a case's timeout after which the worker stops sampling by itself, so that its figures are not lost."""


@dataclass(frozen=True)
class Bench:
    """What a process measures with."""

    nvml: Nvml
    host: HostMeter
    device: DeviceMeter
    clock: Clock
    report: Report


class Phases:
    """Tells the parent where the worker stands with a case, and sums the seconds that each phase took."""

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


def nothing(device: str, report: Report) -> None:
    """The emptiest case, with a context on `device`: what benchmarks/overhead.py times."""
    if device == "cuda":
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()


def prepare_model(argument: tuple[ModelSource, Path], report: Report) -> Prepared:
    """Input shapes, fp32 weights and reference outputs of a model. Raises exporters.source.ModelError."""
    source, root = argument
    cache = Cache(root)
    if source.onnx is not None:
        check_onnx(source.onnx)
    specs = tuple(input_specs(source))
    key = _reference_key(source)
    if source.kind == "onnx":
        reference, _ = cache.entry("reference", key, ".npz", lambda path: _reference_of_onnx(source, specs, path))
        return Prepared(specs, reference=reference, onnx={"native": source.onnx} if source.onnx else {})
    state = cached_state(source, cache)
    reference, _ = cache.entry("reference", key, ".npz", lambda path: _reference_of_torch(source, specs, state, path))
    return Prepared(specs, state, reference)


def prepare_cost(argument: tuple[ModelSource, Prepared, bool, Path], report: Report) -> Cost:
    """What the model must compute and read at least, in training too if the third argument says so."""
    source, prepared, trains, root = argument
    # FLOPs are the same in every precision's graph.
    graph = prepared.onnx.get("fp32") or next(iter(prepared.onnx.values()), None)
    return cached_cost(source, prepared.specs, Cache(root), graph, trains, lambda cost: report(Salvage(cost)))


def prepare_gradients(
    argument: tuple[ModelSource, Prepared, str, int, Sequence[str], Sequence[int], Path], report: Report
) -> GradientReference:
    """What the first training step gives in fp64 over that many items, and how far from it the same step lies at the
    precisions and batch sizes."""
    source, prepared, head, items, precisions, batches, root = argument
    assert prepared.state is not None, "what trains is a torch module"
    return cached_gradients(source, prepared.specs, prepared.state, head, items, precisions, Cache(root), batches)


def prepare_export(argument: tuple[ModelSource, str, Path], report: Report) -> tuple[Path, float]:
    """The exported graph and the seconds that its export took. Raises exporters.source.ModelError."""
    source, precision, root = argument
    export = quantize(source, Cache(root)) if precision == "int8" else export_onnx(source, precision, Cache(root))
    return export.path, export.seconds


def build_ahead(task: Task, report: Report) -> BuiltAhead:
    """Have the case's engine built into its cache: memory that a builder takes is not to count as the case's."""
    case = task.case
    check_batch(task)
    if case.device == "cuda":
        torch.cuda.init()
    job = make_job(task, lambda phase: report(Entered(phase)), lambda: None, lambda text: report(Progress(text)))
    return engines.build(case.engine, job)


def measure_case(task: Task, report: Report) -> Result:
    """Open, warm up, measure and check one case; the Result leaves before the session is closed."""
    phases = Phases(report)
    check_batch(task)
    bench = open_bench(task, phases, report)
    job = make_job(task, phases.enter, bench.device.read, lambda text: report(Progress(text)))
    phases.enter(Phase.LOAD)
    session = engines.open_session(task.case.engine, job)
    result = take_figures(task, job, session, bench, phases)
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
    return Bench(nvml, host, device, _open_clock(task.case, device), report)


def take_figures(task: Task, job: Job[Options], session: Session, bench: Bench, phases: Phases) -> Result:
    """Warm up, measure and check a session that has just been opened for `job`."""
    case, clock, report = task.case, bench.clock, bench.report
    nvml, host, device = bench.nvml, bench.host, bench.device
    clock.synchronize()
    device.loaded()
    phases.enter(Phase.WARM_UP)
    first_s = first_run(session, clock)
    device.read()
    expected_ms, steady = warm_up(session, clock, task.budget)
    set_up_peak = host.peak_mib()
    counted_anew = host.start_measuring()
    phases.enter(Phase.MEASURE)
    budget = _within(task.budget, phases.spent())
    # Of a probe it is asked whether it fits; near the limit a call takes seconds.
    is_probe = case.role is Role.PROBE

    def keep(samples: Samples) -> None:
        report(Salvage(Kept(Result(case.id, "ok", samples=samples), Stage.SAMPLED)))

    measured = measure(session, clock, budget, expected_ms, keep, headline_only=is_probe)
    keep(measured.samples)  # Whatever the checks below run into, these are not lost.
    device.read()
    energy_mj = None
    if task.energy and not is_probe and nvml.energy_mj() is not None:
        phases.enter(Phase.ENERGY)
        left = _left(task.budget, phases.spent())
        if left > ENERGY_SECONDS + 2 * expected_ms / 1000:
            energy_mj = energy_per_call(session, clock, lambda: nvml.energy_mj() or 0.0, expected_ms)
        else:
            reason = f"budget.timeout leaves no time for the loop of {ENERGY_SECONDS:g} s"
            measured.warnings.append(Warning("no-energy", reason))
    host_peak = host.peak_mib()  # Before the engine reads its own files again to declare its weights.
    phases.enter(Phase.CHECK)
    memory = MemoryParts()
    if case.role is not Role.SWEEP:  # Its process holds what other batches left.
        memory = _memory(case, session, device, host_peak)
        memory.host_peak_mib, memory.set_up_peak_mib = host_peak, set_up_peak
    result = Result(case.id, "ok", clock=measured.clock, stop_reason=measured.stop_reason, samples=measured.samples)
    result.memory, result.warnings = memory, measured.warnings + sample_warnings(measured.samples, measured.clock)
    if not steady:
        result.warnings.append(Warning("unsteady", "the warm-up ended before two windows agreed within 2 %"))
    if memory.host_peak_mib is not None and not counted_anew:
        reason = "the kernel does not count anew, so host_peak_mib includes the set-up"
        result.warnings.append(Warning("host-peak", reason))
    result.throughput = None if measured.throughput is None else measured.throughput * case.batch_size
    result.telemetry.energy_mj_per_item = None if energy_mj is None else energy_mj / case.batch_size
    if case.role is not Role.CELL:
        report(Salvage(Kept(result, Stage.FITTED)))  # Whether or not there is memory for the checks beside it.
    outputs = session.outputs()
    _check(task, session, outputs, result)
    copied = _bytes(case, job.inputs), _bytes(case, outputs)
    if isinstance(clock, CudaClock) and not is_probe:  # Pinning gigabytes would take longer than a probe.
        result.samples |= clock.time_copies(*copied)
    _add_roofline(task, result, sum(copied), report)
    built = result.proof.build if result.proof else None
    result.seconds = SetUp(
        export_s=task.prepared.export_s.get(graph_of(case.precision)) if ENGINES[case.engine].needs == "onnx" else None,
        # What building took when it was done, for an engine that comes from a cache.
        build_s=built.seconds if built else phases.seconds.get(Phase.BUILD),
        load_s=phases.seconds.get(Phase.LOAD),
        first_run_s=first_s,
    )
    if task.profile and result.status == "ok":
        report(Salvage(Kept(result, Stage.CHECKED)))  # Whatever profiling runs into, this is not lost.
        phases.enter(Phase.PROFILE)
        left = _left(task.budget, phases.spent())
        _profile(session, result, enough=left > _PROFILED_CALLS * expected_ms / 1000)
    return result


def _memory(case: Case, session: Session, device: DeviceMeter, host_peak: float | None) -> MemoryParts:
    """The parts of the memory that the case's device can tell; on the CPU the peak is the process's."""
    if case.device == "cuda":
        return device.parts(session.memory())
    parts = declared_parts(session.memory()) if case.pass_ == "training" else MemoryParts()
    parts.peak_memory_mib = host_peak
    return parts


def check_batch(task: Task) -> None:
    """Raises Unsupported where the model's batch is fixed to another size."""
    fixed = fixed_batch(task.prepared.specs)
    if fixed is not None and fixed != task.case.batch_size:
        raise Unsupported(f"{task.case.model} has a fixed batch of {fixed}; add {fixed} to batch_sizes")


def _open_clock(case: Case, device: DeviceMeter) -> Clock:
    if case.device == "cpu":
        return CpuClock()
    torch.cuda.init()
    torch.cuda.synchronize()
    device.context_created()
    return CudaClock()


def make_job(
    task: Task,
    phase: Callable[[Phase], None],
    at_peak: Callable[[], None],
    progress: Callable[[str], None] = lambda text: None,
) -> Job[Options]:
    case, prepared = task.case, task.prepared
    return Job(
        source=case.source,
        pass_=case.pass_,
        precision=case.precision,
        batch_size=case.batch_size,
        device=case.device,
        options=ENGINES[case.engine].options(**case.options),
        inputs=tuple(_inputs(case, prepared.specs)),
        state=prepared.state,
        onnx=prepared.onnx.get(graph_of(case.precision)),
        phase=phase,
        at_peak=at_peak,
        progress=progress,
        training=case.training,
    )


def _inputs(case: Case, specs: Sequence[TensorSpec]) -> list[Array]:
    """One batch. Of a sweep and its probes, whose batches are large, the items repeat those that the reference has."""
    if case.role is not Role.CELL:
        return repeated_inputs(specs, case.batch_size, REFERENCE_ITEMS)
    return seeded_inputs(specs, case.batch_size)


def _left(budget: Budget, spent: float) -> float:
    """Seconds that the timeout leaves for taking figures after `spent`."""
    return max(budget.timeout * _GUARD - spent, 0.01)


def _within(budget: Budget, spent: float) -> Budget:
    """The budget, cut to what the timeout leaves."""
    return Budget(
        min(budget.seconds, _left(budget, spent)),
        budget.min_samples,
        budget.max_samples,
        budget.timeout,
        budget.build_timeout,
    )


def _check(task: Task, session: Session, outputs: Sequence[Array], result: Result) -> None:
    """Parity and proof; a row that does not hold becomes `failed`."""
    case = task.case
    if case.pass_ == "inference" and task.prepared.reference is not None:
        with np.load(task.prepared.reference) as file:
            reference = [file[name] for name in file.files]
        result.reference = "ort-cpu-unoptimized" if case.source.kind == "onnx" else "eager-fp32-cpu"
        real_weights = case.source.kind == "onnx" or case.source.weights is not None
        result.parity = checks.compare(outputs, reference, real_weights)
        wrong, remarks = checks.judge(case.precision, result.parity.rel_l2_error)
        result.warnings += remarks
        if wrong:
            result.fail(wrong)
    elif not all(np.isfinite(output).all() for output in outputs):
        what = "outputs are" if case.pass_ == "training" and case.training.head == "logits" else "loss is"
        result.fail(f"the {what} not finite")
    elif case.pass_ == "training":
        check_gradients(task, session, result)
    result.proof = proof = session.proof()
    result.warnings += checks.remarks(case, proof)
    wrong = checks.mismatch(case, proof)
    if wrong:
        result.fail(wrong)


def _profile(session: Session, result: Result, enough: bool) -> None:
    """Add the layers, or a warning why there are none: they are no reason to lose what was measured."""
    if not enough:
        result.warnings.append(Warning("no-layers", "budget.timeout leaves no time to profile them"))
        return
    try:
        layers = session.layers()
    except Exception as error:
        traceback.print_exc()
        result.warnings.append(Warning("no-layers", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
        return
    result.layers = [
        {"layer": layer.name, "kind": layer.kind, "nodes": list(layer.nodes), "ms": layer.ms} for layer in layers
    ]


def _add_roofline(task: Task, result: Result, copied_bytes: int, report: Report) -> None:
    """Where the case lies below the device's roofs; a row that lies far above them becomes `failed`."""
    case, cost = task.case, task.prepared.cost
    precision = roofline.computed_in(case.precision, (result.proof and result.proof.compute_types) or {})
    weights = cost.weight_bytes(case.precision)
    moved = None if weights is None else weights + copied_bytes
    latency, gpu = (median(result.samples.get(name, [])) for name in (result.clock or "", "gpu"))
    fastest = min((ms for ms in (latency, gpu) if ms is not None), default=None)

    def judge(roofs: roofline.Roofs) -> tuple[str | None, list[Warning]]:
        flops = cost.flops(case.pass_)
        result.roofline = roofline.place(flops, case.batch_size, latency, moved, precision, roofs)
        lowest = roofline.floor(flops, case.batch_size, moved, precision, roofs)
        return roofline.judge(fastest, lowest, roofline.arithmetic_saved(case.source.layer))

    wrong, remarks = judge(task.roofs)
    if wrong:
        # The machine may have been busy while its roofs were measured: two busy loops on two cores make them 35 times
        # lower. Before a row is thrown away they are measured again.
        wanted = dict.fromkeys(("fp32", precision or "fp32"))
        again = roofline.measure_roofs((case.device, tuple(wanted), task.budget.seconds), report)
        wrong, remarks = judge({name: max(roof, again.get(name, roof)) for name, roof in task.roofs.items()})
    result.warnings += remarks
    if wrong:
        result.fail(wrong)


def _bytes(case: Case, arrays: Sequence[Array]) -> int:
    """The arrays' size on the device: floats, which the host holds as float32, are of the precision's type there."""
    half = case.precision in ("fp16", "bf16")
    return sum(a.nbytes // 2 if half and a.dtype == np.float32 else a.nbytes for a in arrays)


def _reference_key(source: ModelSource) -> str:
    """Everything that reference outputs depend on: the model, how inputs are seeded, how many, and what ran them."""
    parts = [source_key(source), file_sha256(Path(inputs.__file__)), str(REFERENCE_ITEMS)]
    return hashlib.sha256("\n".join([*parts, *map(version, _REFERENCE_PACKAGES)]).encode()).hexdigest()


def _reference_of_torch(source: ModelSource, specs: tuple[TensorSpec, ...], state: Path, path: Path) -> None:
    """fp32 eager on the CPU, which is an ordinary eager session."""
    arrays = tuple(seeded_inputs(specs, REFERENCE_ITEMS))
    job = Job(source, "inference", "fp32", REFERENCE_ITEMS, "cpu", EagerOptions(), arrays, state)
    _save_outputs(engines.open_session("eager", job), path)


def _reference_of_onnx(source: ModelSource, specs: tuple[TensorSpec, ...], path: Path) -> None:
    """ONNX Runtime's CPU provider with all graph optimizations off."""
    batch = fixed_batch(specs) or REFERENCE_ITEMS
    arrays = tuple(seeded_inputs(specs, batch))
    job = Job(source, "inference", "native", batch, "cpu", OrtOptions(optimize=False), arrays, onnx=source.onnx)
    _save_outputs(engines.open_session("ort", job), path)


def _save_outputs(session: Session, path: Path) -> None:
    session.run(lambda name: None)
    outputs: list[Array] = session.outputs()
    np.savez(path, *outputs)
