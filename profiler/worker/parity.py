"""Compare outputs with the reference's, places that are not finite first, and judge how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engines.base import Array, Warning
from exporters.gradients import finite, is_exact, relative_l2, unlike
from profiler.results.result import Figures, Finding
from profiler.stats.intervals import upper_bound
from profiler.tables import numbers

_USUAL = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 1e-1, "int8": 2e-1, "fp8": 2e-1}
"""int8's error grows with the depth, since every layer rounds its activations to 8 bits again. Measured with seeded
weights and calibration, ONNX Runtime on the CPU: GoogLeNet 0.025, AlexNet 0.03, VGG-16 0.04, ResNet-18 0.03, ResNet-50
0.04, ResNet-152 0.11, ResNet-200 0.12. fp8 was only emulated on the CPU (e4m3, a scale a row, random weights, 12
blocks): BERT 0.04, ViT 0.11."""
WRONG = 0.5
"""Relative L2 error from which half of the output is noise: no rounding does that, only a wrong result."""

NOT_FINITE: Mapping[str, Mapping[str, str]] = {
    "outputs": {"fp16": "; fp16 ends at 65,504, bf16 does not"},
    "gradients": {
        "amp-fp16": ", at any loss scale: training would skip every step",
        "fp16": ": fp16 holds nothing above 65504, and without a loss scale nothing keeps gradients in its range",
    },
}
"""By what is not finite, and the precision, why that may be; goes behind the sentence that says so."""


@dataclass(frozen=True)
class Difference:
    """How far one output is from the reference's; `wrong` says where one is not finite and the other is not alike."""

    error: float
    """The relative L2 error; where the reference is zero the distance itself, and of exact values (token ids, classes)
    the share of places that differ."""
    largest: float | None = None
    """The largest absolute error; of exact values there is none."""
    wrong: str | None = None
    doubts_reference: bool = False
    exact: bool = False
    is_zero: bool = False
    """Whether the reference is zero everywhere, so that what computes nothing agrees with it."""
    name: str = ""
    """Which output it is, where there are several."""
    spread: float | None = None
    """How far the reference's items are from each other (`spread`); None where that is not known."""
    items: tuple[float, ...] = ()
    """The error of each item, where the first axis is the items'."""

    @property
    def judged(self) -> float:
        """The error that a row is judged by: that of most items, and no less than that of all together."""
        return max(self.error, float(np.median(self.items))) if self.items else self.error

    @property
    def hides_inputs(self) -> bool:
        """Whether all that depends on the inputs could be wrong at this error."""
        return self.spread is not None and self.judged >= WRONG * self.spread


def spread(truth: Array, items: int) -> float | None:
    """How far an output's items are from their mean, relative to its size (L2); None of a single item, of exact values,
    and of an output whose first axis is not the items'."""
    if items < 2 or truth.shape[:1] != (items,) or is_exact(truth) or not np.isfinite(truth).all():
        return None
    return relative_l2(np.broadcast_to(truth.mean(axis=0, dtype=np.float64), truth.shape), truth)


def compare(
    outputs: Sequence[Array], reference: Sequence[Array], names: Sequence[str] = (), by_item: Sequence[bool] = ()
) -> list[Difference]:
    """Measure the difference of each output, of arrays that `profiler.worker.outputs.align` has given the same shapes.

    `by_item` tells whose first axis is the items'; any other output is one item.
    """
    several = len(outputs) > 1 and names
    called = [f"output {name}" for name in (names if several else range(len(outputs)))]
    by_item = by_item or [False] * len(outputs)
    found = [_difference(*each) for each in zip(called, outputs, reference, by_item, strict=True)]
    return [replace(each, name=name) for each, name in zip(found, called, strict=True)] if several else found


