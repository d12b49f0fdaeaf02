"""Keep reference outputs, pair a session's outputs with them, and judge how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engines.base import Array, Feedable, Warning, ignore
from engines.options import PRECISION_TABLE
from exporters.calls import chosen
from exporters.gradients import finite, is_exact, relative_l2, unlike
from exporters.inputs import TensorSpec, item_axes, padding, seeded_inputs
from profiler.results.result import Figures, Finding
from profiler.stats.intervals import upper_bound
from profiler.tables import numbers

_USUAL = {name: precision.usual_error for name, precision in PRECISION_TABLE.items()}
"""int8's error grows with the depth, since every layer rounds its activations to 8 bits again. Measured with seeded
weights and calibration, ONNX Runtime on the CPU: GoogLeNet 0.025, AlexNet 0.03, VGG-16 0.04, ResNet-18 0.03, ResNet-50
0.04, ResNet-152 0.11, ResNet-200 0.12. fp8 was only emulated on the CPU (e4m3, a scale a row, random weights, 12
blocks): BERT 0.04, ViT 0.11."""
WRONG = 0.5
"""Relative L2 error from which half of the output is noise: no rounding does that, only a wrong result."""
_L2 = "relative L2 error"
_AGAIN = 1e-5
"""Largest error between two equal calls of one runtime."""
_DECADES, _FEWEST_VALUES, _CANCELLED = 5, 32, 10
"""Channels 10^5 below the largest are rounding; so few values say nothing; digits that cancelling numbers may lose."""
OF_ONE = 1e-6
"""Rounding of numbers near 1, eight units of fp32: ONNX Runtime's sigmoid adds 0.5, and is off by 2e-7 however small
its result."""
_TOGETHER = 1e-3
"""Largest error between an item alone and the same item among others."""
FP16_ENDS = "; fp16 ends at 65,504, bf16 does not"


@dataclass(frozen=True)
class Outputs:
    """Outputs by name of runs of `batch` items each; an array's first axis is the run."""

    arrays: Mapping[str, Array]
    batch: int
    unsteady: str = ""
    """Why two equal calls had different outputs: the model keeps state, or draws random numbers."""
    maker: str = ""
    """Maker, if it is not the engine for references."""
    dependent: bool = False
    """True if an item alone has other outputs than among others."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """Axis of the items by output, where it is not the first."""

    @classmethod
    def of_runs(
        cls,
        names: Sequence[str],
        runs: Sequence[Sequence[Array]],
        batch: int,
        unsteady: str = "",
        maker: str = "",
        axes: Sequence[int] = (0,),
    ) -> Outputs:
        """Stack the outputs of runs. Of the `axes` of inputs the first one of the batch's size is an output's own."""
        arrays = dict(zip(names, map(np.stack, zip(*runs, strict=True)), strict=True))
        sizes = {name: array.shape[1:] for name, array in arrays.items()}
        where = {name: next((x for x in axes if own[x : x + 1] == (batch,)), 0) for name, own in sizes.items()}
        return cls(arrays, batch, unsteady, maker, axes=where)

    def beside(self, other: Outputs) -> Outputs:
        """Return these outputs with each one's axis of items where it shows: only there sizes are the two batches'."""
        axes = dict(self.axes)
        for name in self.arrays.keys() & other.arrays.keys():
            pairs = list(zip(self.arrays[name].shape[1:], other.arrays[name].shape[1:], strict=False))
            found = [axis for axis, sizes in enumerate(pairs) if sizes == (self.batch, other.batch)]
            if self.batch != other.batch and len(found) == 1:
                axes[name] = found[0]
        return replace(self, axes=axes)

    def with_item(self, alone: Outputs, item: int) -> Outputs:
        """Return these outputs, marked `dependent` if the item differs from itself `alone`."""
        own, alone = self.beside(alone), alone.beside(self)
        rows = [(alone.rows(name), own.rows(name)) for name in self.arrays if name in alone.arrays]
        pairs = [Pair(one[0], all_[item]) for one, all_ in rows if one is not None and all_ is not None]
        return replace(own, dependent=any(compare(p).error > _TOGETHER for p in pairs if p.ours.shape == p.truth.shape))

    @property
    def items(self) -> int:
        return self.batch * len(next(iter(self.arrays.values())))

    def rows(self, name: str) -> Array | None:
        """Return the items of all runs one after another, along the first axis; None of an output without items."""
        array, axis = self.arrays[name], 1 + self.axes.get(name, 0)
        if array.shape[axis : axis + 1] != (self.batch,):
            return None
        array = np.moveaxis(array, axis, 1)
        return array.reshape(array.shape[0] * self.batch, *array.shape[2:])

    def save(self, path: Path) -> None:
        members = {f"{number} {name}": array for number, (name, array) in enumerate(self.arrays.items())}
        facts = {"batch": self.batch, "unsteady": self.unsteady, "maker": self.maker, "dependent": self.dependent}
        axes = [self.axes.get(name, 0) for name in self.arrays]
        np.savez(path, **facts, axes=axes, **members)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> Outputs:
        with np.load(path) as file:
            arrays = {key.partition(" ")[2]: file[key] for key in file.files if " " in key}
            facts = int(file["batch"]), str(file["unsteady"]), str(file["maker"]), bool(file["dependent"])
            return cls(arrays, *facts, axes=dict(zip(arrays, map(int, file["axes"]), strict=True)))


def alike(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Tell whether two equal calls had the same outputs, but for the order of sums."""
    for a, b in zip(one, other, strict=True):
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            difference = compare(Pair(a, b))
            if difference.wrong or difference.error > _AGAIN:
                return False
    return True


