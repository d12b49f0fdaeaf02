"""Run a graph in ONNX Runtime, on one of its execution providers, with preallocated buffers.

One call is asynchronous on CUDA: inputs and outputs are bound to device memory once, the provider works on torch's
current stream (`user_compute_stream`), and the run option `disable_synchronize_execution_providers` keeps it from
waiting. See https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import stat
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from engines.base import Array, Job, Layer, Mark, Memory, Phase, Proof, Warning, ignore
from engines.deployment import Deployed, copy_graph, copy_run
from engines.device import tensor_of
from engines.layers import ITERATIONS, covered_nodes, record
from engines.ort_layers import device_layers, host_layers, read_runs
from engines.ort_providers import PROVIDERS, Provider
from exporters.errors import text_of
from exporters.inputs import symbolic_shapes
from exporters.onnx_files import every_graph, file_inputs, read_onnx, too_new
from exporters.source import BATCH, ModelError, batch_axes, batch_symbols

_WHOLE = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
_TYPES = {
    f"tensor({name})": (getattr(torch, name), onnx.TensorProto.DataType.Value(name.upper()))
    for name in ("float", "double", "float16", "bfloat16", *_WHOLE, "bool")
}
_INTEGER = {
    # Input positions of the second operand and of its zero point, which has the operand's type.
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), (3, 5)),
    **dict.fromkeys(("ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul"), (1, 3)),
    "MatMulIntegerToFloat": (1, 5),
}
_COMPUTE = {"Conv", "FusedConv", "NhwcConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "ConvTranspose", *_INTEGER}
_ARENA = re.compile(
    rb"Extending BFCArena for (?P<arena>\w+)\.|Extended allocation by (?P<grown>\d+) bytes"
    rb"|Reserving memory in BFCArena for Cuda size: (?P<reserved>\d+)"
)
_INFO, _WARNING = 1, 2
_PLAIN_MATTERS_MS = 3.0
"""Longest call that `session.run` slows noticeably, by some microseconds."""
_PLAIN_BLOCK_MS, _PAIRS = 5.0, 9
"""Length and number of the timed blocks."""
_USAGE = """import json
import onnxruntime

settings = json.load(open("config.json"))["settings"]
providers = [(name, options) for name, options in settings["providers"]]
session = onnxruntime.InferenceSession("model.onnx", providers=providers)
outputs = session.run(None, {feeds})  # Slower than run.py's timed binding for tiny models."""
_OPTIMIZED, _WEIGHTS = "optimized.onnx", "weights.bin"
_NOT_CAPTURED = "cannot use the graph capture feature"
"""Words of ONNX Runtime 1.31 if a node runs on the CPU."""


