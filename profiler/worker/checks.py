"""Check what a session computed, and by what: outputs, gradients and the proof.

A row whose proof does not match its request is `failed`: nothing falls back in silence.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from engines.base import Array, Feedable, Named, Proof, Session, Trainable, Warning, ignore
from engines.catalog import ENGINES, reference_of
from engines.options import EIGHT_BITS, PRECISION_TABLE
from exporters.errors import sentence
from exporters.gradients import (
    NOTABLE,
    Deviation,
    GradientReference,
    Gradients,
    corner,
    deviation,
    is_input,
    reference_items,
    unlike,
)
from exporters.inputs import distinct_items, drawn_inputs, how_drawn, seeded_inputs
from exporters.int8 import DYNAMIC
from exporters.source import shape_words
from exporters.weights import has_own_weights
from profiler.job.case import Case
from profiler.results.result import Finding, Result
from profiler.results.warning_kinds import NO_CUDA_GRAPH
from profiler.tables import numbers
from profiler.worker import parity
from profiler.worker.parity import FP16_ENDS, WRONG, Pair
from profiler.worker.task import REFERENCE_ITEMS, Task, graph_of, has_checked_gradients, microbatch, usual_items

_TYPES = {name: precision.compute for name, precision in PRECISION_TABLE.items() if precision.compute}
_NAMED = 3
"""Most reasons that a warning lists."""
_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
_SHARE = 0.1
"""Share of a case's time that comparing more items than REFERENCE_ITEMS may take."""
_known = partial(np.nan_to_num, nan=0.0, posinf=0.0)
"""Take 0 for what is not finite: that says nothing of what is usual."""
_NOT_FINITE = "loss or outputs are not finite"
_FLOOR = 1e-6
_TIMES = 3
"""A step may be this many times as far from fp64 as the same step at its precision on the CPU."""


class Allowance(NamedTuple):
    """Seconds for comparing further items: a case took `spent`, must end in `left`, and a call takes `call`."""

    spent: float
    left: float
    call: float

    def allows(self, items: int, seconds: float) -> bool:
        """Allow one more run after so many seconds: any until there are REFERENCE_ITEMS, then a tenth of the time."""
        most = self.left if items < REFERENCE_ITEMS else min(self.left, _SHARE * self.spent)
        return seconds + self.call < most


def verify(
    task: Task,
    session: Session,
    outputs: Sequence[Array],
    result: Result,
    allowance: Allowance | None = None,
) -> None:
    """Compare outputs or gradients with the reference, the proof with the request; fail a row that does not hold.

    Outputs are compared over further items than the batch's as far as `allowance` goes.
    """
    case, model = task.case, task.prepared
    if case.pass_ == "inference" and model.reference(case) is not None:
        _check_outputs(task, session, outputs, result, allowance)
    elif case.pass_ == "training":
        _check_training(task, session, outputs, result)
    elif not all(np.isfinite(output).all() for output in outputs):
        result.fail(_NOT_FINITE)
    result.proof = proof = session.proof()
    if task.gpu:
        proof.details = {**proof.details, "gpu_uuid": task.gpu}
    result.warnings += [*remarks(case, proof), *_exported(task)]
    if (graph := model.onnx.get(graph_of(case))) and graph.in_float32:
        result.warnings.append(Warning("kept-float", f"{graph.in_float32} stayed float32 between casts"))
    result.take(mismatch(case, proof))


# Outputs.