def axes_of(specs: Sequence[TensorSpec]) -> list[int]:
    """Return the axes that hold items in a model's inputs."""
    return [axis for axis in item_axes(specs) if axis is not None] or [0]


def further_runs(
    session: Feedable,
    specs: Sequence[TensorSpec],
    batch: int,
    first: Sequence[Array],
    goes_on: Callable[[int], bool],
) -> Iterator[list[Array]]:
    """Run the session on the items after those of its `first` outputs, while `goes_on` with so many items.

    Ends with a run whose shapes are others, since they depend on values, and at once where no output has items.
    """
    shapes, items = [array.shape for array in first], batch
    has_items = any(shape[axis : axis + 1] == (batch,) for shape in shapes for axis in {0, *axes_of(specs)})
    while has_items and goes_on(items):
        session.feed(seeded_inputs(specs, batch, first=items))
        session.run(ignore)
        outputs = [array.copy() for array in session.outputs()]  # They may be where the next run writes.
        if [array.shape for array in outputs] != shapes:
            return
        yield outputs
        items += batch


# Pairs of outputs.


@dataclass(frozen=True)
class Pair:
    """An output beside the reference's of the same shape; `by_item` if the first axis is the items'."""

    ours: Array
    truth: Array
    name: str = "0"
    by_item: bool = False


def align(ours: Outputs, reference: Outputs, wanted: Sequence[str]) -> tuple[list[Pair], list[str]]:
    """Pair the `wanted` outputs, or all, with the reference's, over the items that both have.

    Outputs go by name, or by their order where there are as many as the reference has under other names. The second
    list says of others why they cannot be compared, as where a shape depends on the values.

    Raises ValueError for another number of outputs, and where items have other shapes than the reference's.
    """
    arrays, known, pairs, apart = ours.arrays, list(reference.arrays), list[Pair](), list[str]()
    # An exporter gives an output another name where an input has its own.
    if set(arrays) != set(known) and len(arrays) == len(known):
        ours = replace(ours, arrays=dict(zip(known, arrays.values(), strict=True)))
    if not set(ours.arrays) & set(known):
        raise ValueError(f"{len(arrays)} outputs, the reference has {len(known)}")
    ours, reference = replace(ours, axes=reference.axes).beside(reference), reference.beside(ours)
    for name in (known[place] for place in chosen(wanted, known)):
        if name not in ours.arrays:
            apart.append(f"{name} is not among the outputs at this batch size")
            continue
        if ours.batch == reference.batch and ours.arrays[name].shape[1:] != reference.arrays[name].shape[1:]:
            pairs.append(Pair(ours.arrays[name][0], reference.arrays[name][0], name))
            continue
        one, truth = ours.rows(name), reference.rows(name)
        by_item = one is not None and truth is not None
        if one is not None and truth is not None and one.shape[1:] == truth.shape[1:]:
            items = min(len(one), len(truth))
            pairs.append(Pair(one[:items], truth[:items], name, by_item=True))
            continue
        first, expected = ours.arrays[name][0], reference.arrays[name][0]
        if common := _common(first, expected, ours.batch, reference.batch):
            pairs.append(Pair(*common, name))
        elif by_item:
            raise ValueError(f"output {name} has shape {first.shape}, the reference {expected.shape}")
        else:
            apart.append(f"{name} has shape {first.shape}, the reference's is {expected.shape}")
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