def _difference(name: str, ours: Array, truth: Array, by_item: bool) -> Difference:
    is_zero, pairs = not truth.any(), list(zip(ours, truth, strict=True)) if by_item else []
    if is_exact(truth):
        items = tuple(_share_apart(*pair) for pair in pairs)
        return Difference(_share_apart(ours, truth), exact=True, is_zero=is_zero, items=items)
    wrong, doubts_reference = _not_alike(name, ours, truth)
    if wrong is not None:
        return Difference(float("nan"), float("nan"), wrong, doubts_reference)
    here, there = finite(ours, truth)
    largest, items = float(np.max(np.abs(here - there), initial=0.0)), tuple(relative_l2(*pair) for pair in pairs)
    return Difference(relative_l2(ours, truth), largest, is_zero=is_zero, items=items)


def _share_apart(ours: Array, truth: Array) -> float:
    """The share of places that differ."""
    return float(np.mean(ours != truth)) if truth.size else 0.0


def _not_alike(name: str, ours: Array, truth: Array) -> tuple[str | None, bool]:
    """What is wrong with places that are not finite, None if both sides are alike, and whether the reference is."""
    nan, usable = np.count_nonzero(np.isnan(truth)), np.count_nonzero(np.isfinite(truth))
    if truth.size and (not usable or nan > truth.size / 2):
        what = f"NaN in {numbers.percent(nan / truth.size)} %" if nan > truth.size / 2 else "not finite in 100 %"
        return f"nothing can be compared: the reference itself is {what} of {name}", True
    pairs = unlike(ours, truth)
    if not pairs:
        return None, False
    places = ", ".join(f"{got} where the reference has {wanted} in {count:,}" for (got, wanted), count in pairs.items())
    sentence = f"the outputs are wrong where they are not finite: {name} has {places} of {truth.size:,} places"
    if usable >= truth.size / 2:
        return sentence, False
    share = numbers.percent(1 - usable / truth.size)
    return f"{sentence}; the reference itself is not finite in {share} % of them", True


def figures(
    differences: Sequence[Difference],
    outputs: Sequence[Array],
    reference: Sequence[Array],
    real_weights: bool,
    distinct: int | None = None,
) -> Figures:
    """Return the errors of items, and how often the first output's top class agrees; None where there is none.

    The error of an item is the largest over its outputs; an output without items counts for every item. After
    `distinct` items the inputs repeat.
    Top-1 agreement is given only for two-dimensional outputs of floats and real weights: with seeded ones it says
    nothing about accuracy.
    """
    agreement = None
    largest = [difference.largest for difference in differences if difference.largest is not None]
    if real_weights and reference and reference[0].ndim == 2 and not differences[0].exact:
        agreement = float(np.mean(outputs[0].argmax(axis=1) == reference[0].argmax(axis=1)))
    errors = item_errors(differences)[:distinct]
    # np.max keeps a NaN, which max() would lose.
    return {
        "rel_l2_error": _finite(np.median(errors)),
        "rel_l2_error_high": _finite(upper_bound(errors)),
        "error_items": len(errors),
        "max_abs_error": _finite(np.max(largest)) if largest else None,
        "top1_agreement": agreement,
    }


def item_errors(differences: Sequence[Difference]) -> Array:
    """Return the largest error over the outputs of each item; a NaN stays one."""
    items = max([1, *(len(difference.items) for difference in differences)])
    each = [np.broadcast_to(difference.items or difference.error, items) for difference in differences]
    return np.max(each, axis=0) if each else np.zeros(1)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def judge(precision: str, differences: Sequence[Difference], seeding: str) -> Finding:
    """What the differences say of a row: wrong, unusual for the precision, or nothing at all.

    `seeding` says how inputs come about, for a reference that is zero or not finite.
    """
    for difference in differences:
        if difference.wrong is not None:
            if difference.doubts_reference:
                return f"{difference.wrong}: {seeding}"
            return difference.wrong + NOT_FINITE["outputs"].get(precision, "")
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
    usual = _USUAL.get(precision, _USUAL["fp16"])
    if worst.judged > usual:
        return Warning("inaccurate", f"{what}, usual at {precision} is below {numbers.error(usual, 1)}")
    if differences and all(difference.hides_inputs for difference in differences):
        apart = numbers.error(max(difference.spread or 0.0 for difference in differences))
        return Warning("unchecked-outputs", f"{what}, and other inputs change the outputs by only {apart}: {seeding}")
    return None
