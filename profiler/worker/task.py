"""Define what the parent hands to a worker, `Prepared` and `Task`, and make an engine's job of it; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engines.base import Job, Phase, Unsupported
from engines.catalog import EIGHT_BITS, ENGINES, Device, Options, Reference
from exporters.flops import Cost
from exporters.gradients import GradientReference
from exporters.inputs import TensorSpec, fixed_batch, numpy_dtype, seeded_inputs
from exporters.onnx_export import Export
from exporters.source import Identity, ModelSource
from profiler.job.case import Budget, Case
from profiler.processes.messages import Outcome

REFERENCE_ITEMS = 8
"""Fewest items that outputs are compared over, where they are affordable, and most items of one reference run."""
MOST_REFERENCE_ITEMS = 64


@dataclass(frozen=True)
class Taken:
    """Where reference outputs were taken, of how many items, and how many ran at once; None is the usual number."""

    device: Device = "cpu"
    items: int | None = None
    batch: int | None = None


USUAL = Taken()


@dataclass(frozen=True)
class Prepared:
    """What the prepare phase made of one model, by content in the cache.

    `onnx` has by graph its export, or the user's file: "fp16", or "fp16 at its shape" or "fp16 at batch 8" of a model
    that can be exported for one shape or one batch size only.
    """

    specs: tuple[TensorSpec, ...] = ()
    state: Path | None = None
    reference: Path | None = None
    outputs: tuple[tuple[int, ...], ...] = ()
    """The shapes of the reference's arrays."""
    changed: str = ""
    """The inputs that the module changes in place, by name."""
    taken: Taken = USUAL
    other: Prepared | None = None
    """The model that errors are relative to, where that is another."""
    onnx: Mapping[str, Export] = field(default_factory=dict)
    failures: Mapping[str, Outcome] = field(default_factory=dict)
    """How something could not be made: "model" for all of it, or a graph's name."""
    cost: Cost = field(default_factory=Cost)
    gradients: Mapping[tuple[str, int], GradientReference | str] = field(default_factory=dict)
    """By head and number of items; or why there is none."""
    identity: Identity | None = None
    quantized: tuple[int, int] = (0, 0)
    """How many convolutions and products a user's ONNX file has, and how many of them it quantizes."""

    @property
    def reference_items(self) -> int:
        """How many items the reference outputs have."""
        return self.taken.items or self.reference_batch

    @property
    def reference_batch(self) -> int:
        """How many items each run of the reference had."""
        return self.taken.batch or usual_items(self.specs)

    def reference_name(self, maker: Reference) -> str:
        """What the column `reference` says of outputs by `maker`, such as "eager-fp32-cpu, 2 of 8 items"."""
        name, usual = maker.names[self.taken.device], usual_items(self.specs)
        return name if self.reference_items >= usual else f"{name}, {self.reference_items} of {usual} items"

    def graph(self, case: Case) -> Export | None:
        """The graph that the case runs, for its batch size."""
        names = graphs_of(graph_of(case), case.batch_size)
        return next((self.onnx[name] for name in names if name in self.onnx), None)


@dataclass(frozen=True)
class Task:
    """One case to be measured, on the GPU of that UUID if there is one."""

    case: Case
    prepared: Prepared
    budget: Budget
    gpu: str | None = None
    energy: bool = False
    """Whether to add the loop without which the energy counter says nothing."""
    profile: bool = False
    """Whether to time the layers once everything has been measured."""
    only_fits: bool = False
    """Whether it is only asked if the batch fits; near the limit a call takes seconds."""


def usual_items(specs: Sequence[TensorSpec]) -> int:
    """Return the batch size of a reference run that is affordable."""
    return fixed_batch(specs) or REFERENCE_ITEMS


def graph_of(case: Case) -> str:
    """Which graph a case runs: TF32 is a switch of the engine, not a type of the graph; of the graphs that can be
    quantized each engine has its own, unless the user gives one. A quantized module's layers are those of fp32's."""
    if case.precision in EIGHT_BITS and ENGINES[case.engine].needs == "torch":
        return "fp32"
    if case.precision == "int8" and "int8" not in case.source.graphs:
        return ENGINES[case.engine].int8_graph
    return "fp32" if case.precision == "tf32" else case.precision


def own_graphs(source: ModelSource) -> dict[str, Export]:
    """The graphs that the user gives: a file, at whichever of fp32 and `native` it is planned, and its variants."""
    file = {} if source.onnx is None else dict.fromkeys(("native", "fp32"), source.onnx)
    return {name: Export(path) for name, path in {**file, **source.graphs}.items()}


def static_graph(graph: str, batch: int | None = None) -> str:
    """What a graph is called that is for one batch size, or else for the model's shape and any batch size."""
    return f"{graph} at its shape" if batch is None else f"{graph} at batch {batch}"


def graphs_of(graph: str, batch: int) -> tuple[str, ...]:
    """What a graph may be called that a case of this batch size can run, the freest first."""
    return graph, static_graph(graph), static_graph(graph, batch)


def is_for_one_batch(graph: str) -> bool:
    """Whether that is the name of a graph for one batch size: one for the model's shape takes any."""
    return " at batch " in graph


def has_checked_gradients(case: Case) -> bool:
    """Whether the case's gradients are compared with a reference: with dropout they differ in every iteration."""
    return case.pass_ == "training" and not case.training.dropout


def how_to_name_the_batch(source: ModelSource, specs: Sequence[TensorSpec]) -> str:
    """What may mend an error of inputs that were declared without a batch; else empty."""
    if not source.inputs or source.onnx is not None or fixed_batch(specs) is None:
        return ""
    return "; a dimension that is the batch goes by that name, as in shape: [batch, sequence]"


def check_inputs(task: Task) -> None:
    """Raise Unsupported where the model's batch is fixed to another size, or its inputs have no gradient."""
    fixed, source = fixed_batch(task.prepared.specs), task.case.source
    if fixed is not None and fixed != task.case.batch_size:
        why = f"{task.case.model} has a fixed batch of {fixed}, and runs at no other size"
        raise Unsupported(why + how_to_name_the_batch(source, task.prepared.specs))
    whole = next((spec for spec in task.prepared.specs if numpy_dtype(spec.dtype).kind in "biu"), None)
    if task.case.training.input_gradient and whole is not None:
        raise Unsupported(
            f"input {whole.name} is {whole.dtype}, of which there is no gradient; leave {task.case.model} out of "
            "training's input_gradient"
        )


def make_job(
    task: Task,
    phase: Callable[[Phase], None],
    at_peak: Callable[[], object] = lambda: None,
    progress: Callable[[str], None] = lambda text: None,
) -> Job[Options]:
    """What an engine opens for the case, one batch of inputs among it.

    Where it is only asked if the batch fits, the items repeat those that the reference has.
    """
    case, prepared, graph = task.case, task.prepared, task.prepared.graph(task.case)
    distinct = MOST_REFERENCE_ITEMS if task.only_fits else None
    return Job(
        engine=case.engine,
        source=case.source,
        pass_=case.pass_,
        precision=case.precision,
        batch_size=case.batch_size,
        device=case.device,
        options=ENGINES[case.engine].options(**case.options),
        inputs=tuple(seeded_inputs(prepared.specs, case.batch_size, distinct)),
        specs=prepared.specs,
        state=prepared.state,
        onnx=graph.path if graph else None,
        phase=phase,
        at_peak=at_peak,
        progress=progress,
        training=case.training,
    )
