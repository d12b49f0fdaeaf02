"""Outputs against a reference with known distances: numbers, places that are not finite, integers and zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engines.base import Array, Warning
from profiler.results.result import Figures, Finding
from profiler.stats.intervals import upper_bound
from profiler.tables import numbers
from profiler.worker.parity import Difference, compare, figures, judge, spread

LOGITS = np.array([[1.0, 2.0, 2.0], [4.0, 0.0, 3.0]], dtype=np.float32)
SEEDED = "inputs are seeded"
INF, NAN = math.inf, math.nan


NO_ERROR = {"rel_l2_error": 0.0, "rel_l2_error_high": 0.0, "error_items": 1, "max_abs_error": 0.0}


def found(outputs: list[Array], reference: list[Array], real_weights: bool = False, by_item: bool = False) -> Figures:
    differences = compare(outputs, reference, by_item=[by_item] * len(outputs))
    return figures(differences, outputs, reference, real_weights)


def judged(output: Array, reference: Array, precision: str = "fp32") -> str:
    return str(judge(precision, compare([output], [reference]), SEEDED))


def array(*values: float) -> Array:
    return np.array([values], dtype=np.float32)


# Numbers.


def test_equal_outputs_have_no_distance() -> None:
    equal = found([LOGITS], [LOGITS.copy()], real_weights=True)
    assert equal == NO_ERROR | {"top1_agreement": 1.0}
    assert found([LOGITS], [LOGITS.copy()], by_item=True)["error_items"] == 2


def test_a_known_distance() -> None:
    reference = np.array([[3.0, 4.0]], dtype=np.float32)
    known = found([reference + np.float32([[0.3, 0.4]])], [reference])
    assert known["rel_l2_error"] == pytest.approx(0.1, rel=1e-6)
    assert known["max_abs_error"] == pytest.approx(0.4, rel=1e-6)


def test_the_worst_of_several_outputs_counts() -> None:
    worst = found([LOGITS, LOGITS * 1.5], [LOGITS, LOGITS])
    assert worst["rel_l2_error"] == pytest.approx(0.5)
    assert worst["max_abs_error"] == pytest.approx(2.0)


def test_half_precision_is_compared_without_overflowing() -> None:
    half = np.full((1, 1000), 60_000, dtype=np.float16)
    assert found([half], [half.astype(np.float32)])["rel_l2_error"] == 0.0


def test_a_scalar_loss_is_compared() -> None:
    scalar = found([np.array(2.2)], [np.array(2.0)], real_weights=True)
    assert scalar["rel_l2_error"] == pytest.approx(0.1, rel=1e-5)
    assert scalar["top1_agreement"] is None


def test_top1_agreement_is_the_share_of_items_with_the_same_class() -> None:
    other = LOGITS.copy()
    other[1] = [0.0, 9.0, 3.0]
    assert found([other], [LOGITS], real_weights=True)["top1_agreement"] == 0.5


@pytest.mark.parametrize(
    ("real_weights", "output"),
    [(False, LOGITS), (True, LOGITS.reshape(2, 3, 1)), (True, LOGITS.astype(np.int64))],
    ids=["seeded", "no logits", "integers"],
)
def test_top1_agreement_needs_real_weights_and_logits(real_weights: bool, output: Array) -> None:
    assert found([output], [output], real_weights)["top1_agreement"] is None


@pytest.mark.parametrize(
    ("precision", "error"),
    [("fp32", 1e-5), ("tf32", 5e-3), ("fp16", 1e-2), ("bf16", 5e-2), ("int8", 0.12), ("native", 1e-3)],
)
def test_an_error_that_is_usual_for_the_precision_is_no_remark(precision: str, error: float) -> None:
    assert judge(precision, [Difference(error)], SEEDED) is None


@pytest.mark.parametrize(
    ("precision", "error"),
    [("fp32", 1e-3), ("tf32", 5e-2), ("fp16", 5e-2), ("bf16", 0.2), ("int8", 0.3), ("native", 0.1)],
)
def test_an_error_that_is_unusual_for_the_precision_is_remarked_and_no_failure(precision: str, error: float) -> None:
    remark = judge(precision, [Difference(0.0), Difference(error)], SEEDED)
    assert isinstance(remark, Warning)
    assert remark.kind == "inaccurate"
    assert f"relative L2 error {numbers.error(error)}" in remark.text


def test_outputs_that_are_wrong_fail_the_row() -> None:
    assert judged(LOGITS * 1.5, LOGITS, "bf16") == "the outputs are wrong: relative L2 error 5.0e-1"
    assert isinstance(judge("bf16", [Difference(0.5)], SEEDED), str)


def test_of_several_outputs_the_worst_is_named() -> None:
    both = compare([LOGITS, LOGITS * 1.5], [LOGITS, LOGITS], ["boxes", "scores"])
    assert judge("bf16", both, SEEDED) == "the outputs are wrong: relative L2 error 5.0e-1 of output scores"
    ids = compare([LOGITS, np.array([1, 2])], [LOGITS, np.array([3, 4])], ["logits", "ids"])
    assert judge("fp32", ids, SEEDED) == "the outputs are wrong: 100.0 % of the places of output ids differ"


# Items.


def test_errors_are_of_items_the_largest_over_outputs() -> None:
    reference = np.ones((5, 4), np.float32) * np.array([[1], [10], [100], [1], [1]], np.float32)
    apart = np.array([1e-3, 2e-3, 4e-3, 8e-3, 64e-3])
    outputs = [reference * (1 + apart[:, None]), np.array([[1, 2], [1, 2], [1, 2], [1, 2], [1, 3]])]
    truths = [reference, np.array([[1, 2]] * 5)]
    several = figures(compare(outputs, truths, by_item=[True, True]), outputs, truths, True)
    errors = [*apart[:4], 0.5]
    assert several["rel_l2_error"] == pytest.approx(4e-3, rel=1e-4)
    assert several["rel_l2_error_high"] == pytest.approx(upper_bound(errors), rel=1e-4)
    assert (several["error_items"], several["max_abs_error"]) == (5, pytest.approx(0.4, rel=1e-4))
    repeats = figures(compare(outputs, truths, by_item=[True, True]), outputs, truths, False, distinct=3)
    assert (repeats["error_items"], repeats["rel_l2_error"]) == (3, pytest.approx(2e-3, rel=1e-4))


def test_an_output_without_items_counts_for_every_item() -> None:
    outputs, truths = [LOGITS * 1.01, LOGITS * 1.1], [LOGITS, LOGITS]
    mixed = figures(compare(outputs, truths, by_item=[True, False]), outputs, truths, False)
    assert (mixed["error_items"], mixed["rel_l2_error"]) == (2, pytest.approx(0.1, rel=1e-4))
    (whole,) = compare([LOGITS * 1.1], [LOGITS])
    assert whole.items == ()


def test_a_row_is_judged_by_most_items_and_by_all_together() -> None:
    reference = np.ones((5, 4), np.float32) * np.array([[1e4], [1], [1], [1], [1]], np.float32)
    one, most = reference.copy(), reference.copy()
    one[0], most[1:] = 0, 2
    for ours, median in ((one, 0.0), (most, 1.0)):
        differences = compare([ours], [reference], by_item=[True])
        assert figures(differences, [ours], [reference], False)["rel_l2_error"] == median
        assert judge("fp16", differences, SEEDED) == "the outputs are wrong: relative L2 error 1.0e0"
    few = reference.copy()
    few[1] = 2
    assert judge("fp16", compare([few], [reference], by_item=[True]), SEEDED) is None


def test_an_item_that_is_not_finite_in_another_way_leaves_no_error() -> None:
    ours = LOGITS.copy()
    ours[1, 1] = NAN
    wrong = found([ours], [LOGITS], by_item=True)
    assert (wrong["rel_l2_error"], wrong["rel_l2_error_high"]) == (None, None)


# Places that are not finite.


@pytest.mark.parametrize("value", [-INF, INF, NAN])
def test_what_is_not_finite_in_the_same_places_is_right(value: float) -> None:
    """A masked logit of −inf above all."""
    reference = array(1.0, value, 3.0, 4.0)
    assert judge("fp32", compare([reference.copy()], [reference]), SEEDED) is None
    assert found([reference.copy()], [reference]) == NO_ERROR | {"top1_agreement": None}


def test_the_other_places_are_compared_as_ever() -> None:
    reference, ours = array(3.0, -INF, 4.0, 0.0), array(3.3, -INF, 4.4, 0.0)
    assert found([ours], [reference])["rel_l2_error"] == pytest.approx(0.1, rel=1e-6)
    assert judged(ours, reference).startswith("inaccurate: relative L2 error 1.0e-1")
    assert judged(array(9.0, -INF, 9.0, 0.0), reference).startswith("the outputs are wrong: relative L2 error ")


@pytest.mark.parametrize(
    ("ours", "reference", "says"),
    [
        ((1.0, INF, 3.0), (1.0, -INF, 3.0), "+inf where the reference has −inf in 1 of 3 places"),
        ((1.0, NAN, 3.0), (1.0, 2.0, 3.0), "NaN where the reference has a number in 1 of 3 places"),
        ((INF, INF, 3.0), (1.0, 2.0, 3.0), "+inf where the reference has a number in 2 of 3 places"),
        ((1.0, -9e9, 3.0), (1.0, -INF, 3.0), "a number where the reference has −inf in 1 of 3 places"),
        ((1.0, 2.0, 3.0), (1.0, NAN, 3.0), "a number where the reference has NaN in 1 of 3 places"),
    ],
)
def test_what_is_not_finite_in_another_way_is_wrong_and_counted(
    ours: tuple[float, ...], reference: tuple[float, ...], says: str
) -> None:
    assert judged(array(*ours), array(*reference)) == (
        f"the outputs are wrong where they are not finite: output 0 has {says}"
    )
    assert found([array(*ours)], [array(*reference)])["rel_l2_error"] is None
    assert found([array(*ours)], [array(*reference)])["max_abs_error"] is None


def test_what_fp16_cannot_hold_is_said_to_fit_into_bf16() -> None:
    found = {p: str(judge(p, compare([array(INF)], [array(7e4)]), SEEDED)) for p in ("fp16", "bf16")}
    assert found["fp16"] == f"{found['bf16']}; fp16 ends at 65,504, bf16 does not"


def test_every_kind_is_counted_by_itself_and_the_output_named() -> None:
    ours, reference = array(NAN, NAN, INF, 1.0), array(1.0, 1.0, -INF, 1.0)
    found = str(judge("fp32", compare([LOGITS, ours], [LOGITS, reference]), SEEDED))
    assert (
        "output 1 has NaN where the reference has a number in 2, +inf where the reference has −inf in 1 of 4" in found
    )


def test_many_places_that_are_not_finite_on_both_sides_are_right() -> None:
    """Of 50,000 logits the best 50 are left."""
    reference = np.full((2, 1000), -INF, np.float32)
    reference[:, :3] = 1.0
    assert judge("fp32", compare([reference.copy()], [reference]), SEEDED) is None
    wrong = judged(np.where(reference == 1, NAN, reference), reference)
    assert wrong.endswith("; the reference itself is not finite in 100 % of them: inputs are seeded")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((NAN, NAN, NAN, NAN), "NaN in 100 % of output 0"),
        ((NAN, NAN, NAN, 1.0), "NaN in 75 % of output 0"),
        ((INF, INF, -INF, -INF), "not finite in 100 % of output 0"),
    ],
)
def test_a_reference_that_says_nothing_is_named(values: tuple[float, ...], says: str) -> None:
    for ours in (array(*values), array(1.0, 2.0, 3.0, 4.0)):
        assert judged(ours, array(*values)) == f"nothing can be compared: the reference itself is {says}: {SEEDED}"


# Integers.


def test_token_ids_are_equal_or_not() -> None:
    reference = np.array([[70_000, 5, 6, 7]] * 5)
    other = reference.copy()
    other[0, 0] = 70_001
    assert found([reference.copy()], [reference]) == NO_ERROR | {"max_abs_error": None, "top1_agreement": None}
    assert found([other], [reference])["rel_l2_error"] == pytest.approx(0.05), "however near the other id is"
    assert judged(other, reference).startswith("inaccurate: 5.0 % of the places of an integer output differ, usual at ")
    assert judged(reference[:, ::-1], reference) == (
        "the outputs are wrong: 100.0 % of the places of an integer output differ"
    )


def test_large_ids_are_compared_as_integers() -> None:
    reference = np.array([2**53, 1])
    assert found([reference + np.array([1, 0])], [reference])["rel_l2_error"] == 0.5


def test_bools_are_equal_or_not() -> None:
    reference = np.array([True, False, True, True])
    assert found([~reference], [reference])["rel_l2_error"] == 1.0


def test_images_are_quantities() -> None:
    reference = np.full((1, 100), 200, np.uint8)
    assert found([reference + np.uint8(1)], [reference])["rel_l2_error"] == pytest.approx(0.005)
    assert found([reference + np.uint8(1)], [reference])["max_abs_error"] == 1.0


# Zeros.


def test_a_reference_of_zeros_gives_the_absolute_distance() -> None:
    zeros = np.zeros((1, 2), dtype=np.float32)
    assert found([zeros + 2], [zeros])["rel_l2_error"] == pytest.approx(math.sqrt(8))
    assert judged(zeros + 2, zeros) == "the outputs are wrong: L2 distance 2.8e0 to a reference of zeros"


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_reference_of_zeros_is_no_check(dtype: type) -> None:
    zeros = np.zeros((2, 3), dtype=dtype)
    finding = judge("fp32", compare([zeros.copy()], [zeros]), SEEDED)
    assert finding == Warning(
        "unchecked-outputs", "the reference is zero, as is what computes nothing: inputs are seeded"
    )
    assert judge("fp32", compare([zeros.copy(), LOGITS], [zeros, LOGITS]), SEEDED) is None, "the other one is a check"


@pytest.mark.parametrize(
    ("truth", "items", "expected"),
    [
        (np.array([[3.0, 4.0], [3.0, 4.0]], np.float32), 2, 0.0),
        (np.array([[3.0, 4.0], [-3.0, -4.0]], np.float32), 2, 1.0),
        (np.array([[1.0, 1.0], [3.0, 3.0]], np.float32), 2, math.sqrt(4 / 20)),
        (np.array([[3.0, 4.0]], np.float32), 1, None),
        (np.array([[3.0, 4.0], [1.0, 2.0]], np.float32), 4, None),
        (np.array(5.0, np.float32), 2, None),
        (np.array([[1, 2], [3, 4]], np.int64), 2, None),
        (np.array([[1.0, INF], [3.0, INF]], np.float32), 2, None),
    ],
)
def test_how_far_items_are_from_their_mean(truth: Array, items: int, expected: float | None) -> None:
    assert spread(truth, items) == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_an_error_as_large_as_half_of_what_inputs_change_is_no_check() -> None:
    def finding(*spreads: float | None) -> Finding:
        return judge("fp16", [Difference(1e-3, spread=each) for each in spreads], SEEDED)

    assert finding(2.1e-3) is finding(None) is finding(1e-4, 1.0) is finding(1e-4, None) is None
    assert finding(2e-3) == finding(2e-3, 1e-4)
    assert str(finding(2e-3)) == (
        "unchecked-outputs: relative L2 error 1.0e-3, and other inputs change the outputs by only 2.0e-3: "
        "inputs are seeded"
    )
    assert str(judge("fp32", [Difference(1e-3, spread=1e-3)], SEEDED)).startswith("inaccurate: ")


def test_outputs_without_elements_have_no_error() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert found([empty], [empty])["rel_l2_error"] == 0.0
