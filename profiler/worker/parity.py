"""Store reference outputs, pair a session's outputs with them, and judge their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engines.base import Array, Session, Warning, ignore
from engines.options import PRECISION_TABLE
from exporters.calls import chosen
from exporters.gradients import finite, is_exact, relative_l2, unlike
from exporters.inputs import TensorSpec, item_axes, padding, seeded_inputs
from profiler.results.result import WRONG, Figures, Finding
from profiler.stats.intervals import upper_bound
from profiler.tables import numbers

_L2 = "relative L2 error"
_REPEATED = 1e-5
"""Largest error between two equal calls of one runtime."""
_DECADES = 5
"""Channels with norms 10^5 below the largest hold nothing but rounding."""
_FEWEST_VALUES = 32
"""Fewer values of small channels say nothing."""
_CANCELLED = 10
"""Small channels may have this many times the usual error, since cancelling numbers lose digits."""
ROUNDING_NEAR_ONE = 1e-6
"""Rounding of numbers near 1, eight units of fp32: ONNX Runtime's sigmoid adds 0.5, so even tiny results are off by
2e-7."""
_DEPENDENT = 1e-3
"""Items depend on each other if an item's outputs alone and in a batch differ by more."""
FP16_ENDS = "; fp16 ends at 65,504, bf16 does not"


@dataclass(frozen=True)
class Outputs:
    """Outputs by name, of runs of `batch` items; an array's first axis is the run."""

    arrays: Mapping[str, Array]
    batch: int
    unsteady: str = ""
    """Why equal calls differ: the model keeps state, or draws random numbers."""
    maker: str = ""
    """The maker, if not the engine for references."""
    dependent: bool = False
    """True if an item's outputs depend on the other items."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """Axis of the items by output, if not the first."""
    unread: str = ""
    """Types of objects in the result that may hold further outputs."""

    @classmethod
    def of_runs(
        cls,
        names: Sequence[str],
        runs: Sequence[Sequence[Array]],
        batch: int,
        unsteady: str = "",
        maker: str = "",
        axes: Sequence[int] = (0,),
        unread: str = "",
    ) -> Outputs:
        """Stack the outputs of runs. An output's axis of items is the first of `axes` with the batch's size."""
        arrays = dict(zip(names, map(np.stack, zip(*runs, strict=True)), strict=True))
        sizes = {name: array.shape[1:] for name, array in arrays.items()}
        item_axes = {name: next((x for x in axes if s[x : x + 1] == (batch,)), 0) for name, s in sizes.items()}
        return cls(arrays, batch, unsteady, maker, axes=item_axes, unread=unread)

    def beside(self, other: Outputs) -> Outputs:
        """Return these outputs with axes of items found by comparison with `other`, of another batch size.

        An output's only axis whose two sizes are the two batch sizes holds the items.
        """
        axes = dict(self.axes)
        for name in self.arrays.keys() & other.arrays.keys():
            pairs = list(zip(self.arrays[name].shape[1:], other.arrays[name].shape[1:], strict=False))
            candidates = [axis for axis, sizes in enumerate(pairs) if sizes == (self.batch, other.batch)]
            if self.batch != other.batch and len(candidates) == 1:
                axes[name] = candidates[0]
        return replace(self, axes=axes)

    def in_reals(self) -> Outputs:
        """Return these outputs with real and imaginary parts on a new last axis."""
        parts = {name: np.stack([a.real, a.imag], axis=-1) for name, a in self.arrays.items() if np.iscomplexobj(a)}
        return replace(self, arrays={**self.arrays, **parts})

    def with_items(self, alone: Outputs, first: int, match: Callable[[list[Pair]], list[Pair]]) -> Outputs:
        """Return these outputs, marked `dependent` if the outputs of items from `first` on differ from those `alone`.

        `match` puts ranked rows into one order.
        """
        together, alone = self.beside(alone), alone.beside(self)
        rows = [(alone.rows(name), together.rows(name)) for name in self.arrays if name in alone.arrays]
        last = first + alone.batch
        pairs = [Pair(a, b[first:last], by_item=True) for a, b in rows if a is not None and b is not None]
        errors = [compare(pair).error for pair in match(pairs) if pair.ours.shape == pair.truth.shape]
        return replace(together, dependent=any(error > _DEPENDENT for error in errors))

    @property
    def items(self) -> int:
        return self.batch * len(next(iter(self.arrays.values())))

    def rows(self, name: str) -> Array | None:
        """Return the items of all runs along the first axis; None for an output without items."""
        array, axis = self.arrays[name], 1 + self.axes.get(name, 0)
        if array.shape[axis : axis + 1] != (self.batch,):
            return None
        array = np.moveaxis(array, axis, 1)
        return array.reshape(array.shape[0] * self.batch, *array.shape[2:])

    def save(self, path: Path) -> None:
        members = {f"{number} {name}": array for number, (name, array) in enumerate(self.arrays.items())}
        facts = {name: getattr(self, name) for name in ("batch", "unsteady", "maker", "dependent", "unread")}
        axes = [self.axes.get(name, 0) for name in self.arrays]
        np.savez(path, **facts, axes=axes, **members)  # type: ignore[arg-type]

    @classmethod
    def read(cls, path: Path) -> Outputs:
        with np.load(path) as file:
            arrays = {key.partition(" ")[2]: file[key] for key in file.files if " " in key}
            facts = {name: file[name].item() for name in ("batch", "unsteady", "maker", "dependent", "unread")}
            return cls(arrays, **facts, axes=dict(zip(arrays, map(int, file["axes"]), strict=True)))


def alike(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Return whether two equal calls gave the same outputs, up to the order of sums."""
    for a, b in zip(first, second, strict=True):
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            difference = compare(Pair(a, b))
            if difference.wrong or difference.error > _REPEATED:
                return False
    return True


