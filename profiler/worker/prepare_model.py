"""Prepare what the cases of a model need before they can run: weights, references, graphs, FLOPs, engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

import engines
from engines.base import BuiltAhead, Job, Unsupported
from engines.catalog import ENGINES, Device, Options, reference_of
from engines.requirements import explain, missing
from exporters.cache import Cache
from exporters.flops import Cost, cached_cost, quantized_products
from exporters.gradient_reference import cached_gradients
from exporters.gradients import GradientReference
from exporters.inputs import TensorSpec, dimensions_of, input_specs
from exporters.int8 import PLACEMENTS, quantize
from exporters.onnx_export import Export, ExportError, export_onnx, fp32_graph, refused_graphs, to_fp16
from exporters.onnx_files import check_onnx, read_onnx
from exporters.source import Identity, ModelSource
from exporters.weights import cached_state, identified, identify
from profiler.processes.messages import Entered, Outcome, Progress, Report, Salvage
from profiler.worker.outputs import read_facts, read_outputs
from profiler.worker.reference_outputs import cached_reference
from profiler.worker.task import Prepared, Task, check_inputs, is_for_one_batch, make_job, own_graphs


def prepare_model(argument: tuple[ModelSource, Sequence[Device], Path], report: Report) -> Prepared:
    """Identity, input shapes, fp32 weights and reference outputs of a model, those on one of the devices.

    Raises exporters.source.ModelError, and Unsupported where the engine that makes reference outputs is not installed.
    """
    source, devices, root = argument
    cache = Cache(root)
    check_source(source)
    specs, source = tuple(input_specs(source)), identified(source)
    state = None if source.kind == "onnx" else cached_state(source, cache)
    reference = cached_reference(source, specs, state, devices, cache)
    changed, taken = read_facts(reference)
    outputs = tuple(array.shape for array in read_outputs(reference).values())
    quantized = (0, 0) if source.onnx is None else quantized_products(read_onnx(source.onnx).graph)
    failures = refusals(source, specs)
    return Prepared(
        specs,
        state,
        reference,
        outputs,
        changed,
        taken,
        onnx={precision: export for precision, export in own_graphs(source).items() if precision not in failures},
        failures=failures,
        identity=source.identity,
        quantized=quantized,
    )


def refusals(source: ModelSource, specs: Sequence[TensorSpec]) -> dict[str, Outcome]:
    """By precision why the file that a job gives for it cannot run."""
    return {precision: Outcome("failed", why) for precision, why in refused_graphs(source, specs).items()}


def check_source(source: ModelSource) -> None:
    """What can be said of a model before it is made: an ONNX file, and what its reference outputs need.

    Raises exporters.source.ModelError for the file, and Unsupported where the engine that makes them is not installed.
    """
    if source.onnx is not None:
        check_onnx(source.onnx)
    maker = ENGINES[reference_of(source.kind)[0]]
    if lacking := missing(maker, "cpu"):
        raise Unsupported(f"outputs of an ONNX file are checked against {maker.library}'s: {explain(lacking)}")


def identify_model(argument: tuple[ModelSource, Path], report: Report) -> Identity:
    """What the model is now. Raises exporters.source.ModelError."""
    return identify(argument[0])


def look_at_dimensions(source: ModelSource, report: Report) -> list[str]:
    """Name the sizes in the inputs of a library's model. Raises exporters.source.ModelError."""
    return dimensions_of(source)


def prepare_cost(argument: tuple[ModelSource, Prepared, bool, bool, Path], report: Report) -> Cost:
    """What the model must compute and read at least, in training too if the third argument says so, there with the
    gradient of its input if the fourth does."""
    source, prepared, trains, of_input, root = argument
    # FLOPs are the same in every precision's graph.
    free = {name: export.path for name, export in prepared.onnx.items() if not is_for_one_batch(name)}
    graph = free.get("fp32") or next(iter(free.values()), None)
    return cached_cost(source, prepared.specs, Cache(root), graph, trains, lambda cost: report(Salvage(cost)), of_input)


def prepare_gradients(
    argument: tuple[ModelSource, Prepared, str, int, bool, Sequence[str], Sequence[int], Path], report: Report
) -> GradientReference:
    """What the first training step gives in fp64 over that many items, with the gradient of the input if the fifth
    argument says so, and how far from it the same step is at the precisions and batch sizes."""
    source, prepared, head, items, of_input, precisions, batches, root = argument
    assert prepared.state is not None, "what trains is a torch module"
    return cached_gradients(
        source, prepared.specs, prepared.state, head, items, precisions, Cache(root), batches, of_input
    )


def prepare_export(argument: tuple[ModelSource, str, int | None, Path], report: Report) -> Export:
    """The exported graph, of any batch size or of that one; of a model with a graph of its own one made of that.

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
    """Have the case's engine built into its cache: memory that a builder takes is not to count as the case's."""
    return engines.build(task.case.engine, _job(task, report))


def _job(task: Task, report: Report) -> Job[Options]:
    """What an engine opens ahead of the process that measures."""
    check_inputs(task)
    if task.case.device == "cuda":
        torch.cuda.init()
    return make_job(task, phase=lambda phase: report(Entered(phase)), progress=lambda text: report(Progress(text)))