def _check_outputs(
    task: Task,
    session: Session,
    outputs: Sequence[Array],
    result: Result,
    allowance: Allowance | None,
) -> None:
    """Judge the outputs by the model's reference: the measured batch first, so that further items hide nothing."""
    case, model = task.case, task.prepared
    file = model.reference(case)
    assert file is not None
    result.drawn = ", ".join(drawn_inputs(model.specs)) or None
    reference, start = parity.Outputs.read(file), perf_counter()
    if reference.unsteady:
        _note_unsteady(session, outputs, reference.unsteady, result)
        return
    names = session.output_names() if isinstance(session, Named) else [str(number) for number in range(len(outputs))]
    runs = [[array.copy() for array in outputs]]  # On the CPU they may be where the next run writes.
    pairs, apart = _pairs(task, names, runs, reference)
    drawn = how_drawn(case.source, model.specs)
    finding = parity.judge(case.precision, list(map(parity.compare, pairs)), drawn)

    def goes_on(items: int) -> bool:
        return bool(allowance and items < reference.items and allowance.allows(items, perf_counter() - start))

    if not apart and not isinstance(finding, str) and isinstance(session, Feedable):
        try:
            runs += parity.further_runs(session, model.specs, case.batch_size, outputs, goes_on)
        except Exception as error:
            traceback.print_exc()
            result.warnings.append(Warning("no-parity", f"further items were not compared: {sentence(error)}"))
        pairs, apart = _pairs(task, names, runs, reference)
    differences = list(map(parity.compare, pairs))
    if reference.dependent:
        text = "items depend on each other: outputs at other batch sizes are others"
        result.warnings.append(Warning("no-parity", text))
        if reference.batch != case.batch_size:
            result.warnings.append(Warning("unchecked-outputs", f"{text}, and the CPU cannot afford these"))
            return
    result.take(parity.judge(case.precision, differences, drawn))
    if apart:
        result.warnings.append(Warning("no-parity", _some(apart)))
    if differences:
        usual = min(usual_items(model.specs), case.batch_size)
        few = f", {reference.items} of {usual} items" if reference.items < usual else ""
        result.reference = (reference.maker or reference_of(case.source.kind)[1].name) + few
        own, distinct = has_own_weights(case.source), distinct_items(model.specs)
        result.figures |= parity.figures(differences, pairs, own, distinct, case.precision)
        result.worst = parity.worst(differences, case.precision)


def _note_unsteady(session: Session, outputs: Sequence[Array], why: str, result: Result) -> None:
    """Warn that nothing can be compared, and tell whether the engine does as the model does."""
    result.figures["rel_l2_error"] = None
    before = [array.copy() for array in outputs]
    session.run(ignore)
    if not all(np.isfinite(output).all() for output in before):
        result.fail(_NOT_FINITE)
    differs = ", and this engine answers the same call alike" if parity.alike(before, session.outputs()) else ""
    result.warnings.append(Warning("unchecked-outputs", f"{why}{differs}"))


def _pairs(
    task: Task, names: Sequence[str], runs: Sequence[Sequence[Array]], reference: parity.Outputs
) -> tuple[list[Pair], list[str]]:
    """Pair the outputs of all runs with the reference's, without padding; the second list says what cannot be."""
    ours = parity.Outputs.of_runs(names, runs, task.case.batch_size)
    pairs, apart = parity.align(ours, reference, task.case.source.outputs)
    bare = partial(parity.without_padding, specs=task.prepared.specs)
    return [replace(pair, ours=bare(pair.ours), truth=bare(pair.truth)) for pair in pairs], apart


def _some(reasons: Sequence[str]) -> str:
    more = [f"and {len(reasons) - _NAMED} more"] if len(reasons) > _NAMED else []
    return "; ".join([*reasons[:_NAMED], *more])


# Gradients.


def _check_training(task: Task, session: Session, outputs: Sequence[Array], result: Result) -> None:
    """Check that loss or outputs are finite, or not finite where the reference's are not, and check the gradients."""
    case, is_finite = task.case, all(np.isfinite(output).all() for output in outputs)
    key = case.training.head, reference_items(microbatch(case))
    reference = task.prepared.gradients.get(key, "none was made")
    if not has_checked_gradients(case):
        reference = "dropout is on, so gradients differ in every iteration"
    if isinstance(reference, str):
        result.take(Warning("unchecked-gradients", f"no reference: {reference}") if is_finite else _NOT_FINITE)
        return
    truth = Gradients.read(reference.path)
    if not is_finite and np.isfinite(truth.result).all():
        result.fail(_NOT_FINITE)
    elif doubt := judge_reference(truth, microbatch(case), how_drawn(case.source, task.prepared.specs)):
        result.take(doubt)
    else:
        _check_gradients(task, session, reference, truth, result)


