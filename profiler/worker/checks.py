"""Check what a session computed, and by what: outputs, gradients and the proof.

A row whose proof does not match its request is `failed`: nothing falls back in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engines.base import Array, Proof, Session, Trainable, Warning
from engines.catalog import reference_of
from exporters.gradients import Deviation, GradientReference, Gradients, deviation, reference_items, tiled
from exporters.inputs import seeded_inputs
from profiler.job.case import Case
from profiler.results.result import Figures, Finding, Result
from profiler.tables import numbers
from profiler.worker.task import Task, has_checked_gradients

_TYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "amp-fp16": "float16",
    "amp-bf16": "bfloat16",
    "int8": "int8",
}
_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}


def verify(task: Task, session: Session, outputs: Sequence[Array], result: Result) -> None:
    """Compare outputs or gradients with the reference, the proof with the request; fail a row that does not hold."""
    case = task.case
    if case.pass_ == "inference" and task.prepared.reference is not None:
        with np.load(task.prepared.reference) as file:
            reference = [file[name] for name in file.files]
        result.reference = reference_of(case.source.kind)[1].name
        real_weights = case.source.kind == "onnx" or case.source.weights is not None
        result.figures |= compare(outputs, reference, real_weights)
        result.take(judge(case.precision, result.figures["rel_l2_error"]))
    elif not all(np.isfinite(output).all() for output in outputs):
        what = "outputs are" if case.pass_ == "training" and case.training.head == "logits" else "loss is"
        result.fail(f"the {what} not finite")
    elif case.pass_ == "training":
        _check_gradients(task, session, result)
    result.proof = proof = session.proof()
    result.warnings += remarks(case, proof)
    result.take(mismatch(case, proof))


def _check_gradients(task: Task, session: Session, result: Result) -> None:
    """Add the errors of loss and gradients; fail a row whose gradients are wrong."""
    case = task.case
    if not has_checked_gradients(case):
        result.warnings.append(Warning("unchecked-gradients", "dropout is on, so they differ in every iteration"))
        return
    items = reference_items(case.batch_size)
    reference = task.prepared.gradients.get((case.training.head, items), "none was made")
    if not isinstance(reference, GradientReference):
        result.warnings.append(Warning("unchecked-gradients", f"there is no reference: {reference}"))
        return
    assert isinstance(session, Trainable), f"{case.engine} trains and cannot show its gradients"
    truth = Gradients.read(reference.path)
    inputs = [tiled(array, case.batch_size) for array in seeded_inputs(task.prepared.specs, items)]
    target = None
    if truth.target is not None:
        target = tiled(truth.target, case.batch_size, is_gradient=case.training.head == "logits")
    output, gradients = session.gradients(inputs, target)
    found = deviation(output[:items] if output.ndim else output, gradients, truth)
    result.reference = "step-fp64-cpu"
    result.figures |= {"loss_error": found.result, "gradient_error": found.gradient}
    own = reference.own_at(case.precision, case.batch_size)
    result.take(judge_gradients(case.precision, found, own, truth.norms))


def compare(outputs: Sequence[Array], reference: Sequence[Array], real_weights: bool) -> Figures:
    """The largest relative L2 and absolute errors over the outputs, and how often the first output's top class agrees.

    Both sides have items along the first axis; as many are compared as both have. Top-1 agreement is given only for
    two-dimensional outputs and real weights: with seeded ones it says nothing about accuracy.

    Raises ValueError where the outputs' number or shapes differ from the reference's.
    """
    if len(outputs) != len(reference):
        raise ValueError(f"{len(outputs)} outputs, the reference has {len(reference)}")
    l2, largest = 0.0, 0.0
    agreement = None
    for number, (output, expected) in enumerate(zip(outputs, reference, strict=True)):
        if output.ndim != expected.ndim or output.shape[1:] != expected.shape[1:]:
            raise ValueError(f"output {number} has shape {output.shape}, the reference {expected.shape}")
        ours, truth = np.atleast_1d(output), np.atleast_1d(expected)
        items = min(len(ours), len(truth))
        # A layer's output at a large batch is gigabytes, of which a few items are compared.
        ours, truth = ours[:items].astype(np.float64), truth[:items].astype(np.float64)
        norm = float(np.linalg.norm(truth))
        distance = float(np.linalg.norm(ours - truth))
        l2 = max(l2, distance / norm if norm else distance) if np.isfinite(distance) else float("nan")
        # np.maximum keeps a NaN, which max() would lose.
        largest = float(np.maximum(largest, np.max(np.abs(ours - truth), initial=0.0)))
        if number == 0 and real_weights and truth.ndim == 2:
            agreement = float(np.mean(ours.argmax(axis=1) == truth.argmax(axis=1)))
    return {"rel_l2_error": l2, "max_abs_error": largest, "top1_agreement": agreement}


_USUAL = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "bf16": 1e-1, "int8": 2e-1}
"""int8's error grows with the depth, since every layer rounds its activations to 8 bits again. Measured with seeded
weights and calibration, ONNX Runtime on the CPU: GoogLeNet 0.025, AlexNet 0.03, VGG-16 0.04, ResNet-18 0.03, ResNet-50
0.04, ResNet-152 0.11, ResNet-200 0.12."""
_WRONG = 0.5
"""Relative L2 error from which half of the output is noise: no rounding does that, only a wrong result."""


def judge(precision: str, error: float | None) -> Finding:
    """What a relative L2 error says of a row: wrong, or unusual for the precision."""
    if error is None or not np.isfinite(error):
        return "the outputs are not finite: NaN or infinity where the reference has numbers"
    if error >= _WRONG:
        return f"the outputs are wrong: relative L2 error {numbers.error(error)} to the reference"
    usual = _USUAL.get(precision, _USUAL["fp16"])
    if error <= usual:
        return None
    return Warning(
        "inaccurate",
        f"relative L2 error {numbers.error(error)}, usual at {precision} is below {numbers.error(usual, 1)}",
    )


_FLOOR = 1e-6
_TIMES = 3
"""A step may be so many times as far from fp64 as the same step at its precision on the CPU."""
_NOTABLE = 0.01
"""Share of the gradient's norm from which a tensor's own gradient must not be wrong."""


def judge_gradients(precision: str, found: Deviation, own: Deviation, norms: Mapping[str, float]) -> Finding:
    """What the errors of loss and gradients say of a row: wrong, or further off than usual.

    `found` is the session's, `own` the reference's at that precision, `norms` are those of the reference's gradients.
    """
    if not all(np.isfinite(error) for error in (found.result, found.gradient, *found.tensors.values())):
        return f"the gradients are not finite{_NOT_FINITE.get(precision, '')}"
    least = _NOTABLE * float(np.linalg.norm(list(norms.values())))
    notable = [name for name, norm in norms.items() if norm and norm >= least]
    wrong = [
        name
        for name in notable
        if found.tensors[name] > max(_WRONG, _TIMES * _or_zero(own.tensors[name]))
        or (name in found.zeros and name not in own.zeros)
    ]
    if wrong:
        worst = max(wrong, key=lambda name: found.tensors[name])
        zeros = sum(name in found.zeros for name in wrong)
        return (
            f"wrong gradients in {len(wrong)} of the {len(notable)} tensors that carry 1 % or more"
            f"{f', {zeros} of them zeros' if zeros else ''}; the worst is {worst}: relative L2 error "
            f"{numbers.error(found.tensors[worst])} to fp64, the reference itself has "
            f"{numbers.error(own.tensors[worst])} at {precision}"
        )
    usual = _TIMES * max(_or_zero(own.gradient), _FLOOR)
    if found.gradient <= usual:
        return None
    error = f"relative L2 error {numbers.error(found.gradient)} to fp64"
    reason = f"{error}, usual at {precision} is below {numbers.error(usual)} for this model"
    return Warning("inaccurate-gradients", reason)


_NOT_FINITE = {
    "amp-fp16": ", at any loss scale: training would skip every step",
    "fp16": ": fp16 holds nothing above 65504, and without a loss scale nothing keeps gradients in its range",
}


def _or_zero(error: float) -> float:
    """A reference that is not finite itself says nothing of what is usual."""
    return error if np.isfinite(error) else 0.0


def mismatch(case: Case, proof: Proof) -> str | None:
    """What of the proof contradicts the case's request; None if nothing does."""
    wrong = []
    requested = _TYPES.get(case.precision)
    types = proof.compute_types
    if types is None:
        wrong.append(f"asked for {case.precision}, and the engine does not say in which types it computed")
    elif requested is not None and _strays(case, types) and not _mixed(case, types):
        wrong.append(f"asked for {case.precision}, computed in {_counts(types)}")
    elsewhere = {p: n for p, n in (proof.compute_providers or {}).items() if p != _PROVIDERS[case.device]}
    if elsewhere:
        wrong.append(f"convolutions and products ran on {_counts(elsewhere)}, not on {_PROVIDERS[case.device]}")
    if bool(proof.tf32) != (case.precision == "tf32"):
        wrong.append(f"TF32 was {'on' if proof.tf32 else 'off'} at {case.precision}")
    if case.options.get("cuda_graph") and not proof.cuda_graph and not proof.cuda_graph_fallback:
        wrong.append("no CUDA graph was captured")
    if case.options.get("cudnn") is False and proof.cudnn:
        wrong.append("cuDNN was on")
    return "; ".join(wrong) or None


