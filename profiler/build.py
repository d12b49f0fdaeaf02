"""What enters: a `BuildOrder` from the command line. What leaves: engines in the cache, not run, and an exit code.

Each engine is built in a process of its own, one after another: TensorRT times kernels while it builds, and a builder
that crashes costs its own engine alone.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engines.base import Unsupported
from engines.batch_range import parse_batches
from engines.catalog import Engine
from engines.tensorrt_engines.build import (
    ALL_TARGETS,
    BuildRequest,
    Built,
    batch_shapes,
    build_engine,
    built_for,
    targets,
)
from exporters.cache import Cache, default_root
from exporters.inputs import fixed_batch, onnx_specs
from exporters.onnx_export import check_onnx
from profiler.build_order import BuildOrder, BuildTask, find_engine, find_gpu, make_tasks
from profiler.errors import ConfigError
from profiler.job.case import Budget
from profiler.nvml import Gpu
from profiler.processes.forkserver import libraries
from profiler.processes.process import Call, Child, Outcome, Report, run_all
from profiler.run.prepare import failure, prepare_graphs
from profiler.run.progress import LiveDisplay, PlainDisplay, open_display
from profiler.worker.task import graph_of

MIB = 2**20
_SEEDED = "calibration: seeded data, so the engine's accuracy says nothing; give --calibration a folder of inputs"
_TICK_SECONDS = 0.2
_PROBE_SECONDS = 120.0


def execute(order: BuildOrder, console: Console) -> int:
    """Build what is ordered and print a table; returns 0, or 1 if an engine could not be built. Raises ConfigError."""
    engine = find_engine(order.engine)
    gpu = find_gpu(engine, order.target)
    tasks = make_tasks(engine, order)
    logs = default_root() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with libraries(), open_display(console) as display:
        _check_target(engine, order.target, gpu, logs)
        outcomes = _build_all(tasks, gpu, logs, display)
    _print(console, f"Engines of {engine.name} for {order.target or (gpu.name if gpu else '')}", tasks, outcomes)
    for task, outcome in zip(tasks, outcomes, strict=True):
        style = "yellow" if outcome.status == "ok" else "red"
        for words in _remarks(task, outcome):
            console.print(Text(f"{task.name}: {words}", style=style), soft_wrap=True)
    if any(outcome.status != "ok" for outcome in outcomes):
        console.print(Text(f"What the library said stands in {logs}"), soft_wrap=True)
        return 1
    if order.export is not None:
        try:
            _copy(outcomes[0].value.path, order.export)
        except OSError as error:
            where = f"the engine stands in {outcomes[0].value.path}"
            raise ConfigError(f"--export {order.export}: {error.strerror}; {where}") from None
        console.print(Text(f"Copied to {order.export}"), soft_wrap=True)
    return 0


def known_targets(engine: str, report: Report) -> tuple[str, ...]:
    """In a worker: what the library can build for without a GPU. Raises engines.base.Unsupported without a library."""
    from engines.tensorrt_engines.session import library

    found = targets(library(engine))
    return (*found, ALL_TARGETS) if found else ()


def build_one(task: BuildTask, report: Report) -> Built:
    """In a worker: the engine, from the cache or built. Raises what `build_engine` does."""
    from engines.tensorrt_engines.session import current_gpu, library

    assert task.onnx is not None, "its graph is made before"
    module, order, batches = library(task.case.engine), task.order, parse_batches(task.batches)
    if task.case.source.kind == "onnx":
        check_onnx(task.onnx)
    specs = onnx_specs(replace(task.case.source, onnx=task.onnx))
    fixed = fixed_batch(specs)
    if fixed is not None and batches != (fixed,) * 3:
        raise Unsupported(f"{task.case.model} has a fixed batch of {fixed}: use --batch {fixed}")
    request = BuildRequest(
        onnx=task.onnx,
        precision=task.case.precision,
        shapes=batch_shapes(specs, batches),
        optimization_level=order.optimization_level,
        workspace_mib=order.workspace_mib,
        **({"target": order.target} if order.target else built_for(module, *current_gpu())),
    )
    report("phase", "build")
    return build_engine(module, request, Cache(), lambda words: report("progress", words), order.rebuild)


def _check_target(engine: Engine, target: str | None, gpu: Gpu | None, logs: Path) -> None:
    """Ask the library itself: the parent does not import it."""
    if gpu is not None:
        return
    call = Call("profiler.build:known_targets", engine.name, logs / "targets.log", _PROBE_SECONDS)
    (outcome,) = run_all([replace(call, environment={"CUDA_VISIBLE_DEVICES": ""})], 1)
    if outcome.status != "ok":
        raise ConfigError(f"--engine {engine.name}: {outcome.reason}")
    valid = ", ".join(outcome.value)
    if target is None:
        raise ConfigError(f"--target is missing: there is no GPU here to build for; valid: {valid}")
    unknown = [word for word in target.split(",") if word not in outcome.value]
    if unknown:
        raise ConfigError(f"--target: unknown '{unknown[0]}'; valid: {valid}")


def _build_all(
    tasks: Sequence[BuildTask], gpu: Gpu | None, logs: Path, display: PlainDisplay | LiveDisplay
) -> list[Outcome]:
    limit = tasks[0].order.timeout
    budget = Budget(timeout=limit, build_timeout=limit)
    prepared = prepare_graphs([task.case for task in tasks], budget, logs, (), display.preparing)
    outcomes = []
    for number, task in enumerate(tasks):
        of_model = prepared[task.case.model]
        why_not = failure(task.case, of_model)
        if why_not is not None:
            outcomes.append(Outcome(*why_not))
            continue
        ready = replace(task, onnx=of_model.onnx[graph_of(task.case.precision)])
        log = logs / f"build-{task.case.engine}-{re.sub('[^A-Za-z0-9.-]+', '-', task.name)}.log"
        log.unlink(missing_ok=True)
        variables = {"CUDA_VISIBLE_DEVICES": gpu.uuid if gpu else ""}
        child = Child(Call("profiler.build:build_one", ready, log, limit, limit, variables))
        try:
            while (outcome := child.poll(_TICK_SECONDS)) is None:
                display.building(task.name, child.progress or child.phase, number, len(tasks))
        finally:
            child.kill()
        if outcome.reason:
            outcome.reason = re.sub(r"budget\.(build_)?timeout", "--timeout", outcome.reason)
        outcomes.append(outcome)
    return outcomes


def _print(console: Console, title: str, tasks: Sequence[BuildTask], outcomes: Sequence[Outcome]) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("Model", "Precision", "Batch", "", "Seconds", "Host peak MiB", "Size MiB", "Engine"):
        table.add_column(
            head, justify="right" if head in ("Seconds", "Host peak MiB", "Size MiB") else "left", no_wrap=True
        )
    for task, outcome in zip(tasks, outcomes, strict=True):
        cells = [task.case.model, task.case.precision, task.batches]
        if outcome.status != "ok":
            table.add_row(*cells, Text(outcome.status, style="red"))
            continue
        built = outcome.value
        peak = "" if built.peak_host_mib is None else f"{built.peak_host_mib:,.0f}"
        size = f"{built.path.stat().st_size / MIB:,.1f}"
        table.add_row(
            *cells, "from the cache" if built.cached else "built", f"{built.seconds:.1f}", peak, size, str(built.path)
        )
    # As wide as it needs to be: a path that is cut, or wrapped by the table, could not be copied.
    width, console.width = console.width, 10_000
    console.width = max(width, console.measure(table).maximum)
    console.print(table)
    console.width = width


def _remarks(task: BuildTask, outcome: Outcome) -> list[str]:
    """Warnings of an engine, or why there is none."""
    if outcome.status != "ok":
        return [f"{outcome.status}: {outcome.reason}"]
    seeded = task.case.precision == "int8" and task.order.calibration is None
    return [*outcome.value.warnings, *([_SEEDED] if seeded else [])]


def _copy(engine: Path, export: Path) -> None:
    """Whole or not at all."""
    scratch = export.with_name(f".{export.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(engine, scratch)
        os.replace(scratch, export)
    finally:
        scratch.unlink(missing_ok=True)
