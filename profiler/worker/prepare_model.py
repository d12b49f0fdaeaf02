"""Prepare a model for its cases: weights, references, graphs, FLOPs, engines."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import math
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo import device_interface
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import engines
from engines.base import Array, BuiltAhead, Job, Phase, Session, Unsupported, ignore
from engines.catalog import ENGINES, reference_of
from engines.options import PLAIN, Training
from engines.requirements import explain
from exporters import settings
from exporters.build_model import has_images, hold, is_shared
from exporters.cache import Cache, code_of, file_sha256
from exporters.calls import call, chosen, content, parts_of, tensors_in
from exporters.errors import sentence, text_of
from exporters.factories import called_once
from exporters.float64 import evaluate, with_exact_sigmoids
from exporters.flops import Cost, cached_cost
from exporters.gradient_reference import cached_gradients
from exporters.gradients import GradientReference, Step
from exporters.inputs import (
    TensorSpec,
    described,
    dimensions_of,
    distinct_items,
    fixed_batch,
    how_drawn,
    numpy_dtype,
    seeded_inputs,
)
from exporters.int8 import DYNAMIC, PLACEMENTS, quantize, quantize_dynamic
from exporters.onnx_export import Export, export_onnx, fp32_graph, to_fp16
from exporters.onnx_files import check_onnx
from exporters.source import Identity, ModelError, ModelSource, digest
from exporters.weights import cached_state, checked, identified, identify, source_key
from profiler.machine.nvml import visible_gpus
from profiler.processes.messages import Entered, Outcome, Progress, Report
from profiler.processes.process import serve
from profiler.worker import parity, ranked_rows
from profiler.worker.accuracy import check_metric
from profiler.worker.memory import holding
from profiler.worker.task import (
    MOST_REFERENCE_ITEMS,
    REFERENCE_ITEMS,
    HeldModel,
    Prepared,
    Task,
    check_inputs,
    make_job,
    own_graphs,
)

_CUDA_NOT_INITIALIZED = 3
"""https://docs.nvidia.com/cuda/cuda-driver-api, CUresult."""
_CPU_SECONDS = 60.0
"""Seconds for a model's reference outputs on the CPU, and for its further items: the catalog's networks need less."""
_FIRST_BYTES = 2**30
"""Most bytes of a reference's outputs for the measured batch."""
_EXACT_SECONDS = 5.0
"""Seconds for an optional evaluation in float64."""
_ROUNDING = 1e-4
"""Largest relative L2 error of fp32 to float64 that rounding explains."""
_FP32_SHARE = 0.1
"""ONNX Runtime's error is due to fp32 if onnx's evaluator in fp32 has at least this share of it."""
_FURTHER_WORK = 11 * 10**11
"""Most FLOPs of an item times the square of the number of items: 7 texts in BERT, 17 images in ResNet-18."""
_FURTHER_BYTES = 2**27
"""Most bytes of outputs of all items, unless the first run alone exceeds them."""

_PLAIN = (int, float, str, bool, bytes, type(None))
"""Types of attributes that are a module's state, besides tensors."""
_NO_TENSORS = (*_PLAIN, complex, range, Enum, np.generic, torch.device, torch.dtype)
"""Types of results that hold no tensors."""
_MODULE = vars(nn.Module()).keys()
"""Attributes of every module."""


def prepare_model(argument: tuple[ModelSource, Path], report: Report) -> Prepared:
    """Make a model's identity, input shapes and fp32 weights, and check its .onnx files.

    Raises exporters.source.ModelError, and Unsupported if the engine for reference outputs is not installed.
    """
    source, root = argument
    if source.onnx is not None:
        check_onnx(source.onnx)
    maker, reference = reference_of(source.kind)
    if why := explain(reference.requirement):
        raise Unsupported(f"outputs of an ONNX file are checked against {ENGINES[maker].library}'s: {why}")
    source = identified(source)
    failures = {}
    for precision, path in source.graphs.items():
        try:
            check_onnx(path)
        except ModelError as error:
            failures[precision] = Outcome("failed", str(error))
    state = None if source.kind == "onnx" else cached_state(source, Cache(root))
    return Prepared(
        source.specs or (),
        state,
        has_images=state is None or has_images(source, state),
        onnx={precision: export for precision, export in own_graphs(source).items() if precision not in failures},
        failures=failures,
        identity=source.identity,
        labels=source.labels,
    )


