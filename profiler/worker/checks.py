"""Check a session's outputs, gradients and proof.

A row whose proof contradicts its request is `failed`: nothing falls back in silence.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from engines.base import Array, Proof, Session, Trainable, Warning, ignore
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
from profiler.results.result import WRONG, Finding, Result
from profiler.results.warning_kinds import NO_CUDA_GRAPH
from profiler.tables import numbers
from profiler.worker import parity
from profiler.worker.accuracy import has_labels
from profiler.worker.parity import FP16_ENDS, Pair
from profiler.worker.ranked_rows import matched
from profiler.worker.task import Task, graph_of, has_checked_gradients, microbatch, usual_items

_LISTED = 3
"""Most reasons that a warning lists."""
_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
_UNQUANTIZED = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int64", "bool")
"""Types of usual parameters: some modules keep an index or a mask among them."""
_finite = partial(np.nan_to_num, nan=0.0, posinf=0.0)
"""Replace non-finite errors by 0: they say nothing about usual ones."""
_NOT_FINITE = "loss or outputs are not finite"
_USUAL_FLOOR = 1e-6
"""Error of gradients that is usual at any precision."""
_MOST_TIMES = 3
"""Allowed ratio of a step's error to the usual one, which the same step has on the CPU at its precision."""


_DOUBTS = {
    "random": "the model draws random numbers",
    "stateful": "the model changes its inputs, or keeps state or a random generator outside its state dict",
    "dependent": "gradients differ when each item comes twice: the loss is no mean over items, or the batch matters",
}
"""Why a reference with this doubt checks no gradients."""


def verify(
    task: Task,
    session: Session,
    outputs: Sequence[Array],
    result: Result,
    has_time: Callable[[], bool] = lambda: True,
) -> None:
    """Compare outputs or gradients with the reference, and the proof with the request; fail a row that differs.

    Compares all items of the reference while `has_time()`.
    """
    case, model = task.case, task.prepared
    if case.pass_ == "inference" and model.reference(case) is not None:
        _check_outputs(task, session, outputs, result, has_time)
    elif case.pass_ == "training":
        _check_training(task, session, outputs, result)
    elif not all(np.isfinite(output).all() for output in outputs):
        result.fail(_NOT_FINITE)
    result.proof = proof = session.proof()
    if task.gpu:
        proof.details = {**proof.details, "gpu_uuid": task.gpu}
    result.warnings += [*remarks(case, proof), *_static_graph(task)]
    if task.scores and case.source.data and case.pass_ == "inference" and not has_labels(task):
        another_shape = Warning("no-accuracy", "the data's items have another shape")
        unlabelled = Warning("unlabelled", "the data have no labels, so errors are measured and accuracy is not")
        result.warnings.append(another_shape if model.labels else unlabelled)
    if (graph := model.onnx.get(graph_of(case))) and graph.in_float32:
        result.warnings.append(Warning("kept-float", f"{graph.in_float32} stayed float32 between casts"))
    result.take(mismatch(case, proof))


# Outputs.


