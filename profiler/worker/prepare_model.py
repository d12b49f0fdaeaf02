"""Prepare what the cases of a model need before they can run: weights, references, graphs, FLOPs, engines."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import engines
from engines.base import BuiltAhead, Job, Named, Session, Unsupported
from engines.catalog import ENGINES, reference_of
from engines.requirements import explain, missing
from exporters import calls, inputs
from exporters.cache import Cache, file_sha256, key_of
from exporters.calls import chosen
from exporters.errors import sentence
from exporters.flops import Cost, cached_cost
from exporters.gradient_reference import cached_gradients
from exporters.gradients import GradientReference
from exporters.graph_flops import quantized_products
from exporters.inputs import (
    TensorSpec,
    described,
    fixed_batch,
    how_seeded,
    input_specs,
    numpy_dtype,
    read_onnx,
    seeded_inputs,
)
from exporters.int8 import quantize
from exporters.onnx_export import Export, ExportError, check_onnx, export_onnx
from exporters.onnx_files import fp32_graph, refused_graphs, to_fp16
from exporters.source import Identity, ModelError, ModelSource
from exporters.weights import cached_state, checked, identified, identify, source_key
from profiler.processes.messages import Entered, Outcome, Progress, Report, Salvage
from profiler.worker import outputs as kept
from profiler.worker.outputs import changed_inputs, read_outputs, write_outputs
from profiler.worker.task import REFERENCE_ITEMS, Prepared, Task, check_inputs, is_for_one_batch, make_job, own_graphs


def prepare_model(argument: tuple[ModelSource, Path], report: Report) -> Prepared:
    """Identity, input shapes, fp32 weights and reference outputs of a model.

    Raises exporters.source.ModelError, and Unsupported where the engine that makes reference outputs is not installed.
    """
    source, root = argument
    cache = Cache(root)
    check_source(source)
    specs, source = tuple(input_specs(source)), identified(source)
    state = None if source.kind == "onnx" else cached_state(source, cache)
    produce = checked(source, lambda path: _write_reference(source, specs, state, path))
    reference, _ = cache.entry("reference", _reference_key(source), ".npz", produce)
    changed = changed_inputs(reference)
    outputs = tuple(array.shape for array in read_outputs(reference).values())
    quantized = (0, 0) if source.onnx is None else quantized_products(read_onnx(source.onnx).graph)
    failures = refusals(source, specs)
    return Prepared(
        specs,
        state,
        reference,
        outputs,
        changed,
        onnx={precision: path for precision, path in own_graphs(source).items() if precision not in failures},
        failures=failures,
        identity=source.identity,
        quantized=quantized,
        rebuilt=tuple(cache.rebuilt),
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


def no_reference(
    source: ModelSource, error: Exception, specs: Sequence[TensorSpec] = (), taken: Sequence[str] = ()
) -> ModelError:
    """The error that the model does not run where its reference outputs are made; `taken` are forward's parameters."""
    # An index that is out of range, for one.
    has_integers = any(numpy_dtype(spec.dtype).kind in "biu" for spec in specs)
    why = f"{sentence(error)}; {how_seeded(specs)}" if has_integers else sentence(error)
    if "device" in str(error):
        why += "; a tensor that is neither parameter nor buffer stays where it was made: use register_buffer"
    elif source.inputs:
        why += f"; the job gives {described(specs)}"
        why += f", and forward takes {', '.join(taken)}" if taken and isinstance(error, TypeError) else ""
    elif len(taken) > 1 and isinstance(error, TypeError):
        why += f"; forward takes {', '.join(taken)}: give `inputs` for each (--input, once for each)"
    if len(source.input_shape or ()) == 4:  # Right for convolutions in three dimensions only.
        why += f"; `input: {list(source.input_shape or ())}` must be the shape of one item, without the batch"
    elif specs and source.input_shape and not isinstance(error, TypeError) and "device" not in str(error):
        why += f"; the job gives {described(specs)}: correct `input`, or write `inputs` for another type"
    return ModelError(f"model {source.name!r}: its reference outputs cannot be made: {why}")