def without_padding(array: Array, specs: Sequence[TensorSpec]) -> Array:
    """Return an output with zeros at tokens of padding, where what a runtime computes means nothing."""
    tokens = padding(specs, array.shape)
    if tokens.any():
        array = array.copy()
        array[tokens] = 0
    return array


# Differences.


class Hidden(NamedTuple):
    """Channels of an output that are small beside its others, and their own relative L2 error."""

    error: float
    where: str

    def counts(self, precision: str) -> bool:
        """Tell whether that is more than rounding: numbers that cancel out lose some of their digits."""
        return self.error >= min(WRONG, _CANCELLED * _USUAL[precision])


@dataclass(frozen=True)
class Difference:
    """How far one output is from the reference's, in this `measure`: all of it, and each of its `items`.

    `wrong` says where one is not finite and the other is not alike.
    """

    error: float
    measure: str = _L2
    name: str = "0"
    largest: float | None = None
    """The largest absolute error; exact values (token ids, classes) have none."""
    items: tuple[float, ...] = ()
    wrong: str | None = None
    is_blind: bool = False
    """True if the reference is not finite, so that nothing can be compared."""
    is_zero: bool = False
    """True if the reference is zeros."""
    hidden: Hidden | None = None
    """The channels that are furthest off, of those whose error the others' norm hides."""

    @property
    def judged(self) -> float:
        """The error that a row is judged by: that of most items, and no less than that of all together."""
        return max(self.error, float(np.median(self.items))) if self.items else self.error


def compare(pair: Pair) -> Difference:
    """Measure how far an output is from the reference's."""
    ours, truth = pair.ours, pair.truth
    if wrong := _not_alike(pair):
        is_blind = pair.ours.shape == pair.truth.shape and _is_blind(pair.truth)
        return Difference(float("nan"), name=pair.name, largest=float("nan"), wrong=wrong, is_blind=is_blind)
    is_zero, largest, distance, measure = not truth.any(), None, _share_apart, "share of wrong values"
    if not is_exact(truth):
        distance, measure = relative_l2, "L2 distance to zeros" if is_zero else _L2
        here, there = finite(ours, truth)
        largest = float(np.max(np.abs(here - there), initial=0.0))
    items = tuple(map(distance, ours, truth)) if pair.by_item else ()
    hidden = None if is_exact(truth) or is_zero else _hidden(pair)
    return Difference(distance(ours, truth), measure, pair.name, largest, items, is_zero=is_zero, hidden=hidden)


def _hidden(pair: Pair) -> Hidden | None:
    """Return the worst of the groups of channels whose norm is 10, 100, 1000 … times below the largest channel's.

    Channels are along axis 1 or the last one.
    """
    if pair.truth.ndim < 2 or (pair.truth.ndim == 2 and pair.by_item) or not pair.truth.size:
        return None
    usable = np.isfinite(pair.ours) & np.isfinite(pair.truth)
    here, there = (np.where(usable, side, 0).astype(np.float64) for side in (pair.ours, pair.truth))
    found = []
    for axis in dict.fromkeys((1, there.ndim - 1)):
        others = tuple(n for n in range(there.ndim) if n != axis)
        norms, apart = (np.sqrt(np.square(a).sum(axis=others)) for a in (there, here - there))
        with np.errstate(divide="ignore"):
            decades = np.floor(-np.log10(norms / max(norms.max(), np.finfo(float).tiny)))
        for decade in range(1, _DECADES):
            places = np.flatnonzero(decades == decade)
            enough = len(places) * there.size // len(norms) >= _FEWEST_VALUES
            if len(places) and enough and np.abs(here - there).take(places, axis).max() > OF_ONE:
                error = float(np.linalg.norm(apart[places]) / np.linalg.norm(norms[places]))
                word = f"{'channel' if len(places) == 1 else 'channels'} {places[0]}"
                word += f" to {places[-1]}" if len(places) > 1 else ""
                found.append(Hidden(error, f"{word} of axis {axis}"))
    return max(found, default=None)


def _share_apart(ours: Array, reference: Array) -> float:
    return float(np.mean(ours != reference)) if reference.size else 0.0


