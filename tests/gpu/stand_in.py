"""A test double of the `tensorrt` module: its engines are ONNX files, and ONNX Runtime runs them. No engine for users.

It runs the graph in host memory on exactly the addresses that it is given, overwrites the scratch memory that it asked
for, and refuses what TensorRT refuses: shapes outside of the profile, missing addresses, too little scratch. Its names
are TensorRT's, with which tests/engines/test_trt.py compares them.
"""

from __future__ import annotations

import ctypes
import enum
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto

from engines.base import Warning
from engines.trt_build import BuildRequest, Built

BUILDING: dict[str, Any] = {"seconds": 12.5}

DataType = enum.Enum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4", start=0)
TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT", start=0)
TensorLocation = enum.Enum("TensorLocation", "DEVICE HOST", start=0)
ExecutionContextAllocationStrategy = enum.Enum(
    "ExecutionContextAllocationStrategy", "STATIC ON_PROFILE_CHANGE USER_MANAGED", start=0
)
EngineStat = enum.Enum("EngineStat", "TOTAL_WEIGHTS_SIZE STRIPPED_WEIGHTS_SIZE", start=0)
ProfilingVerbosity = enum.Enum("ProfilingVerbosity", "LAYER_NAMES_ONLY NONE DETAILED", start=0)
NetworkDefinitionCreationFlag = enum.Enum("NetworkDefinitionCreationFlag", "STRONGLY_TYPED")
LayerInformationFormat = enum.Enum("LayerInformationFormat", "ONELINE JSON", start=0)
Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE", start=0)


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def __init__(self) -> None:
        self.made = True


class IProfiler:
    def __init__(self) -> None:
        self.made = True


TYPES = {
    TensorProto.FLOAT: (DataType.FLOAT, "Row major linear FP32", "f32"),
    TensorProto.FLOAT16: (DataType.HALF, "Row major linear FP16 format", "f16"),
    TensorProto.BFLOAT16: (DataType.BF16, "Row major linear BFloat16 format", "bf16"),
    TensorProto.INT64: (DataType.INT64, "Row major linear Int64 format", "i64"),
    TensorProto.BOOL: (DataType.BOOL, "Row major linear BOOL", "b8"),
}
KINDS = {"Conv": "CaskConvolution", "Gemm": "gemm", "MatMul": "gemm"}


@dataclass
class StandIn:
    """Stands where engines/trt.py has the imported module. What it is to do wrong is set here."""

    scratch: int = 4096
    fails: str | None = None
    """The method that fails, as TensorRT fails: by None, False or an exception, and an error in the log."""
    refuses_capture: str | None = None
    """ "beforehand": if it is asked; "by waiting": it does what breaks a capture off."""
    tactic: str | None = None
    """Types that its kernels' names state, if not the true ones."""
    strange_types: dict[str, Any] = field(default_factory=dict)
    logs: str = ""
    """Error logged at the failing step, in place of its own sentence."""
    events: list[str] = field(default_factory=list)
    recording: list[Callable[[], None]] | None = None
    """What a fake CUDA graph records; `broken_off` if it cannot any more."""
    broken_off: bool = False
    builds: list[BuildRequest] = field(default_factory=list)

    __name__ = "stand_in"
    __version__ = "10.13.0"
    DataType, TensorIOMode, TensorLocation = DataType, TensorIOMode, TensorLocation
    EngineStat, LayerInformationFormat, ILogger, IProfiler = EngineStat, LayerInformationFormat, ILogger, IProfiler
    ProfilingVerbosity = ProfilingVerbosity
    NetworkDefinitionCreationFlag = NetworkDefinitionCreationFlag
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def init_libnvinfer_plugins(self, logger: ILogger, namespace: str) -> bool:
        self.events.append("plugins registered")
        return namespace == ""

    def Runtime(self, logger: ILogger) -> Runtime:
        assert logger.made, "the logger's class must call ILogger.__init__"
        assert self.events[-1] == "plugins registered", "an engine may have some"
        if self.goes_wrong("Runtime", logger):
            raise TypeError("pybind11::init(): factory function returned nullptr")
        return Runtime(self, logger)

    def build_engine(self, library: Any, request: BuildRequest, cache: Any, progress: Any) -> Built:
        """In place of engines.trt_build.build_engine: the ONNX file, and with it the profile."""
        self.builds.append(request)
        path = Path(cache.root) / f"{len(self.builds)}.engine"
        path.parent.mkdir(parents=True, exist_ok=True)
        model = onnx.load(request.onnx)
        onnx.helper.set_model_props(model, {"profile": json.dumps(request.shapes)})
        path.write_bytes(model.SerializeToString())
        return Built(path=path, cached=False, warnings=(Warning("engine-cache", "so says the stand-in"),), **BUILDING)

    def goes_wrong(self, step: str, logger: Any) -> bool:
        """Tell whether this is the step that is to fail; then the log says so."""
        if self.fails == step:
            logger.log(ILogger.ERROR, self.logs or f"{step} fails, as it was told to")
        return self.fails == step