def _check_outputs(
    task: Task,
    session: Session,
    outputs: Sequence[Array],
    result: Result,
    has_time: Callable[[], bool],
) -> None:
    """Judge the outputs by the model's reference: first the measured batch alone, whose errors others might hide."""
    case, model = task.case, task.prepared
    file = model.reference(case)
    assert file is not None
    reference = parity.Outputs.read(file)
    if reference.unsteady:
        _note_unsteady(session, outputs, reference.unsteady, result)
        return
    result.drawn = ", ".join(drawn_inputs(model.specs)) or None
    names = session.output_names()
    runs = [[array.copy() for array in outputs]]  # The next run may overwrite them.
    pairs, problems = pairs_of(task, names, runs, reference)
    drawn, wrong = how_drawn(case.source, model.specs), math.inf if has_labels(task) else WRONG
    finding = parity.judge(case.precision, list(map(parity.compare, pairs)), drawn, wrong)

    def goes_on(items: int) -> bool:
        if items < reference.items and not has_time():
            raise TimeoutError("the timeout is near")
        return items < reference.items

    if not problems and not isinstance(finding, str):
        try:
            runs += parity.further_runs(session, model.specs, case.batch_size, outputs, goes_on)
        except Exception as error:
            traceback.print_exc()
            result.warnings.append(Warning("no-parity", f"further items were not compared: {sentence(error)}"))
        pairs, problems = pairs_of(task, names, runs, reference)
    differences = list(map(parity.compare, pairs))
    if reference.dependent:
        text = "items depend on each other, so outputs differ at other batch sizes"
        result.warnings.append(Warning("no-parity", text))
        if reference.batch != case.batch_size:
            result.warnings.append(Warning("unchecked-outputs", f"{text}, and the CPU is too slow for this one"))
            return
    result.take(parity.judge(case.precision, differences, drawn, wrong))
    if reference.unread:
        problems.append(f"tensors in {reference.unread} are not read: return them in lists, dicts or dataclasses")
    if problems:
        result.warnings.append(Warning("no-parity", _some(problems)))
    if differences:
        usual = min(usual_items(model.specs), case.batch_size)
        few = f", {reference.items} of {usual} items" if reference.items < usual else ""
        result.reference = (reference.maker or reference_of(case.source.kind)[1].name) + few
        has_weights, distinct = has_own_weights(case.source), distinct_items(model.specs)
        result.figures |= parity.figures(differences, pairs, has_weights, distinct, case.precision)
        result.worst = parity.worst(differences, case.precision)


def _note_unsteady(session: Session, outputs: Sequence[Array], why: str, result: Result) -> None:
    """Warn that nothing can be compared, and say whether this engine answers equal calls alike."""
    result.figures["rel_l2_error"] = None
    before = [array.copy() for array in outputs]
    session.run(ignore)
    if not all(np.isfinite(output).all() for output in before):
        result.fail(_NOT_FINITE)
    differs = ", and this engine answers the same call alike" if parity.alike(before, session.outputs()) else ""
    result.warnings.append(Warning("unchecked-outputs", f"{why}{differs}"))


def pairs_of(
    task: Task, names: Sequence[str], runs: Sequence[Sequence[Array]], reference: parity.Outputs
) -> tuple[list[Pair], list[str]]:
    """Pair the outputs of all runs with the reference's, without padding and by rank; also list unpaired outputs."""
    ours = parity.Outputs.of_runs(names, runs, task.case.batch_size)
    pairs, problems = parity.align(ours, reference, task.case.source.outputs)
    bare = partial(parity.without_padding, specs=task.prepared.specs)
    pairs = [replace(pair, ours=bare(pair.ours), truth=bare(pair.truth)) for pair in pairs]
    return matched(pairs, task.case.precision), problems


def _some(reasons: Sequence[str]) -> str:
    rest = [f"and {len(reasons) - _LISTED} more"] if len(reasons) > _LISTED else []
    return "; ".join([*reasons[:_LISTED], *rest])


# Gradients.


def _check_training(task: Task, session: Session, outputs: Sequence[Array], result: Result) -> None:
    """Check that loss or outputs are finite where the reference's are, then check the gradients."""
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
    case, items = task.case, reference_items(microbatch(task.case))
    assert isinstance(session, Trainable), f"{case.engine} trains and cannot show its gradients"
    inputs = seeded_inputs(task.prepared.specs, case.batch_size, items)
    output, gradients = session.gradients(inputs, truth.target)
    output = corner(output, truth.result.shape)
    result.reference = "step-fp64-cpu"
    if unlike(output, truth.result):
        result.take(parity.judge(case.precision, [parity.compare(Pair(output, truth.result))]))
        return
    error = deviation(output, gradients, truth)
    result.figures |= {"loss_error": error.result, "gradient_error": error.gradient}
    usual = reference.deviation_at(case.precision, case.batch_size)
    result.take(judge_gradients(case.precision, error, usual, truth.norms))