def _not_alike(pair: Pair) -> str | None:
    """Say what is wrong with shapes, or with places that are not finite; None if both sides are alike."""
    if pair.ours.shape != pair.truth.shape:
        shapes = f"has shape {pair.ours.shape}, the reference {pair.truth.shape} of the same call"
        return f"the outputs are wrong: output {pair.name} {shapes}"
    truth = pair.truth
    if _is_blind(truth):
        where = f"{numbers.percent(1 - np.count_nonzero(np.isfinite(truth)) / truth.size)} % of output {pair.name}"
        return f"nothing can be compared: the reference itself is not finite in {where}"
    if apart := unlike(pair.ours, truth):
        where = f"in {apart:,} of {truth.size:,} places, where one side is not finite"
        return f"the outputs are wrong: output {pair.name} differs {where}"
    return None


def _is_blind(truth: Array) -> bool:
    usable, unknown = (int(np.count_nonzero(has(truth))) for has in (np.isfinite, np.isnan))
    return truth.size > 0 and (not usable or unknown > truth.size / 2)


def worst(differences: Sequence[Difference], precision: str) -> str | None:
    """Name where the largest error is, like "scores, channels 4 to 83 of axis 1, item 3"; None if nothing differs."""
    places = []
    for difference in differences:
        if (hidden := difference.hidden) and hidden.counts(precision):
            places.append((hidden.error, f"{difference.name}, {hidden.where}"))
        items = difference.items
        item = f", item {int(np.argmax(items))}" if len(items) > 1 else ""
        places.append((max(items, default=difference.error), f"{difference.name}{item}"))
    error, place = max(places, default=(0.0, ""))
    return place if error > 0 else None


def figures(
    differences: Sequence[Difference],
    pairs: Sequence[Pair],
    real_weights: bool,
    distinct: int | None = None,
    precision: str = "fp32",
) -> Figures:
    """Return the errors of items, and how often the first output's top class agrees; None where there is none.

    The error of an item is the largest over its outputs; an output without items counts for every item, and so do
    channels whose error others hide. After
    `distinct` items the inputs repeat. Top-1 agreement needs two-dimensional outputs of floats and real weights: with
    seeded ones it says nothing about accuracy. Against a reference of zeros there is no error.
    """
    agreement = None
    largest = [difference.largest for difference in differences if difference.largest is not None]
    if real_weights and pairs and pairs[0].truth.ndim == 2 and differences[0].largest is not None:
        agreement = float(np.mean(pairs[0].ours.argmax(axis=1) == pairs[0].truth.argmax(axis=1)))
    items = max([1, *(len(difference.items) for difference in differences)])
    hidden = [d.hidden.error for d in differences if d.hidden and d.hidden.counts(precision)]
    each = [np.broadcast_to(error, items) for error in hidden]
    each += [np.broadcast_to(difference.items or difference.error, items) for difference in differences]
    unknown = bool(differences) and all(difference.is_zero and difference.error < WRONG for difference in differences)
    errors = (np.max(each, axis=0) if each else np.zeros(1))[:distinct]  # A NaN stays one, which max() would lose.
    return {
        "rel_l2_error": None if unknown else _finite(np.median(errors)),
        "rel_l2_error_high": None if unknown else _finite(upper_bound(errors)),
        "error_items": len(errors),
        "max_abs_error": _finite(np.max(largest)) if largest else None,
        "top1_agreement": agreement,
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def judge(precision: str, differences: Sequence[Difference], drawn: str = "") -> Finding:
    """Judge a row by its differences: wrong, unusual for the precision, or fine.

    `drawn` says which inputs are drawn at random (`how_drawn`).
    """
    for difference in differences:
        if difference.wrong:
            ends = FP16_ENDS if precision == "fp16" else ""
            return f"{difference.wrong}{drawn if difference.is_blind else ''}{ends}"
    for difference in differences:
        if (hidden := difference.hidden) and hidden.counts(precision):
            what = (
                f"{_L2} {numbers.error(hidden.error)} of {hidden.where} of output {difference.name}, which others hide"
            )
            return f"the outputs are wrong: {what}" if hidden.error >= WRONG else Warning("inaccurate", what)
    worst = max(differences, key=lambda difference: difference.judged, default=Difference(0.0))
    what, usual = f"{worst.measure} {numbers.error(worst.judged)} of output {worst.name}", _USUAL[precision]
    if worst.judged >= WRONG:
        return f"the outputs are wrong: {what}"
    if differences and all(difference.is_zero for difference in differences):
        return Warning("unchecked-outputs", f"the reference is zero, as is what computes nothing{drawn}")
    if worst.judged > usual:
        return Warning("inaccurate", f"{what}, usual at {precision} is below {numbers.error(usual, 1)}")
    return None
