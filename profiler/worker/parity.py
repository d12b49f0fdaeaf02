"""Keep reference outputs, pair a session's outputs with them, and judge how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from engines.base import Array, Warning
from engines.options import PRECISION_TABLE
from exporters.calls import chosen
from exporters.gradients import finite, is_exact, relative_l2, unlike
from exporters.inputs import TensorSpec, padding
from profiler.results.result import Figures, Finding
from profiler.stats.intervals import upper_bound
from profiler.tables import numbers

_FURTHER, _SIZES = "+", "sizes"
"""What the keys of further items begin with, and the key of the numbers of items."""
_USUAL = {name: precision.usual_error for name, precision in PRECISION_TABLE.items()}
"""int8's error grows with the depth, since every layer rounds its activations to 8 bits again. Measured with seeded
weights and calibration, ONNX Runtime on the CPU: GoogLeNet 0.025, AlexNet 0.03, VGG-16 0.04, ResNet-18 0.03, ResNet-50
0.04, ResNet-152 0.11, ResNet-200 0.12. fp8 was only emulated on the CPU (e4m3, a scale a row, random weights, 12
blocks): BERT 0.04, ViT 0.11."""
WRONG = 0.5
"""Relative L2 error from which half of the output is noise: no rounding does that, only a wrong result."""
FP16_ENDS = "; fp16 ends at 65,504, bf16 does not"


@dataclass(frozen=True)
class Reference:
    """Outputs to compare with: `first` of a run of `batch` items, and `rows` of all `items` where these come first."""

    first: Mapping[str, Array]
    rows: Mapping[str, Array]
    batch: int
    items: int


def write_outputs(
    path: Path,
    names: Sequence[str],
    arrays: Sequence[Array],
    batch: int,
    items: int,
    further: Mapping[int, Array] = MappingProxyType({}),
) -> None:
    """Save outputs of `items` that ran `batch` at a time: all of the first run, and by number `further` items."""
    keys = [f"{number} {name}" for number, name in enumerate(names)]
    members = dict(zip(keys, arrays, strict=True)) | {_FURTHER + keys[place]: rows for place, rows in further.items()}
    np.savez(path, **members, **{_SIZES: np.array([batch, items])})  # type: ignore[arg-type]


def read_outputs(path: Path, further: bool = False) -> dict[str, Array]:
    """Return the outputs of the first run, or the `further` items."""
    with np.load(path) as file:
        keys = [key for key in file.files if key != _SIZES and key.startswith(_FURTHER) == further]
        return {key.partition(" ")[2]: file[key] for key in keys}


def read_reference(path: Path) -> Reference:
    """Return everything that `write_outputs` saved."""
    first = read_outputs(path)
    with np.load(path) as file:
        batch, items = map(int, file[_SIZES])
    rows = {name: array for name, array in first.items() if array.shape[:1] == (batch,)}
    if items > batch:
        rows = {name: np.concatenate([rows[name], array]) for name, array in read_outputs(path, further=True).items()}
    return Reference(first, rows, batch, items)


# Pairs of outputs.


@dataclass(frozen=True)
class Pair:
    """An output, the session's number `place`, beside the reference's of the same shape; `by_item` if the first axis is
    the items'."""

    ours: Array
    truth: Array
    name: str = ""
    place: int = 0
    by_item: bool = False


def align(
    outputs: Sequence[Array],
    names: Sequence[str],
    reference: Mapping[str, Array],
    wanted: Sequence[str | int],
    batch: int,
    reference_batch: int,
) -> tuple[list[Pair], list[str]]:
    """Pair the `wanted` outputs, or all, with the reference's, over the items that both have.

    Outputs go by name, or by their order where there are as many as the reference has under other names. The second
    list says of others why they cannot be compared, as where a shape depends on the values.

    Raises ValueError for another number of outputs, and where items have other shapes than the reference's.
    """
    # An exporter gives an output another name where an input has its own.
    by_order = set(names) != set(reference) and len(outputs) == len(reference)
    by_name = dict(zip(reference if by_order else names, outputs, strict=True))
    if not set(by_name) & set(reference):
        raise ValueError(f"{len(outputs)} outputs, the reference has {len(reference)}")
    known, places, pairs, apart = list(reference), list(by_name), list[Pair](), list[str]()
    for name in (known[place] for place in chosen(wanted, known)):
        truth, ours = reference[name], by_name.get(name)
        if ours is None:
            apart.append(f"{name} is not among the outputs at this batch size")
            continue
        by_item = ours.shape[:1] == (batch,) and truth.shape[:1] == (reference_batch,)
        common = _common(ours, truth, batch, reference_batch)
        if common is not None:
            pairs.append(Pair(*common, name, places.index(name), by_item))
        elif by_item:
            raise ValueError(f"output {name} has shape {ours.shape}, the reference {truth.shape}")
        else:
            apart.append(f"{name} has shape {ours.shape}, the reference's is {truth.shape}")
    return pairs, apart