def axes_of(specs: Sequence[TensorSpec]) -> list[int]:
    """Return the axes that hold items in a model's inputs."""
    return [axis for axis in item_axes(specs) if axis is not None] or [0]


def further_runs(
    session: Session,
    specs: Sequence[TensorSpec],
    batch: int,
    first: Sequence[Array],
    goes_on: Callable[[int], bool],
) -> Iterator[list[Array]]:
    """Run the session on the items after its `first` outputs, while `goes_on(items)`.

    Stops when shapes change, since they depend on values, and at once if no output has items.
    """
    shapes, items = [array.shape for array in first], batch
    has_items = any(shape[axis : axis + 1] == (batch,) for shape in shapes for axis in {0, *axes_of(specs)})
    while has_items and goes_on(items):
        session.feed(seeded_inputs(specs, batch, first=items))
        session.run(ignore)
        outputs = [array.copy() for array in session.outputs()]  # The next run may overwrite them.
        if [array.shape for array in outputs] != shapes:
            return
        yield outputs
        items += batch


# Pairs of outputs.


@dataclass(frozen=True)
class Pair:
    """An output and the reference's, of the same shape; `by_item` if the first axis holds items."""

    ours: Array
    truth: Array
    name: str = "0"
    by_item: bool = False


def align(ours: Outputs, reference: Outputs, selected: Sequence[str]) -> tuple[list[Pair], list[str]]:
    """Pair the `selected` outputs, or all, with the reference's, over their common items.

    Pairs by name, or by order if the names differ and the numbers agree. The second list says why other outputs cannot
    be compared, such as a shape that depends on values. A complex number is a pair on the last axis, as in graphs.

    Raises ValueError if the numbers of outputs or the shapes of items differ.
    """
    ours, reference = ours.in_reals(), reference.in_reals()
    arrays, names, pairs, problems = ours.arrays, list(reference.arrays), list[Pair](), list[str]()
    # An exporter renames an output that shares an input's name.
    if set(arrays) != set(names) and len(arrays) == len(names):
        ours = replace(ours, arrays=dict(zip(names, arrays.values(), strict=True)))
    if not set(ours.arrays) & set(names):
        raise ValueError(f"{len(arrays)} outputs, the reference has {len(names)}")
    ours, reference = replace(ours, axes=reference.axes).beside(reference), reference.beside(ours)
    for name in (names[place] for place in chosen(selected, names)):
        if name not in ours.arrays:
            problems.append(f"{name} is not among the outputs at this batch size")
            continue
        if ours.batch == reference.batch and ours.arrays[name].shape[1:] != reference.arrays[name].shape[1:]:
            pairs.append(Pair(ours.arrays[name][0], reference.arrays[name][0], name))
            continue
        rows, truth = ours.rows(name), reference.rows(name)
        by_item = rows is not None and truth is not None
        if rows is not None and truth is not None and rows.shape[1:] == truth.shape[1:]:
            items = min(len(rows), len(truth))
            pairs.append(Pair(rows[:items], truth[:items], name, by_item=True))
            continue
        first, expected = ours.arrays[name][0], reference.arrays[name][0]
        if common := _common(first, expected, ours.batch, reference.batch):
            pairs.append(Pair(*common, name))
        elif by_item:
            raise ValueError(f"output {name} has shape {first.shape}, the reference {expected.shape}")
        else:
            problems.append(f"{name} has shape {first.shape}, the reference's is {expected.shape}")
    return pairs, problems