def remarks(case: Case, proof: Proof) -> list[Warning]:
    """Warnings for what is no contradiction but should be known."""
    warnings = []
    types = proof.compute_types
    if case.precision == "int8" and case.source.calibration is None:
        warnings.append(Warning("calibration", "seeded data, so accuracy says nothing"))
    if types and _mixed(case, types) and (strays := _strays(case, types)):
        share = f"{sum(strays.values())} of {sum(types.values())}"
        reason = f"{share} convolutions and products computed in {' and '.join(sorted(strays))}"
        warnings.append(Warning("mixed-precision", reason))
    if types is not None and (not types or "unknown" in types):
        unknown = types.get("unknown", "all")
        warnings.append(Warning("unproven", f"the types of {unknown} convolutions and products could not be seen"))
    on_cpu = (proof.providers or {}).get("CPUExecutionProvider")
    if proof.device == "cuda" and on_cpu:
        warnings.append(Warning("cpu-nodes", f"{on_cpu} nodes ran on the CPU provider"))
    if proof.graph_breaks:
        warnings.append(Warning("graph-breaks", f"torch.compile left the graph {proof.graph_breaks} times"))
    if proof.cuda_graph_wanted and (proof.cuda_graph_skips or not proof.cuda_graph):
        reason = "torch.compile recorded no CUDA graph, or not for all; the worker's log says why"
        warnings.append(Warning("no-cuda-graph", reason))
    if proof.cuda_graph_fallback:
        warnings.append(Warning("no-cuda-graph", f"every call was enqueued again ({proof.cuda_graph_fallback})"))
    return warnings + list(proof.warnings or [])


def _strays(case: Case, types: Mapping[str, int]) -> dict[str, int]:
    """How many convolutions and products were computed in another type than the one that was asked for."""
    return {name: count for name, count in types.items() if name not in (_TYPES.get(case.precision), "unknown")}


def _mixed(case: Case, types: Mapping[str, int]) -> bool:
    """Whether strays are to be expected: with a Q/DQ graph the runtime decides what it computes in int8, and not every
    operator has an integer kernel. Without a single one, int8 did not happen."""
    return case.precision == "int8" and types.get("int8", 0) > 0


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count}×)" for name, count in sorted(counts.items()))