class Freed:
    """Notes that it was made, and that it is no more."""

    def __init__(self, library: StandIn, logger: Any) -> None:
        self.library, self.logger = library, logger
        name = type(self).__name__.lower()
        library.events.append(f"{name} made")
        weakref.finalize(self, library.events.append, f"{name} freed")


class Runtime(Freed):
    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        if self.library.goes_wrong("deserialize_cuda_engine", self.logger):
            return None
        return Engine(self, onnx.load_from_string(serialized_engine))


class Engine(Freed):
    def __init__(self, runtime: Runtime, model: onnx.ModelProto) -> None:
        super().__init__(runtime.library, runtime.logger)
        self._runtime, self._model = runtime, model
        self._tensors = {value.name: value for value in (*model.graph.input, *model.graph.output)}
        self._profile = json.loads(next(entry.value for entry in model.metadata_props if entry.key == "profile"))
        self.num_layers, self.num_io_tensors = len(model.graph.node), len(self._tensors)
        self.num_aux_streams = 0
        self.device_memory_size_v2 = self.library.scratch

    def get_tensor_name(self, index: int) -> str:
        # Not in the graph's order: nobody may rely on that.
        return sorted(self._tensors, reverse=True)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return TensorIOMode.INPUT if name in {v.name for v in self._model.graph.input} else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        kind = self._tensors[name].type.tensor_type.elem_type
        return self.library.strange_types.get(name, TYPES[kind][0])

    def get_tensor_location(self, name: str) -> Any:
        return TensorLocation.DEVICE

    def get_engine_stat(self, stat: Any) -> int:
        assert stat is EngineStat.TOTAL_WEIGHTS_SIZE
        return sum(len(onnx.numpy_helper.to_array(t).tobytes()) for t in self._model.graph.initializer)

    def create_execution_context(self, strategy: Any) -> Context | None:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        return None if self.library.goes_wrong("create_execution_context", self.logger) else Context(self)

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self)


