"""Gradients against a reference with known distances, and proofs against requests: every contradiction is told."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engines.base import Proof, Warning
from exporters.gradients import Deviation, Gradients
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.tables import numbers
from profiler.worker.checks import (
    Allowance,
    explained,
    judge_gradients,
    judge_reference,
    left_in_float,
    mismatch,
    remarks,
)
from profiler.worker.parity import Difference
from profiler.worker.task import Prepared

pytestmark = pytest.mark.slow


def case(precision: str = "fp32", device: str = "cuda", calibration: Path | None = None, **options: object) -> Case:
    source = ModelSource("net", calibration=calibration)
    return Case("net", "ort", "ort", "inference", precision, 1, device, 0, source, options)


def proof(compute: str = "float32", ran_on: str = "CUDAExecutionProvider", **more: object) -> Proof:
    own = {"compute_types": {compute: 20}, "compute_providers": {ran_on: 20}, "tf32": False, "cuda_graph": False}
    return Proof.from_dict(own | more)


def test_further_items_take_a_tenth_of_the_cases_time_beyond_eight() -> None:
    quick, slow = Allowance(spent=10.0, left=100.0, call=0.01), Allowance(spent=10.0, left=100.0, call=5.0)
    assert quick.allows(8, 0.0, 0) and quick.allows(63, 0.9, 10)
    assert not quick.allows(8, 0.95, 10), "the next run would end beyond the tenth"
    assert slow.allows(1, 0.0, 0) and slow.allows(7, 30.0, 6) and not slow.allows(8, 35.0, 7)
    assert not slow.allows(7, 90.0, 6), "the case must have ended by then"
    assert not Allowance().allows(1, 0.0, 0)


@pytest.mark.parametrize(
    ("asked", "difference", "hinted"),
    [
        (replace(case(), engine="eager"), Difference(1.1), True),
        (replace(case(), engine="eager"), Difference(0.01), False),
        (replace(case(), engine="eager"), Difference(float("nan"), wrong="the outputs are wrong where …"), False),
        (replace(case("bf16"), engine="eager"), Difference(1.1), False),
        (case(), Difference(1.1), False),
    ],
)
def test_pytorch_that_is_far_from_its_own_reference_is_explained(asked, difference, hinted):
    says = "the outputs are wrong; the reference is PyTorch's too, so probably an item's output depends on the others"
    found = explained(asked, Prepared(), "the outputs are wrong", [difference])
    assert str(found).startswith(says) == hinted


def test_what_the_model_itself_does_explains_every_engines_outputs():
    found = explained(case(), Prepared(changed="x"), "the outputs are wrong", [Difference(1.1)])
    says = "forward changes its input x in place, so each call gets another: clone it first"
    assert found == f"the outputs are wrong; {says}"
    assert explained(case(), Prepared(), None, []) is None


def test_outputs_of_other_shapes_suggest_to_limit_the_comparison():
    off = "the outputs are wrong: relative L2 error 6.6e-1"
    found = explained(case(precision="fp16"), Prepared(), off, [Difference(0.66)], ["boxes has shape (7, 4)"])
    assert found.startswith(f"{off}; boxes has shape (7, 4): ") and "`outputs: [NAME]`" in found


@pytest.mark.parametrize(
    ("asked", "ran"),
    [
        (case(), proof()),
        (case("tf32"), proof(tf32=True)),
        (case("fp16"), proof("float16")),
        (case("bf16"), proof("bfloat16")),
        (case("native"), proof("float16")),
        (case(device="cpu"), proof(ran_on="CPUExecutionProvider")),
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
        (case("fp8"), proof(compute_types={"float8": 36, "bfloat16": 12})),
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
        (case("fp8"), proof("bfloat16"), "asked for fp8, computed in bfloat16 (20×)"),
        (case("fp16"), proof(compute_types={"float16": 19, "int8": 1}), "float16 (19×), int8 (1×)"),
        (case("int8"), proof("int8", tf32=True), "TF32 was on at int8"),
        (case(), proof(ran_on="CPUExecutionProvider"), "ran on CPUExecutionProvider (20×), not on CUDA"),
        (case(device="cpu"), proof(), "ran on CUDAExecutionProvider (20×), not on CPU"),
        (
            case(device="cpu"),
            proof(ran_on="CPUExecutionProvider", provider="OpenVINOExecutionProvider"),
            "not on OpenVINOExecutionProvider",
        ),
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
    told = mismatch(case("fp16", cuda_graph=True), proof(ran_on="CPUExecutionProvider", tf32=True))
    assert len(told.split("; ")) == 4


def test_a_proof_that_says_nothing_is_a_contradiction():
    assert mismatch(case("fp32"), Proof()) is not None


@pytest.mark.parametrize(
    ("ran", "kind", "says"),
    [
        ({"device": "cuda", "providers": {"CUDAExecutionProvider": 9, "CPUExecutionProvider": 2}}, "cpu-nodes", "2"),
        (
            {"device": "cpu", "providers": {"Other": 9, "CPUExecutionProvider": 2}, "provider": "Other"},
            "cpu-nodes",
            "2",
        ),
        ({"graph_breaks": 3}, "graph-breaks", "3 places"),
        ({"graph_breaks": 1, "graph_break_reasons": ["a branch at net.py:3"]}, "graph-breaks", "1 place: a branch"),
        ({"recompilations": ["`self.calls == 0` no longer held"]}, "recompiled", "1 time again: `self.calls == 0`"),
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
    assert remarks(replace(case("int8"), engine="eager"), proof("int8")) == [], "its ranges are of each call's inputs"


def test_a_factorys_model_may_compute_a_few_products_in_fp32():
    few, most = Proof(compute_types={"bfloat16": 37, "float32": 12}, tf32=False), Proof(compute_types={"float32": 20})
    own = replace(case("bf16"), source=ModelSource("mine", factory="a:b", input_shape=(3,)))
    assert mismatch(own, few) is None
    assert list(map(str, remarks(own, few))) == [
        "mixed-precision: 12 of 49 convolutions and products computed in float32"
    ]
    assert mismatch(own, most) == "asked for bf16, computed in float32 (20×)"
    assert mismatch(case("bf16"), few) == "asked for bf16, computed in bfloat16 (37×), float32 (12×)"


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
        (step(0.6), step(0.1), "in 1 of the 2 tensors that matter; the worst is first.weight: "),
        (step(0.6), step(0.1), "relative L2 error 6.0e-1 to fp64, the reference itself has 1.0e-1 at fp32"),
        (step(0.6, 0.7), step(), "in 2 of the 2 tensors that matter; the worst is last.weight: "),
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


@pytest.mark.parametrize("name", ["input", "input 2"])
def test_an_inputs_gradient_must_be_right_however_small_it_is(name: str) -> None:
    norms, tensors = {**NORMS, name: 0.001}, step().tensors
    assert (
        judge_gradients(
            "fp32", Deviation(0.0, 0.0, {**tensors, name: 0.1}), Deviation(0.0, 0.0, {**tensors, name: 0.1}), norms
        )
        is None
    )
    wrong = judge_gradients(
        "fp32", Deviation(0.0, 0.0, {**tensors, name: 0.9}), Deviation(0.0, 0.0, {**tensors, name: 0.1}), norms
    )
    assert isinstance(wrong, str)
    assert f"the worst is {name}: " in wrong


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


def truth(loss: float = 1.0, **norms: float) -> Gradients:
    return Gradients(np.array(loss), None, {name: np.full(2, norm) for name, norm in norms.items()}, norms)


def test_a_reference_whose_gradients_are_not_finite_is_named() -> None:
    wrong = judge_reference(truth(weight=1.0, bias=math.nan, scale=math.inf), "inputs are seeded")
    assert wrong == (
        "nothing can be compared: the reference's own gradients in fp64 are not finite in 2 tensors, bias among them: "
        "inputs are seeded"
    )
    wrong = judge_reference(truth(loss=math.inf, weight=1.0), "inputs are seeded")
    assert wrong == "the loss is not finite, and the reference's in fp64 is not either: inputs are seeded"


def test_a_reference_whose_gradients_are_zero_says_nothing() -> None:
    found = judge_reference(truth(weight=0.0, bias=0.0), "inputs are seeded")
    assert found == Warning("unchecked-gradients", "the reference's gradients are zero: inputs are seeded")
    assert judge_reference(truth(weight=1.0, bias=0.0), "inputs are seeded") is None


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ({"int8": 50, "float32": 4}, []),  # as the file has it
        ({"int8": 49, "float32": 5}, ["1 of 50 convolutions and products that the file quantizes computed in float32"]),
        (
            {"float32": 30, "float16": 24},
            ["50 of 50 convolutions and products that the file quantizes computed in float16 and float32"],
        ),
        ({"int8": 20, "float32": 2}, []),  # fused
        ({"int8": 50, "unknown": 4}, []),
    ],
)
def test_what_a_users_quantized_file_does_not_leave_in_float_is_remarked(types, says):
    found = left_in_float((54, 50), Proof(compute_types=types))
    assert [str(warning) for warning in found] == [f"mixed-precision: {text}" for text in says]
    assert left_in_float((54, 0), Proof(compute_types=types)) == left_in_float((0, 0), Proof()) == []