class OrtSession:
    """An InferenceSession on the engine's provider, with its inputs and outputs bound to buffers.

    Raises RuntimeError for a missing provider, and ORT's own errors.
    """

    def __init__(self, job: Job[Any], options: onnxruntime.SessionOptions | None = None) -> None:
        """Open `job` with `options`, by default its own session options."""
        self.job = job
        self.provider = PROVIDERS[job.engine, job.device]
        self.fallback: str | None = None
        self.log_start = _log_size()
        self.provider.prepare(job)
        if self.provider.compiles:
            job.phase(Phase.BUILD)
        self.session = self._open(options or session_options(job))
        self.log_loaded = _log_size()
        self.binding = self.session.io_binding()
        self.inputs = self._bind_inputs()
        self.nodes, self.warnings = _tensors(self.session.get_outputs())
        outputs = self._output_shapes()
        self.unbuffered: list[str] = []
        """Outputs that ONNX Runtime allocates in every run, since it takes no buffer for them."""
        self.results = [self._bind_output(node, shape) for node, shape in zip(self.nodes, outputs, strict=True)]
        self.run_options = run_options(self.provider)
        if self.provider.compiles:  # With unknown shapes, the run that revealed them compiled.
            job.phase(Phase.LOAD)

    def run(self, mark: Mark) -> None:
        """Enqueue one run of the graph (with `cuda_graph`: two plain runs, then captured, then replayed)."""
        for name in self.unbuffered:
            self.binding.bind_output(name, self.job.device)
        self.session.run_with_iobinding(self.binding, self.run_options)

    def feed(self, inputs: Sequence[Array]) -> None:
        arrays = self.job.named_inputs([node.name for node in self.session.get_inputs()], inputs)
        for tensor, array in zip(self.inputs, arrays, strict=True):
            source = tensor_of(array)
            if self.job.device == "cpu":  # torch's copy_ would leave threads spinning beside ONNX Runtime's.
                source = source.to(tensor.dtype).contiguous()
                assert source.shape == tensor.shape, f"{source.shape} instead of {tensor.shape}"
                ctypes.memmove(tensor.data_ptr(), source.data_ptr(), source.nbytes)
            else:
                tensor.copy_(source)

    def outputs(self) -> list[Array]:
        bound = zip(self.results, self.binding.get_outputs(), strict=True)
        tensors = [torch.from_numpy(value.numpy()) if t is None else t for t, value in bound]
        return [(t.float() if t.is_floating_point() else t).cpu().numpy() for t in tensors]

    def output_names(self) -> list[str]:
        return [node.name for node in self.nodes]

    def memory(self) -> Memory:
        weights = sum(
            onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize * math.prod(t.dims)
            for t in read_onnx(self.job.graph).graph.initializer
        )
        # Only the CUDA provider logs its arena.
        has_arena = self.job.device == "cuda" and not self.provider.compiles
        loaded = _arena_bytes(self.log_start, self.log_loaded) if has_arena else None
        if loaded is None:
            return Memory(weights=weights)
        # Arenas grow by the requested bytes and never shrink. Bound inputs and outputs are torch's.
        grown = _arena_bytes(self.log_loaded, _log_size()) or 0
        bound, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return Memory(weights, grown + bound, max(loaded - weights, 0) + reserved - bound)

    def proof(self) -> Proof:
        """Report every node's provider in the measured session, and a twin's types: its graph shows ORT's casts."""
        parts = self.session.get_provider_graph_assignment_info()
        nodes = [(part.ep_name, node.op_type) for part in parts for node in part.get_nodes()]
        options = self.session.get_provider_options()
        settings, cuda = options.get(self.provider.name, {}), options.get("CUDAExecutionProvider", {})
        types, details = self._types(sum(op in _COMPUTE for _, op in nodes))
        return Proof(
            library=f"onnxruntime {onnxruntime.__version__}",
            device=self.job.device,
            provider=self.provider.name,
            providers=dict(Counter(provider for provider, _ in nodes)),
            compute_providers=dict(Counter(provider for provider, op in nodes if op in _COMPUTE)),
            compute_types=types,
            tf32=self.provider.tf32(settings, _logged(self.log_start, _log_size()).decode(errors="replace")),
            cuda_graph=settings.get(self.provider.graph_option) == "1",
            cuda_graph_fallback=self.fallback,
            warnings=self.warnings,
            details={
                **details,
                **({} if self.provider.on_stream else self._plain_run()),
                "threads": self.session.get_session_options().intra_op_num_threads,
                "channels_last": cuda.get("prefer_nhwc") == "1",
                "conv_search": cuda.get("cudnn_conv_algo_search"),
            },
        )

    def _plain_run(self) -> dict[str, float]:
        """Return the ratio of the times of `session.run`, the usual call, which allocates its outputs, and a bound run.

        Return nothing for long calls, which hardly differ, and for bfloat16, which NumPy lacks.
        """
        bound, nodes = partial(self.run, ignore), self.session.get_inputs()
        if any(node.type == "tensor(bfloat16)" for node in (*nodes, *self.nodes)):
            return {}
        feeds = {node.name: x.numpy() for node, x in zip(nodes, self.inputs, strict=True)}
        if (first := _milliseconds(bound, 1)) > _PLAIN_MATTERS_MS:
            return {}
        plain, calls = partial(self.session.run, self.output_names(), feeds), max(1, int(_PLAIN_BLOCK_MS / first))
        ratios = [_milliseconds(plain, calls) / _milliseconds(bound, calls) for _ in range(_PAIRS)]
        return {"plain_run": statistics.median(ratios)}

    def _types(self, computing: int) -> tuple[dict[str, int], dict[str, int]]:
        """Count the convolutions and products by type, and operators and casts, in the graph of a twin session."""
        if self.provider.compiles:  # Its `compute` nodes hide their types.
            return {"unknown": computing}, {}
        graphs = list(every_graph(self._optimized_graph()))  # Branches and loops have graphs of their own.
        values = (value for graph in graphs for value in (*graph.input, *graph.output, *graph.value_info))
        element_types = {value.name: value.type.tensor_type.elem_type for value in values}
        element_types |= {tensor.name: tensor.data_type for graph in graphs for tensor in graph.initializer}
        nodes = [node for graph in graphs for node in graph.node]
        counts = Counter(_operand_type(node, element_types) for node in nodes if node.op_type in _COMPUTE)
        return dict(counts), {"operators": len(nodes), "casts": sum(node.op_type == "Cast" for node in nodes)}

    def layers(self) -> list[Layer]:
        """Time the nodes of a twin session with ONNX Runtime's profiler; a provider that compiles shows no nodes."""
        if self.provider.compiles:
            return []
        plain = replace(self.job.options, cuda_graph=False)  # Replaying a CUDA graph runs no node.
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / _OPTIMIZED
            options = session_options(self.job, optimized)
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            twin = OrtSession(replace(self.job, options=plain, phase=lambda phase: None), options)
            trace = record(lambda: twin.run(ignore), self.job.device)  # On the CPU only to count the iterations.
            started = twin.session.get_profiling_start_time_ns()  # In nanoseconds since 1970.
            profile = Path(twin.session.end_profiling())
            twin.close()
            runs = read_runs(profile, ITERATIONS)
            steps = list(read_onnx(optimized).graph.node)
        covered = covered_nodes(read_onnx(self.job.graph).graph, steps)
        if self.job.device == "cpu":
            return host_layers(runs, steps, covered)
        return device_layers(runs, started, trace, steps, covered)

    def close(self) -> None:
        """Free the session, after a run that waits for its results.

        Only a run that waits returns the pinned memory that kernels like Split and Concat copied from. A closing
        session frees the rest in a callback of CUDA, where nothing may be freed, and the process aborts (see
        CudaStream::CleanUpOnRunEnd). With a CUDA graph it is freed otherwise.
        """
        if self.provider.on_stream and not self.job.options.cuda_graph:
            with contextlib.suppress(Exception):  # The measured run may have failed, for want of memory.
                self.session.run_with_iobinding(self.binding)
                torch.cuda.synchronize()
        del self.binding, self.session
        self.inputs.clear()
        self.results.clear()

    def _open(self, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        providers = [(provider.name, self._settings(provider)) for provider in (self.provider, *self.provider.behind)]
        try:
            session = onnxruntime.InferenceSession(self.job.graph, options, providers=providers)
        except Exception as error:  # ONNX Runtime's errors have no other common base.
            if mend := too_new(self.job.graph, f"onnxruntime {onnxruntime.__version__}", str(error)):
                raise ModelError(mend) from None
            if not self.job.options.cuda_graph or _NOT_CAPTURED not in str(error):
                raise
            self.fallback = text_of(error)
            self.job = replace(self.job, options=replace(self.job.options, cuda_graph=False))
            return self._open(options)
        if session.get_providers()[0] != self.provider.name:
            raise RuntimeError(
                f"ONNX Runtime could not load {self.provider.name} and fell back to {session.get_providers()[0]}; "
                "the worker's log says which library it did not find"
            )
        return session

    def _settings(self, provider: Provider) -> dict[str, str]:
        if not provider.on_stream:
            return provider.settings(self.job)
        # torch's default stream has handle 0, which ORT takes for "none": the worker has set another one.
        return {**provider.settings(self.job), "user_compute_stream": str(torch.cuda.current_stream().cuda_stream)}

    def _optimized_graph(self) -> onnx.GraphProto:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / _OPTIMIZED
            path.with_name(_WEIGHTS).symlink_to(os.devnull)  # Only types are read.
            options = session_options(self.job, path)
            options.add_session_config_entry("session.disable_prepacking", "1")  # The twin never runs.
            self._open(options)
            return read_onnx(path).graph

    def _output_shapes(self) -> list[tuple[int, ...]]:
        """Return the outputs' shapes; run once if the file leaves one open, or may be wrong."""
        nodes = self.nodes
        if self.job.source.own_graph is None and all(isinstance(d, int) for node in nodes for d in node.shape):
            return [tuple(node.shape) for node in nodes]
        for node in nodes:
            self.binding.bind_output(node.name, "cpu")
        self.session.run_with_iobinding(self.binding)
        shapes = [tuple(value.shape()) for value in self.binding.get_outputs()]
        self.binding.clear_binding_outputs()
        return shapes

    def _bind_inputs(self) -> list[torch.Tensor]:
        nodes = self.session.get_inputs()
        arrays = self.job.named_inputs([node.name for node in nodes])
        bind = partial(self._bind, self.binding.bind_input)
        return [bind(node, array, array.shape) for node, array in zip(nodes, arrays, strict=True)]

    def _bind_output(self, node: Any, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Bind a buffer and return the tensor that will hold the output.

        If another rank or size is declared, ONNX Runtime refuses buffers: return None. If the graph returns an input,
        ONNX Runtime writes no buffer: return that input.
        """
        fixed = {axis: size for axis, size in enumerate(node.shape) if isinstance(size, int)}
        if len(node.shape) != len(shape) or any(shape[axis] != size for axis, size in fixed.items()):
            self.unbuffered.append(node.name)
            return None
        inputs = {node.name: tensor for node, tensor in zip(self.session.get_inputs(), self.inputs, strict=True)}
        buffer = self._bind(self.binding.bind_output, node, None, shape)
        return inputs.get(node.name, buffer)

    def _bind(self, bind: Any, node: Any, array: Array | None, shape: tuple[int, ...]) -> torch.Tensor:
        if node.type not in _TYPES:
            raise RuntimeError(f"{node.name} is a {node.type}; inputs and outputs can be {', '.join(_TYPES)}")
        dtype, element = _TYPES[node.type]
        if array is not None and array.size:
            tensor = tensor_of(array).to(self.job.device, dtype)
        else:  # ONNX Runtime asks for an address, which a tensor without elements lacks.
            memory = torch.empty(max(math.prod(shape), 1), dtype=dtype, device=self.job.device)
            tensor = memory[: math.prod(shape)].view(shape)
        bind(node.name, self.job.device, 0, element, list(shape), tensor.untyped_storage().data_ptr())
        return tensor


open_session = OrtSession


def _milliseconds(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return 1000 * (time.perf_counter() - start) / calls


def _tensors(nodes: Sequence[Any]) -> tuple[list[Any], list[Warning]]:
    """Split off outputs that are no tensors of numbers, with a warning. Raises RuntimeError if no tensor remains.

    A file may list an output twice; a binding has each name once.
    """
    outputs = {node.name: node for node in nodes}.values()
    tensors, strange = ([n for n in outputs if (n.type in _TYPES) is usable] for usable in (True, False))
    others = ", ".join(f"{node.name} ({node.type})" for node in strange)
    if any(node.type.startswith("seq(map(") for node in strange):
        others += "; convert a classifier with zipmap=False to get tensors"
    if not tensors:
        raise RuntimeError(f"no output is a tensor of numbers: {others}")
    return tensors, [Warning("no-parity", f"left out, no tensor of numbers: {others}")] if others else []


def session_options(job: Job[Any], optimized: Path | None = None) -> onnxruntime.SessionOptions:
    """Make the session's options; with `optimized` the session writes its optimized graph there, and weights beside."""
    options = onnxruntime.SessionOptions()
    # At this level the arena logs its allocations; sessions and runs stay quiet.
    onnxruntime.set_default_logger_severity(_INFO if job.device == "cuda" else _WARNING)
    options.log_severity_level = _WARNING
    options.intra_op_num_threads = job.options.threads or _own_processors()
    if not job.options.optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in PROVIDERS[job.engine, job.device].entries.get(job.precision, {}).items():
        options.add_session_config_entry(key, value)
    for dimension, size in symbol_sizes(job).items():
        options.add_free_dimension_override_by_name(dimension, size)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
    return options


def _own_processors() -> int:
    """Count this process's processors if they are a part of the machine's; 0 lets ONNX Runtime choose.

    At 0 ONNX Runtime binds its threads to any of the machine's processors, outside the process's mask, too (1.31).
    """
    processors = len(os.sched_getaffinity(0))
    return processors if processors < (os.cpu_count() or 1) else 0


def run_options(provider: Provider) -> onnxruntime.RunOptions | None:
    """Make the options of every call; None if calls wait for their results, as on the CPU.

    Python's run_with_iobinding (1.31) reads `gpu_graph_id`; if it is unset, every call raises and catches an exception,
    which takes longer than a small network.
    """
    if not provider.on_stream:
        return None
    options = onnxruntime.RunOptions()
    options.log_severity_level = _WARNING
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    options.add_run_config_entry("gpu_graph_id", "0")  # The CUDA provider's default.
    return options


def symbol_sizes(job: Job[Any]) -> dict[str, int]:
    """Return the sizes of the graph's symbolic dimensions."""
    symbols = {BATCH}
    if job.source.own_graph is not None:
        shapes = symbolic_shapes(file_inputs(job.graph))
        symbols = batch_symbols(shapes, batch_axes(job.source, shapes))
    # x[0] names a dimension that has no name in the file.
    return {**dict.fromkeys((s for s in symbols if "[" not in s), job.batch_size), **job.source.dimensions}


def deploy(job: Job[Any], folder: Path, built: Path | None) -> Deployed:
    """Write model.onnx and the measured settings."""
    provider = PROVIDERS[job.engine, job.device]
    settings = {
        "providers": [[row.name, row.settings(job)] for row in (provider, *provider.behind)],
        "threads": job.options.threads,
        "optimize": job.options.optimize,
        "session": dict(provider.entries.get(job.precision, {})),
        "dimensions": symbol_sizes(job),
    }
    copy_run("run_ort.py", folder)
    copied = copy_graph(job, folder)
    outputs = list(dict.fromkeys(copied["outputs"]))  # A binding has each name once.
    return Deployed({**copied, "outputs": outputs, "settings": settings}, "model.onnx is the model.", _USAGE)


def _arena_bytes(start: int, end: int) -> int | None:
    """Sum the CUDA arena's growth in the log, its only record (ONNX Runtime 1.31); None without an entry."""
    total, arena = 0, b""
    for match in _ARENA.finditer(_logged(start, end)):
        arena = match["arena"] or arena
        if match["reserved"] or (match["grown"] and arena == b"Cuda"):
            total += int(match["reserved"] or match["grown"])
    return total or None


def _logged(start: int, end: int) -> bytes:
    if end <= start:
        return b""
    with Path("/proc/self/fd/2").open("rb") as log:
        log.seek(start)
        return log.read(end - start)


def _log_size() -> int:
    status = os.fstat(2)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _operand_type(node: onnx.NodeProto, element_types: dict[str, int]) -> str:
    """Name a convolution's or product's type by its weight, or another operand; uint8 counts as int8's arithmetic."""
    operands = [*node.input[1:], *node.input[:1], *node.output]
    if node.op_type in _INTEGER:
        operands = [node.input[place] for place in _INTEGER[node.op_type] if place < len(node.input)]
    element = next((element_types[name] for name in operands if element_types.get(name)), 0)
    name = str(onnx.TensorProto.DataType.Name(element)).lower()
    return {"float": "float32", "double": "float64", "undefined": "unknown", "uint8": "int8"}.get(name, name)
