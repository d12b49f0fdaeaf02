"""Run a graph in TensorRT, or in TensorRT for RTX, whose API has the same names.

Only this module imports their bindings, when an engine is used, so neither has to be installed. It allocates inputs,
outputs and the engine's activations and scratch memory (`USER_MANAGED`), and so knows their size; weights and a
context's persistent memory are TensorRT's own. https://docs.nvidia.com/deeplearning/tensorrt/latest/
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from engines.base import Array, Building, BuiltAhead, Job, Layer, Mark, Memory, Phase, Proof, Unsupported, Warning
from engines.catalog import ENGINES
from engines.deployment import Deployed, copy_graph, copy_run
from engines.device import Allocator, Buffer, capture
from engines.options import TrtOptions
from engines.requirements import missing
from engines.trt_build import BuildRequest, Built, batch_shapes, build_engine, built_for, open_with_plugins
from engines.trt_releases import (
    auxiliary_streams,
    create_context,
    give_scratch,
    is_weakly_typed,
    scratch_bytes,
    weight_bytes,
)
from engines.trt_reports import EngineLayer, forget, joined, logged, logger_of, read_layers, summarize
from exporters.cache import Cache
from exporters.flops import computes, graph_weights
from exporters.inputs import graph_specs
from exporters.onnx_files import read_onnx

_DTYPES: dict[str, torch.dtype] = {
    **{name.upper(): getattr(torch, name) for name in ("float", "half", "int8", "uint8", "int32", "int64", "bool")},
    "BF16": torch.bfloat16,
    "FP8": torch.float8_e4m3fn,
}
_USAGE = """import json
from run import Model

model = Model(json.load(open("config.json")), [{variables}])
model.call()
outputs = model.outputs()"""
_PROFILED_ITERATIONS = 20
_ERROR_CHARACTERS = 400


def library(engine: str) -> Any:
    """Import the module of the engine "trt" or "trt-rtx". Raises Unsupported, which says what to install."""
    row = ENGINES[engine]
    if absent := missing(row, "cuda"):
        raise Unsupported(absent)
    names = row.requirements[0].name.split("|")
    name = next(name for name in names if importlib.util.find_spec(name) is not None)
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise Unsupported(
            f"{name} is installed but does not load ({error}); install its libraries in the version of its bindings: "
            + row.requirements[0].install
        ) from error


def build(job: Job[TrtOptions]) -> BuiltAhead:
    """Build `job`'s engine into the cache unless the cache has it; the option `rebuild` builds in any case."""
    module = library(job.engine)
    request = _request(module, job)
    job.phase(Phase.BUILD)
    built = build_engine(module, request, Cache(), job.progress, job.options.rebuild)
    return BuiltAhead(built.cached, built.warnings)


def deploy(job: Job[TrtOptions], folder: Path, built: Path | None) -> Deployed:
    """Write the built model.engine and its graph."""
    assert built is not None, "an engine that builds gets what it built"
    graph = copy_graph(job, folder)
    shutil.copyfile(built, folder / "model.engine")
    copy_run("run_trt.py", folder)
    return Deployed(
        {**graph, "settings": {"module": library(job.engine).__name__}},
        "model.engine is for {machine} and this version of the library; it was made of model.onnx.",
        _USAGE,
    )


