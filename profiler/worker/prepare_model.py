"""Prepare what the cases of a model need before they can run: weights, references, graphs, FLOPs, engines."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch._dynamo import device_interface

import engines
from engines.base import BuiltAhead, Feedable, Job, Named, Phase, Session, Unsupported, ignore
from engines.catalog import ENGINES, reference_of
from engines.requirements import explain, missing
from exporters.build_model import hold, is_shared
from exporters.cache import Cache, code_of, file_sha256
from exporters.calls import chosen
from exporters.errors import sentence
from exporters.factories import called_once
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
from exporters.int8 import DYNAMIC, PLACEMENTS, quantize, quantize_dynamic
from exporters.onnx_export import Export, export_onnx, fp32_graph, to_fp16
from exporters.onnx_files import check_onnx
from exporters.source import Identity, ModelError, ModelSource, digest
from exporters.weights import cached_state, checked, identified, identify, source_key
from profiler.nvml import visible_gpus
from profiler.processes.messages import Entered, Outcome, Progress, Report
from profiler.processes.process import serve
from profiler.worker import parity
from profiler.worker.memory import holding
from profiler.worker.task import (
    MOST_REFERENCE_ITEMS,
    REFERENCE_ITEMS,
    Held,
    Prepared,
    Step,
    Task,
    check_inputs,
    make_job,
    own_graphs,
    usual_items,
)

_CUDA_NOT_INITIALIZED = 3
"""https://docs.nvidia.com/cuda/cuda-driver-api, CUresult."""
_CPU_SECONDS = 60.0
"""Seconds for the reference outputs of a model on the CPU: all of a catalog's networks need less."""
_FURTHER_SECONDS = 3.0
"""Seconds for items beyond those of the first run."""
_FURTHER_BYTES = 2**27
"""Bound of the outputs of all items, where the first run's are not more by themselves."""


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
    failures = {}
    for precision, path in source.graphs.items():
        try:
            check_onnx(path)
        except ModelError as error:
            failures[precision] = Outcome("failed", str(error))
    return Prepared(
        specs,
        state,
        reference,
        onnx={precision: export for precision, export in own_graphs(source).items() if precision not in failures},
        failures=failures,
        identity=source.identity,
    )


def hold_model(argument: tuple[ModelSource, Path], report: Report) -> Held:
    """Make a torch module and fork calls from this process, which have it; returns what it made where it cannot serve.

    It computes with one thread and on no device: threads and devices do not survive a fork. Raises
    exporters.source.ModelError.
    """
    source, root = argument
    report(Entered(Phase.BUILD))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with called_once(), described_gpus(), holding():
        source = identified(source)
        made = Held(source, cached_state(source, Cache(root)))
        hold(source, made.state)
    if is_shared(made.state):
        print("nothing is forked from this process, whose model has tensors in shared memory", file=sys.stderr)
    elif _has_cuda():
        print("nothing is forked from this process, in which the model's code initialized CUDA", file=sys.stderr)
    else:
        serve(report, made, threads)
    return made


class _Card(SimpleNamespace):
    """What NVML says of a GPU; whoever asks for more gets it from CUDA, and calls are then not forked from here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda._get_device_properties(0), name)  # type: ignore[attr-defined]


@contextlib.contextmanager
def described_gpus() -> Iterator[None]:
    """Have NVML answer in here who asks torch what the GPU can do, as torchao does when it is imported.

    torch itself would initialize CUDA for it.
    """
    gpus = visible_gpus()
    versions = [tuple(map(int, (gpu.compute_capability or "0.0").split("."))) for gpu in gpus]
    cards = [_Card(name=g.name, major=v[0], minor=v[1]) for g, v in zip(gpus, versions, strict=True)]
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: versions[0],
        "get_device_properties": lambda device=None: cards[0],
    }
    before = {name: getattr(torch.cuda, name) for name in answers}
    for name, answer in answers.items() if gpus else ():
        setattr(torch.cuda, name, answer)
    try:
        yield
    finally:
        for name, usual in before.items():
            setattr(torch.cuda, name, usual)
        device_interface.caching_worker_device_properties.clear()  # Which the compiler asks for more.


def _has_cuda() -> bool:
    """Tell whether something has initialized CUDA in this process, which no fork could use then."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_NOT_INITIALIZED)


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
    free = {name: export.path for name, export in prepared.onnx.items() if " at batch " not in name}
    graph = free.get("fp32") or next(iter(free.values()), None)
    return cached_cost(source, prepared.specs, Cache(root), graph, trains, of_input)


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
    if graph == DYNAMIC:
        return quantize_dynamic(source, cache)
    if source.own_graph is None:
        return export_onnx(source, graph, cache, batch)
    return to_fp16(source, cache) if graph == "fp16" else fp32_graph(source, cache)