def _common(ours: Array, truth: Array, batch: int, reference_batch: int) -> tuple[Array, Array] | None:
    """Return the items that both have, along each axis that is the batch or a multiple of it; None if nothing fits."""
    if ours.ndim != truth.ndim:
        return None
    # The first items of a batch, one after another, are those of a smaller batch.
    if any(a != b and a * reference_batch != b * batch for a, b in zip(ours.shape, truth.shape, strict=True)):
        return None
    shared = tuple(slice(min(sizes)) for sizes in zip(ours.shape, truth.shape, strict=True))
    return ours[shared], truth[shared]


def can_grow(pair: Pair, outputs: Sequence[Array], reference: Reference, batch: int) -> bool:
    """Tell whether further runs can give the pair more items."""
    rows = reference.rows.get(pair.name)
    return rows is not None and outputs[pair.place].shape == (batch, *rows.shape[1:])


def grown(pairs: Sequence[Pair], runs: Sequence[Sequence[Array]], reference: Reference, batch: int) -> list[Pair]:
    """Give the outputs that have their items first those of all runs; only what has all of them stays `by_item`."""
    items, found = min(len(runs) * batch, reference.items), []
    for pair in pairs:
        if can_grow(pair, runs[0], reference, batch):
            ours = np.concatenate([run[pair.place] for run in runs])[:items]
            pair = replace(pair, ours=ours, truth=reference.rows[pair.name][:items], by_item=True)
        found.append(pair)
    most = max((len(pair.ours) for pair in found if pair.by_item), default=0)
    return [replace(pair, by_item=pair.by_item and len(pair.ours) == most) for pair in found]


def without_padding(array: Array, specs: Sequence[TensorSpec]) -> Array:
    """Return an output with zeros at tokens of padding, where what a runtime computes means nothing.

    In ModernBERT's sliding windows without a token, PyTorch's attention gives zeros and its exported graph a mean: the
    outputs there are 3e-3 apart, at all other tokens 3e-7.
    """
    tokens = padding(specs, array.shape)
    if tokens.any():
        array = array.copy()
        array[tokens] = 0
    return array


# Differences.


@dataclass(frozen=True)
class Difference:
    """How far one output is from the reference's; `wrong` says where one is not finite and the other is not alike.

    `error` and those of `items` are relative L2 errors; the distance itself where the reference `is_zero`, and the
    share of places that differ where values are `exact` (token ids, classes).
    """

    error: float
    largest: float | None = None
    """The largest absolute error; exact values have none."""
    wrong: str | None = None
    doubts_reference: bool = False
    exact: bool = False
    is_zero: bool = False
    name: str = ""
    items: tuple[float, ...] = ()

    @property
    def judged(self) -> float:
        """The error that a row is judged by: that of most items, and no less than that of all together."""
        return max(self.error, float(np.median(self.items))) if self.items else self.error


def compare(pairs: Sequence[Pair]) -> list[Difference]:
    """Measure the difference of each pair."""
    if len(pairs) == 1 or not all(pair.name for pair in pairs):
        return [_difference(f"output {number}", pair) for number, pair in enumerate(pairs)]
    return [replace(_difference(f"output {pair.name}", pair), name=f"output {pair.name}") for pair in pairs]


