"""Score a session's outputs on the user's items, apart from timing."""

from __future__ import annotations

from collections.abc import Callable

from engines.base import Array, Session, ignore
from exporters.calls import chosen
from exporters.dataset import scored_count
from exporters.inputs import TensorSpec, seeded_inputs, stored
from exporters.metrics import Metric, Scores, metric_of, score
from exporters.source import ModelError, ModelSource
from profiler.worker.parity import Outputs, axes_of
from profiler.worker.task import Task


def is_scored(task: Task) -> bool:
    """Tell whether this process scores its outputs: the first one of a configuration with labels."""
    return has_labels(task) and not task.case.replicate and not task.only_fits


def has_labels(task: Task) -> bool:
    """Tell whether labels score the configuration's outputs: in inference, at the shape of the user's items."""
    if not task.scores or not task.prepared.labels or task.case.pass_ != "inference":
        return False
    by_item = [spec for spec in task.prepared.specs if spec.data and spec.item_axis is not None]
    return all(stored(spec.data).shape[1:] == _item_shape(spec) for spec in by_item)


def _item_shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(spec.at(1)) if axis != spec.item_axis)


def score_items(task: Task, session: Session, goes_on: Callable[[], bool]) -> list[float]:
    """Return the scores of the first items, while `goes_on()`.

    Raises ModelError for outputs or a metric that give no scores.
    """
    specs, batch, source = task.prepared.specs, task.case.batch_size, task.case.source
    labels = stored(task.prepared.labels)
    metric, total, scores = metric_of(source.metric, labels), scored_count(len(labels)), list[float]()
    for first in range(0, total, batch):
        if not goes_on():
            break
        session.feed(seeded_inputs(specs, batch, first=first))
        session.run(ignore)
        run = session.outputs()
        outputs = Outputs.of_runs(session.output_names(), [run], batch, axes=(*axes_of(specs), 0))
        scores += _scores(source, metric, outputs, labels[first : min(first + batch, total)]).tolist()
    return scores


def check_metric(source: ModelSource, reference: Outputs) -> None:
    """Score the reference's items, so that a misfit shows before anything is measured. Raises ModelError."""
    labels = stored(source.labels)
    count = min(scored_count(len(labels)), reference.items)
    with source.failing("scoring the reference's outputs", "mend the metric or the labels"):
        _scores(source, metric_of(source.metric, labels), reference, labels[:count])


def _scores(source: ModelSource, metric: Metric, outputs: Outputs, labels: Array) -> Scores:
    """Score the first items of the selected outputs that hold items."""
    names = list(outputs.arrays)
    rows = [outputs.rows(names[place]) for place in chosen(source.outputs, names)]
    parts = tuple(row[: len(labels)] for row in rows if row is not None)
    if not parts:
        raise ModelError("no output of the model holds items")
    return score(metric, parts if len(parts) > 1 else parts[0], labels)
