"""Define what an engine is given to open, a `Job`, and what it makes of it, a `Session`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from numpy.typing import NDArray

from engines.catalog import PLAIN, Device, Options, Pass, Training
from exporters.inputs import TensorSpec
from exporters.source import ModelSource

Array = NDArray[Any]
Mark = Callable[[str], None]
"""Called by a session at an inner boundary of an iteration, such as the end of the forward pass."""


def ignore(name: str) -> None:
    """The `Mark` of whoever does not ask for boundaries."""


OptionsT = TypeVar("OptionsT", bound=Options, covariant=True)


class Phase(StrEnum):
    """What a case's process is doing."""

    FORK = "fork"
    """Until it answers."""
    OPEN = "open"
    CONTEXT = "context"
    BUILD = "build"
    LOAD = "load"
    WARM_UP = "warm-up"
    MEASURE = "measure"
    ENERGY = "energy"
    CHECK = "check"
    PROFILE = "profile"
    END = "end"
    """Closing the session."""
    EXIT = "exit"
    """From its last word until it is gone."""
    ENDED = "ended"


class Unsupported(Exception):
    """The engine cannot do this job on this machine; the message becomes the row's reason."""


@dataclass(frozen=True)
class Warning:
    """Something that a reader of a row should know; profiler/results/warning_kinds.py declares the kinds."""

    kind: str
    text: str

    def __str__(self) -> str:
        """As files have it."""
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @classmethod
    def parse(cls, written: str) -> Warning:
        """Read what `str` wrote."""
        kind, _, text = written.partition(":")
        return cls(kind, text.strip())


@dataclass(frozen=True)
class Memory:
    """What an engine declares of its own device memory, in bytes; None where it cannot know."""

    weights: int | None = None
    activations: int | None = None
    """Activations and workspace, at their peak."""
    slack: int | None = None
    """What the engine's allocator holds beyond both: cached blocks, rounding, further copies of weights."""
    torch_allocated: int | None = None
    torch_reserved: int | None = None
    gradients: int | None = None
    """Of the weights, in training."""
    optimizer: int | None = None
    """The optimizer's state, in training."""


@dataclass(kw_only=True)
class Building:
    """How an engine was built, when it was: seconds, whether it came from a cache now, and the builder's peaks."""

    seconds: float
    cached: bool
    peak_host_mib: float | None = None
    peak_device_mib: float | None = None


@dataclass(frozen=True)
class BuiltAhead:
    """An engine that was built for a session that is opened later: whether it was in the cache already."""

    cached: bool
    warnings: Sequence[Warning] = ()


