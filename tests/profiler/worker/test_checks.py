"""Outputs against a reference with known distances, and proofs against requests: every contradiction is told."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from engines.base import Proof, Warning
from exporters.gradients import Deviation
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.tables import numbers
from profiler.worker.checks import compare, judge, judge_gradients, mismatch, remarks

LOGITS = np.array([[1.0, 2.0, 2.0], [4.0, 0.0, 3.0]], dtype=np.float32)


def case(precision: str = "fp32", device: str = "cuda", calibration: Path | None = None, **options: object) -> Case:
    source = ModelSource("net", calibration=calibration)
    return Case("net", "ort", "ort", "inference", precision, 1, device, 0, source, options)


def proof(compute: str = "float32", provider: str = "CUDAExecutionProvider", **more: object) -> Proof:
    own = {"compute_types": {compute: 20}, "compute_providers": {provider: 20}, "tf32": False, "cuda_graph": False}
    return Proof.from_dict(own | more)


def test_equal_outputs_have_no_distance():
    found = compare([LOGITS], [LOGITS.copy()], real_weights=True)
    assert found == {"rel_l2_error": 0.0, "max_abs_error": 0.0, "top1_agreement": 1.0}


def test_a_known_distance():
    reference = np.array([[3.0, 4.0]], dtype=np.float32)
    found = compare([reference + np.float32([[0.3, 0.4]])], [reference], real_weights=False)
    assert found["rel_l2_error"] == pytest.approx(0.1, rel=1e-6)
    assert found["max_abs_error"] == pytest.approx(0.4, rel=1e-6)


def test_the_worst_of_several_outputs_counts():
    found = compare([LOGITS, LOGITS * 1.5], [LOGITS, LOGITS], real_weights=False)
    assert found["rel_l2_error"] == pytest.approx(0.5)
    assert found["max_abs_error"] == pytest.approx(2.0)


def test_a_reference_of_zeros_gives_the_absolute_distance():
    zeros = np.zeros((1, 2), dtype=np.float32)
    assert compare([zeros + 2], [zeros], real_weights=False)["rel_l2_error"] == pytest.approx(math.sqrt(8))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 1])
def test_an_output_that_is_not_finite_has_no_finite_error(bad, position):
    outputs = [LOGITS.copy(), LOGITS.copy()]
    outputs[position][0, 0] = bad
    found = compare(outputs, [LOGITS, LOGITS], real_weights=False)
    assert math.isnan(found["rel_l2_error"])
    assert not math.isfinite(found["max_abs_error"])


def test_half_precision_is_compared_without_overflowing():
    half = np.full((1, 1000), 60_000, dtype=np.float16)
    assert compare([half], [half.astype(np.float32)], real_weights=False)["rel_l2_error"] == 0.0


@pytest.mark.parametrize("items", [1, 2, 5])
def test_as_many_items_are_compared_as_both_have(items):
    batch = np.repeat(LOGITS, 3, axis=0)[:items]
    reference = np.vstack([batch[:2], np.full((6, 3), 99.0, dtype=np.float32)])
    assert compare([batch[:2]], [reference], real_weights=False)["rel_l2_error"] == 0.0


def test_a_scalar_loss_is_compared():
    found = compare([np.array(2.2)], [np.array(2.0)], real_weights=True)
    assert found["rel_l2_error"] == pytest.approx(0.1, rel=1e-5)
    assert found["top1_agreement"] is None


@pytest.mark.parametrize(
    ("outputs", "reference"),
    [
        ([LOGITS], [LOGITS, LOGITS]),
        ([LOGITS[:, :2]], [LOGITS]),
        ([LOGITS.reshape(2, 3, 1)], [LOGITS]),
        ([LOGITS[0]], [np.array(1.0, dtype=np.float32)]),
        ([np.array(1.0, dtype=np.float32)], [LOGITS[0]]),
    ],
    ids=["too few", "classes", "dimensions", "vector for a scalar", "scalar for a vector"],
)
def test_outputs_of_another_number_or_shape_are_refused(outputs, reference):
    with pytest.raises(ValueError, match=r"outputs|shape"):
        compare(outputs, reference, real_weights=False)


def test_top1_agreement_is_the_share_of_items_with_the_same_class():
    other = LOGITS.copy()
    other[1] = [0.0, 9.0, 3.0]
    assert compare([other], [LOGITS], real_weights=True)["top1_agreement"] == 0.5


@pytest.mark.parametrize(
    ("real_weights", "output"), [(False, LOGITS), (True, LOGITS.reshape(2, 3, 1))], ids=["seeded", "no logits"]
)
def test_top1_agreement_needs_real_weights_and_logits(real_weights, output):
    assert compare([output], [output], real_weights)["top1_agreement"] is None


@pytest.mark.parametrize(
    ("precision", "error"),
    [("fp32", 1e-5), ("tf32", 5e-3), ("fp16", 1e-2), ("bf16", 5e-2), ("int8", 0.12), ("native", 1e-3)],
)
def test_an_error_that_is_usual_for_the_precision_is_no_remark(precision, error):
    assert judge(precision, error) is None


@pytest.mark.parametrize(
    ("precision", "error"),
    [("fp32", 1e-3), ("tf32", 5e-2), ("fp16", 5e-2), ("bf16", 0.2), ("int8", 0.3), ("native", 0.1)],
)
def test_an_error_that_is_unusual_for_the_precision_is_remarked_and_no_failure(precision, error):
    remark = judge(precision, error)
    assert isinstance(remark, Warning)
    assert remark.kind == "inaccurate"
    assert numbers.error(error) in remark.text


@pytest.mark.parametrize(
    ("error", "says"), [(math.nan, "not finite"), (math.inf, "not finite"), (None, "not finite"), (0.5, "wrong")]
)
def test_outputs_that_are_wrong_fail_the_row(error, says):
    wrong = judge("bf16", error)
    assert isinstance(wrong, str)
    assert says in wrong


@pytest.mark.parametrize(
    ("asked", "ran"),
    [
        (case(), proof()),
        (case("tf32"), proof(tf32=True)),
        (case("fp16"), proof("float16")),
        (case("bf16"), proof("bfloat16")),
        (case("native"), proof("float16")),
        (case(device="cpu"), proof(provider="CPUExecutionProvider")),
        (case(cuda_graph=True), proof(cuda_graph=True)),
        (case(cuda_graph=False), proof()),
        (case(cudnn=False), proof(cudnn=False)),
        (case(cudnn=True), proof(cudnn=True)),
        (case(), proof(compute_types={"float32": 2, "unknown": 3})),
        (case(), proof(compute_types={})),
        (case("amp-fp16"), proof("float16")),
        (case("amp-bf16"), proof("bfloat16")),
        (case("int8"), proof("int8")),
        (case("int8"), proof(compute_types={"int8": 1, "float32": 19})),
        (case("native"), proof("int8")),
    ],
)
def test_a_proof_that_matches_its_request_is_no_mismatch(asked, ran):
    assert mismatch(asked, ran) is None


@pytest.mark.parametrize(
    ("asked", "ran", "says"),
    [
        (case("fp16"), proof("float32"), "asked for fp16, computed in float32 (20×)"),
        (case("fp32"), proof("float16"), "asked for fp32, computed in float16 (20×)"),
        (case("fp16"), proof(compute_types={"float16": 19, "float32": 1}), "float16 (19×), float32 (1×)"),
        (case("bf16"), proof(compute_types={"bfloat16": 3, "unknown": 2, "float32": 1}), "float32 (1×)"),
        (case("amp-fp16"), proof("float32"), "asked for amp-fp16, computed in float32 (20×)"),
        (case("amp-bf16"), proof(compute_types={"bfloat16": 19, "float32": 1}), "float32 (1×)"),
        (case("amp-bf16"), proof("bfloat16", tf32=True), "TF32 was on at amp-bf16"),
        (case("int8"), proof("float32"), "asked for int8, computed in float32 (20×)"),
        (case("int8"), proof(compute_types={"int8": 0, "float16": 3}), "asked for int8, computed in float16 (3×)"),
        (case("fp16"), proof(compute_types={"float16": 19, "int8": 1}), "float16 (19×), int8 (1×)"),
        (case("int8"), proof("int8", tf32=True), "TF32 was on at int8"),
        (case(), proof(provider="CPUExecutionProvider"), "ran on CPUExecutionProvider (20×), not on CUDA"),
        (case(device="cpu"), proof(), "ran on CUDAExecutionProvider (20×), not on CPU"),
        (case(), proof(tf32=True), "TF32 was on at fp32"),
        (case("tf32"), proof(), "TF32 was off at tf32"),
        (case("fp16"), proof("float16", tf32=True), "TF32 was on at fp16"),
        (case(cuda_graph=True), proof(), "no CUDA graph was captured"),
        (case(cudnn=False), proof(cudnn=True), "cuDNN was on"),
    ],
)
def test_each_contradiction_is_told(asked, ran, says):
    assert says in (mismatch(asked, ran) or "")


def test_all_contradictions_are_told_together():
    told = mismatch(case("fp16", cuda_graph=True), proof(provider="CPUExecutionProvider", tf32=True))
    assert len(told.split("; ")) == 4


def test_a_proof_that_says_nothing_is_a_contradiction():
    assert mismatch(case("fp32"), Proof()) is not None


@pytest.mark.parametrize(
    ("ran", "kind", "says"),
    [
        ({"device": "cuda", "providers": {"CUDAExecutionProvider": 9, "CPUExecutionProvider": 2}}, "cpu-nodes", "2"),
        ({"graph_breaks": 3}, "graph-breaks", "3"),
        ({"cuda_graph_wanted": True, "cuda_graph": True, "cuda_graph_skips": 1}, "no-cuda-graph", "not for all"),
        ({"cuda_graph_wanted": True, "cuda_graph": False}, "no-cuda-graph", "recorded no"),
        ({"compute_types": {}}, "unproven", "all"),
        ({"compute_types": {"float32": 2, "unknown": 3}}, "unproven", "3"),
    ],
)
def test_what_should_be_known_is_remarked(ran, kind, says):
    (remark,) = remarks(case(), Proof(**ran))
    assert remark.kind == kind
    assert says in remark.text


@pytest.mark.parametrize(
    "ran", [Proof(), proof(), Proof(device="cpu", providers={"CPUExecutionProvider": 9}), Proof(graph_breaks=0)]
)
def test_nothing_is_remarked_of_what_is_as_it_should_be(ran):
    assert remarks(case(), ran) == []


def test_int8_on_seeded_data_is_remarked():
    assert remarks(case("int8"), proof("int8")) == [Warning("calibration", "seeded data, so accuracy says nothing")]
    assert remarks(case("int8", calibration=Path("images")), proof("int8")) == []


def test_what_int8_left_in_float_is_remarked():
    ran = proof(compute_types={"int8": 52, "float32": 2})
    (remark,) = remarks(case("int8", calibration=Path("images")), ran)
    assert str(remark) == "mixed-precision: 2 of 54 convolutions and products computed in float32"
    ran = proof(compute_types={"int8": 50, "float32": 2, "float16": 1, "unknown": 1})
    mixed, unproven = remarks(case("int8", calibration=Path("images")), ran)
    assert str(mixed) == "mixed-precision: 3 of 54 convolutions and products computed in float16 and float32"
    assert str(unproven).startswith("unproven: the types of 1 ")
    assert remarks(case("int8", calibration=Path("images")), proof("float32")) == [], "that is a contradiction"


NORMS = {"first.weight": 1.0, "last.weight": 3.0, "last.bias": 0.03, "dead.bias": 0.0}


def step(
    first: float = 0.0, last: float = 0.0, bias: float = 0.0, zeros: tuple[str, ...] = (), result: float = 0.0
) -> Deviation:
    tensors = {"first.weight": first, "last.weight": last, "last.bias": bias, "dead.bias": 1e-9}
    errors = [tensors[name] * NORMS[name] for name in NORMS]
    return Deviation(result, float(np.linalg.norm(errors) / np.linalg.norm(list(NORMS.values()))), tensors, zeros)


@pytest.mark.parametrize(
    ("found", "own"),
    [
        (step(), step()),
        (step(2e-6, 2e-6), step()),  # Below the floor.
        (step(2.9e-3, 2.9e-3), step(1e-3, 1e-3)),
        (step(0.0, 0.0, bias=0.9), step(1e-2, 1e-2)),  # It carries less than 1 % of the norm.
        (step(0.7, 0.1), step(0.3, 0.3)),
    ],
)
def test_gradients_as_far_off_as_the_precision_makes_them_are_no_remark(found: Deviation, own: Deviation) -> None:
    assert judge_gradients("fp32", found, own, NORMS) is None


@pytest.mark.parametrize(
    ("found", "own"),
    [(step(4e-6, 4e-6), step()), (step(4e-3, 4e-3), step(1e-3, 1e-3)), (step(1e-3), step(math.nan, 1e-9))],
)
def test_gradients_further_off_are_remarked(found: Deviation, own: Deviation) -> None:
    remark = judge_gradients("bf16", found, own, NORMS)
    assert isinstance(remark, Warning)
    assert remark.kind == "inaccurate-gradients"
    assert numbers.error(found.gradient) in remark.text


@pytest.mark.parametrize(
    ("found", "own", "says"),
    [
        (step(0.6), step(0.1), "in 1 of the 2 tensors that carry 1 % or more; the worst is first.weight: "),
        (step(0.6), step(0.1), "relative L2 error 6.0e-1 to fp64, the reference itself has 1.0e-1 at fp32"),
        (step(0.6, 0.7), step(), "in 2 of the 2 tensors that carry 1 % or more; the worst is last.weight: "),
        (step(0.95), step(0.3), "the reference itself has 3.0e-1"),
        (step(1.0, zeros=("first.weight",)), step(1e-6), "1 of them zeros"),
        (step(1.0, zeros=("first.weight",)), step(0.6), "1 of them zeros"),  # Wrong even where much is usual.
        (step(math.nan), step(), "not finite"),
        (step(result=math.nan), step(), "not finite"),
    ],
)
def test_gradients_that_are_wrong_fail_the_row(found: Deviation, own: Deviation, says: str) -> None:
    wrong = judge_gradients("fp32", found, own, NORMS)
    assert isinstance(wrong, str)
    assert says in wrong


def test_gradients_that_underflow_in_the_reference_too_may_be_zeros() -> None:
    lost = step(1.0, zeros=("first.weight",))
    remark = judge_gradients("fp16", lost, Deviation(0.0, 0.1, lost.tensors, ["first.weight"]), NORMS)
    assert isinstance(remark, Warning)
    assert remark.kind == "inaccurate-gradients"


@pytest.mark.parametrize(("precision", "says"), [("amp-fp16", "skip every step"), ("fp16", "65504")])
def test_what_overflows_is_explained(precision: str, says: str) -> None:
    wrong = judge_gradients(precision, step(math.nan), step(), NORMS)
    assert isinstance(wrong, str)
    assert says in wrong