class TrtSession:
    """An engine, built or from the cache, with its execution context, and every buffer bound.

    Raises Unsupported for the library, the GPU or a graph that the parser refuses, ModelError for computed axes and
    misfit inputs, and RuntimeError with the library's log.
    """

    def __init__(self, job: Job[TrtOptions]) -> None:
        self.job = job
        self.library, self.product = library(job.engine), ENGINES[job.engine].library
        self.request = _request(self.library, job)
        self.specs = graph_specs(job.source, job.graph)
        graph = read_onnx(job.graph).graph
        self.results = [value.name for value in graph.output]
        self.nodes = {node.name for node in graph.node}
        self.products = [node.name for node in graph.node if computes(node) and node.name]
        self.warnings: list[Warning] = []
        self.runtime: Any = None
        self.engine: Any = None
        self.runtime_config: Any = None
        self.context: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fallback: str | None = None
        self.allocator = Allocator(job.device)
        self.buffers: dict[str, Buffer] = {}
        """Inputs and outputs."""
        self.scratch: torch.Tensor | None = None
        self.logger = logger_of(self.library)
        # Free in reverse order, if a step fails or when the session closes.
        with contextlib.ExitStack() as stack:
            self.built = self._build()
            stack.callback(self.buffers.clear)
            for name in ("scratch", "runtime", "engine", "runtime_config", "context", "graph"):
                stack.callback(setattr, self, name, None)
            stack.callback(_wait)
            self._load()
            self._bind()
            self.resources = stack.pop_all()

    def run(self, mark: Mark) -> None:
        """Enqueue one inference; with `cuda_graph` the first call enqueues and then captures, and later ones replay."""
        if self.graph is not None:
            self.graph.replay()
            return
        self._enqueue()
        if self.job.options.cuda_graph and self.fallback is None:
            self._capture()

    def feed(self, inputs: Sequence[Array]) -> None:
        _wait()
        names = [spec.name for spec in self.specs]
        for name, array in zip(names, self.job.named_inputs(names, inputs), strict=True):
            self.buffers[name].upload(array)

    def outputs(self) -> list[Array]:
        torch.cuda.current_stream().synchronize()  # A download from the host does not wait.
        return [self.buffers[name].download() for name in self.results]

    def output_names(self) -> list[str]:
        return list(self.results)

    def memory(self) -> Memory:
        weights = weight_bytes(self.library, self.engine)
        if weights is None:
            elements = graph_weights(read_onnx(self.request.onnx))
            weights = sum(count * dtype.itemsize for dtype, count in elements.items())
        return Memory(weights, self.allocator.size, self.allocator.slack)

    def proof(self) -> Proof:
        """Report the inspector's view of the layers and this session's settings."""
        summary = summarize(self._layers(), self.products)
        if self.request.precision == "tf32" and summary["compute_types"] and not summary["tf32_kernels"]:
            self.warnings.append(Warning("unproven", "TF32 was allowed, but no kernel's name shows it"))
        return Proof(
            library=f"{self.product} {self.library.__version__}",
            device="cuda",
            compute_types=summary.pop("compute_types"),
            weakly_typed=is_weakly_typed(self.library) or None,
            # Requested from the builder, or visible in a kernel's name.
            tf32=self.request.precision == "tf32" or summary["tf32_kernels"] > 0,
            cuda_graph=self.graph is not None,
            cuda_graph_fallback=self.fallback,
            build=Building(**{part.name: getattr(self.built, part.name) for part in fields(Building)}),
            warnings=list(self.warnings),
            details=summary
            | {
                "layers": self.engine.num_layers,
                "auxiliary_streams": auxiliary_streams(self.engine),
                "memory_by": self.allocator.name,
            },
        )

    def layers(self) -> list[Layer]:
        """Time the layers by TensorRT's own profiler, outside of any CUDA graph."""
        stream, profiler = torch.cuda.current_stream(), _profiler(self.library)
        self.context.profiler = profiler  # It stays: 8.5 refuses None.
        self.context.enqueue_emits_profile = False
        for _ in range(_PROFILED_ITERATIONS):
            self._enqueue()
            stream.synchronize()
            if not self.context.report_to_profiler():
                raise RuntimeError(f"{self.product} gave no layer times: {self._logged()}")
        described = {layer.name: (layer.kind, layer.nodes) for layer in self._layers()}
        times = {name: ms / _PROFILED_ITERATIONS for name, ms in profiler.ms.items()}
        return [Layer(name, *described.get(name, ("unknown", ())), ms) for name, ms in times.items()]

    def close(self) -> None:
        self.resources.close()

    def _build(self) -> Built:
        self.job.phase(Phase.BUILD)
        built = build_engine(self.library, self.request, Cache(), self.job.progress)
        self.job.phase(Phase.LOAD)
        self.warnings += built.warnings
        if not built.cached:
            included = "peak_memory_mib and other_mib include what building took in this process"
            self.warnings.append(Warning("built-here", f"{included}; the next run takes the engine from the cache"))
        return built

    def _load(self) -> None:
        self.runtime = open_with_plugins(self.library, self.library.Runtime, "runtime")
        self.engine = self.runtime.deserialize_cuda_engine(self.built.path.read_bytes())
        self._check(self.engine, f"cannot load the engine {self.built.path}")
        self.context, self.runtime_config = create_context(self.library, self.engine)
        self._check(self.context, "cannot create an execution context")
        # An engine of detailed verbosity marks every layer's launch for profilers, which costs host time.
        self.context.nvtx_verbosity = self.library.ProfilingVerbosity.NONE

    def _bind(self) -> None:
        names = [self.engine.get_tensor_name(number) for number in range(self.engine.num_io_tensors)]
        specified = [spec.name for spec in self.specs]
        arrays = dict(zip(specified, self.job.named_inputs(specified), strict=True))
        # The outputs' shapes depend on all inputs' shapes, and on the values of inputs that are shapes.
        inputs = [n for n in names if self.engine.get_tensor_mode(n) == self.library.TensorIOMode.INPUT]
        for name in inputs:
            shape = arrays[name].shape
            self._check(self.context.set_input_shape(name, shape), f"refuses the shape {shape} of input {name!r}")
            self._allocate(name, shape)
            self.buffers[name].upload(arrays[name])
        unresolved = self.context.infer_shapes()
        self._check(not unresolved, f"cannot infer the shapes of {', '.join(unresolved)}")
        for name in (n for n in names if n not in inputs):
            shape = tuple(self.context.get_tensor_shape(name))
            if any(size < 0 for size in shape):
                raise Unsupported(f"the shape of output {name!r}, {shape}, depends on values: no buffer can be made")
            self._allocate(name, shape)
        if scratch := scratch_bytes(self.engine, self.context):
            forget(self.logger)
            self.scratch = self.allocator.block(scratch)
            give_scratch(self.context, self.scratch.data_ptr(), scratch)
            self._check(not self.logger.errors, f"refuses {scratch} bytes of scratch memory")

    def _allocate(self, name: str, shape: tuple[int, ...]) -> None:
        kind = self.engine.get_tensor_dtype(name).name
        if kind not in _DTYPES:
            raise Unsupported(f"{name!r} is of TensorRT's type {kind}; inputs and outputs can be {', '.join(_DTYPES)}")
        on_host = self.engine.get_tensor_location(name) == self.library.TensorLocation.HOST
        self.buffers[name] = self.allocator.buffer(shape, _DTYPES[kind], on_host)
        accepted = self.context.set_tensor_address(name, self.buffers[name].bound.data_ptr())
        self._check(accepted, f"refuses the address of {name!r}")

    def _enqueue(self) -> None:
        done = self.context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        self._check(done, "could not enqueue the engine")

    def _capture(self) -> None:
        """Record the engine as a CUDA graph; if that fails, note why and keep enqueueing."""
        stream = torch.cuda.current_stream()
        stream.synchronize()
        self.job.at_peak()  # Capturing first returns the memory that torch's allocator had cached.
        capturable = getattr(self.context, "is_stream_capturable", None)  # Only TensorRT for RTX has it.
        if capturable is not None and not capturable(stream.cuda_stream):
            self.fallback = f"{self.product} says that this engine cannot be captured"
            return
        try:
            self.graph = capture(self._enqueue)
        except RuntimeError as error:
            # Leaving a recording that was broken off raises again.
            first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            self.fallback = joined([str(first)], _ERROR_CHARACTERS)
            forget(self.logger)

    def _layers(self) -> list[EngineLayer]:
        inspector = self.engine.create_engine_inspector()
        inspector.execution_context = self.context  # For the shapes at this batch size.
        try:
            text = inspector.get_engine_information(self.library.LayerInformationFormat.JSON)
            return read_layers(text, self.nodes)
        except ValueError as error:
            self.warnings.append(Warning("unproven", f"the engine's description cannot be read ({error})"))
            return []

    def _check(self, accepted: Any, problem: str) -> None:
        """Raise RuntimeError with the library's log, unless `accepted`."""
        if accepted is None or accepted is False:
            raise RuntimeError(f"{self.product} {problem}: {self._logged()}")

    def _logged(self) -> str:
        return logged(self.logger, _ERROR_CHARACTERS) or "it logged no reason"


open_session = TrtSession


def _request(library: Any, job: Job[TrtOptions]) -> BuildRequest:
    shapes = batch_shapes(graph_specs(job.source, job.graph), job.batch_size)
    device = built_for(library, *current_gpu())
    return BuildRequest(job.graph, job.precision, shapes, level=job.options.level, **device)


def current_gpu() -> tuple[str, str]:
    """Return the current GPU's name and compute capability, such as "9.0". Raises Unsupported."""
    try:
        major, minor = torch.cuda.get_device_capability()
        return torch.cuda.get_device_name(), f"{major}.{minor}"
    except (AssertionError, RuntimeError) as error:
        raise Unsupported(f"torch finds no NVIDIA GPU ({error}); TensorRT needs one, and its driver") from error


def _profiler(library: Any) -> Any:
    class Profiler(library.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            library.IProfiler.__init__(self)
            self.ms: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.ms[layer_name] = self.ms.get(layer_name, 0.0) + ms

    return Profiler()


def _wait() -> None:
    """Wait for the device; its failures are raised by the call that enqueued them, or by the next one."""
    with contextlib.suppress(RuntimeError):
        torch.cuda.current_stream().synchronize()
