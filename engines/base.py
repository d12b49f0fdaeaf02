"""Define the contract of an engine: it opens a `Job` and returns a `Session`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

from engines.options import PLAIN, Device, Options, Pass, Training
from exporters.python310 import StrEnum
from exporters.source import ModelSource, TensorSpec

Array = NDArray[Any]
Mark = Callable[[str], None]
"""A session calls it at each boundary inside an iteration, such as the end of the forward pass."""


def ignore(name: str) -> None:
    """Ignore a boundary."""


OptionsT = TypeVar("OptionsT", bound=Options, covariant=True)


class Phase(StrEnum):
    """Phase of a case's process; END closes the session, EXIT lasts until the process ends, SERVE is a holder's."""

    FORK = "fork"
    OPEN = "open"
    CONTEXT = "context"
    BUILD = "build"
    LOAD = "load"
    WARM_UP = "warm-up"
    MEASURE = "measure"
    ENERGY = "energy"
    CHECK = "check"
    SCORE = "score"
    PROFILE = "profile"
    SERVE = "serve"
    END = "end"
    EXIT = "exit"
    ENDED = "ended"


class Unsupported(Exception):
    """The engine cannot do this job on this machine; the message becomes the row's reason."""


@dataclass(frozen=True)
class Warning:
    """Something that a reader of a row should know; profiler/results/warning_kinds.py declares the kinds."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @classmethod
    def parse(cls, written: str) -> Warning:
        """Read what `str` wrote."""
        kind, _, text = written.partition(":")
        return cls(kind, text.strip())


@dataclass(frozen=True)
class Memory:
    """An engine's own device memory in bytes; None if it cannot know."""

    weights: int | None = None
    activations: int | None = None
    """Activations and workspace, at their peak."""
    slack: int | None = None
    """Further memory of the engine's allocator: cached blocks, rounding, copies of weights."""
    torch_allocated: int | None = None
    torch_reserved: int | None = None
    gradients: int | None = None
    optimizer: int | None = None


@dataclass(kw_only=True)
class Building:
    """An engine's build: its seconds, now or when the cached engine was built."""

    seconds: float
    cached: bool


@dataclass(frozen=True)
class BuiltAhead:
    """An engine built into the cache for a later session."""

    cached: bool
    warnings: Sequence[Warning] = ()


@dataclass(kw_only=True)
class Proof:
    """Evidence of what ran; a field is None if the engine cannot say. `details` are stored and never judged."""

    library: str | None = None
    device: str | None = None
    provider: str | None = None
    """The requested execution provider."""
    providers: Mapping[str, int] | None = None
    """Nodes by execution provider."""
    compute_providers: Mapping[str, int] | None = None
    """Convolutions and matrix products by execution provider."""
    compute_types: Mapping[str, int] | None = None
    """Convolutions and matrix products by computed type."""
    weight_types: Mapping[str, int] | None = None
    """Parameters by type; a quantized one counts as its parts."""
    weakly_typed: bool | None = None
    """True if the runtime may compute an operator in float32 where that is faster."""
    tf32: bool | None = None
    cudnn: bool | None = None
    cuda_graph: bool | None = None
    cuda_graph_fallback: str | None = None
    """Why the requested CUDA graph is missing."""
    cuda_graph_wanted: bool | None = None
    cuda_graph_skips: int | None = None
    """CUDA graphs that torch.compile tried to record and did not."""
    graph_breaks: int | None = None
    graph_break_reasons: Sequence[str] = ()
    recompilations: Sequence[str] = ()
    """Guards of torch.compile that failed, though every call has the same shapes."""
    settings_changed: Mapping[str, Sequence[str]] | None = None
    """Settings of torch and the process that the model changed while it ran, before and after."""
    head: str | None = None
    """Start of the backward pass: the form of a loss."""
    dropout: bool | None = None
    """True if an operator dropped activations."""
    build: Building | None = None
    warnings: Sequence[Warning] | None = None
    """Added to the row's."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return one flat dict: the known fields, then the details."""
        facts = {name: value for name, value in vars(self).items() if value not in (None, ()) and name != "details"}
        if self.build:
            facts["build"] = asdict(self.build)
        if self.warnings:
            facts["warnings"] = list(map(str, self.warnings))
        return {**facts, **self.details}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Proof:
        """Read what `to_dict` wrote."""
        names = {declared.name for declared in fields(cls)}
        facts = {name: value for name, value in values.items() if name in names}
        if "build" in facts:
            facts["build"] = Building(**facts["build"])
        if "warnings" in facts:
            facts["warnings"] = list(map(Warning.parse, facts["warnings"]))
        return cls(**facts, details={name: value for name, value in values.items() if name not in names})