def identify_model(argument: tuple[ModelSource, Path], report: Report) -> Identity:
    """What the model is now. Raises exporters.source.ModelError."""
    return identify(argument[0])


def prepare_cost(argument: tuple[ModelSource, Prepared, bool, bool, Path], report: Report) -> Cost:
    """What the model must compute and read at least, in training too if the third argument says so, there with the
    gradient of its input if the fourth does."""
    source, prepared, trains, of_input, root = argument
    # FLOPs are the same in every precision's graph.
    free = {name: path for name, path in prepared.onnx.items() if not is_for_one_batch(name)}
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
    source, precision, batch, root = identified(argument[0]), *argument[1:]
    cache = Cache(root)
    if precision == "int8":
        return quantize(source, cache)
    if source.own_graph is None:
        try:
            return export_onnx(source, precision, cache, batch)
        except ExportError as error:
            report(Salvage(error.why))  # What a row says that several tries came to.
            raise
    return to_fp16(source, cache) if precision == "fp16" else fp32_graph(source, cache)


def build_ahead(task: Task, report: Report) -> BuiltAhead:
    """Have the case's engine built into its cache: memory that a builder takes is not to count as the case's."""
    case = task.case
    check_inputs(task)
    if case.device == "cuda":
        torch.cuda.init()
    job = make_job(task, phase=lambda phase: report(Entered(phase)), progress=lambda text: report(Progress(text)))
    return engines.build(case.engine, job)


def open_ahead(task: Task, report: Report) -> None:
    """Open the case's session for nothing but what its library then keeps of it for later processes."""
    check_inputs(task)
    if task.case.device == "cuda":
        torch.cuda.init()
    # A pool of compilers next to each of many processes would be far more of them than cores.
    torch._inductor.config.compile_threads = torch.get_num_threads()
    engines.open_session(task.case.engine, make_job(task, phase=lambda phase: report(Entered(phase))))


def _reference_key(source: ModelSource) -> str:
    """Everything that reference outputs depend on: the model, how inputs are seeded, how many, and what ran them."""
    code = [file_sha256(Path(module.__file__ or "")) for module in (inputs, calls, kept)]
    parts = [source_key(source), *code, str(REFERENCE_ITEMS)]
    return key_of(*parts, str(importlib.import_module(reference_of(source.kind)[1].module).__version__))


def _parameters(session: Session | None) -> list[str]:
    """What the session's module takes; nothing where it has none."""
    model = getattr(session, "model", None)
    return list(inspect.signature(model.forward).parameters) if isinstance(model, torch.nn.Module) else []


def _write_reference(source: ModelSource, specs: tuple[TensorSpec, ...], state: Path | None, path: Path) -> None:
    """Outputs of an ordinary session on the CPU, by the engine that the catalog names."""
    engine, reference = reference_of(source.kind)
    batch = fixed_batch(specs) or REFERENCE_ITEMS
    arrays = tuple(seeded_inputs(specs, batch))
    job = Job(
        source,
        "inference",
        reference.precision,
        batch,
        "cpu",
        reference.options,
        arrays,
        state,
        source.onnx,
        specs=specs,
    )
    session: Session | None = None
    try:
        session = engines.open_session(engine, job)
        session.run(lambda name: None)
        outputs = session.outputs()
        names = session.output_names() if isinstance(session, Named) else [f"y{n}" for n in range(len(outputs))]
        if not outputs:
            raise ModelError(f"model {source.name!r}: it returns no tensor; return one, or some in a tuple or a dict")
        chosen(source.outputs, names)
    except (ModelError, Unsupported):
        raise
    except Exception as error:
        raise no_reference(source, error, specs, _parameters(session)) from error
    # The session's inputs are these very arrays.
    given = zip(specs, arrays, seeded_inputs(specs, batch), strict=True)
    changed = [spec.name for spec, now, then in given if not np.array_equal(now, then, equal_nan=now.dtype.kind == "f")]
    write_outputs(path, names, outputs, ", ".join(changed))
