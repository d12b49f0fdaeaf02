"""Prepare what the cases of a model need before they can run: weights, references, graphs, FLOPs, engines."""

from __future__ import annotations

import importlib
import inspect
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import engines
from engines.base import Array, BuiltAhead, Feedable, Job, Named, Session, Unsupported, ignore
from engines.catalog import ENGINES, reference_of
from engines.requirements import explain, missing
from exporters.cache import Cache, code_of, file_sha256
from exporters.calls import chosen
from exporters.errors import message, sentence
from exporters.flops import Cost, cached_cost
from exporters.gradient_reference import cached_gradients
from exporters.gradients import GradientReference
from exporters.inputs import (
    HOW_SEEDED,
    TensorSpec,
    described,
    dimensions_of,
    distinct_items,
    fixed_batch,
    numpy_dtype,
    seeded_inputs,
)
from exporters.int8 import PLACEMENTS, quantize
from exporters.onnx_export import Export, ExportError, export_onnx, fp32_graph, refused_graphs, to_fp16
from exporters.onnx_files import check_onnx
from exporters.source import Identity, ModelError, ModelSource, digest
from exporters.weights import cached_state, checked, identified, identify, source_key
from profiler.processes.messages import Entered, Outcome, Progress, Report, Salvage
from profiler.worker import parity
from profiler.worker.task import (
    MOST_REFERENCE_ITEMS,
    REFERENCE_ITEMS,
    Prepared,
    Step,
    Task,
    check_inputs,
    is_for_one_batch,
    make_job,
    own_graphs,
    usual_items,
)

_CPU_SECONDS = 60.0
"""Seconds for the reference outputs of a model on the CPU: all of a catalog's networks need less."""
_FURTHER_SECONDS = 10.0
"""Seconds for items beyond those of the first run."""
_FURTHER_BYTES = 2**27
"""Bound of the outputs of all items, where the first run's are not more by themselves."""
_OF_VALUES = re.compile(r"(?<!Dimension )out of (\w+ )?(range|bounds)|device-side assert", re.IGNORECASE)
"""Match errors of torch, numpy and ONNX Runtime for an index that is too large: the inputs' values are at fault."""


def prepare_model(argument: tuple[ModelSource, Path], report: Report) -> Prepared:
    """Make identity, input shapes, fp32 weights and reference outputs of a model.

    Raises exporters.source.ModelError, and Unsupported where the engine that makes reference outputs is not installed.
    """
    source, root = argument
    cache = Cache(root)
    if source.onnx is not None:
        check_onnx(source.onnx)
    maker = ENGINES[reference_of(source.kind)[0]]
    if lacking := missing(maker, "cpu"):
        raise Unsupported(f"outputs of an ONNX file are checked against {maker.library}'s: {explain(lacking)}")
    source = identified(source)
    specs = source.specs or ()
    state = None if source.kind == "onnx" else cached_state(source, cache)
    reference = cached_reference(source, specs, state, cache)
    failures = {name: Outcome("failed", why) for name, why in refused_graphs(source, specs).items()}
    return Prepared(
        specs,
        state,
        reference,
        tuple(array.shape for array in parity.read_outputs(reference).values()),
        onnx={precision: export for precision, export in own_graphs(source).items() if precision not in failures},
        failures=failures,
        identity=source.identity,
    )


def identify_model(argument: tuple[ModelSource, Path], report: Report) -> Identity:
    """Tell what the model is now. Raises exporters.source.ModelError."""
    return identify(argument[0])


def look_at_dimensions(source: ModelSource, report: Report) -> list[str]:
    """Name the sizes in the inputs of a library's model. Raises exporters.source.ModelError."""
    return dimensions_of(source)


def prepare_cost(argument: tuple[ModelSource, Prepared, bool, bool, Path], report: Report) -> Cost:
    """Count what the model must compute and read at least, in training too if the third argument says so, there with
    the gradient of its input if the fourth does."""
    source, prepared, trains, of_input, root = argument
    # FLOPs are the same in every precision's graph.
    free = {name: export.path for name, export in prepared.onnx.items() if not is_for_one_batch(name)}
    graph = free.get("fp32") or next(iter(free.values()), None)
    return cached_cost(source, prepared.specs, Cache(root), graph, trains, lambda cost: report(Salvage(cost)), of_input)


def prepare_gradients(argument: tuple[ModelSource, Prepared, Step, Path], report: Report) -> GradientReference:
    """Take the first training step in fp64, and measure how far from it the same step is as rows take it."""
    source, prepared, step, root = argument
    assert prepared.state is not None, "what trains is a torch module"
    given = source, prepared.specs, prepared.state, step.head, step.items, step.precisions, Cache(root)
    return cached_gradients(*given, step.batches, step.of_input)


def prepare_export(argument: tuple[ModelSource, str, int | None, Path], report: Report) -> Export:
    """Export the graph, for any batch size or for that one; a model with a graph of its own gives one made of that.

    Raises exporters.source.ModelError.
    """
    source, graph, batch, root = identified(argument[0]), *argument[1:]
    cache = Cache(root)
    if graph in PLACEMENTS:
        return quantize(source, cache, graph)
    if source.own_graph is None:
        try:
            return export_onnx(source, graph, cache, batch)
        except ExportError as error:
            report(Salvage(error.why))  # What a row says that several tries came to.
            raise
    return to_fp16(source, cache) if graph == "fp16" else fp32_graph(source, cache)


def build_ahead(task: Task, report: Report) -> BuiltAhead:
    """Build the case's engine into its cache, so that the builder's memory does not count as the case's."""
    check_inputs(task)
    if task.case.device == "cuda":
        torch.cuda.init()
    job = make_job(task, phase=lambda phase: report(Entered(phase)), progress=lambda text: report(Progress(text)))
    return engines.build(task.case.engine, job)