def judge_reference(truth: Gradients, batch: int, drawn: str = "") -> Finding:
    """Return the reason why a reference cannot check this batch size; None if it can.

    Its step may be random or depend on the batch, its loss or gradients may be non-finite, or all its gradients zero.
    """
    if truth.doubt and (truth.doubt != "dependent" or batch != reference_items(batch)):
        return Warning("unchecked-gradients", _DOUBTS[truth.doubt])
    norms = {**truth.norms, **({"the loss": float(truth.result)} if truth.result.ndim == 0 else {})}
    if bad := [name for name, norm in norms.items() if not np.isfinite(norm)]:
        return f"nothing can be compared: the reference itself in fp64 is not finite in {_some(bad)}{drawn}"
    if not truth.norms:
        return Warning("unchecked-gradients", "hooks of the model leave no gradients")
    if not any(truth.norms.values()):
        return Warning("unchecked-gradients", f"the reference's gradients are zero{drawn}")
    return None


def judge_gradients(precision: str, error: Deviation, usual: Deviation, norms: Mapping[str, float]) -> Finding:
    """Judge a row by the errors of loss and gradients: wrong, unusual for the precision, or fine.

    `error` is the session's, `usual` the CPU's at that precision; `norms` belong to the fp64 gradients.
    """
    if not all(np.isfinite(value) for value in (error.result, error.gradient, *error.tensors.values())):
        return f"the gradients are not finite{FP16_ENDS if precision.endswith('fp16') else ''}"
    smallest = NOTABLE * float(np.linalg.norm(list(norms.values())))
    notable = [name for name, norm in norms.items() if norm and (norm >= smallest or is_input(name))]
    wrong = [
        name
        for name in notable
        if error.tensors[name] > max(WRONG, _MOST_TIMES * _finite(usual.tensors[name]))
        or (name in error.zeros and name not in usual.zeros)
    ]
    if wrong:
        worst = max(wrong, key=lambda name: error.tensors[name])
        ours, theirs = (numbers.error(side.tensors[worst]) for side in (error, usual))
        return (
            f"wrong gradients in {len(wrong)} of {len(notable)} large tensors; worst is {worst}: "
            f"relative L2 error {ours} to fp64, usual at {precision} is {theirs}"
        )
    vague = [name for name in notable if _finite(usual.tensors[name]) >= WRONG]
    if vague and precision in ("fp32", "tf32"):
        worst = max(vague, key=lambda name: _finite(usual.tensors[name]))
        off = f"{precision} on the CPU is off by {numbers.error(usual.tensors[worst])} from fp64 in {worst}"
        return Warning("unchecked-gradients", f"{off}: gradients cancel, or backward depends on the type")
    limit = _MOST_TIMES * max(_finite(usual.gradient), _USUAL_FLOOR)
    if error.gradient <= limit:
        return None
    text = f"relative L2 error {numbers.error(error.gradient)} to fp64, usual at {precision} is below"
    return Warning("inaccurate-gradients", f"{text} {numbers.error(limit)}")


# Proof.


def mismatch(case: Case, proof: Proof) -> str | None:
    """Name the facts in the proof that contradict the case's request; None if none do."""
    types, options = proof.compute_types, case.options
    strays = _strays(case, types or {})
    asked = proof.provider or _PROVIDERS[case.device]
    elsewhere = {p: n for p, n in (proof.compute_providers or {}).items() if p != asked}
    changed = [f"{name} from {was} to {now}" for name, (was, now) in (proof.settings_changed or {}).items()]
    no_graph = options.get("cuda_graph") and not proof.cuda_graph and not proof.cuda_graph_fallback
    computed = _counts(types or {}) + _remedy(case, types or {})
    contradictions = {
        f"asked for {case.precision}, and the engine does not say in which types it computed": types is None,
        f"asked for {case.precision}, computed in {computed}": strays and not _mixed(case, proof),
        f"convolutions and products ran on {_counts(elsewhere)}, not on {asked}": elsewhere,
        f"TF32 was {'on' if proof.tf32 else 'off'} at {case.precision}": bool(proof.tf32) != (case.precision == "tf32"),
        "no CUDA graph was captured": no_graph,
        f"the model changed {', '.join(changed)} while it ran": changed,
        "cuDNN was on": options.get("cudnn") is False and proof.cudnn,
    }
    return "; ".join(text for text, holds in contradictions.items() if holds) or None


