"""What enters: a `Job`, all that an engine needs to open a model. What leaves: a `Session`, which runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from engines.catalog import PLAIN, Device, Pass, Training
from exporters.source import ModelSource

Array = NDArray[Any]
Mark = Callable[[str], None]
"""Called by a session at an inner boundary of an iteration, such as the end of the forward pass."""


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
class Job:
    """One model to be opened by one engine.

    `inputs` are the host arrays of one batch (floats as float32: the engine casts them to the precision); `state` is a
    file with the model's fp32 state dict, `onnx` the exported graph, each None where the engine does not need it.
    All work must be enqueued on torch's current stream (the worker has set a non-default one); `phase` is to be called
    with "build" before an engine builds or compiles, and with "load" after it; `progress` with how far a build is, in
    words for the display; `at_peak` before memory is given back that may have been the most in use. `engine` is the
    catalog's key, for a module that serves several.
    """

    source: ModelSource
    pass_: Pass
    precision: str
    batch_size: int
    device: Device
    options: Mapping[str, Any]
    inputs: tuple[Array, ...]
    state: Path | None = None
    onnx: Path | None = None
    phase: Callable[[str], None] = lambda name: None
    at_peak: Callable[[], None] = lambda: None
    progress: Callable[[str], None] = lambda words: None
    engine: str = ""
    training: Training = PLAIN


class Session(Protocol):
    """A model, loaded and ready. It owns no clock and never synchronizes in `run`."""

    def run(self, mark: Mark) -> None:
        """Enqueue one iteration and return at once, calling `mark` at inner boundaries (on the CPU: run it)."""

    def outputs(self) -> list[Array]:
        """The last iteration's outputs, copied to the host as float32 (integers stay).

        For training the loss alone, or with the head "logits" the network's first output.
        """

    def memory(self) -> Memory:
        """What this engine declares of its memory now."""

    def proof(self) -> dict[str, Any]:
        """What really ran; called once, after everything has been measured.

        Keys that are compared with the request: `providers` (node count by execution provider), `compute_types`
        (operator count by type, for convolutions and matrix products), `tf32`, `cuda_graph`; with the last goes
        `cuda_graph_fallback`, why the engine had to do without. `warnings` become the row's own, and the `seconds` of
        `build` its build time.
        """

    def layers(self) -> list[Layer]:
        """Profile some iterations and return their layers in running order; called, if at all, after `proof`."""

    def close(self) -> None:
        """Free what the session holds."""


@runtime_checkable
class Trainable(Session, Protocol):
    """A session that can train."""

    def gradients(self, inputs: Sequence[Array], target: Array | None) -> tuple[Array, dict[str, Array]]:
        """The output and the parameters' gradients of one iteration with the prepared weights.

        It is the very iteration that was measured, called before `proof`, on `inputs` and, for its head, `target`. The
        gradients are unscaled, as float32, at `exporters.gradients.positions`; what has none is left out.
        """


@runtime_checkable
class Rebatchable(Session, Protocol):
    """A session that can go on with another batch size without loading its model again."""

    def rebatch(self, job: Job) -> None:
        """Take the inputs and the batch size of `job`, which is the session's own in all else, and free what the old
        ones took. The weights stay as they are. Raises what opening the session would."""