@dataclass(frozen=True)
class _Outputs:
    """Outputs of a session's first run and, by number, of further items; the seconds that it took."""

    names: Sequence[str]
    arrays: Sequence[Array]
    further: Mapping[int, Array]
    batch: int
    items: int
    seconds: float


def cached_reference(source: ModelSource, specs: Sequence[TensorSpec], state: Path | None, cache: Cache) -> Path:
    """Return the file of the reference outputs, made once for all runs.

    Raises ModelError, and Unsupported where the engine that makes them cannot run.
    """
    code = [*code_of("inputs.py", "calls.py"), file_sha256(Path(parity.__file__))]
    engine = importlib.import_module(reference_of(source.kind)[1].module)
    key = digest([source_key(source), *code, str(REFERENCE_ITEMS), str(MOST_REFERENCE_ITEMS), str(engine.__version__)])

    def produce(path: Path) -> None:
        found = _take_outputs(source, specs, state)
        parity.write_outputs(path, found.names, found.arrays, found.batch, found.items, found.further)

    return cache.entry("reference", key, ".npz", checked(source, produce))[0]


def _take_outputs(source: ModelSource, specs: Sequence[TensorSpec], state: Path | None) -> _Outputs:
    """Run the items that the CPU can afford, estimated from one item where the batch is free."""
    usual, least = usual_items(specs), fixed_batch(specs) or 1
    if usual == least:
        return _run(source, specs, state, usual)
    try:
        first = _run(source, specs, state, least, goes_on=False)
    except ModelError:  # Some models cannot run a single item.
        return _run(source, specs, state, usual)
    items = affordable(first.seconds)
    return first if items == least else _run(source, specs, state, items)


def _run(
    source: ModelSource, specs: Sequence[TensorSpec], state: Path | None, batch: int, goes_on: bool = True
) -> _Outputs:
    """Run a batch in the engine that the catalog names for references, and further ones where it `goes_on`."""
    engine, reference = reference_of(source.kind)
    inputs = tuple(seeded_inputs(specs, batch))
    job = Job(
        *(source, "inference", reference.precision, batch, "cpu", reference.options, inputs, state, source.onnx),
        specs=tuple(specs),
    )
    session: Session | None = None
    try:
        session = engines.open_session(engine, job)
        start = time.perf_counter()
        session.run(ignore)
        arrays = session.outputs()
        seconds = time.perf_counter() - start
        names = session.output_names() if isinstance(session, Named) else [f"y{n}" for n in range(len(arrays))]
        if not arrays:
            raise source.error("it returns no tensor; return one, or some in a tuple or a dict")
        chosen(source.outputs, names)
    except (ModelError, Unsupported):
        raise
    except Exception as error:
        raise _no_reference(source, error, specs, getattr(session, "model", None)) from error
    arrays = [array.copy() for array in arrays]  # They may be where the next run writes.
    further = _further(session, specs, arrays, batch, seconds) if goes_on else {}
    items = batch + next((len(rows) for rows in further.values()), 0)
    return _Outputs(names, arrays, further, batch, items, seconds)


def _further(
    session: Session, specs: Sequence[TensorSpec], arrays: Sequence[Array], batch: int, seconds: float
) -> dict[int, Array]:
    """Return further items by number of the outputs that have their items first; none where a shape varies."""
    assert isinstance(session, Feedable), "an engine that makes references takes other inputs"
    runs = _runs(batch, seconds, sum(array.nbytes for array in arrays), distinct_items(specs))
    rows: dict[int, list[Array]] = {n: [] for n, array in enumerate(arrays) if array.shape[:1] == (batch,)}
    try:
        for first in range(batch, runs * batch if rows else 0, batch):
            session.feed(seeded_inputs(specs, batch, first=first))
            session.run(ignore)
            outputs = session.outputs()
            if [array.shape for array in outputs] != [array.shape for array in arrays]:
                return {}
            for number, taken in rows.items():
                taken.append(outputs[number].copy())
    except Exception:  # Those of the first run are there.
        traceback.print_exc()
        return {}
    return {number: np.concatenate(taken) for number, taken in rows.items() if taken}


def affordable(seconds: float) -> int:
    """Return the batch size that the CPU can afford, if an item takes so many seconds: 8, 4, 2, or 1."""
    items = REFERENCE_ITEMS
    while items > 1 and items * seconds > _CPU_SECONDS:
        items //= 2
    return items


def _runs(batch: int, seconds: float, size: int, distinct: int | None) -> int:
    """Return how many batches of so many seconds and bytes are affordable: 64 items, or half as often 32, 16, …."""
    runs = max(min(MOST_REFERENCE_ITEMS, distinct or MOST_REFERENCE_ITEMS) // batch, 1)
    while runs > 1 and (runs * seconds > _FURTHER_SECONDS or runs * size > _FURTHER_BYTES):
        runs //= 2
    return runs


def _no_reference(source: ModelSource, error: Exception, specs: Sequence[TensorSpec], model: object) -> ModelError:
    """Say why the reference outputs cannot be made, which inputs were given, and what forward takes."""
    why = sentence(error)
    if _OF_VALUES.search(why + message(error)) and any(numpy_dtype(spec.dtype).kind in "biu" for spec in specs):
        why += f"; {HOW_SEEDED}"
    why += f"; given: {described(specs)}"
    if isinstance(error, TypeError) and isinstance(model, nn.Module):
        why += f", and forward takes {', '.join(inspect.signature(model.forward).parameters)}"
    return source.error(f"its reference outputs cannot be made: {why}")
