"""Measure how far gradients of a training step are from a reference; the data, without torch.

Of each parameter's gradient as many elements are kept as tell its error.
exporters.gradient_reference makes the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporters.distance import Array, relative_l2
from exporters.inputs import BATCH, TensorSpec, first_items

_WHOLE = 4096
_SAMPLED = 4093
"""A prime, so that the spacing is no multiple of a tensor's own dimensions, by which all samples could fall into one
column or one place of the kernels."""


@dataclass(frozen=True)
class Gradients:
    """What one step gave. By parameter, and by input (`input_names`) if asked for: elements of the gradient, at
    `positions`, and the norm of all of it.

    `result` is the loss, or with the head "logits" the output; `target` what the head needs, or None.
    """

    result: Array
    target: Array | None
    samples: Mapping[str, Array]
    norms: Mapping[str, float]

    def save(self, path: Path) -> None:
        target = {} if self.target is None else {"target": self.target}
        samples = {f"gradient {name}": sample for name, sample in self.samples.items()}
        norms = np.array([self.norms[name] for name in self.samples])
        np.savez(path, result=self.result, norms=norms, **target, **samples)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> Gradients:
        with np.load(path) as file:
            samples = {key.removeprefix("gradient "): file[key] for key in file.files if key.startswith("gradient ")}
            norms = dict(zip(samples, map(float, file["norms"]), strict=True))
            return cls(file["result"], file["target"] if "target" in file.files else None, samples, norms)


@dataclass(frozen=True)
class Deviation:
    """How far a step lies from the reference: relative L2 errors of its result, of all gradients, and of each."""

    result: float
    gradient: float
    tensors: Mapping[str, float]
    zeros: Sequence[str] = ()
    """Tensors whose gradient is zeros, or missing, where the reference's is not."""


@dataclass(frozen=True)
class GradientReference:
    """The file of a step in fp64 on the CPU, and the deviation of the same step at each precision asked for."""

    path: Path
    own: Mapping[str, Deviation]
    """By `own_name`."""

    def own_at(self, precision: str, batch: int) -> Deviation:
        """What is usual at that precision; the most that is for other batch sizes, where that one is not known."""
        name = own_name(precision, batch)
        others = [deviation for other, deviation in self.own.items() if other.startswith(f"{precision} ")]
        return self.own[name] if name in self.own else largest(others)


def own_name(precision: str, batch: int) -> str:
    """How the deviation of a step at that precision is called, for a batch of that size. A mean over the batch divides
    activations' gradients by its size; only fp16, without a loss scale, cannot hold them."""
    return f"{precision} at batch {batch}" if precision == "fp16" else precision


def reference_items(batch: int) -> int:
    """How many items a reference has for a batch of that size, which is filled with them again and again. The mean
    loss, batch normalization's statistics and so the gradients are then the same in exact arithmetic."""
    return 1 if batch % 2 else 2


def tiled(array: Array, batch: int, is_gradient: bool = False) -> Array:
    """Items repeated up to `batch`; a gradient of a mean over the items becomes one over the batch."""
    repeated = np.concatenate([array] * (batch // len(array)))
    return repeated * np.float32(len(array) / batch) if is_gradient else repeated


def input_names(count: int) -> list[str]:
    """What the gradients of a model's inputs are called among its parameters'."""
    return ["input"] if count == 1 else [f"input {number}" for number in range(1, count + 1)]


def is_input(name: str) -> bool:
    """Whether a gradient of that name is of an input."""
    return name.partition(" ")[0] == "input"


def of_reference_items(
    specs: Sequence[TensorSpec], gradients: Sequence[Any], batch: int
) -> Iterator[tuple[str, Any, float]]:
    """Of a batch's gradient of each input, None where there is none: its name, the part that is of the first items
    (`reference_items`), and the factor that makes it what it were if the batch had only these.

    Without `specs` each input's leading dimension is the batch. One without a batch dimension is of all items.
    """
    items = reference_items(batch)
    for number, (name, gradient) in enumerate(zip(input_names(len(gradients)), gradients, strict=True)):
        own = specs[number : number + 1]
        if gradient is not None:
            free = not own or BATCH in own[0].shape
            yield name, first_items(own, [gradient], items)[0], batch / items if free else 1.0


def positions(size: int) -> NDArray[np.int64]:
    """Which elements of a tensor of `size`, flattened, are kept: all of a small one, else evenly spaced ones."""
    if size <= _WHOLE:
        return np.arange(size)
    return np.arange(_SAMPLED) * size // _SAMPLED


def deviation(result: Array, samples: Mapping[str, Array], reference: Gradients) -> Deviation:
    """A gradient that is missing counts as zeros. NaN where something is not finite that the reference has finite, or
    the other way round. The error of all is estimated from the sampled relative error and the full norm of each."""
    tensors = {
        name: relative_l2(samples.get(name, np.zeros_like(truth)), truth) for name, truth in reference.samples.items()
    }
    given = {name for name, sample in samples.items() if sample.any()}
    zeros = [name for name, truth in reference.samples.items() if truth.any() and name not in given]
    norm = float(np.linalg.norm(list(reference.norms.values())))
    error = float(np.linalg.norm([tensors[name] * reference.norms[name] for name in tensors]))
    return Deviation(relative_l2(result, reference.result), error / norm if norm else error, tensors, zeros)


def largest(deviations: Sequence[Deviation]) -> Deviation:
    """The largest of each error; NaN where one is."""
    return Deviation(
        float(np.max([d.result for d in deviations])),
        float(np.max([d.gradient for d in deviations])),
        {name: float(np.max([d.tensors[name] for d in deviations])) for name in deviations[0].tensors},
        sorted({name for d in deviations for name in d.zeros}),
    )
