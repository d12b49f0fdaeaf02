"""What enters: a session that trains, and the reference of its gradients. What leaves: its errors, and a verdict."""

from __future__ import annotations

from engines.base import Session, Trainable, Warning
from exporters.gradients import GradientReference, Gradients, deviation, reference_items, tiled
from exporters.inputs import seeded_inputs
from profiler.job.case import Case
from profiler.results.result import Parity, Result
from profiler.worker import checks
from profiler.worker.task import Task

REFERENCE = "step-fp64-cpu"


def is_checked(case: Case) -> bool:
    """Whether the case's gradients are to be compared with a reference."""
    return case.pass_ == "training" and not case.training.dropout


def check_gradients(task: Task, session: Session, result: Result) -> None:
    """Adds the columns loss_error and gradient_error; a row whose gradients are wrong becomes `failed`."""
    case = task.case
    if case.training.dropout:
        result.warnings.append(Warning("unchecked-gradients", "dropout is on, so they are others in every iteration"))
        return
    if not is_checked(case):
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
    result.reference = REFERENCE
    result.parity = Parity(loss_error=found.result, gradient_error=found.gradient)
    own = reference.own_at(case.precision, case.batch_size)
    wrong, remarks = checks.judge_gradients(case.precision, found, own, truth.norms)
    result.warnings += remarks
    if wrong:
        result.fail(wrong)
