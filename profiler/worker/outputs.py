"""Find for each output that is compared the reference's, and the items that both have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engines.base import Array
from exporters.calls import chosen
from exporters.inputs import TensorSpec, padding
from profiler.worker.task import USUAL, Taken

_NAME_CHARACTERS = 500


@dataclass(frozen=True)
class Aligned:
    """Arrays of the same shapes in the same order; `apart` says of others why they cannot be compared."""

    names: list[str] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    reference: list[Array] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)


def without_padding(arrays: Sequence[Array], specs: Sequence[TensorSpec]) -> list[Array]:
    """The outputs with zeros at tokens of padding, where what a runtime computes means nothing.

    In ModernBERT's sliding windows without a token, PyTorch's attention gives zeros and its exported graph a mean: the
    outputs there are 3e-3 apart, at all other tokens 3e-7.
    """
    kept = []
    for array in arrays:
        tokens = padding(specs, array.shape)
        if tokens.any():
            array = array.copy()
            array[tokens] = 0
        kept.append(array)
    return kept


def write_outputs(
    path: Path, names: Sequence[str], arrays: Sequence[Array], changed: str = "", taken: Taken = USUAL
) -> None:
    """Save a reference's outputs with their names, and next to them which inputs were `changed` in place, and where
    they were `taken`."""
    path.with_suffix(".facts").write_text(json.dumps([changed, taken.device, taken.items]))
    # A member of a zip file has a name of 65,535 bytes at most, which ends at a NUL.
    shown = ["".join(filter(str.isprintable, name))[:_NAME_CHARACTERS] for name in names]
    keys = [f"{number} {name}" for number, name in enumerate(shown)]
    np.savez(path, **dict(zip(keys, arrays, strict=True)))  # type: ignore[arg-type]


def read_facts(path: Path) -> tuple[str, Taken]:
    """The names of the inputs that the module changed, and where `write_outputs` says that the outputs were taken."""
    changed, *taken = json.loads(path.with_suffix(".facts").read_text())
    return changed, Taken(*taken)


def read_outputs(path: Path) -> dict[str, Array]:
    """What `write_outputs` saved."""
    with np.load(path) as file:
        return {key.partition(" ")[2]: file[key] for key in file.files}


def align(
    outputs: Sequence[Array],
    names: Sequence[str],
    reference: Mapping[str, Array],
    wanted: Sequence[str | int],
    batch: int,
    reference_batch: int,
) -> Aligned:
    """The outputs that are compared, `wanted` of the reference's names, or all: as many items as both have.

    Outputs go by name, or by their order where there are as many as the reference has under other names. Where each
    item has its own, as a detector's boxes, those of the reference's further items are left out. One whose shape
    depends on what is computed, or on the batch in another way than by having its items, is left out where the shapes
    differ.

    Raises ValueError for another number of outputs, and where items have other shapes than the reference's.
    """
    by_name = dict(zip(names, outputs, strict=True))
    # An exporter gives an output another name where an input has its own.
    if set(names) != set(reference) and len(outputs) == len(reference):
        by_name = dict(zip(reference, outputs, strict=True))
    if not set(by_name) & set(reference):
        raise ValueError(f"{len(outputs)} outputs, the reference has {len(reference)}")
    # Of those that are wanted by name a row says that they are not there.
    one_each = not wanted and set(by_name) < set(reference)
    one_each = one_each and len(outputs) * reference_batch == len(reference) * batch
    known, aligned = list(reference), Aligned()
    for name in (known[place] for place in chosen(wanted, known)):
        truth, ours = reference[name], by_name.get(name)
        if ours is None and one_each:
            continue
        if ours is None:
            if len(truth.shape) and len(truth) == reference_batch and len(outputs) < len(reference) == len(names):
                raise ValueError(f"there is no output {name}, which the reference has")
            aligned.apart.append(f"{name} is not among the outputs at this batch size")
            continue
        pair = _common(ours, truth, batch, reference_batch)
        if pair is None and ours.shape[:1] == (batch,) and truth.shape[:1] == (reference_batch,):
            raise ValueError(f"output {name} has shape {ours.shape}, the reference {truth.shape}")
        if pair is None:
            aligned.apart.append(f"{name} has shape {ours.shape}, the reference's is {truth.shape}")
            continue
        aligned.names.append(name)
        aligned.outputs.append(pair[0])
        aligned.reference.append(pair[1])
    return aligned


def _common(ours: Array, truth: Array, batch: int, reference_batch: int) -> tuple[Array, Array] | None:
    """The items that both have, along each axis that is the batch or a multiple of it; None if nothing fits."""
    if ours.ndim != truth.ndim:
        return None
    # Of a batch's items one after another the first ones are those of a smaller batch.
    if any(a != b and a * reference_batch != b * batch for a, b in zip(ours.shape, truth.shape, strict=True)):
        return None
    shared = tuple(slice(min(sizes)) for sizes in zip(ours.shape, truth.shape, strict=True))
    return ours[shared], truth[shared]