@dataclass(frozen=True)
class Layer:
    """One step of an iteration in the runtime: an operator, or several fused ones."""

    name: str
    kind: str
    """The runtime's word: an ATen operator, an ONNX operator, TensorRT's layer type."""
    nodes: tuple[str, ...]
    """The ONNX nodes that it covers, if they are known."""
    ms: float
    """Median (or mean, if the runtime gives no more) over the profiled iterations; on CUDA on the device."""


@dataclass(frozen=True)
class Job(Generic[OptionsT]):
    """One model for one engine, which enqueues all work on torch's current stream."""

    source: ModelSource
    pass_: Pass
    precision: str
    batch_size: int
    device: Device
    options: OptionsT
    inputs: tuple[Array, ...]
    """Host arrays of one batch in the order of `specs`, else positional; the engine casts float32 ones."""
    state: Path | None = None
    """File of the fp32 state dict, if the engine needs it."""
    onnx: Path | None = None
    """The graph, if the engine needs it."""
    phase: Callable[[Phase], None] = lambda phase: None
    """Called with Phase.BUILD before the engine builds and Phase.LOAD after it."""
    at_peak: Callable[[], object] = lambda: None
    """Called before the engine returns memory."""
    progress: Callable[[str], None] = lambda words: None
    engine: str = ""
    training: Training = PLAIN
    specs: tuple[TensorSpec, ...] = ()

    def named_inputs(self, names: Sequence[str], inputs: Sequence[Array] | None = None) -> list[Array]:
        """Pick the graph's inputs by name, a user's graph's else by order. Raises ModelError for a misfit."""
        inputs = self.inputs if inputs is None else inputs
        if not self.specs:
            return list(inputs)
        arrays = dict(zip((spec.name for spec in self.specs), inputs, strict=True))
        if self.source.own_graph is not None and not set(names) <= set(arrays) and len(names) == len(arrays):
            return list(inputs)
        if not set(names) <= set(arrays):
            raise self.source.error(
                f"the graph takes {', '.join(names)}, and the model {', '.join(arrays)}: "
                "give a graph with the same inputs"
            )
        return [arrays[name] for name in names]

    @property
    def graph(self) -> Path:
        """Return `onnx`, for an engine that needs a graph."""
        assert self.onnx is not None, "an engine that needs a graph gets the exported one"
        return self.onnx


class Session(Protocol):
    """A model, loaded and ready. It owns no clock and never synchronizes in `run`."""

    def run(self, mark: Mark) -> None:
        """Enqueue one iteration and return at once, calling `mark` at inner boundaries; on the CPU run it."""

    def outputs(self) -> list[Array]:
        """Copy the last outputs to the host, floats as float32; in training only the loss or the first output."""

    def output_names(self) -> list[str]:
        """Name `outputs` in their order; called after an iteration."""

    def feed(self, inputs: Sequence[Array]) -> None:
        """Copy `inputs`, in the order and shapes of `Job.inputs`, to where later runs read them, recorded ones too."""

    def memory(self) -> Memory:
        """Return the engine's memory now."""

    def proof(self) -> Proof:
        """Return proof of what ran; called once, after all measurements."""

    def layers(self) -> list[Layer]:
        """Profile some iterations and return their layers in running order; called, if at all, after `proof`."""

    def close(self) -> None:
        """Free the session's memory."""


@runtime_checkable
class Trainable(Session, Protocol):
    """A session that can train."""

    def gradients(self, inputs: Sequence[Array], target: Array | None) -> tuple[Array, dict[str, Array]]:
        """Run the measured iteration from the prepared weights; return its loss, or with "logits" the first output, and
        the parameters' gradients.

        The target of a smaller batch is repeated. Gradients are unscaled, float32, at `exporters.gradients.positions`.
        """


@runtime_checkable
class Renewable(Session, Protocol):
    """A session that runs the model's Python code, which may remember outputs."""

    def renew(self, calls: int) -> None:
        """Give each of the next `calls` runs inputs of new values."""

    def move(self) -> None:
        """Let further runs read other memory, with values far from the job's."""
