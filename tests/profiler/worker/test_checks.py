"""Gradients against a reference with known distances, and proofs against requests: every contradiction is told."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.base import Proof
from exporters.gradients import Deviation, Gradients
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.worker.checks import judge_gradients, judge_reference, mismatch, remarks

pytestmark = pytest.mark.slow
CPU = "CPUExecutionProvider"


def case(precision: str = "fp32", device: str = "cuda", calibration: Path | None = None, **options: object) -> Case:
    source = ModelSource("net", calibration=calibration)
    return Case("net", "ort", "ort", "inference", precision, 1, device, 0, source, options)


def proof(compute: Any = "float32", ran_on: str = "CUDAExecutionProvider", **more: object) -> Proof:
    types = {compute: 20} if isinstance(compute, str) else compute
    own = {"compute_types": types, "compute_providers": {ran_on: 20}, "tf32": False, "cuda_graph": False}
    return Proof.from_dict(own | more)


OWN = replace(case("bf16"), source=ModelSource("mine", factory="a:b", input_shape=(3,)))
FILE = replace(OWN, source=ModelSource("net", graphs={"bf16": Path("mixed.onnx")}))
FEW, MOSTLY = proof({"bfloat16": 37, "float32": 12}), proof({"float16": 38, "float32": 18}, weakly_typed=True)

MATCHES = [
    (case(), proof()),
    (case("tf32"), proof(tf32=True)),
    (case("fp16"), proof("float16")),
    (case("native"), proof("float16")),
    (case(device="cpu"), proof(ran_on=CPU)),
    (case(cuda_graph=True), proof(cuda_graph=True)),
    (case(cuda_graph=False), proof()),
    (case(cudnn=False), proof(cudnn=False)),
    (case(), proof({"float32": 2, "unknown": 3})),
    (case(), proof({})),
    (case("amp-fp16"), proof("float16")),
    (case("int8"), proof("int8")),
    (case("int8"), proof({"int8": 1, "float32": 19})),
    (case("fp8"), proof({"float8": 36, "bfloat16": 12})),
    *((one, FEW) for one in (OWN, FILE)),  # A user's code or file may compute a few products in fp32.
    (replace(OWN, precision="fp32"), proof("quint8")),  # Or hold layers that are quantized already.
    (case("fp16"), MOSTLY),  # So may a builder that chooses types.
]
CONTRADICTIONS = [
    (case("fp16"), proof("float32"), "asked for fp16, computed in float32 (20×)"),
    (case("fp16"), proof({"float16": 19, "float32": 1}), "float16 (19×), float32 (1×)"),
    (case("amp-fp16"), proof("float32"), "asked for amp-fp16, computed in float32 (20×)"),
    (case("int8"), proof("float32"), "asked for int8, computed in float32 (20×)"),
    (case("fp8"), proof("bfloat16"), "asked for fp8, computed in bfloat16 (20×)"),
    (case("int8"), proof("int8", tf32=True), "TF32 was on at int8"),
    (case(), proof(ran_on=CPU), "ran on CPUExecutionProvider (20×), not on CUDA"),
    (case(device="cpu"), proof(), "ran on CUDAExecutionProvider (20×), not on CPU"),
    (case(device="cpu"), proof(ran_on=CPU, provider="OpenVINO"), "not on OpenVINO"),
    (case(), proof(tf32=True), "TF32 was on at fp32"),
    (case("tf32"), proof(), "TF32 was off at tf32"),
    (case(cuda_graph=True), proof(), "no CUDA graph was captured"),
    (case(cudnn=False), proof(cudnn=True), "cuDNN was on"),
    (case(), Proof(), "does not say in which types it computed"),
    (OWN, proof("float32"), "computed in float32 (20×): its code casts, measure it at fp32"),
    (replace(OWN, precision="fp32", pass_="training"), proof("bfloat16"), "measure it at amp-bf16"),
    (case("bf16"), FEW, "asked for bf16"),
    (case("fp16"), proof("float32", weakly_typed=True), "asked for fp16"),
    (case("fp16"), replace(MOSTLY, weakly_typed=None), "asked for fp16"),
]


@pytest.mark.parametrize(("asked", "ran", "says"), [*[(*each, "") for each in MATCHES], *CONTRADICTIONS])
def test_each_contradiction_is_told(asked, ran, says):
    told = mismatch(asked, ran)
    assert says in (told or "")
    assert bool(told) == bool(says)
    several = mismatch(case("fp16", cuda_graph=True), proof(ran_on=CPU, tf32=True)) or ""
    assert len(several.split("; ")) == 4


CALIBRATED = Path("images")


@pytest.mark.parametrize(
    ("asked", "ran", "says"),
    [
        *[(case(), ran, []) for ran in (Proof(), proof(), Proof(device="cpu", providers={CPU: 9}))],
        (case(), Proof(device="cuda", providers={"CUDA": 9, CPU: 2}), ["cpu-nodes: 2 "]),
        (case(), Proof(device="cpu", providers={"Other": 9, CPU: 2}, provider="Other"), ["cpu-nodes: 2 "]),
        (case(), Proof(graph_breaks=3), ["graph-breaks: .* 3 places"]),
        (case(), Proof(graph_breaks=1, graph_break_reasons=["a branch"]), ["graph-breaks: .* 1 place: a branch"]),
        (case(), Proof(recompilations=["`self.calls` changed"]), ["recompiled: .* 1 time again: `self.calls`"]),
        (case(), Proof(cuda_graph_wanted=True, cuda_graph=True, cuda_graph_skips=1), ["no-cuda-graph: .* not for all"]),
        (case(), Proof(cuda_graph_wanted=True, cuda_graph=False), ["no-cuda-graph: .* recorded no"]),
        (case(), Proof(compute_types={}), ["unproven: .* all "]),
        (case(), Proof(compute_types={"float32": 2, "unknown": 3}), ["unproven: .* 3 "]),
        (case("int8"), proof("int8"), ["calibration: seeded data"]),
        (case("int8", calibration=CALIBRATED), proof("int8"), []),
        (replace(case("int8"), engine="eager"), proof("int8"), []),  # Its ranges are of each call's inputs.
        (case("int8", calibration=CALIBRATED), proof("float32"), []),  # That is a contradiction.
        (
            case("int8", calibration=CALIBRATED),
            proof({"int8": 50, "float32": 2, "float16": 1, "unknown": 1}),
            ["mixed-precision: 3 of 54 .* float16 and float32", "unproven: the types of 1 "],
        ),
        (case(), Proof(weight_types={"float32": 4, "int8": 4}), ["quantized: .* int8$"]),
        (case(), Proof(weight_types={"float32": 4, "bfloat16": 4, "int64": 1, "bool": 1}), []),
        (replace(case("int8"), engine="eager"), Proof(weight_types={"float32": 4, "int8": 4}), []),
        (OWN, FEW, ["mixed-precision: 12 of 49"]),
        (case("fp16"), MOSTLY, ["mixed-precision: 18 of 56"]),
    ],
)
def test_what_should_be_known_is_remarked(asked, ran, says):
    found = remarks(asked, ran)
    assert len(found) == len(says), found
    assert all(re.match(pattern, str(warning)) for pattern, warning in zip(says, found, strict=True)), found


# Gradients.

NORMS = {"first.weight": 1.0, "last.weight": 3.0, "last.bias": 0.03, "dead.bias": 0.0}
FIRST = ("first.weight",)


def step(
    first: float = 0.0, last: float = 0.0, bias: float = 0.0, zeros: tuple[str, ...] = (), result: float = 0.0
) -> Deviation:
    tensors = {"first.weight": first, "last.weight": last, "last.bias": bias, "dead.bias": 1e-9}
    errors = [tensors[name] * NORMS[name] for name in NORMS]
    return Deviation(result, float(np.linalg.norm(errors) / np.linalg.norm(list(NORMS.values()))), tensors, zeros)


@pytest.mark.parametrize(
    ("precision", "found", "own", "says"),
    [
        ("fp32", step(), step(), "None"),
        ("fp32", step(2e-6, 2e-6), step(), "None"),  # Below the floor.
        ("fp32", step(2.9e-3, 2.9e-3), step(1e-3, 1e-3), "None"),
        ("fp32", step(0.0, 0.0, bias=0.9), step(1e-2, 1e-2), "None"),  # It carries less than 1 % of the norm.
        ("fp32", step(0.7, 0.1), step(0.3, 0.3), "None"),
        ("fp32", step(1.0), step(1.0), "unchecked-gradients: fp32 on the CPU is off by 1.0e0 from fp64 in first."),
        ("bf16", step(1.0), step(1.0), "None"),
        ("bf16", step(4e-6, 4e-6), step(), "inaccurate-gradients: "),
        ("bf16", step(4e-3, 4e-3), step(1e-3, 1e-3), "inaccurate-gradients: relative L2 error 4.0e-3 to fp64"),
        ("bf16", step(1e-3), step(math.nan, 1e-9), "inaccurate-gradients: "),
        ("fp32", step(0.6), step(0.1), "wrong gradients in 1 of 2 large tensors; worst is first.weight: relative L2 "
         "error 6.0e-1 to fp64, usual at fp32 is 1.0e-1"),
        ("fp32", step(0.6, 0.7), step(), "wrong gradients in 2 of 2 large tensors"),
        ("fp32", step(0.95), step(0.3), "wrong gradients in 1 "),
        ("fp32", step(1.0, zeros=FIRST), step(1e-6), "wrong gradients in 1 of 2 large tensors"),
        ("fp32", step(1.0, zeros=FIRST), step(0.6), "wrong gradients "),  # Wrong even where much is usual.
        ("fp16", step(1.0, zeros=FIRST), Deviation(0.0, 0.1, step(1.0).tensors, FIRST), "inaccurate-gradients: "),
        ("fp32", step(math.nan), step(), "the gradients are not finite"),
        ("fp32", step(result=math.nan), step(), "the gradients are not finite"),
        ("amp-fp16", step(math.nan), step(), "the gradients are not finite; fp16 ends"),
        ("fp16", step(math.nan), step(), "the gradients are not finite; fp16 ends"),
    ],
)  # fmt: skip
def test_gradients_are_judged_by_what_the_precision_makes_of_them(precision, found, own, says):
    finding = judge_gradients(precision, found, own, NORMS)
    assert str(finding).startswith(says)
    assert isinstance(finding, str) == says.startswith(("wrong", "the"))


@pytest.mark.parametrize("name", ["input", "input 2"])
def test_an_inputs_gradient_must_be_right_however_small_it_is(name):
    norms, tensors = {**NORMS, name: 0.001}, step().tensors
    own, off = (Deviation(0.0, 0.0, {**tensors, name: error}) for error in (0.1, 0.9))
    assert judge_gradients("fp32", own, own, norms) is None
    assert f"worst is {name}: " in str(judge_gradients("fp32", off, own, norms))


@pytest.mark.parametrize(
    ("loss", "norms", "doubt", "says"),
    [
        (1.0, {"a": 1.0, "b": math.nan, "c": math.inf}, {}, "nothing .* not finite in b; c; x is drawn"),
        (math.inf, {"weight": 1.0}, {}, "nothing .* in the loss; x is drawn"),
        (1.0, {"weight": 0.0, "bias": 0.0}, {}, "unchecked-gradients: the reference's gradients are zero; x is drawn"),
        (1.0, {"weight": 1.0, "bias": 0.0}, {}, "None"),
        (1.0, {}, {}, "unchecked-gradients: hooks of the model leave no gradients"),
        (1.0, {"weight": 1.0}, {"doubt": "random"}, "unchecked-gradients: the model draws random numbers"),
        (1.0, {"weight": 1.0}, {"doubt": "stateful"}, "unchecked-gradients: the model changes its inputs"),
        (1.0, {"weight": 1.0}, {"doubt": "dependent"}, "unchecked-gradients: .* when each item comes twice"),
    ],
)
def test_a_reference_that_checks_nothing_is_named(loss, norms, doubt, says):
    samples = {name: np.full(2, norm) for name, norm in norms.items()}
    truth = Gradients(np.array(loss), None, samples, norms, **doubt)
    assert re.match(says, str(judge_reference(truth, 4, "; x is drawn")))
    if truth.doubt == "dependent":
        assert judge_reference(truth, 2) is None, "it is the reference's own batch"
