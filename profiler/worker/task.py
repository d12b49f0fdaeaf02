"""Define the worker's input, `Task` and `Prepared`, and make an engine's job of it. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from engines.base import Job, Phase, Unsupported
from engines.catalog import ENGINES
from engines.options import EIGHT_BITS, Options
from exporters.flops import Cost
from exporters.gradients import GradientReference
from exporters.inputs import TensorSpec, fixed_batch, seeded_inputs
from exporters.onnx_export import Export
from exporters.source import Identity, ModelSource
from profiler.job.case import Budget, Case
from profiler.processes.messages import Outcome

REFERENCE_ITEMS = 7
"""Items to compare if affordable, and items of a reference if the whole batch is not affordable."""
MOST_REFERENCE_ITEMS = 9 * REFERENCE_ITEMS
"""Most items of a reference, unless one batch has more."""


@dataclass(frozen=True)
class HeldModel:
    """A holder's model: the source with its identity and inputs, and the file of its state."""

    source: ModelSource
    state: Path
    has_images: bool


@dataclass(frozen=True)
class Prepared:
    """A model's prepared files in the cache.

    `onnx` has an export or a user's file by graph: "fp16", or "fp16 at batch 8" if only one batch size can be exported.
    """

    specs: tuple[TensorSpec, ...] = ()
    state: Path | None = None
    references: Mapping[int, Path] = field(default_factory=dict)
    """Reference outputs by the batch size of the compared call."""
    onnx: Mapping[str, Export] = field(default_factory=dict)
    failures: Mapping[str, Outcome] = field(default_factory=dict)
    """Failures of the whole model ("model"), of a graph by its name, or of a batch size by `batch_failure`."""
    cost: Cost = field(default_factory=Cost)
    gradients: Mapping[tuple[str, int], GradientReference | str] = field(default_factory=dict)
    """References of gradients by head and number of items; a text says why one is missing."""
    identity: Identity | None = None
    labels: str = ""
    """Key of the labels of the user's data in the cache."""
    has_images: bool = True
    """False if no input, weight or buffer has an image's axes, so that NHWC changes nothing; True if unknown."""

    def reference(self, case: Case) -> Path | None:
        """Return the reference of the case's batch, or the largest batch's if that has none."""
        return self.references.get(case.batch_size) or self.references.get(max(self.references, default=0))

    def files(self, case: Case) -> list[Path]:
        """List the files that the case reads."""
        graph, steps = self.graph(case), self.gradients.values() if case.pass_ == "training" else ()
        gradients = [step.path for step in steps if isinstance(step, GradientReference)]
        reference = self.reference(case) if case.pass_ == "inference" else None
        paths = (self.state, graph.path if graph else None, reference, *gradients)
        return [path for path in paths if path is not None]

    def graph(self, case: Case) -> Export | None:
        """Return the graph that the case runs."""
        graph = graph_of(case)
        return self.onnx.get(graph) or self.onnx.get(static_graph(graph, case.batch_size))


@dataclass(frozen=True)
class Task:
    """A case to measure; `gpu` is a UUID."""

    case: Case
    prepared: Prepared
    budget: Budget
    gpu: str | None = None
    energy: bool = False
    """Add the loop that the energy counter needs."""
    profile: bool = False
    """Time the layers once everything has been measured."""
    scores: bool = True
    """Score labelled items. If False, labels are ignored, and the error judges the outputs."""
    only_fits: bool = False
    """Only find out whether the batch fits, since a call near the limit takes seconds."""


def usual_items(specs: Sequence[TensorSpec]) -> int:
    """Return the batch size of a reference run that is affordable."""
    return fixed_batch(specs) or REFERENCE_ITEMS


def graph_of(case: Case) -> str:
    """Name the graph that a case runs.

    An engine's switch, such as TF32, runs the fp32 graph, and so do quantized modules. Engines differ in their int8
    graphs, unless the user gives one.
    """
    engine = ENGINES[case.engine]
    if case.precision in EIGHT_BITS and engine.needs == "torch":
        return "fp32"
    if case.precision == "int8" and "int8" not in case.source.graphs:
        return engine.int8_graph
    is_switch = case.precision in engine.switches and case.precision not in case.source.graphs
    return "fp32" if is_switch else case.precision


def own_graphs(source: ModelSource) -> dict[str, Export]:
    """Return the user's graphs: a file for fp32 or `native`, and its variants."""
    file = {} if source.onnx is None else dict.fromkeys(("native", "fp32"), source.onnx)
    return {name: Export(path) for name, path in {**file, **source.graphs}.items()}


def batch_failure(batch: int) -> str:
    """Return the key in `Prepared.failures` of a batch size that cannot run."""
    return f"outputs at batch {batch}"


def static_graph(graph: str, batch: int) -> str:
    """Name a graph for one shape and batch size."""
    return f"{graph} at batch {batch}"


def has_checked_gradients(case: Case) -> bool:
    """Return whether the case's gradients can have a reference: with dropout they differ in every iteration."""
    return case.pass_ == "training" and not case.training.dropout


def microbatch(case: Case) -> int:
    """Return the items of one forward pass, a part of the batch with accumulation."""
    return case.batch_size // case.training.accumulation


def check_inputs(task: Task) -> None:
    """Raise Unsupported if the model's batch is fixed to another size."""
    case, specs = task.case, task.prepared.specs
    fixed = fixed_batch(specs)
    if fixed is not None and fixed != case.batch_size:
        raise Unsupported(f"{case.model} has a fixed batch of {fixed}, and runs at no other size")


def make_job(
    task: Task,
    phase: Callable[[Phase], None],
    at_peak: Callable[[], object] = lambda: None,
    progress: Callable[[str], None] = lambda text: None,
) -> Job[Options]:
    """Make an engine's job for the case, with a batch of inputs.

    With `only_fits` the inputs repeat MOST_REFERENCE_ITEMS items.
    """
    case, prepared, graph = task.case, task.prepared, task.prepared.graph(task.case)
    distinct = MOST_REFERENCE_ITEMS if task.only_fits else None
    inputs = tuple(seeded_inputs(prepared.specs, case.batch_size, distinct))
    files = {"specs": prepared.specs, "state": prepared.state, "onnx": graph.path if graph else None}
    return job_of(case, inputs=inputs, **files, phase=phase, at_peak=at_peak, progress=progress)


def job_of(case: Case, **parts: Any) -> Job[Options]:
    """Make an engine's job of a case's fields and the given ones."""
    shared = {f.name: getattr(case, f.name) for f in fields(Job) if hasattr(case, f.name)}
    return Job(**shared | {"options": ENGINES[case.engine].options(**case.options)} | parts)
