"""Measure how far arrays, and gradients of a training step, are from a reference; imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from exporters.inputs import first_items
from exporters.source import BATCH, TensorSpec

Array = NDArray[Any]
Doubt = Literal["", "random", "stateful", "dependent"]
_WHOLE = 4096
_SAMPLED = 4093
"""A prime, so that the spacing is no multiple of a tensor's dimensions; otherwise all samples could share a column."""
NOTABLE = 0.01
"""Share of the total norm above which a parameter's gradient is judged alone; an input's always is."""


def is_exact(reference: Array) -> bool:
    """Return True for outputs that must be equal, such as token ids and bools; 8-bit integers are quantities."""
    return reference.dtype.kind in "biu" and (reference.dtype.kind == "b" or reference.dtype.itemsize > 1)


def unlike(ours: Array, reference: Array) -> int:
    """Count the places where one side is not finite and the other differs."""
    beyond = ~(np.isfinite(ours) & np.isfinite(reference))
    return int(np.count_nonzero(beyond & (ours != reference) & ~(np.isnan(ours) & np.isnan(reference))))


def relative_l2(ours: Array, reference: Array) -> float:
    """Return the L2 distance over the reference's norm: the distance itself for a norm of 0, NaN for `unlike` sides."""
    if unlike(ours, reference):
        return float("nan")
    ours, reference = finite(ours, reference)
    distance, norm = float(np.linalg.norm(ours - reference)), float(np.linalg.norm(reference))
    return distance / norm if norm else distance


def finite(ours: Array, reference: Array) -> tuple[Array, Array]:
    """Return both in fp64, flattened, without the places where either is not finite."""
    ours, reference = (side.astype(np.float64).ravel() for side in (ours, reference))
    keep = np.isfinite(ours) & np.isfinite(reference)
    return (ours, reference) if keep.all() else (ours[keep], reference[keep])


class Step(NamedTuple):
    """A training step whose gradients are compared, at these precisions and batch sizes."""

    head: str
    items: int
    of_input: bool = False
    precisions: Sequence[str] = ()
    batches: Sequence[int] = ()
    frozen: Sequence[str] = ()


@dataclass(frozen=True)
class Gradients:
    """Result of one step: the loss, or with the head "logits" the output, and the objective's `target`.

    `samples` has elements of every gradient at `positions`, `norms` the whole gradient's norm, by parameter or input.
    """

    result: Array
    target: Array | None
    samples: Mapping[str, Array]
    norms: Mapping[str, float]
    doubt: Doubt = ""
    """Another step had other gradients: an equal one, a second one of the same module with its first state dict, or one
    of a larger batch of the same items."""

    def save(self, path: Path) -> None:
        target = {} if self.target is None else {"target": self.target}
        samples = {f"gradient {name}": sample for name, sample in self.samples.items()}
        norms = np.array([self.norms[name] for name in self.samples])
        np.savez(path, result=self.result, norms=norms, doubt=self.doubt, **target, **samples)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> Gradients:
        with np.load(path) as file:
            samples = {key.removeprefix("gradient "): file[key] for key in file.files if key.startswith("gradient ")}
            norms = dict(zip(samples, map(float, file["norms"]), strict=True))
            target = file["target"] if "target" in file.files else None
            return cls(file["result"], target, samples, norms, str(file["doubt"]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Deviation:
    """Relative L2 errors of a step's result, of all gradients together, and by tensor."""

    result: float
    gradient: float
    tensors: Mapping[str, float]
    zeros: Sequence[str] = ()
    """Tensors whose gradient is zeros, or missing, unlike the reference's."""


@dataclass(frozen=True)
class GradientReference:
    """The file of a step in fp64 on the CPU, and the deviations of the same step at the row's precisions."""

    path: Path
    deviations: Mapping[str, Deviation]
    """Keyed by `deviation_name`."""

    def deviation_at(self, precision: str, batch: int) -> Deviation:
        """Return the precision's deviation at the batch size, or the largest if that size was not prepared."""
        same = [value for name, value in self.deviations.items() if name.startswith(f"{precision} ")]
        return self.deviations.get(deviation_name(precision, batch)) or largest(same)


def deviation_name(precision: str, batch: int) -> str:
    """Name the deviation of a step at a precision and batch size."""
    # Only fp16 depends on the batch: without a loss scale, a mean over it divides gradients of activations by its size.
    return f"{precision} at batch {batch}" if precision == "fp16" else precision


def reference_items(batch: int) -> int:
    """Return how many items, repeated, fill a batch with the same mean loss, statistics and gradients.

    Batch normalization refuses a single one.
    """
    return next((items for items in (2, 3, 5, 7) if batch % items == 0), 1)


def tiled(array: Array, shape: Sequence[int], is_gradient: bool = False) -> Array:
    """Repeat an array up to `shape`; a gradient of a mean over the items becomes one over the larger batch."""
    repeated: Array = np.tile(array, [size // length for size, length in zip(shape, array.shape, strict=True)])
    return np.asarray(repeated * np.float32(array.size / repeated.size)) if is_gradient else repeated


def corner(array: Array, shape: Sequence[int]) -> Array:
    """Return the first elements along each axis, which undoes `tiled`."""
    return array[tuple(map(slice, shape))] if array.ndim == len(shape) else array


def input_names(count: int) -> list[str]:
    """Name the inputs' gradients among the parameters'."""
    return ["input"] if count == 1 else [f"input {number}" for number in range(1, count + 1)]


def is_input(name: str) -> bool:
    return name.partition(" ")[0] == "input"


def of_reference_items(
    specs: Sequence[TensorSpec], gradients: Sequence[Any], batch: int, items: int
) -> Iterator[tuple[str, Any, float]]:
    """Yield every input's name, the gradient of its first `items`, and a factor.

    Their product is the gradient in a batch of only these items. Without `specs` the leading dimensions are the batch.
    """
    for number, (name, gradient) in enumerate(zip(input_names(len(gradients)), gradients, strict=True)):
        matching = specs[number : number + 1]
        if gradient is not None:
            free = not matching or BATCH in matching[0].shape
            yield name, first_items(matching, [gradient], items)[0], batch / items if free else 1.0


def positions(size: int) -> NDArray[np.int64]:
    """Choose the elements of a flattened tensor to sample: all of a small tensor, else evenly spaced ones."""
    if size <= _WHOLE:
        return np.arange(size)
    return np.arange(_SAMPLED) * size // _SAMPLED


def deviation(result: Array, samples: Mapping[str, Array], reference: Gradients) -> Deviation:
    """Compare a step with the reference; a missing gradient is zeros, and full norms weight the sampled errors."""
    tensors = {
        name: relative_l2(samples.get(name, np.zeros_like(truth)), truth) for name, truth in reference.samples.items()
    }
    nonzero = {name for name, sample in samples.items() if sample.any()}
    zeros = [name for name, truth in reference.samples.items() if truth.any() and name not in nonzero]
    norm = float(np.linalg.norm(list(reference.norms.values())))
    error = float(np.linalg.norm([tensors[name] * reference.norms[name] for name in tensors]))
    return Deviation(relative_l2(result, reference.result), error / norm if norm else error, tensors, zeros)


def largest(deviations: Sequence[Deviation]) -> Deviation:
    """Return the largest of every error; NaN wins."""
    return Deviation(
        float(np.max([d.result for d in deviations])),
        float(np.max([d.gradient for d in deviations])),
        {name: float(np.max([d.tensors[name] for d in deviations])) for name in deviations[0].tensors},
        sorted({name for d in deviations for name in d.zeros}),
    )