def _check_gradients(
    task: Task, session: Session, reference: GradientReference, truth: Gradients, result: Result
) -> None:
    """Add the errors of loss and gradients; fail a row whose gradients are wrong."""
    case, items = task.case, reference_items(microbatch(task.case))
    assert isinstance(session, Trainable), f"{case.engine} trains and cannot show its gradients"
    inputs = seeded_inputs(task.prepared.specs, case.batch_size, items)
    output, gradients = session.gradients(inputs, truth.target)
    output = corner(output, truth.result.shape)
    result.reference = "step-fp64-cpu"
    if unlike(output, truth.result):
        result.take(parity.judge(case.precision, [parity.compare(Pair(output, truth.result))]))
        return
    found = deviation(output, gradients, truth)
    result.figures |= {"loss_error": found.result, "gradient_error": found.gradient}
    own = reference.deviation_at(case.precision, case.batch_size)
    result.take(judge_gradients(case.precision, found, own, truth.norms))


def judge_reference(truth: Gradients, batch: int, drawn: str = "") -> Finding:
    """Find why a reference checks nothing at this batch size: its step is random or depends on the batch, its loss or
    gradients are not finite, or all gradients are zero."""
    if truth.is_random:
        return Warning("unchecked-gradients", "the model draws random numbers")
    if truth.is_dependent and batch != reference_items(batch):
        return Warning(
            "unchecked-gradients", "the loss is no mean over the items, so its gradients depend on the batch"
        )
    norms = {**truth.norms, **({"the loss": float(truth.result)} if truth.result.ndim == 0 else {})}
    if bad := [name for name, norm in norms.items() if not np.isfinite(norm)]:
        return f"nothing can be compared: the reference itself in fp64 is not finite in {_some(bad)}{drawn}"
    if not truth.norms:
        return Warning("unchecked-gradients", "hooks of the model leave no gradients")
    if not any(truth.norms.values()):
        return Warning("unchecked-gradients", f"the reference's gradients are zero{drawn}")
    return None


def judge_gradients(precision: str, found: Deviation, own: Deviation, norms: Mapping[str, float]) -> Finding:
    """Tell what the errors of loss and gradients say of a row: wrong, or further off than usual.

    `found` is the session's, `own` the reference's at that precision, `norms` are those of the reference's gradients.
    """
    if not all(np.isfinite(error) for error in (found.result, found.gradient, *found.tensors.values())):
        return f"the gradients are not finite{FP16_ENDS if precision.endswith('fp16') else ''}"
    least = NOTABLE * float(np.linalg.norm(list(norms.values())))
    notable = [name for name, norm in norms.items() if norm and (norm >= least or is_input(name))]
    wrong = [
        name
        for name in notable
        if found.tensors[name] > max(WRONG, _TIMES * _known(own.tensors[name]))
        or (name in found.zeros and name not in own.zeros)
    ]
    if wrong:
        worst = max(wrong, key=lambda name: found.tensors[name])
        error, usual_error = (numbers.error(each.tensors[worst]) for each in (found, own))
        return (
            f"wrong gradients in {len(wrong)} of {len(notable)} large tensors; worst is {worst}: "
            f"relative L2 error {error} to fp64, usual at {precision} is {usual_error}"
        )
    usual = _TIMES * max(_known(own.gradient), _FLOOR)
    if found.gradient <= usual:
        return None
    error, limit = numbers.error(found.gradient), numbers.error(usual)
    return Warning("inaccurate-gradients", f"relative L2 error {error} to fp64, usual at {precision} is below {limit}")


# Proof.


def mismatch(case: Case, proof: Proof) -> str | None:
    """Name what of the proof contradicts the case's request; None if nothing does."""
    types, options = proof.compute_types, case.options
    strays = _strays(case, types or {})
    asked = proof.provider or _PROVIDERS[case.device]
    elsewhere = {p: n for p, n in (proof.compute_providers or {}).items() if p != asked}
    changed = [f"{name} from {was} to {now}" for name, (was, now) in (proof.settings_changed or {}).items()]
    no_graph = options.get("cuda_graph") and not proof.cuda_graph and not proof.cuda_graph_fallback
    contradictions = {
        f"asked for {case.precision}, and the engine does not say in which types it computed": types is None,
        f"asked for {case.precision}, computed in {_counts(types or {})}": strays and not _mixed(case, types or {}),
        f"convolutions and products ran on {_counts(elsewhere)}, not on {asked}": elsewhere,
        f"TF32 was {'on' if proof.tf32 else 'off'} at {case.precision}": bool(proof.tf32) != (case.precision == "tf32"),
        "no CUDA graph was captured": no_graph,
        f"the model changed {', '.join(changed)} while it ran": changed,
        "cuDNN was on": options.get("cudnn") is False and proof.cudnn,
    }
    return "; ".join(text for text, holds in contradictions.items() if holds) or None