def _common(ours: Array, truth: Array, batch: int, reference_batch: int) -> tuple[Array, Array] | None:
    """Return the common part, cut along axes whose sizes are in the ratio of the batches; None if the shapes differ."""
    if ours.ndim != truth.ndim:
        return None
    # A smaller batch has the first items of a larger one.
    if any(a != b and a * reference_batch != b * batch for a, b in zip(ours.shape, truth.shape, strict=True)):
        return None
    shared = tuple(slice(min(sizes)) for sizes in zip(ours.shape, truth.shape, strict=True))
    return ours[shared], truth[shared]


def without_padding(array: Array, specs: Sequence[TensorSpec]) -> Array:
    """Return an output with zeros at padding tokens: their values mean nothing."""
    tokens = padding(specs, array.shape)
    if tokens.any():
        array = array.copy()
        array[tokens] = 0
    return array


# Differences.


class Hidden(NamedTuple):
    """Channels that are small beside an output's others, and their relative L2 error."""

    error: float
    where: str

    def counts(self, precision: str) -> bool:
        """Return whether the error exceeds rounding, which costs cancelling numbers some digits."""
        return self.error >= min(WRONG, _CANCELLED * PRECISION_TABLE[precision].usual_error)


@dataclass(frozen=True)
class Difference:
    """The error of an output and of each of its `items`; `measure` names the kind of error.

    `wrong` says which shapes or non-finite values disagree.
    """

    error: float
    measure: str = _L2
    name: str = "0"
    largest: float | None = None
    """Largest absolute error; None for exact values (token ids, classes)."""
    items: tuple[float, ...] = ()
    wrong: str | None = None
    is_blind: bool = False
    """True if the reference is not finite: nothing can be compared."""
    is_zero: bool = False
    """True if the reference is zeros."""
    hidden: Hidden | None = None
    """The worst small channels: the norm of larger ones hides their errors."""

    @property
    def judged(self) -> float:
        """The error that judges a row: the median item's, and at least the whole output's."""
        return max(self.error, float(np.median(self.items))) if self.items else self.error


def compare(pair: Pair) -> Difference:
    """Measure an output's error."""
    ours, truth = pair.ours, pair.truth
    if wrong := _disagreement(pair):
        is_blind = ours.shape == truth.shape and _is_blind(truth)
        return Difference(float("nan"), name=pair.name, largest=float("nan"), wrong=wrong, is_blind=is_blind)
    is_zero = not truth.any()
    if is_exact(truth):
        distance, measure, largest, hidden = _share_of_wrong, "share of wrong values", None, None
    else:
        distance, measure = relative_l2, "L2 distance to zeros" if is_zero else _L2
        largest = float(np.max(np.abs(np.subtract(*finite(ours, truth))), initial=0.0))
        hidden = None if is_zero else _hidden(pair)
    items = tuple(map(distance, ours, truth)) if pair.by_item else ()
    return Difference(distance(ours, truth), measure, pair.name, largest, items, is_zero=is_zero, hidden=hidden)


def _hidden(pair: Pair) -> Hidden | None:
    """Return the worst group of channels, on axis 1 or the last, with norms 10, 100 … times below the largest."""
    if pair.truth.ndim < 2 or (pair.truth.ndim == 2 and pair.by_item) or not pair.truth.size:
        return None
    usable = np.isfinite(pair.ours) & np.isfinite(pair.truth)
    ours, truth = (np.where(usable, side, 0).astype(np.float64) for side in (pair.ours, pair.truth))
    groups = []
    for axis in dict.fromkeys((1, truth.ndim - 1)):
        others = tuple(n for n in range(truth.ndim) if n != axis)
        norms, errors = (np.sqrt(np.square(a).sum(axis=others)) for a in (truth, ours - truth))
        with np.errstate(divide="ignore"):
            decades = np.floor(-np.log10(norms / max(norms.max(), np.finfo(float).tiny)))
        for decade in range(1, _DECADES):
            places = np.flatnonzero(decades == decade)
            enough = len(places) * truth.size // len(norms) >= _FEWEST_VALUES
            if len(places) and enough and np.abs(ours - truth).take(places, axis).max() > ROUNDING_NEAR_ONE:
                error = float(np.linalg.norm(errors[places]) / np.linalg.norm(norms[places]))
                word = f"{'channel' if len(places) == 1 else 'channels'} {places[0]}"
                word += f" to {places[-1]}" if len(places) > 1 else ""
                groups.append(Hidden(error, f"{word} of axis {axis}"))
    return max(groups, default=None)