def build_ahead(task: Task, report: Report) -> BuiltAhead:
    """Build the case's engine into its cache, so that the builder's memory does not count as the case's."""
    check_inputs(task)
    if task.case.device == "cuda":
        torch.cuda.init()
    job = make_job(task, phase=lambda phase: report(Entered(phase)), progress=lambda text: report(Progress(text)))
    return engines.build(task.case.engine, job)


def cached_reference(source: ModelSource, specs: Sequence[TensorSpec], state: Path | None, cache: Cache) -> Path:
    """Return the file of the reference outputs, made once for all runs.

    Raises ModelError, and Unsupported where the engine that makes them cannot run.
    """
    code = [*code_of("inputs.py", "calls.py"), file_sha256(Path(parity.__file__))]
    engine = importlib.import_module(reference_of(source.kind)[1].module)
    key = digest([source_key(source), *code, str(REFERENCE_ITEMS), str(MOST_REFERENCE_ITEMS), str(engine.__version__)])

    def produce(path: Path) -> None:
        _take_outputs(source, specs, state).save(path)

    return cache.entry("reference", key, ".npz", checked(source, produce))[0]


def _take_outputs(source: ModelSource, specs: Sequence[TensorSpec], state: Path | None) -> parity.Outputs:
    """Run the usual items at once, or one by one those that the CPU can afford."""
    usual, least = usual_items(specs), fixed_batch(specs) or 1
    if usual > least:
        with contextlib.suppress(ModelError):  # Some models cannot run a single item.
            found, are_slow = _run(source, specs, state, least)
            if are_slow:
                return found
    try:
        return _run(source, specs, state, usual)[0]
    except ModelError:
        if fixed_batch(specs) is None:
            with contextlib.suppress(ModelError):  # Some models take pairs or whole clips only.
                return _run(source, specs, state, usual + 1)[0]
        raise


def _run(
    source: ModelSource, specs: Sequence[TensorSpec], state: Path | None, batch: int
) -> tuple[parity.Outputs, bool]:
    """Run a batch in the engine that the catalog names for references, and further ones as far as they are affordable.

    Tell also whether the usual items are too slow to run at once. A smaller batch has no further runs.
    """
    engine, reference = reference_of(source.kind)
    inputs = tuple(seeded_inputs(specs, batch))
    job = Job(
        *(source, "inference", reference.precision, batch, "cpu", reference.options, inputs, state, source.onnx),
        specs=tuple(specs),
    )
    session: Session | None = None
    try:
        session = engines.open_session(engine, job)
        start = perf_counter()
        session.run(ignore)
        first = [array.copy() for array in session.outputs()]  # They may be where the next run writes.
        seconds = perf_counter() - start
        names = session.output_names() if isinstance(session, Named) else [f"y{n}" for n in range(len(first))]
        if not first:
            raise source.error("it returns no tensor; return one, or some in a tuple or a dict")
        chosen(source.outputs, names)
    except (ModelError, Unsupported):
        raise
    except Exception as error:
        raise _no_reference(source, error, specs, batch, getattr(session, "model", None)) from error
    assert isinstance(session, Feedable), "an engine that makes references takes other inputs"
    runs, size, items = [first], sum(array.nbytes for array in first), distinct_items(specs) or MOST_REFERENCE_ITEMS
    usual = usual_items(specs)
    most = batch * affordable_runs(batch, seconds, size, items) if batch == usual else 0
    try:
        runs += parity.further_runs(session, specs, batch, first, lambda items: items < most)
    except Exception:  # Those of the first run are there.
        traceback.print_exc()
    return parity.Outputs.of_runs(names, runs, batch), usual * seconds > _CPU_SECONDS


def affordable_runs(batch: int, seconds: float, size: int, items: int) -> int:
    """Return how many batches of so many seconds and bytes to run, for at most so many `items`."""
    most = min(-(-items // batch), MOST_REFERENCE_ITEMS // batch)
    return max(1, min(most, int(_FURTHER_SECONDS / seconds), _FURTHER_BYTES // max(size, 1)))


def _no_reference(
    source: ModelSource, error: Exception, specs: Sequence[TensorSpec], batch: int, model: object
) -> ModelError:
    """Say why the reference outputs cannot be made, which inputs were given, and what forward takes."""
    why = f"{sentence(error)}; given, in a batch of {batch}: {described(specs)}"
    if any(numpy_dtype(spec.dtype).kind in "biu" for spec in specs):
        why += f"; {HOW_SEEDED}"
    if isinstance(error, TypeError) and isinstance(model, nn.Module):
        why += f"; forward takes {', '.join(inspect.signature(model.forward).parameters)}"
    return source.error(f"its reference outputs cannot be made: {why}")