def prepare_reference(argument: tuple[ModelSource, Path | None, int, Path], report: Report) -> Path:
    """Make the reference outputs of a call at one batch size. Raises exporters.source.ModelError."""
    source, state, batch, root = argument
    source = identified(source)
    return cached_reference(source, source.specs or (), state, Cache(root), batch)


def hold_model(argument: tuple[ModelSource, Path], report: Report) -> HeldModel:
    """Make a torch module, and fork calls that share it from this process; return it if that is impossible.

    Computes with one thread and on no device: neither threads nor devices survive a fork. Raises
    exporters.source.ModelError.
    """
    source, root = argument
    report(Entered(Phase.BUILD))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with called_once(), described_gpus(), holding():
        source = identified(source)
        state = cached_state(source, Cache(root))
        hold(source, state)
        model = HeldModel(source, state, has_images(source, state))
    if is_shared(model.state):
        print("nothing is forked from this process, whose model has tensors in shared memory", file=sys.stderr)
    elif _has_cuda():
        print("nothing is forked from this process, in which the model's code initialized CUDA", file=sys.stderr)
    else:
        serve(report, model, threads)
    return model


class _Card(SimpleNamespace):
    """A GPU's properties from NVML. Others come from CUDA; nothing can be forked from this process after that."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda._get_device_properties(0), name)  # type: ignore[attr-defined]


@contextlib.contextmanager
def described_gpus() -> Iterator[None]:
    """Answer questions about the GPU from NVML, such as torchao's on import: torch would initialize CUDA."""
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
        device_interface.caching_worker_device_properties.clear()  # The compiler needs all properties.


def _has_cuda() -> bool:
    """Return whether this process has initialized CUDA: its forks could not use it then."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_NOT_INITIALIZED)


def identify_model(argument: tuple[ModelSource, Path], report: Report) -> Identity:
    """Return the model's present identity. Raises exporters.source.ModelError."""
    return identify(argument[0])


def look_at_dimensions(source: ModelSource, report: Report) -> list[str]:
    """Return the names of the sizes in a model's inputs. Raises exporters.source.ModelError."""
    return dimensions_of(source)


def prepare_cost(argument: tuple[ModelSource, Prepared, Training | None, Path], report: Report) -> Cost:
    """Count the fewest FLOPs and bytes that a model needs, in training too if it is trained."""
    source, prepared, training, root = argument
    # All precisions have the same FLOPs.
    free = {name: export.path for name, export in prepared.onnx.items() if " at batch " not in name}
    graph = free.get("fp32") or next(iter(free.values()), None)
    step = training or PLAIN
    settings = step.input_gradient, step.frozen, step.head
    return cached_cost(source, prepared.specs, Cache(root), graph, training is not None, *settings)


def prepare_gradients(argument: tuple[ModelSource, Prepared, Step, Path], report: Report) -> GradientReference:
    """Take the first training step in fp64, and measure the errors of the same step at the rows' precisions."""
    source, prepared, step, root = argument
    assert prepared.state is not None, "only torch modules are trained"
    return cached_gradients(source, prepared.specs, prepared.state, step, Cache(root))


def prepare_export(argument: tuple[ModelSource, str, int | None, Path], report: Report) -> Export:
    """Export the graph for any batch size or for one, or derive it from a user's file. Raises ModelError."""
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
    """Build the case's engine into its cache: the builder's memory must not count as the case's."""
    check_inputs(task)
    if task.case.device == "cuda":
        torch.cuda.init()
    job = make_job(task, phase=lambda phase: report(Entered(phase)), progress=lambda text: report(Progress(text)))
    return engines.build(task.case.engine, job)


def cached_reference(
    source: ModelSource, specs: Sequence[TensorSpec], state: Path | None, cache: Cache, batch: int
) -> Path:
    """Return the cached file of the reference outputs at a batch size. Raises ModelError and Unsupported."""
    engine = importlib.import_module(reference_of(source.kind)[1].module)
    files = (parity.__file__, ranked_rows.__file__, __file__, str(engine.__file__))
    code = [*code_of("inputs.py", "calls.py", "float64.py"), *map(file_sha256, map(Path, files))]
    key = digest([source_key(source), *code, batch, MOST_REFERENCE_ITEMS, str(engine.__version__)])

    def produce(path: Path) -> None:
        counted = cached_cost(source, specs, cache, source.onnx) if source.onnx else Cost()
        outputs = _take_outputs(source, specs, state, counted.inference, fixed_batch(specs) or batch)
        if source.labels:
            check_metric(source, outputs)
        outputs.save(path)

    return cache.entry("reference", key, ".npz", checked(source, produce))[0]


