"""Build TensorRT engines into the cache, ahead of time, without running them.

Each engine is built in a separate process, one after another: TensorRT times kernels while it builds, and a crash costs
a single engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console

from engines.base import Phase, Unsupported
from engines.catalog import ENGINES, Engine, foreign_hardware, unsupported
from engines.requirements import missing
from engines.trt_build import BuildRequest, Built, batch_shapes, build_engine, built_for
from exporters.cache import Cache, default_root
from exporters.inputs import fixed_batch, graph_specs
from exporters.onnx_files import check_onnx, not_made, precisions_of
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case, suggestion
from profiler.job.config import config_of
from profiler.job.mistakes import Location
from profiler.machine import nvml
from profiler.machine.nvml import Gpu
from profiler.options import Build as Options
from profiler.processes.forkserver import libraries
from profiler.processes.messages import Entered, Outcome, Progress, Report
from profiler.processes.process import Call, run_one
from profiler.run.model_job import named_entry, numbers
from profiler.run.prepare import failure, prepare_graphs
from profiler.run.progress import Display
from profiler.tables.numbers import decimals
from profiler.tables.writers import say
from profiler.worker.task import Prepared

_SEEDED = "calibration: seeded data, so the engine's accuracy says nothing; a job's model can have `calibration`"


@dataclass(frozen=True, kw_only=True)
class BuildTask:
    """An engine to build for a case: for `target`, else for this GPU. `onnx` is set once the graph is made."""

    case: Case
    target: str | None = None
    onnx: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.case.model} {self.case.precision} batch {self.case.batch_size}"


def execute(options: Options, console: Console) -> int:
    """Build the engines and print their paths; return 1 if a build failed, else 0. Raises ConfigError."""
    engine, gpu = find_engine(options.engine, options.target)
    tasks, logs = make_tasks(engine, options), default_root() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with libraries(), Display(console) as display:
        cases, path = [task.case for task in tasks], (str(Path.cwd()),)
        prepared = prepare_graphs(cases, Budget(), logs, path, display.doing)
        outcomes = []
        for number, task in enumerate(tasks):
            tick = partial(display.doing, f"build: {task.name}", number, len(tasks))
            outcomes.append(_build(task, prepared[task.case.subject], gpu, logs, tick))
    for task, outcome in zip(tasks, outcomes, strict=True):
        say(console, f"{task.name}: {_described(task, outcome)}")
    if all(outcome.status == "ok" for outcome in outcomes):
        return 0
    say(console, f"The library's output is in {logs}")
    return 1


def _described(task: BuildTask, outcome: Outcome) -> str:
    if outcome.status != "ok":
        return f"{outcome.status}: {outcome.reason}"
    built, size = outcome.value, decimals(outcome.value.path.stat().st_size / 2**20, 1)
    source = "from the cache" if built.cached else "built"
    seeded = [_SEEDED] if task.case.calibrated is False else []
    notes = "".join(f"; {note}" for note in (*built.warnings, *seeded))
    return f"{source}, {decimals(built.seconds, 1)} s, {size} MiB: {built.path}{notes}"


def _build(task: BuildTask, prepared: Prepared, gpu: Gpu | None, logs: Path, tick: Callable[[], None]) -> Outcome:
    if (why_not := failure(task.case, prepared)) is not None:
        return why_not
    log, graph = logs / f"build-{task.case.engine}-{task.name.replace(' ', '-')}.log", prepared.graph(task.case)
    log.unlink(missing_ok=True)
    return build(replace(task, onnx=graph.path if graph else None), gpu, log, tick)


def find_engine(word: str, target: str | None, option: str = "--engine") -> tuple[Engine, Gpu | None]:
    """Return the engine of that name, and this machine's GPU if no target is given. Raises ConfigError."""
    able = {name: engine for name, engine in ENGINES.items() if engine.builds is not None}
    if word not in able:
        raise ConfigError(f"{option}: '{word}' builds nothing ahead of time{suggestion(word, able)}")
    engine, gpu = able[word], None
    if target is None:
        gpu = next(iter(nvml.visible_gpus()), None)
        mend = "give --target, such as sm89" if engine.builds == "anywhere" else "build on the machine with the GPU"
        if gpu is None:
            raise ConfigError(f"{option} {word}: no NVIDIA GPU answers here; {mend}")
        if reason := foreign_hardware(engine, "cuda", gpu.compute_capability):
            raise ConfigError(f"{option} {word}: {reason}; {mend}")
    elif engine.builds != "anywhere":
        raise ConfigError(f"--target: {word} builds only for the GPU that it runs on; leave out --target")
    if absent := missing(engine, "cuda"):
        raise ConfigError(f"{option} {word}: {absent}")
    return engine, gpu


def make_tasks(engine: Engine, options: Options) -> list[BuildTask]:
    """Return a task per model, precision and batch size. Raises ConfigError."""
    models = [named_entry(word) for word in options.models]
    job = {"models": models, "engines": [engine.name], "precisions": [*options.precisions] or ["fp32"]}
    job["batch_sizes"] = numbers(options.batches)
    typed: dict[Location, str] = {("models", number): "--model" for number in range(len(models))}
    config = config_of(job, typed | {("precisions",): "--precision", ("batch_sizes",): "--batch"})
    tasks = []
    for entry in config.models:
        source = entry.source()
        for precision, batch in product(precisions_of(source, config.precisions), config.batch_sizes):
            cannot = not_made(source, precision) or unsupported(engine, "inference", "cuda", precision, source.kind)
            if cannot:
                raise ConfigError(f"--precision {precision}: {cannot}")
            case = Case(entry.name, engine.name, engine.name, "inference", precision, batch, "cuda", 0, source)
            tasks.append(BuildTask(case=case, target=options.target))
    return tasks


def build(task: BuildTask, gpu: Gpu | None, log: Path, tick: Callable[[], None]) -> Outcome:
    """Build one engine in a separate process; `tick` is called a few times a second."""
    limit, visible = Budget().build_timeout, {"CUDA_VISIBLE_DEVICES": gpu.uuid if gpu else ""}
    return run_one(Call("profiler.commands.build:build_one", task, log, limit, limit, visible), lambda child: tick())


def build_one(task: BuildTask, report: Report) -> Built:
    """Return the engine from the cache or build it, in a worker. Raises as `build_engine` does."""
    from engines.trt import current_gpu, library

    assert task.onnx is not None, "its graph is made before"
    module, batch = library(task.case.engine), task.case.batch_size
    if task.case.source.kind == "onnx":
        check_onnx(task.onnx)
    specs = graph_specs(task.case.source, task.onnx)
    fixed = fixed_batch(specs) if task.case.source.own_graph is not None else None
    if fixed is not None and batch != fixed:
        raise Unsupported(f"{task.case.model} has a fixed batch of {fixed}: use --batch {fixed}")
    device = {"target": task.target} if task.target else built_for(module, *current_gpu())
    level = ENGINES[task.case.engine].options(**task.case.options).level  # type: ignore[attr-defined]
    request = BuildRequest(task.onnx, task.case.precision, batch_shapes(specs, batch), level=level, **device)
    report(Entered(Phase.BUILD))
    return build_engine(module, request, Cache(), lambda text: report(Progress(text)))
