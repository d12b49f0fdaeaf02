"""What enters: arguments of `python -m profiler build`. What leaves: a `BuildTask` an engine, or a `ConfigError`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.batch_range import parse_batches
from engines.catalog import ENGINES, PRECISIONS, Engine, foreign_capability, unsupported
from engines.requirements import explain, missing
from exporters.catalog import CATALOG
from exporters.source import ModelSource
from profiler import nvml
from profiler.errors import ConfigError, nearest
from profiler.job.case import Budget, Case
from profiler.job.config_errors import nearest_engine
from profiler.nvml import Gpu


@dataclass(frozen=True)
class BuildOrder:
    """What the user asked for."""

    engine: str
    models: tuple[str, ...]
    """Canonical networks and paths of ONNX files."""
    precisions: tuple[str, ...]
    """None for ONNX files, which have their own."""
    batches: str
    """Sizes and ranges, "1,16,1:8:32": an engine each."""
    target: str | None = None
    export: Path | None = None
    rebuild: bool = False
    optimization_level: int | None = None
    workspace_mib: int | None = None
    calibration: Path | None = None
    timeout: float = Budget().build_timeout
    """Seconds for each export and each build."""


@dataclass(frozen=True)
class BuildTask:
    """One engine of an order; `onnx` is None until the graph is there."""

    order: BuildOrder
    case: Case
    batches: str
    onnx: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.case.model} {self.case.precision} batch {self.batches}"


def make_tasks(engine: Engine, order: BuildOrder) -> list[BuildTask]:
    """Every model in every precision at every batch. Raises ConfigError."""
    if order.calibration is not None and not any(order.calibration.glob("*.npy")):
        raise ConfigError(f"--calibration: there are no .npy files in {order.calibration}")
    tasks = list(_tasks(engine, order))
    _check_export(order.export, tasks)
    return tasks


def find_engine(word: str) -> Engine:
    """The engine of that name, if it builds ahead of time and its library is here. Raises ConfigError."""
    able = {name: engine for name, engine in ENGINES.items() if engine.builds is not None}
    if word not in able:
        raise ConfigError(f"--engine: '{word}' builds nothing ahead of time{nearest_engine(word, able)}")
    lacking = missing(able[word], "cuda", to_build=True)
    # Without a GPU there is no use in installing what needs one.
    if lacking and (able[word].builds == "anywhere" or nvml.visible_gpus()):
        raise ConfigError(f"--engine {word}: {explain(lacking)}")
    return able[word]


def find_gpu(engine: Engine, target: str | None) -> Gpu | None:
    """The GPU to build on and for; None with a target, or without a GPU. Raises ConfigError where one is needed."""
    if target is not None:
        if engine.compute_capabilities is None:
            raise ConfigError(f"--target: {engine.name} builds for the GPU that it runs on alone; leave out --target")
        return None
    gpu = next(iter(nvml.visible_gpus()), None)
    if gpu is None and engine.builds != "anywhere":
        raise ConfigError(
            f"--engine {engine.name}: its builder times kernels on the GPU, and no NVIDIA GPU answers here; build on "
            "the machine that the engine is for"
        )
    reason = foreign_capability(engine, "cuda", gpu.compute_capability if gpu else None)
    if reason is not None:
        raise ConfigError(f"--engine {engine.name}: {reason}; to build for another GPU give --target, such as sm89")
    return gpu


def _tasks(engine: Engine, order: BuildOrder) -> Iterator[BuildTask]:
    names: dict[str, str] = {}
    for word in dict.fromkeys(order.models):
        source = _source(word, order)
        if names.setdefault(source.name, word) != word:
            raise ConfigError(f"--model: {names[source.name]} and {word} have one name; build them one after another")
        for precision in dict.fromkeys(_precisions(engine, source, order.precisions)):
            case = Case(source.name, engine.name, engine.name, "inference", precision, 1, "cuda", 0, source)
            for batches in dict.fromkeys(order.batches.split(",")):
                try:
                    parse_batches(batches)
                except ValueError as error:
                    raise ConfigError(f"--batch: {error}") from None
                yield BuildTask(order, case, batches)


def _source(word: str, order: BuildOrder) -> ModelSource:
    path = Path(word)
    if path.suffix == ".onnx" or os.sep in word:
        if not path.is_file():
            raise ConfigError(f"--model: {path} is a folder" if path.is_dir() else f"--model: there is no file {path}")
        return ModelSource(path.stem, onnx=path.resolve())
    if word not in CATALOG:
        raise ConfigError(f"--model: '{word}' is neither a network nor a path to an .onnx file{nearest(word, CATALOG)}")
    return ModelSource(word, calibration=order.calibration)


def _precisions(engine: Engine, source: ModelSource, asked: Sequence[str]) -> Sequence[str]:
    if source.kind == "onnx":
        if set(asked) - {"native"}:
            raise ConfigError(f"--precision: {source.name} is an ONNX file, which has its own types; leave it out")
        return ["native"]
    valid = [precision for precision in PRECISIONS if precision != "native"]
    if not asked:
        raise ConfigError(f"--precision is missing; valid: {', '.join(valid)}")
    for precision in asked:
        if precision not in valid:
            raise ConfigError(f"--precision: unknown '{precision}'{nearest(precision, valid)}")
        if reason := unsupported(engine, "inference", "cuda", precision, source.kind):
            raise ConfigError(f"--precision {precision}: {reason}")
    return asked


def _check_export(export: Path | None, tasks: Sequence[BuildTask]) -> None:
    if export is None:
        return
    if len(tasks) > 1:
        raise ConfigError(f"--export takes one engine, and this builds {len(tasks)}: {tasks[0].name}, {tasks[1].name}…")
    if export.is_dir() or not export.parent.is_dir():
        raise ConfigError(f"--export {export}: give a file in a folder that exists")