def _remedy(case: Case, types: Mapping[str, int]) -> str:
    """Name the precision that a factory's own casts compute in."""
    rows = [row for row in PRECISION_TABLE.values() if bool(row.autocast) == (case.pass_ == "training")]
    name = next((row.name for row in rows if row.bits > 8 and [row.compute] == list(types)), None)
    return f": its code casts, measure it at {name}" if name and case.source.kind == "factory" else ""


def remarks(case: Case, proof: Proof) -> list[Warning]:
    """Warn of facts in the proof that matter but contradict nothing."""
    warnings = []
    types = proof.compute_types
    if case.calibrated is False and ENGINES[case.engine].needs == "onnx" and graph_of(case) != DYNAMIC:
        warnings.append(Warning("calibration", "seeded data, so accuracy says nothing"))
    if types and _mixed(case, proof) and (strays := _strays(case, types)):
        share = f"{sum(strays.values())} of {sum(types.values())}"
        reason = f"{share} convolutions and products computed in {' and '.join(sorted(strays))}"
        warnings.append(Warning("mixed-precision", reason))
    if types is not None and (not types or "unknown" in types):
        unknown = types.get("unknown", "all")
        warnings.append(Warning("unproven", f"the types of {unknown} convolutions and products could not be seen"))
    quantized = sorted({*(proof.weight_types or ())} - {*_UNQUANTIZED})
    if quantized and case.precision not in EIGHT_BITS:
        warnings.append(Warning("quantized", f"weights are {' and '.join(quantized)}"))
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


def _static_graph(task: Task) -> list[Warning]:
    why = task.prepared.failures.get(graph_of(task.case))
    if why is None or ENGINES[task.case.engine].needs != "onnx":
        return []
    only = " ".join([f"batch size {task.case.batch_size}", *shape_words(task.case.source.shape)])
    return [Warning("static-graph", f"the graph is for {only} only, since with free sizes {why.reason}")]


def _strays(case: Case, types: Mapping[str, int]) -> dict[str, int]:
    """Count the convolutions and products in other types than the requested one; `native` requests none."""
    asked = PRECISION_TABLE[case.precision].compute
    return {name: count for name, count in types.items() if asked and name not in (asked, "unknown")}


_OWN_TYPES = {"float64", "quint8", "qint8"}
"""Types that only a user's own code or graph chooses."""


def _mixed(case: Case, proof: Proof) -> bool:
    """Return whether types other than the requested one are expected.

    The runtime chooses which operators of a Q/DQ graph run in int8, and not all have an integer kernel; torchao
    quantizes only linear layers. So 8 bits need only one product in 8 bits. A user's model, or a graph given for the
    precision, may compute less than half of its products in fp32, such as rotary embeddings or torch's plain attention,
    and any number in float64 or in quantized layers. TensorRT 8's builder may choose fp32 where it is faster: in
    ConvNeXt all depthwise convolutions.
    """
    types, requested = proof.compute_types or {}, PRECISION_TABLE[case.precision].compute
    if case.precision in EIGHT_BITS:
        return types.get(requested, 0) > 0
    strays = _strays(case, types)
    wider = set(strays) == {"float32"} and types.get(requested, 0) > sum(strays.values())
    is_own_code = case.source.kind == "factory" or case.precision in case.source.graphs
    return (wider and (is_own_code or bool(proof.weakly_typed))) or (is_own_code and set(strays) <= _OWN_TYPES)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count}×)" for name, count in sorted(counts.items()))