class EngineInspector:
    """Tells of each node what TensorRT 10 tells of a layer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.execution_context: Context | None = None

    def get_engine_information(self, format: Any) -> str:
        assert format is LayerInformationFormat.JSON
        if self._engine.library.fails == "get_engine_information":
            return "Layers: 3"
        graph = onnx.shape_inference.infer_shapes(self._engine._model).graph
        known = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
        known |= {t.name: t.data_type for t in graph.initializer}
        return json.dumps({"Layers": [self._layer(node, known) for node in graph.node]})

    def _layer(self, node: onnx.NodeProto, known: dict[str, int]) -> dict[str, Any]:
        def tensors(names: Sequence[str]) -> list[dict[str, str]]:
            return [{"Name": n, "Format/Datatype": TYPES[known[n]][1]} for n in names if n in known]

        operand = TYPES[known.get(node.input[0], TensorProto.FLOAT)][2]
        kernel = self._engine.library.tactic or f"sm80_xmma_fprop_implicit_gemm_{operand}{operand}_{operand}f32_f32"
        return {
            "Name": f"{node.name} fused",
            "LayerType": KINDS.get(node.op_type, "kgen"),
            "Inputs": tensors(node.input),
            "Outputs": tensors(node.output),
            "TacticName": kernel if node.op_type in KINDS else f"__myl_{node.op_type[:4]}_0x1",
            "Metadata": f"[ONNX Layer: {node.name}]\x1e",
        }


class Context(Freed):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.library, engine.logger)
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._block = (0, 0)
        self._sessions: dict[int, onnxruntime.InferenceSession] = {}
        self.enqueue_emits_profile = True
        self.nvtx_verbosity = ProfilingVerbosity.DETAILED
        self.profiler: Any = None
        self.enqueued = 0
        if self.library.refuses_capture == "beforehand":
            self.is_stream_capturable = lambda stream: False

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, largest = self._engine._profile[name]
        fits = len(shape) == len(least) and all(a <= n <= b for a, n, b in zip(least, shape, largest, strict=True))
        self._shapes[name] = tuple(shape)
        return fits and not self.library.goes_wrong("set_input_shape", self.logger)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return memory > 0 and not self.library.goes_wrong("set_tensor_address", self.logger)

    def infer_shapes(self) -> list[str]:
        if self.library.goes_wrong("infer_shapes", self.logger):
            return ["nothing_of_that_name"]
        return [value.name for value in self._engine._model.graph.input if value.name not in self._shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        def dims(name: str) -> Any:
            return self._engine._tensors[name].type.tensor_type.shape.dim

        sizes = {d.dim_param: n for name, shape in self._shapes.items() for d, n in zip(dims(name), shape, strict=True)}
        return tuple(dim.dim_value or sizes.get(dim.dim_param, -1) for dim in dims(name))

    def update_device_memory_size_for_shapes(self) -> int:
        assert not self.infer_shapes(), "the shapes come first"
        return self.library.scratch

    def set_device_memory(self, memory: int, size: int) -> None:
        if not self.library.goes_wrong("set_device_memory", self.logger):
            self._block = (memory, size)

    def execute_async_v3(self, stream_handle: int) -> bool:
        wrong = self._wrong(stream_handle)
        if wrong:
            self.logger.log(ILogger.ERROR, f"enqueueV3: {wrong}")
            return False
        self.enqueued += 1
        session, binding = self._bound(stream_handle)
        # A captured graph keeps the values, and nothing of this context.
        (address, size), byte = self._block, self.enqueued % 256

        def execute() -> None:
            ctypes.memset(address, byte, size)
            session.run_with_iobinding(binding)

        execute() if self.library.recording is None else self.library.recording.append(execute)
        return True

    def report_to_profiler(self) -> bool:
        """The n-th layer takes n times 0.25 ms."""
        assert not self.enqueue_emits_profile, "an enqueue that emits the profile waits for the device"
        assert self.profiler.made, "the profiler's class must call IProfiler.__init__"
        for number, node in enumerate(self._engine._model.graph.node, start=1):
            self.profiler.report_layer_time(f"{node.name} fused", 0.25 * number)
        return True

    def _wrong(self, stream: int) -> str | None:
        """Name what TensorRT would object to."""
        if self.library.goes_wrong("execute_async_v3", self.logger):
            return "Cuda Runtime (an illegal memory access was encountered)"
        if missing := sorted(self._engine._tensors.keys() - self._addresses.keys()):
            return f"no address for {missing}"
        if self._block[1] < self.library.scratch or not stream:
            return "too little device memory, or the default stream"
        if self.library.recording is None or self.library.refuses_capture is None:
            return None
        self.library.broken_off = True
        return "operation not permitted when stream is capturing"

    def _bound(self, stream: int) -> tuple[onnxruntime.InferenceSession, Any]:
        """Bind all tensors of that stream's session to where they are now."""
        session = self._sessions[stream] = self._sessions.get(stream) or self._open()
        binding = session.io_binding()
        for name, address in self._addresses.items():
            is_input = self._engine.get_tensor_mode(name) is TensorIOMode.INPUT
            kind = self._engine._tensors[name].type.tensor_type.elem_type
            bind = binding.bind_input if is_input else binding.bind_output
            bind(name, "cpu", 0, kind, list(self.get_tensor_shape(name)), address)
        return session, binding

    def _open(self) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.enable_mem_pattern = False  # One block for all of a run's tensors, taken in the second run.
        for value in self._engine._model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, self._shapes[value.name], strict=True):
                if dim.dim_param:
                    options.add_free_dimension_override_by_name(dim.dim_param, size)
        content = self._engine._model.SerializeToString()
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