def _share_of_wrong(ours: Array, reference: Array) -> float:
    return float(np.mean(ours != reference)) if reference.size else 0.0


def _disagreement(pair: Pair) -> str | None:
    """Say which shapes or non-finite values disagree; None if both sides agree."""
    if pair.ours.shape != pair.truth.shape:
        shapes = f"has shape {pair.ours.shape}, the reference {pair.truth.shape} of the same call"
        return f"the outputs are wrong: output {pair.name} {shapes}"
    truth = pair.truth
    if _is_blind(truth):
        where = f"{numbers.percent(1 - np.count_nonzero(np.isfinite(truth)) / truth.size)} % of output {pair.name}"
        return f"nothing can be compared: the reference itself is not finite in {where}"
    if places := unlike(pair.ours, truth):
        where = f"in {places:,} of {truth.size:,} places, where one side is not finite"
        return f"the outputs are wrong: output {pair.name} differs {where}"
    return None


def _is_blind(truth: Array) -> bool:
    usable, unknown = (int(np.count_nonzero(has(truth))) for has in (np.isfinite, np.isnan))
    return truth.size > 0 and (not usable or unknown > truth.size / 2)


def worst(differences: Sequence[Difference], precision: str) -> str | None:
    """Locate the largest error, like "scores, channels 4 to 83 of axis 1, item 3"; None if nothing differs."""
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
    """Return the errors of items, and the share of items whose first output has the reference's top class.

    An item's error is the largest one of its outputs, of outputs without items, and of hidden channels. Inputs repeat
    after `distinct` items. Top-1 agreement needs two-dimensional outputs of floats, and real weights: seeded ones say
    nothing about accuracy. A reference of zeros gives no error.
    """
    agreement = None
    largest = [difference.largest for difference in differences if difference.largest is not None]
    if real_weights and pairs and pairs[0].truth.ndim == 2 and differences[0].largest is not None:
        agreement = float(np.mean(pairs[0].ours.argmax(axis=1) == pairs[0].truth.argmax(axis=1)))
    items = max([1, *(len(difference.items) for difference in differences)])
    hidden = [d.hidden.error for d in differences if d.hidden and d.hidden.counts(precision)]
    by_item = [np.broadcast_to(error, items) for error in hidden]
    by_item += [np.broadcast_to(difference.items or difference.error, items) for difference in differences]
    unknown = bool(differences) and all(difference.is_zero and difference.error < WRONG for difference in differences)
    errors = (np.max(by_item, axis=0) if by_item else np.zeros(1))[:distinct]  # max() would lose a NaN.
    return {
        "rel_l2_error": None if unknown else _finite(np.median(errors)),
        "rel_l2_error_high": None if unknown else _finite(upper_bound(errors)),
        "error_items": len(errors),
        "max_abs_error": _finite(np.max(largest)) if largest else None,
        "top1_agreement": agreement,
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def judge(precision: str, differences: Sequence[Difference], drawn: str = "", wrong: float = WRONG) -> Finding:
    """Judge a row by its differences: wrong, unusual for the precision, or fine. `drawn` is from `how_drawn`.

    Errors from `wrong` on are wrong; where labels score the outputs, that is infinity.
    """
    for difference in differences:
        if difference.wrong:
            ends = FP16_ENDS if precision == "fp16" else ""
            return f"{difference.wrong}{drawn if difference.is_blind else ''}{ends}"
    for difference in differences:
        if (hidden := difference.hidden) and hidden.counts(precision):
            text = f"{_L2} {numbers.error(hidden.error)} of {hidden.where} of output {difference.name}"
            text += ", which others hide"
            return f"the outputs are wrong: {text}" if hidden.error >= wrong else Warning("inaccurate", text)
    worst = max(differences, key=lambda difference: difference.judged, default=Difference(0.0))
    text = f"{worst.measure} {numbers.error(worst.judged)} of output {worst.name}"
    usual = PRECISION_TABLE[precision].usual_error
    if worst.judged >= wrong:
        return f"the outputs are wrong: {text}"
    if differences and all(difference.is_zero for difference in differences):
        return Warning("unchecked-outputs", f"the reference is zero, so computing nothing would pass{drawn}")
    if worst.judged > usual:
        return Warning("inaccurate", f"{text}, usual at {precision} is below {numbers.error(usual, 1)}")
    return None
