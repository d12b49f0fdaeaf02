"""Outputs find the reference's, and are judged by known distances: numbers, what is not finite, integers, zeros."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines.base import Array, Warning
from exporters.inputs import TensorSpec, seeded_inputs
from profiler.results.result import Figures
from profiler.stats.intervals import upper_bound
from profiler.worker import parity
from profiler.worker.parity import Difference, Outputs, Pair, align, compare, judge

pytestmark = pytest.mark.slow

LOGITS = np.array([[1.0, 2.0, 2.0], [4.0, 0.0, 3.0]], dtype=np.float32)
SEEDED = "; x is drawn at random"
INF, NAN = math.inf, math.nan
NO_ERROR = {"rel_l2_error": 0.0, "rel_l2_error_high": 0.0, "error_items": 1, "max_abs_error": 0.0}


def pairs(outputs: list[Array], reference: list[Array], by_item: list[bool] | None = None) -> list[Pair]:
    flags = by_item or [False] * len(outputs)
    return [Pair(ours, truth, by_item=flag) for ours, truth, flag in zip(outputs, reference, flags, strict=True)]


def found(outputs: list[Array], reference: list[Array], real: bool = False, by_item: Any = None) -> Figures:
    given = pairs(outputs, reference, by_item)
    return parity.figures(list(map(compare, given)), given, real)


def judged(output: Array, reference: Array, precision: str = "fp32", by_item: bool = False) -> str:
    return str(judge(precision, list(map(compare, pairs([output], [reference], [by_item]))), SEEDED))


def array(*values: float) -> Array:
    return np.array([values], dtype=np.float32)


# Pairs.

ROWS, SQUARE, BOXES = np.arange(24.0).reshape(8, 3), np.arange(64.0).reshape(8, 8), np.ones((5, 4))


def one_run(outputs: dict[str, Array], batch: int) -> Outputs:
    return Outputs.of_runs(list(outputs), [list(outputs.values())], batch)


def test_items_of_a_smaller_batch_are_compared_along_every_axis_that_is_the_batch(tmp_path):
    one_run({"logits": ROWS, "pairs": SQUARE, "boxes": BOXES, "steps": ROWS.T}, 8).save(tmp_path / "r.npz")
    kept = Outputs.read(tmp_path / "r.npz")
    ours = one_run({"steps": ROWS.T[:, :2], "boxes": BOXES, "pairs": SQUARE[:2, :2], "logits": ROWS[:2]}, 2)
    both, apart = align(ours, kept, [])
    assert ([pair.name for pair in both], apart) == (["logits", "pairs", "boxes", "steps"], [])
    for pair in both:
        np.testing.assert_array_equal(pair.ours, pair.truth)
    assert [pair.name for pair in align(ours, kept, ["pairs"])[0]] == ["pairs"]


@pytest.mark.parametrize(
    ("outputs", "reference", "batch", "names", "apart"),
    [
        ({"0": ROWS, "1": BOXES}, {"logits": ROWS, "boxes": BOXES}, 8, ["logits", "boxes"], []),
        ({"0": ROWS}, {"logits": ROWS, "boxes": BOXES}, 8, "1 outputs, the reference has 2", []),
        ({"y": np.ones((2, 4))}, {"y": ROWS}, 2, r"output y has shape \(2, 4\), the reference \(8, 3\)", []),
        (
            {"y": ROWS, "b": BOXES[:3]},
            {"y": ROWS, "b": BOXES},
            8,
            ["y", "b"],
            [],
        ),
        ({"b": BOXES}, {"b": BOXES, "c": BOXES}, 1, ["b"], ["c is not among the outputs at this batch size"]),
    ],
)
def test_outputs_go_by_name_or_order_and_others_are_told(outputs, reference, batch, names, apart):
    given = one_run(outputs, batch), one_run(reference, 8), []
    if isinstance(names, str):
        with pytest.raises(ValueError, match=names):
            align(*given)
    else:
        both, others = align(*given)
        assert ([pair.name for pair in both], others) == (names, apart)


def test_a_complex_number_is_a_pair_on_the_last_axis():
    numbers = (ROWS + 1j * ROWS[::-1]).astype(np.complex64)
    reference = one_run({"y": numbers}, 8)
    for ours in (numbers, np.stack([ROWS, ROWS[::-1]], axis=-1), numbers[:2]):
        ((pair,), problems) = align(one_run({"y": ours}, len(ours)), reference, [])
        np.testing.assert_array_equal(pair.ours, pair.truth)
        assert (pair.by_item, pair.ours.shape, problems) == (True, (len(ours), *ROWS.shape[1:], 2), [])
    ((pair,), _) = align(one_run({"y": numbers.conj()}, 8), reference, [])
    assert compare(pair).error > 1


def test_further_runs_give_their_items_to_outputs_that_have_items_first(tmp_path):
    """24 items ran 8 at a time; a state has its items second, pairs need the whole batch, a scale has none."""
    rows, state, scale = np.arange(72.0).reshape(24, 3), np.arange(192.0).reshape(2, 32, 3), np.array(2.0)
    names = ["logits", "pairs", "state", "scale"]

    def run(start: int, batch: int) -> list[Array]:
        own = state[:, start : start + batch]
        return [np.resize(rows[start:], (batch, 3)), np.resize(SQUARE, (8, 8))[:batch, :batch], own, scale]

    Outputs.of_runs(names, [run(start, 8) for start in (0, 8, 16)], 8).save(tmp_path / "r.npz")
    reference = Outputs.read(tmp_path / "r.npz")
    assert (reference.batch, reference.items) == (8, 24)
    for batch, runs, items in ((2, 1, 2), (2, 3, 6), (3, 7, 21), (16, 1, 16), (16, 2, 24), (32, 1, 24)):
        ours = Outputs.of_runs(names, [run(number * batch, batch) for number in range(runs)], batch)
        if batch > 8:
            ours = Outputs({"logits": ours.arrays["logits"]}, batch)
        aligned, _ = align(ours, reference, ["logits"] if batch > 8 else [])
        for pair in aligned:
            np.testing.assert_array_equal(pair.ours, pair.truth)
        assert len(aligned[0].ours) == items
        assert [pair.by_item for pair in aligned] == [True, False, True, False][: len(aligned)]
        assert len(aligned) == 1 or len(aligned[2].ours) == items
    ((pair,), _) = align(Outputs.of_runs(["pairs"], [[SQUARE]] * 2, 8), reference, ["pairs"])
    assert len(pair.ours) == 16, "batches are the reference's own"


def test_channels_that_others_hide_are_judged_by_themselves():
    generator = np.random.default_rng(0)
    boxes, scores = 640 * generator.random((2, 4, 100)), generator.random((2, 20, 100))
    truth = np.concatenate([boxes, scores], 1)
    dead, rounded = truth.copy(), truth * (1 + 1e-3 * generator.standard_normal(truth.shape))
    dead[:, 4:] = 0
    found = compare(Pair(dead, truth, "y", by_item=True))
    assert found.error < 5e-3
    assert (found.hidden.error, found.hidden.where) == (1.0, "channels 4 to 23 of axis 1")
    says = "the outputs are wrong: relative L2 error 1.0e0 of channels 4 to 23 of axis 1 of output y, which others hide"
    assert str(judge("int8", [found])) == says
    assert parity.figures([found], [], False, precision="int8")["rel_l2_error_high"] == 1.0
    fine = compare(Pair(rounded, truth, "y", by_item=True))
    assert judge("fp16", [fine]) is None
    assert parity.worst([fine, found], "int8") == "y, channels 4 to 23 of axis 1"
    second = replace(fine, items=(1e-3, 2e-3))
    assert [parity.worst(each, "fp16") for each in ([second], [compare(Pair(truth, truth))])] == ["y, item 1", None]
    assert parity.figures([fine], [], False, precision="fp16")["rel_l2_error"] == pytest.approx(1e-3, rel=0.2)
    for scale, factor in ((1, 1e-9), (1e-5, 1e-2)):  # The second is a map of probabilities that are nearly 0.
        noise = scale * truth * np.where(np.arange(24) < 4, 1, factor)[:, None]
        assert compare(Pair(noise + 1e-7, noise, "y", by_item=True)).hidden is None, "rounding of small numbers"


def test_tokens_that_every_mask_leaves_out_are_not_compared():
    text = TensorSpec("attention_mask", ("batch", 16), "int64", is_mask=True)
    masks = [seeded_inputs([text, text], 8)[each] != 0 for each in (0, 1)]
    hidden, classes = np.ones((8, 16, 3)), np.ones((8, 16))
    assert not masks[0].all()
    np.testing.assert_array_equal(parity.without_padding(hidden, [text]), np.repeat(masks[0][..., None], 3, axis=2))
    np.testing.assert_array_equal(parity.without_padding(classes, [text]), classes)
    np.testing.assert_array_equal(hidden, 1)
    np.testing.assert_array_equal(parity.without_padding(hidden, [text, text])[..., 0], masks[0] | masks[1])
    image, one_for_all = TensorSpec("x", ("batch", 16), "float32"), TensorSpec("m", (16,), "int64", is_mask=True)
    for others in ([], [image], [one_for_all]):
        assert parity.without_padding(hidden, others) is hidden


# Numbers.

FOUR, OTHER = np.array([[3.0, 4.0]], np.float32), LOGITS.copy()
OTHER[1] = [0.0, 9.0, 3.0]
HALF, ZEROS = np.full((1, 1000), 60_000, dtype=np.float16), np.zeros((1, 2), np.float32)
IDS, IMAGE = np.array([[70_000, 5, 6, 7]] * 5), np.full((1, 100), 200, np.uint8)
ANOTHER_ID = IDS.copy()
ANOTHER_ID[0, 0] = 70_001
BOOLS = np.array([True, False, True, True])


@pytest.mark.parametrize(
    ("outputs", "reference", "real", "figures"),
    [
        ([LOGITS], [LOGITS.copy()], True, NO_ERROR | {"top1_agreement": 1.0}),
        ([OTHER], [LOGITS], True, {"top1_agreement": 0.5}),
        ([LOGITS], [LOGITS], False, {"top1_agreement": None}),
        ([LOGITS.reshape(2, 3, 1)], [LOGITS.reshape(2, 3, 1)], True, {"top1_agreement": None}),
        ([FOUR * np.float32(1.1)], [FOUR], False, {"rel_l2_error": 0.1, "max_abs_error": 0.4}),
        ([HALF], [HALF.astype(np.float32)], False, {"rel_l2_error": 0.0}),
        ([np.array(2.2)], [np.array(2.0)], True, {"rel_l2_error": 0.1, "top1_agreement": None}),
        ([ZEROS + 2], [ZEROS], False, {"rel_l2_error": math.sqrt(8)}),
        ([ZEROS[:0]], [ZEROS[:0]], False, {"rel_l2_error": None}),
        ([IDS.copy()], [IDS], True, NO_ERROR | {"max_abs_error": None, "top1_agreement": None}),
        ([ANOTHER_ID], [IDS], False, {"rel_l2_error": 0.05}),
        ([np.array([2**53 + 1, 1])], [np.array([2**53, 1])], False, {"rel_l2_error": 0.5}),
        ([~BOOLS], [BOOLS], False, {"rel_l2_error": 1.0}),
        ([IMAGE + np.uint8(1)], [IMAGE], False, {"rel_l2_error": 0.005, "max_abs_error": 1.0}),
        ([array(3.3, -INF, 4.4, 0.0)], [array(3.0, -INF, 4.0, 0.0)], False, {"rel_l2_error": 0.1}),
        ([array(1.0, INF)], [array(1.0, 2.0)], False, {"rel_l2_error": None, "max_abs_error": None}),
    ],
)
def test_known_distances(outputs, reference, real, figures):
    taken = found(outputs, reference, real)
    for name, value in figures.items():
        assert taken[name] == (value if value is None else pytest.approx(value, rel=1e-5, abs=1e-9)), name


def test_errors_are_of_items_the_largest_over_outputs():
    reference = np.ones((5, 4), np.float32) * np.array([[1], [10], [100], [1], [1]], np.float32)
    apart = np.array([1e-3, 2e-3, 4e-3, 8e-3, 64e-3])
    outputs = [reference * (1 + apart[:, None]), np.array([[1, 2], [1, 2], [1, 2], [1, 2], [1, 3]])]
    both = pairs(outputs, [reference, np.array([[1, 2]] * 5)], [True, True])
    several = parity.figures(list(map(compare, both)), both, True)
    assert several["rel_l2_error"] == pytest.approx(4e-3, rel=1e-4)
    assert several["rel_l2_error_high"] == pytest.approx(upper_bound([*apart[:4], 0.5]), rel=1e-4)
    assert (several["error_items"], several["max_abs_error"]) == (5, pytest.approx(0.4, rel=1e-4))
    repeats = parity.figures(list(map(compare, both)), both, False, distinct=3)
    assert (repeats["error_items"], repeats["rel_l2_error"]) == (3, pytest.approx(2e-3, rel=1e-4))
    mixed = found([LOGITS * 1.01, LOGITS * 1.1], [LOGITS, LOGITS], by_item=[True, False])
    assert (mixed["error_items"], mixed["rel_l2_error"]) == (2, pytest.approx(0.1, rel=1e-4)), "an output without items"
    ours = LOGITS.copy()
    ours[1, 1] = NAN
    wrong = found([ours], [LOGITS], by_item=[True])
    assert (wrong["rel_l2_error"], wrong["rel_l2_error_high"]) == (None, None)


def test_a_row_is_judged_by_most_items_and_by_all_together():
    reference = np.ones((5, 4), np.float32) * np.array([[1e4], [1], [1], [1], [1]], np.float32)
    one, most, few = reference.copy(), reference.copy(), reference.copy()
    one[0], most[1:], few[1] = 0, 2, 2
    for ours, median in ((one, 0.0), (most, 1.0)):
        assert found([ours], [reference], by_item=[True])["rel_l2_error"] == median
        assert (
            judged(ours, reference, "fp16", by_item=True)
            == "the outputs are wrong: relative L2 error 1.0e0 of output 0"
        )
    assert judged(few, reference, "fp16", by_item=True) == "None"


USUAL = {"fp32": (1e-5, 1e-3), "tf32": (5e-3, 5e-2), "fp16": (1e-2, 5e-2), "bf16": (5e-2, 0.2), "int8": (0.12, 0.3)}


@pytest.mark.parametrize("precision", [*USUAL, "native"])
def test_what_is_usual_depends_on_the_precision(precision):
    usual, unusual = USUAL.get(precision, (1e-3, 0.1))
    assert judge(precision, [Difference(usual)]) is None
    remark = judge(precision, [Difference(0.0), Difference(unusual)])
    assert isinstance(remark, Warning) and remark.kind == "inaccurate"
    assert isinstance(judge(precision, [Difference(0.5)]), str)


def test_the_worst_of_several_outputs_is_named():
    both = [Pair(LOGITS, LOGITS, "boxes"), Pair(LOGITS * 1.5, LOGITS, "scores")]
    assert judge("bf16", list(map(compare, both))) == "the outputs are wrong: relative L2 error 5.0e-1 of output scores"
    both[1] = Pair(np.array([1, 2]), np.array([3, 4]), "ids")
    assert str(judge("fp32", list(map(compare, both)))).endswith(": share of wrong values 1.0e0 of output ids")


# What is not finite, integers and zeros.


@pytest.mark.parametrize("value", [-INF, INF, NAN])
def test_what_is_not_finite_in_the_same_places_is_right(value):
    """A masked logit of −inf above all."""
    reference = array(1.0, value, 3.0, 4.0)
    assert judged(reference.copy(), reference) == "None"
    assert found([reference.copy()], [reference]) == NO_ERROR | {"top1_agreement": None}
    many = np.full((2, 1000), value, np.float32)
    many[:, :3] = 1.0
    assert math.isnan(value) or judged(many.copy(), many) == "None", "of 50,000 logits the best 50 are left"


NOTHING = "nothing can be compared: the reference itself is "


def apart(places: str) -> str:
    return f"the outputs are wrong: output 0 differs in {places} places, where one side is not finite"


@pytest.mark.parametrize(
    ("ours", "reference", "precision", "says"),
    [
        ((9.0, -INF, 9.0), (3.0, -INF, 4.0), "fp32", "the outputs are wrong: relative L2 error "),
        ((3.3, -INF, 4.4), (3.0, -INF, 4.0), "fp32", "inaccurate: relative L2 error 1.0e-1"),
        ((1.0, INF, 3.0), (1.0, -INF, 3.0), "fp32", apart("1 of 3")),
        ((1.0, -9e9, 3.0), (1.0, -INF, 3.0), "fp32", apart("1 of 3")),
        ((INF,), (7e4,), "fp16", f"{apart('1 of 1')}; fp16 ends"),
        ((1.0, 1.0), (-INF, -INF), "fp32", f"{NOTHING}not finite in 100 % of output 0{SEEDED}"),
        ((1.0, 1.0, 1.0), (1.0, -INF, -INF), "fp32", apart("2 of 3")),
        ((1.0,) * 4, (NAN, NAN, NAN, 1.0), "fp32", f"{NOTHING}not finite in 75 % of output 0{SEEDED}"),
        ((INF, INF, -INF, -INF), (INF, INF, -INF, -INF), "fp32", f"{NOTHING}not finite in 100 % of output 0{SEEDED}"),
        ((2.0, 2.0), (0.0, 0.0), "fp32", "the outputs are wrong: L2 distance to zeros 2.8e0 of output 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(ours, reference, precision, says):
    assert judged(array(*ours), array(*reference), precision).startswith(says)


def test_token_ids_are_equal_or_not():
    assert judged(ANOTHER_ID, IDS).startswith("inaccurate: share of wrong values 5.0e-2 of output 0, usual at ")
    assert judged(IDS[:, ::-1], IDS) == "the outputs are wrong: share of wrong values 1.0e0 of output 0"


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_reference_of_zeros_is_no_check(dtype):
    zeros = np.zeros((2, 3), dtype=dtype)
    differences = list(map(compare, pairs([zeros.copy()], [zeros])))
    assert parity.figures(differences, [], False)["rel_l2_error_high"] is None, "it meets no limit"
    finding = judge("fp32", differences, SEEDED)
    assert isinstance(finding, Warning) and finding.kind == "unchecked-outputs" and SEEDED in finding.text
    assert judge("fp32", list(map(compare, pairs([zeros.copy(), LOGITS], [zeros, LOGITS])))) is None