def _take_outputs(
    source: ModelSource, specs: Sequence[TensorSpec], state: Path | None, flops: int | None, batch: int
) -> parity.Outputs:
    """Run the measured batch, or fewer items if the CPU is too slow: REFERENCE_ITEMS, or as few as run alone."""
    alone, affordable, run = None, batch, partial(_run, settings.read(), source, specs, state, flops)
    for few in (few for few in (1, 2) if few < batch and fixed_batch(specs) is None):
        with contextlib.suppress(ModelError):  # Batch normalization in training mode cannot run a single item.
            alone, seconds, size = run(few, first=batch - few, is_single=True)
            if max(seconds / _CPU_SECONDS, size / _FIRST_BYTES) * batch > few:
                affordable = 1 if seconds * REFERENCE_ITEMS > few * _CPU_SECONDS else min(REFERENCE_ITEMS, batch)
            break
    if alone is not None and affordable < batch:
        with contextlib.suppress(ModelError):
            alone = run(alone.batch, first=max(affordable - alone.batch, 0), is_single=True)[0]
    if affordable == 1 and alone is not None:  # What refuses a single item most likely depends on the batch.
        return replace(alone, dependent=alone.batch > 1)
    try:
        together = run(affordable)[0]
    except ModelError as error:
        if affordable <= REFERENCE_ITEMS:
            if alone is not None:  # The graph's batch is free by name alone.
                error.args = (f"{error}; it runs at --batch {alone.batch}",)
            raise
        with contextlib.suppress(ModelError):  # The host may run out of memory before a GPU does.
            return run(REFERENCE_ITEMS)[0]
        raise
    if alone is not None and together.maker:
        alone = _in_float64(source, specs, alone, affordable - alone.batch)
    if alone is None or together.unsteady:
        return together
    return together.with_items(alone, affordable - alone.batch, partial(ranked_rows.matched, precision="fp32"))


def _run(
    usual: Mapping[str, Any],
    source: ModelSource,
    specs: Sequence[TensorSpec],
    state: Path | None,
    flops: int | None,
    batch: int,
    first: int = 0,
    is_single: bool = False,
) -> tuple[parity.Outputs, float, int]:
    """Run a batch, from the item `first` on, in the engine for references, then affordable further batches.

    Return also the seconds and the bytes of outputs of the first run. `is_single` skips further batches. `flops`
    counts one item of a graph. Restores the `usual` settings: an earlier run may have changed them.
    """
    settings.put_back(usual)
    engine, reference = reference_of(source.kind)
    inputs = tuple(seeded_inputs(specs, batch, first=first))
    job = Job(
        *(source, "inference", reference.precision, batch, "cpu", reference.options, inputs, state, source.onnx),
        specs=tuple(specs),
    )
    session: Session | None = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            graph = source.onnx and with_exact_sigmoids(source.onnx, Path(folder))
            session = engines.open_session(engine, replace(job, onnx=graph))
        model = getattr(session, "model", None)
        before, originals = held_state(model), [tensor.clone() for tensor in getattr(session, "inputs", ())]
        start = perf_counter()
        session.run(ignore)
        outputs = [array.copy() for array in session.outputs()]  # The next run may overwrite them.
        seconds = perf_counter() - start
        changed = changed_places(before, held_state(model))
        spoilt = not all(map(torch.equal, originals, getattr(session, "inputs", ())))
        names = session.output_names()
        if not outputs:
            kind = type(getattr(session, "result", None)).__qualname__
            raise source.error(f"it returned {kind} without a tensor; return tensors, as a list, dict or dataclass too")
        chosen(source.outputs, names)
        unread = ", ".join(dict.fromkeys(unread_types(getattr(session, "result", None))))
        stacked = partial(parity.Outputs.of_runs, names, batch=batch, axes=parity.axes_of(specs), unread=unread)
        session.run(ignore)
        again = session.outputs()
    except (ModelError, Unsupported):
        raise
    except Exception as error:
        why = refusal(source, error, specs, batch, getattr(session, "model", None))
        if re.search("cuda|nvidia", text_of(error), re.IGNORECASE):
            why += "; the reference is made on the CPU: let forward take the device from an input"
        raise source.error(f"its reference outputs cannot be made: {why}") from error
    size = sum(array.nbytes for array in outputs)
    if not parity.alike(outputs, again):
        why = f"keeps state in {changed[0]}" if changed else "draws random numbers, or keeps state in no attribute"
        why = "changes its inputs" if spoilt else why
        return stacked([outputs], unsteady=f"the model {why}"), seconds, size
    if is_single:
        return stacked([outputs]), seconds, size
    if source.onnx is not None and (exact := _exact(source.onnx, specs, inputs, names, outputs)):
        return stacked([exact], maker="onnx-float64"), seconds, size
    runs, items = [outputs], distinct_items(specs) or MOST_REFERENCE_ITEMS
    flops = _flops(session, batch) if source.onnx is None else flops
    limit, end = batch * affordable_runs(batch, flops, size, items), perf_counter() + _CPU_SECONDS
    try:
        runs += parity.further_runs(session, specs, batch, outputs, lambda n: n < limit and perf_counter() < end)
    except Exception:  # The first run suffices.
        traceback.print_exc()
    is_late = perf_counter() >= end
    # A graph remembers no call, and a graph of trees may give equal outputs for all inputs.
    repeats = source.own_graph is None and _repeats(runs)
    # Drawn here, since `inputs` may be the session's memory, which further runs have overwritten.
    if repeats and all(map(np.array_equal, *(seeded_inputs(specs, batch, first=item) for item in (0, batch)))):
        repeats = _repeats([outputs, *_of_drawn_inputs(session, specs, batch)])
    remembers = "the model returns its last outputs for other inputs" if repeats else ""
    # A machine's load must not decide how many items are compared.
    return stacked(runs[: 1 if remembers or is_late else None], unsteady=remembers), seconds, size


