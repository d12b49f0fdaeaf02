"""Keep a reference's outputs, and find for each output that is compared the reference's and the items of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from engines.base import Array
from exporters.calls import chosen
from exporters.inputs import TensorSpec, padding
from profiler.worker.task import USUAL, Taken

_NAME_CHARACTERS = 500
_FURTHER = "+"
"""Begins the keys of further items."""


@dataclass(frozen=True)
class Aligned:
    """Arrays of the same shapes in the same order; `apart` says of others why they cannot be compared.

    `places` are the arrays' numbers among the session's outputs; `by_item` tells whose first axis is the items'.
    """

    names: list[str] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    reference: list[Array] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    by_item: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class Reference:
    """Outputs to compare with: `first` are those of a run of `batch` items, `rows` the ones that have their items
    first, of all `items`."""

    first: Mapping[str, Array]
    rows: Mapping[str, Array]
    batch: int
    items: int


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
    path: Path,
    names: Sequence[str],
    arrays: Sequence[Array],
    changed: str = "",
    taken: Taken = USUAL,
    further: Mapping[int, Array] = MappingProxyType({}),
) -> None:
    """Save a reference's outputs of its first run with their names, and by number the `further` items of some.

    Next to them goes which inputs were `changed` in place, and where they were `taken`.
    """
    path.with_suffix(".facts").write_text(json.dumps([changed, taken.device, taken.items, taken.batch]))
    # A member of a zip file has a name of 65,535 bytes at most, which ends at a NUL.
    shown = ["".join(filter(str.isprintable, name))[:_NAME_CHARACTERS] for name in names]
    keys = [f"{number} {name}" for number, name in enumerate(shown)]
    members = dict(zip(keys, arrays, strict=True)) | {_FURTHER + keys[place]: rows for place, rows in further.items()}
    np.savez(path, **members)  # type: ignore[arg-type]


def read_facts(path: Path) -> tuple[str, Taken]:
    """The names of the inputs that the module changed, and where `write_outputs` says that the outputs were taken."""
    changed, *taken = json.loads(path.with_suffix(".facts").read_text())
    return changed, Taken(*taken)


def read_outputs(path: Path) -> dict[str, Array]:
    """Return the outputs of the first run that `write_outputs` saved."""
    with np.load(path) as file:
        return {key.partition(" ")[2]: file[key] for key in file.files if not key.startswith(_FURTHER)}


def read_reference(path: Path, batch: int, items: int) -> Reference:
    """Return all of what `write_outputs` saved, of `items` that ran `batch` at a time."""
    first = read_outputs(path)
    rows = {name: array for name, array in first.items() if array.shape[:1] == (batch,)}
    if items > batch:
        with np.load(path) as file:
            further = {key.partition(" ")[2]: file[key] for key in file.files if key.startswith(_FURTHER)}
        rows = {name: np.concatenate([rows[name], array]) for name, array in further.items()}
    return Reference(first, rows, batch, items)


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
    by_name = _by_name(outputs, names, reference)
    # Of those that are wanted by name a row says that they are not there.
    one_each = not wanted and set(by_name) < set(reference)
    one_each = one_each and len(outputs) * reference_batch == len(reference) * batch
    known, aligned, own = list(reference), Aligned(), list(by_name)
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
        aligned.places.append(own.index(name))
        aligned.by_item.append(ours.shape[:1] == (batch,) and truth.shape[:1] == (reference_batch,))
    return aligned


def _by_name(outputs: Sequence[Array], names: Sequence[str], reference: Mapping[str, Array]) -> dict[str, Array]:
    by_name = dict(zip(names, outputs, strict=True))
    # An exporter gives an output another name where an input has its own.
    if set(names) != set(reference) and len(outputs) == len(reference):
        by_name = dict(zip(reference, outputs, strict=True))
    if not set(by_name) & set(reference):
        raise ValueError(f"{len(outputs)} outputs, the reference has {len(reference)}")
    return by_name


def can_grow(aligned: Aligned, outputs: Sequence[Array], reference: Reference, batch: int) -> list[bool]:
    """Tell which of the aligned outputs further runs can give more items of."""
    shapes = [reference.rows[name].shape[1:] if name in reference.rows else None for name in aligned.names]
    pairs = zip(aligned.places, shapes, strict=True)
    return [shape is not None and outputs[place].shape == (batch, *shape) for place, shape in pairs]


def grown(aligned: Aligned, runs: Sequence[Sequence[Array]], reference: Reference, batch: int) -> Aligned:
    """Give the outputs that have their items first those of all runs; only what has all of them stays `by_item`."""
    items = min(len(runs) * batch, reference.items)
    outputs, truths, by_item = [], [], []
    for number, grows in enumerate(can_grow(aligned, runs[0], reference, batch)):
        ours, truth = aligned.outputs[number], aligned.reference[number]
        if grows:
            ours = np.concatenate([run[aligned.places[number]] for run in runs])[:items]
            truth = reference.rows[aligned.names[number]][:items]
        outputs.append(ours)
        truths.append(truth)
        by_item.append(grows or aligned.by_item[number])
    most = max((len(array) for array, each in zip(outputs, by_item, strict=True) if each), default=0)
    by_item = [each and len(array) == most for array, each in zip(outputs, by_item, strict=True)]
    return replace(aligned, outputs=outputs, reference=truths, by_item=by_item)


def _common(ours: Array, truth: Array, batch: int, reference_batch: int) -> tuple[Array, Array] | None:
    """The items that both have, along each axis that is the batch or a multiple of it; None if nothing fits."""
    if ours.ndim != truth.ndim:
        return None
    # Of a batch's items one after another the first ones are those of a smaller batch.
    if any(a != b and a * reference_batch != b * batch for a, b in zip(ours.shape, truth.shape, strict=True)):
        return None
    shared = tuple(slice(min(sizes)) for sizes in zip(ours.shape, truth.shape, strict=True))
    return ours[shared], truth[shared]