@dataclass(kw_only=True)
class Proof:
    """What really ran. What is None the engine cannot say. What is compared with the request, or becomes a warning, has
    a field; `details` holds what is only kept."""

    library: str | None = None
    """Name and version."""
    device: str | None = None
    provider: str | None = None
    """The execution provider that it was to run on."""
    providers: Mapping[str, int] | None = None
    """Nodes by execution provider."""
    compute_providers: Mapping[str, int] | None = None
    """Convolutions and matrix products by execution provider."""
    compute_types: Mapping[str, int] | None = None
    """Convolutions and matrix products by the type that they were computed in."""
    tf32: bool | None = None
    cudnn: bool | None = None
    cuda_graph: bool | None = None
    cuda_graph_fallback: str | None = None
    """Why the engine had to do without a CUDA graph."""
    cuda_graph_wanted: bool | None = None
    cuda_graph_skips: int | None = None
    """How many CUDA graphs torch.compile tried to record and did not."""
    graph_breaks: int | None = None
    """At how many places torch.compile left the graph."""
    graph_break_reasons: Sequence[str] = ()
    recompilations: Sequence[str] = ()
    """Why torch.compile compiled again what it had compiled, though every call has the same shapes."""
    build: Building | None = None
    warnings: Sequence[Warning] | None = None
    """These become the row's own."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """One level: the fields that are known, then the details."""
        known = {name: value for name, value in vars(self).items() if value not in (None, ()) and name != "details"}
        if self.build:
            known["build"] = asdict(self.build)
        if self.warnings:
            known["warnings"] = list(map(str, self.warnings))
        return {**known, **self.details}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Proof:
        """Read what `to_dict` wrote."""
        names = {own.name for own in fields(cls)}
        known = {name: value for name, value in values.items() if name in names}
        if "build" in known:
            known["build"] = Building(**known["build"])
        if "warnings" in known:
            known["warnings"] = list(map(Warning.parse, known["warnings"]))
        return cls(**known, details={name: value for name, value in values.items() if name not in names})


@dataclass(frozen=True)
class Layer:
    """One step of an iteration as the runtime runs it: an operator, or whatever it fused operators into."""

    name: str
    kind: str
    """The runtime's own word for what it is: an ATen operator, an ONNX operator, TensorRT's layer type."""
    nodes: tuple[str, ...]
    """The ONNX nodes that it covers; empty where the runtime does not say, or knows none."""
    ms: float
    """Median over the profiled iterations, or their mean where the runtime gives no more; on CUDA on the device."""


@dataclass(frozen=True)
class Job(Generic[OptionsT]):
    """One model to be opened by one engine.

    `inputs` are the host arrays of one batch, in the order of `specs`, which say their names and their places in a call
    (without specs all are positional); floats are float32: the engine casts them to the precision. `state` is a
    file with the model's fp32 state dict, `onnx` the exported graph, each None where the engine does not need it.
    All work must be enqueued on torch's current stream (the worker has set a non-default one), except by an `OwnQueue`.
    `phase` is to be called with Phase.BUILD before an engine builds or compiles, and with Phase.LOAD after it;
    `progress` with how far a build is, in words for the display; `at_peak` before memory is given back that may have
    been the most in use. `engine` is the catalog's key, for a module that serves several.
    """

    source: ModelSource
    pass_: Pass
    precision: str
    batch_size: int
    device: Device
    options: OptionsT
    inputs: tuple[Array, ...]
    state: Path | None = None
    onnx: Path | None = None
    phase: Callable[[Phase], None] = lambda phase: None
    at_peak: Callable[[], object] = lambda: None
    progress: Callable[[str], None] = lambda words: None
    engine: str = ""
    training: Training = PLAIN
    specs: tuple[TensorSpec, ...] = ()

    def named_inputs(self, names: Sequence[str], inputs: Sequence[Array] | None = None) -> list[Array]:
        """The arrays of a graph's inputs, which are the model's or, where an exporter left some out, some of them.
        Those of a user's graph that has other names go by their order. `inputs` replace the job's own."""
        inputs = self.inputs if inputs is None else inputs
        if not self.specs:
            return list(inputs)
        own = dict(zip((spec.name for spec in self.specs), inputs, strict=True))
        if self.source.own_graph is not None and not set(names) <= set(own) and len(names) == len(own):
            return list(inputs)
        return [own[name] for name in names]

    @property
    def graph(self) -> Path:
        """`onnx`, for an engine that needs a graph."""
        assert self.onnx is not None, "an engine that needs a graph gets the exported one"
        return self.onnx


class Session(Protocol):
    """A model, loaded and ready. It owns no clock and never synchronizes in `run`."""

    def run(self, mark: Mark) -> None:
        """Enqueue one iteration and return at once, calling `mark` at inner boundaries (on the CPU: run it)."""

    def outputs(self) -> list[Array]:
        """The last iteration's outputs, copied to the host as float32 (integers stay). For training only the loss, or
        with the head "logits" the network's first output."""

    def memory(self) -> Memory:
        """What this engine declares of its memory now."""

    def proof(self) -> Proof:
        """What really ran; called once, after everything has been measured."""

    def layers(self) -> list[Layer]:
        """Profile some iterations and return their layers in running order; called, if at all, after `proof`."""

    def close(self) -> None:
        """Free what the session holds."""


@runtime_checkable
class OwnQueue(Session, Protocol):
    """A session that queues its work elsewhere than on torch's current stream, so that the host's clock has to do."""

    def wait(self) -> None:
        """Wait until all that `run` has enqueued is finished."""


@runtime_checkable
class Trainable(Session, Protocol):
    """A session that can train."""

    def gradients(self, inputs: Sequence[Array], target: Array | None) -> tuple[Array, dict[str, Array]]:
        """The output and the parameters' gradients of one iteration with the prepared weights.

        It is the very iteration that was measured, called before `proof`, on `inputs` and, for its head, `target`. The
        gradients are unscaled, as float32, at `exporters.gradients.positions`; what has none is left out.
        """


@runtime_checkable
class Named(Session, Protocol):
    """A session that knows what its outputs are called."""

    def output_names(self) -> list[str]:
        """Of `outputs`, in that order; called after an iteration."""


@runtime_checkable
class Feedable(Session, Protocol):
    """A session that can take other inputs of the same shapes."""

    def feed(self, inputs: Sequence[Array]) -> None:
        """Copy `inputs`, as in its job, to where every further `run` reads them, a recorded one too."""