def unread_types(result: Any) -> Iterator[str]:
    """Name the types in a result that may hold tensors and that `tensors_in` passes over."""
    if (parts := parts_of(result)) is not None:
        for _, part in parts:
            yield from unread_types(part)
    elif type(result) is not object and not isinstance(result, _NO_TENSORS) and not any(tensors_in(result)):
        yield type(result).__qualname__


def held_state(model: object) -> dict[str, list[Any]]:
    """Copy a module's buffers, tensors and numbers, but no parameters, by their paths; other objects have no state."""
    values: dict[str, list[Any]] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        attributes = {name: value for name, value in vars(module).items() if name not in _MODULE}
        for name, value in {**module._buffers, **attributes}.items():
            leaves = [leaf for leaf in _leaves(value) if isinstance(leaf, (torch.Tensor, *_PLAIN))]
            leaves = [leaf for leaf in leaves if not isinstance(leaf, nn.Parameter)]  # An LSTM lists its own.
            values[f"{path}.{name}".lstrip(".")] = [
                (leaf.dtype, leaf.shape, bytes(content(leaf))) if isinstance(leaf, torch.Tensor) else (type(leaf), leaf)
                for leaf in leaves
            ]
    return values


def _leaves(value: Any) -> list[Any]:
    """Return the leaves of nested containers, which may hold themselves."""
    visited = dict[int, Any]()

    def repeats(part: Any) -> bool:
        is_known = id(part) in visited
        visited[id(part)] = part  # Kept alive, so that no other object gets its id.
        return is_known

    return tree_leaves(value, is_leaf=repeats)


def changed_places(before: Mapping[str, list[Any]], after: Mapping[str, list[Any]]) -> list[str]:
    """Name the places whose values differ."""
    return [place for place in {**before, **after} if before.get(place) != after.get(place)]


def _of_drawn_inputs(session: Session, specs: Sequence[TensorSpec], batch: int) -> list[list[Array]]:
    """Run drawn inputs, since a factory's examples may be zeros; return the outputs, none if the model refuses them.

    A model may well ignore drawn whole numbers, such as tokens, so without floats nothing is run.
    """
    if not any(spec.dtype.startswith("float") for spec in specs):
        return []
    try:
        session.feed(seeded_inputs([replace(spec, data="") for spec in specs], batch))
        session.run(ignore)
        return [[array.copy() for array in session.outputs()]]
    except Exception:
        traceback.print_exc()
        return []


def _repeats(runs: Sequence[Sequence[Array]]) -> bool:
    """Return whether the second run repeated the first one's floats for other inputs."""
    if len(runs) < 2:
        return False
    pairs = [(a, b) for a, b in zip(*runs[:2], strict=True) if a.dtype.kind == "f" and a.size > 1]
    return bool(pairs) and all(np.array_equal(a, b) and np.ptp(a) > 0 for a, b in pairs)