def remarks(case: Case, proof: Proof) -> list[Warning]:
    """Warn of what is no contradiction but should be known."""
    warnings = []
    types = proof.compute_types
    if case.calibrated is False and ENGINES[case.engine].needs == "onnx" and graph_of(case) != DYNAMIC:
        warnings.append(Warning("calibration", "seeded data, so accuracy says nothing"))
    if types and _mixed(case, types) and (strays := _strays(case, types)):
        share = f"{sum(strays.values())} of {sum(types.values())}"
        reason = f"{share} convolutions and products computed in {' and '.join(sorted(strays))}"
        warnings.append(Warning("mixed-precision", reason))
    if types is not None and (not types or "unknown" in types):
        unknown = types.get("unknown", "all")
        warnings.append(Warning("unproven", f"the types of {unknown} convolutions and products could not be seen"))
    on_cpu = (proof.providers or {}).get(_PROVIDERS["cpu"])
    if on_cpu and (proof.provider or _PROVIDERS[proof.device or "cpu"]) != _PROVIDERS["cpu"]:
        warnings.append(Warning("cpu-nodes", f"{on_cpu} nodes ran on the CPU provider"))
    if proof.graph_breaks:
        where = f": {_some(proof.graph_break_reasons)}" if proof.graph_break_reasons else ""
        count = numbers.counted(proof.graph_breaks, "place")
        warnings.append(Warning("graph-breaks", f"torch.compile left the graph at {count}{where}"))
    if proof.recompilations:
        count = numbers.counted(len(proof.recompilations), "time")
        warnings.append(Warning("recompiled", f"torch.compile compiled {count} again: {proof.recompilations[0]}"))
    if proof.cuda_graph_wanted and (proof.cuda_graph_skips or not proof.cuda_graph):
        reason = "torch.compile recorded no CUDA graph, or not for all; the worker's log says why"
        warnings.append(Warning(NO_CUDA_GRAPH, reason))
    if proof.cuda_graph_fallback:
        warnings.append(Warning(NO_CUDA_GRAPH, f"every call was enqueued again ({proof.cuda_graph_fallback})"))
    return warnings + list(proof.warnings or [])


def _exported(task: Task) -> list[Warning]:
    """Warn that a graph is for one batch size and shape only, and say why."""
    why = task.prepared.failures.get(graph_of(task.case))
    if why is None or ENGINES[task.case.engine].needs != "onnx":
        return []
    only = " ".join([f"batch size {task.case.batch_size}", *shape_words(task.case.shape)])
    return [Warning("static-graph", f"the graph is for {only} only, since with free sizes {why.reason}")]


def _strays(case: Case, types: Mapping[str, int]) -> dict[str, int]:
    """Count the convolutions and products in another type than the one asked for; `native` asks for none."""
    asked = _TYPES.get(case.precision)
    return {name: count for name, count in types.items() if asked and name not in (asked, "unknown")}


def _mixed(case: Case, types: Mapping[str, int]) -> bool:
    """Tell whether strays are to be expected.

    With a Q/DQ graph the runtime decides what it computes in int8, and not every operator has an integer kernel;
    torchao quantizes only linear layers. Without a single one, int8 or fp8 did not happen. A user's model may itself
    compute a few products in fp32, such as rotary embeddings, or as torch's plain attention does, and any in float64.
    """
    if case.precision in EIGHT_BITS:
        return types.get(_TYPES[case.precision], 0) > 0
    strays = _strays(case, types)
    own = types.get(_TYPES.get(case.precision, ""), 0)
    wider = set(strays) == {"float32"} and own > sum(strays.values())
    return case.source.kind == "factory" and (wider or set(strays) == {"float64"})


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count}×)" for name, count in sorted(counts.items()))