def _difference(name: str, pair: Pair) -> Difference:
    ours, truth = pair.ours, pair.truth
    is_zero, rows = not truth.any(), list(zip(ours, truth, strict=True)) if pair.by_item else []
    if is_exact(truth):
        items = tuple(_share_apart(*row) for row in rows)
        return Difference(_share_apart(ours, truth), exact=True, is_zero=is_zero, items=items)
    wrong, doubts_reference = _not_alike(name, ours, truth)
    if wrong is not None:
        return Difference(float("nan"), float("nan"), wrong, doubts_reference)
    here, there = finite(ours, truth)
    largest, items = float(np.max(np.abs(here - there), initial=0.0)), tuple(relative_l2(*row) for row in rows)
    return Difference(relative_l2(ours, truth), largest, is_zero=is_zero, items=items)


def _share_apart(ours: Array, truth: Array) -> float:
    return float(np.mean(ours != truth)) if truth.size else 0.0


def _not_alike(name: str, ours: Array, truth: Array) -> tuple[str | None, bool]:
    """Say what is wrong with places that are not finite, None if both sides are alike, and whether the reference is."""
    usable = np.count_nonzero(np.isfinite(truth))
    if truth.size and (not usable or np.count_nonzero(np.isnan(truth)) > truth.size / 2):
        share = numbers.percent(1 - usable / truth.size)
        return f"nothing can be compared: the reference itself is not finite in {share} % of {name}", True
    kinds = unlike(ours, truth)
    if not kinds:
        return None, False
    places = ", ".join(f"{got} where the reference has {wanted} in {count:,}" for (got, wanted), count in kinds.items())
    text = f"the outputs are wrong where they are not finite: {name} has {places} of {truth.size:,} places"
    return text, bool(usable < truth.size / 2)


def figures(
    differences: Sequence[Difference], pairs: Sequence[Pair], real_weights: bool, distinct: int | None = None
) -> Figures:
    """Return the errors of items, and how often the first output's top class agrees; None where there is none.

    The error of an item is the largest over its outputs; an output without items counts for every item. After
    `distinct` items the inputs repeat. Top-1 agreement needs two-dimensional outputs of floats and real weights: with
    seeded ones it says nothing about accuracy.
    """
    agreement = None
    largest = [difference.largest for difference in differences if difference.largest is not None]
    if real_weights and pairs and pairs[0].truth.ndim == 2 and not differences[0].exact:
        agreement = float(np.mean(pairs[0].ours.argmax(axis=1) == pairs[0].truth.argmax(axis=1)))
    items = max([1, *(len(difference.items) for difference in differences)])
    each = [np.broadcast_to(difference.items or difference.error, items) for difference in differences]
    errors = (np.max(each, axis=0) if each else np.zeros(1))[:distinct]  # A NaN stays one, which max() would lose.
    return {
        "rel_l2_error": _finite(np.median(errors)),
        "rel_l2_error_high": _finite(upper_bound(errors)),
        "error_items": len(errors),
        "max_abs_error": _finite(np.max(largest)) if largest else None,
        "top1_agreement": agreement,
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def judge(precision: str, differences: Sequence[Difference], seeding: str) -> Finding:
    """Tell what the differences say of a row: wrong, unusual for the precision, or nothing at all.

    `seeding` says how inputs come about, for a reference that is zero or not finite.
    """
    for difference in differences:
        if difference.wrong is not None:
            hint = FP16_ENDS if precision == "fp16" else ""
            return difference.wrong + (f": {seeding}" if difference.doubts_reference else hint)
    worst = max(differences, key=lambda difference: difference.judged, default=Difference(0.0))
    of = f" of {worst.name}" if worst.name else ""
    what = f"relative L2 error {numbers.error(worst.judged)}{of}"
    if worst.exact:
        what = f"{numbers.percent(worst.judged, 1)} % of the places of {worst.name or 'an integer output'} differ"
    elif worst.is_zero:
        what = f"L2 distance {numbers.error(worst.judged)}{of} to a reference of zeros"
    if worst.judged >= WRONG:
        return f"the outputs are wrong: {what}"
    if differences and all(difference.is_zero for difference in differences):
        return Warning("unchecked-outputs", f"the reference is zero, as is what computes nothing: {seeding}")
    usual = _USUAL[precision]
    if worst.judged > usual:
        return Warning("inaccurate", f"{what}, usual at {precision} is below {numbers.error(usual, 1)}")
    return None