def _exact(
    path: Path,
    specs: Sequence[TensorSpec],
    inputs: Sequence[Array],
    names: Sequence[str],
    first: Sequence[Array],
) -> list[Array] | None:
    """Return float64 outputs if ONNX Runtime's fp32 outputs differ from them by more than rounding.

    onnx's evaluator has faults too, such as in batch norms before opset 14. So its outputs count only if its own fp32
    outputs have a tenth of the error too, or if fp32's rounding of numbers near 1 explains the error.
    """
    feeds = dict(zip((spec.name for spec in specs), inputs, strict=True))
    exact = _evaluated(path, feeds, names, first, double=True)
    if exact is None or (error := _distance(first, exact)) <= _ROUNDING:
        return None
    pairs = zip(first, exact, strict=True)
    if not all(np.allclose(*pair, rtol=0, atol=parity.ROUNDING_NEAR_ONE, equal_nan=True) for pair in pairs):
        single = _evaluated(path, feeds, names, first, double=False)
        if single is None or _distance(single, exact) < _FP32_SHARE * error:
            return None
    return exact


def _evaluated(
    path: Path, feeds: Mapping[str, Array], names: Sequence[str], first: Sequence[Array], double: bool
) -> list[Array] | None:
    """Return the outputs of onnx's evaluator; None if it fails, or if names or shapes differ from `first`."""
    outputs = evaluate(path, feeds, _EXACT_SECONDS, double) or {}
    shapes = [outputs[name].shape if name in outputs else None for name in names]
    return [outputs[name] for name in names] if shapes == [array.shape for array in first] else None


def _in_float64(
    source: ModelSource, specs: Sequence[TensorSpec], alone: parity.Outputs, first: int
) -> parity.Outputs | None:
    """Evaluate items alone in float64, like their batch; return None if that fails."""
    assert source.onnx is not None, "only graphs are evaluated"
    names, outputs = list(alone.arrays), [runs[0] for runs in alone.arrays.values()]
    feeds = dict(zip((spec.name for spec in specs), seeded_inputs(specs, alone.batch, first=first), strict=True))
    exact = _evaluated(source.onnx, feeds, names, outputs, double=True)
    if exact is None:
        return None
    return replace(alone, arrays={name: array[None] for name, array in zip(names, exact, strict=True)})


def _distance(ours: Sequence[Array], exact: Sequence[Array]) -> float:
    """Return the largest error of the outputs; infinity if values that are not finite disagree."""
    errors = [parity.compare(parity.Pair(*pair)).judged for pair in zip(ours, exact, strict=True)]
    return max(error if np.isfinite(error) else np.inf for error in errors)


def affordable_runs(batch: int, flops: int | None, size: int, items: int) -> int:
    """Return the number of batches to run for at most `items`, if an item has `flops` and a batch `size` bytes.

    No clock decides, so that equal cases compare equal items. With unknown FLOPs REFERENCE_ITEMS suffice.
    """
    affordable = REFERENCE_ITEMS if flops is None else math.isqrt(_FURTHER_WORK // max(flops, 1))
    limit = min(-(-items // batch), min(affordable, MOST_REFERENCE_ITEMS) // batch)
    return max(1, min(limit, _FURTHER_BYTES // max(size, 1)))


def _flops(session: Session, batch: int) -> int | None:
    """Count an item's FLOPs in a torch session; return None if that fails."""
    try:
        with FlopCounterMode(display=False) as counter:
            session.run(ignore)
        return int(counter.get_total_flops()) // batch
    except Exception:
        traceback.print_exc()
        return None


def refusal(source: ModelSource, error: Exception, specs: Sequence[TensorSpec], batch: int, model: object) -> str:
    """Say why a model refuses a batch: the error, its inputs, and a batch that runs."""
    why = f"{sentence(error)}; given, in a batch of {batch}: {described(specs)}"
    if any(numpy_dtype(spec.dtype).kind in "biu" for spec in specs):
        why += how_drawn(source, specs)
    if isinstance(error, TypeError) and isinstance(model, nn.Module):
        why += f"; forward takes {', '.join(inspect.signature(model.forward).parameters)}"
    why += "; input is the shape of one item, without the batch" * (source.input_shape is not None)
    items = distinct_items(specs)
    if isinstance(model, nn.Module) and items not in (None, batch):
        device = next((parameter.device for parameter in model.parameters()), None)
        with contextlib.suppress(Exception), torch.inference_mode():
            call(model, specs, [torch.from_numpy(array).to(device) for array in seeded_inputs(specs, items)])
            other_axis = " (or --batch-axis NAME=AXIS for an input of another batch axis)" * (len(specs) > 1)
            why += f"; it runs at its example's batch: --batch {items}{other_axis}"
    return why
