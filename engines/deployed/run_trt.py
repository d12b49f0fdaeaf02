"""Run model.engine in TensorRT with the options of config.json. Needs only requirements.txt."""

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from frame import HERE, Array, main

KINDS = "FLOAT f4, HALF f2, BF16 u2, INT8 i1, UINT8 u1, INT32 i4, INT64 i8, BOOL ?"
TYPES = dict(kind.split() for kind in KINDS.split(", "))


class PyCuda:
    """Memory, a stream and a CUDA graph by pycuda, in the GPU's primary context."""

    def __init__(self) -> None:
        importlib.import_module("pycuda.autoprimaryctx")
        self.driver = importlib.import_module("pycuda.driver")
        self.stream = self.driver.Stream()
        self.handle = int(self.stream.handle)
        self.blocks: list[Any] = []

    def allocate(self, size: int) -> int:
        self.blocks.append(self.driver.mem_alloc(size))
        return int(self.blocks[-1])

    def upload(self, address: int, array: Array) -> None:
        self.driver.memcpy_htod(address, array)

    def download(self, array: Array, address: int) -> None:
        self.driver.memcpy_dtoh(array, address)

    def synchronize(self) -> None:
        self.stream.synchronize()

    def record(self, enqueue: Callable[[], None]) -> Callable[[], object]:
        """Record the work of `enqueue`; return its replay. The driver has CUDA graphs, which pycuda lacks."""
        driver, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(self.handle)
        graph, replay = ctypes.c_void_p(), ctypes.c_void_p()
        codes = [driver.cuStreamBeginCapture_v2(stream, 1)]  # Other threads may go on.
        enqueue()
        codes.append(driver.cuStreamEndCapture(stream, ctypes.byref(graph)))
        codes.append(driver.cuGraphInstantiateWithFlags(ctypes.byref(replay), graph, ctypes.c_ulonglong(0)))
        if any(codes):
            raise SystemExit(f"CUDA could not record the engine as a graph: {codes}")
        return lambda: driver.cuGraphLaunch(replay, stream)


class CudaPython:
    """Memory, a stream and a CUDA graph by cuda-python."""

    def __init__(self) -> None:
        self.cuda = importlib.import_module("cuda.bindings.runtime")
        self.handle = int(self.ask("StreamCreate"))

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return a CUDA function's result; exit on an error."""
        answer = getattr(self.cuda, f"cuda{function}")(*arguments)
        if answer[0] != self.cuda.cudaError_t.cudaSuccess:
            raise SystemExit(f"CUDA: cuda{function}: {answer[0]}")
        return answer[1] if len(answer) > 1 else None

    def allocate(self, size: int) -> int:
        return int(self.ask("Malloc", size))

    def upload(self, address: int, array: Array) -> None:
        self.ask("Memcpy", address, array.ctypes.data, array.nbytes, self.cuda.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def download(self, array: Array, address: int) -> None:
        self.ask("Memcpy", array.ctypes.data, address, array.nbytes, self.cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def synchronize(self) -> None:
        self.ask("StreamSynchronize", self.handle)

    def record(self, enqueue: Callable[[], None]) -> Callable[[], object]:
        """Record the work of `enqueue`; return its replay."""
        self.ask("StreamBeginCapture", self.handle, self.cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
        enqueue()
        graph = self.ask("GraphInstantiate", self.ask("StreamEndCapture", self.handle), 0)
        return lambda: self.ask("GraphLaunch", graph, self.handle)


def open_cuda() -> PyCuda | CudaPython:
    """Open pycuda if it loads, else cuda-python."""
    try:
        return PyCuda()
    except ImportError:
        try:
            return CudaPython()
        except ImportError as error:
            raise SystemExit(
                f"Neither pycuda nor cuda-python is installed: pip install cuda-python ({error})"
            ) from error


def to_bf16(array: Array) -> Array:
    """Round fp32 numbers to bf16, which NumPy lacks, as their upper 16 bits."""
    bits = np.ascontiguousarray(array, "f4").view("u4")
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, "u2")


class Model:
    def __init__(self, config: dict[str, Any], arrays: list[Array]) -> None:
        self.cuda = open_cuda()
        self.library = importlib.import_module(config["settings"]["module"])
        logger = self.library.Logger(self.library.Logger.WARNING)
        self.library.init_libnvinfer_plugins(logger, "")
        self.runtime = self.library.Runtime(logger)
        self.engine = self.runtime.deserialize_cuda_engine((HERE / "model.engine").read_bytes())
        if self.engine is None:  # TensorRT has printed why.
            raise SystemExit("The engine does not load: it is for the GPU and the version of TensorRT in config.json")
        self.context = self.open_context()
        if self.context is None:
            raise SystemExit("TensorRT could not create an execution context")
        for spec, array in zip(config["inputs"], arrays, strict=True):
            self.upload(spec["name"], to_bf16(array) if spec["dtype"] == "bfloat16" else array)
        self.names = config["outputs"]
        self.results = self.bind_outputs()
        self.replay: Callable[[], object] = self.enqueue
        self.call()
        if config["options"].get("cuda_graph"):
            self.replay = self.cuda.record(self.enqueue)

    def open_context(self) -> Any:
        """Make a context that leaves its memory to us, in the words of this release."""
        strategies = getattr(self.library, "ExecutionContextAllocationStrategy", None)
        if strategies is None:  # TensorRT 8.
            return self.engine.create_execution_context_without_device_memory()
        kernels = getattr(self.library, "DynamicShapesKernelSpecializationStrategy", None)
        if kernels is None:
            return self.engine.create_execution_context(strategies.USER_MANAGED)
        # TensorRT for RTX compiles the kernels now, not during the first calls.
        self.runtime_config = self.engine.create_runtime_config()
        self.runtime_config.set_execution_context_allocation_strategy(strategies.USER_MANAGED)
        assert hasattr(self.runtime_config, "dynamic_shapes_kernel_specialization_strategy")
        self.runtime_config.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
        return self.engine.create_execution_context(self.runtime_config)

    def upload(self, name: str, array: Array) -> None:
        if not self.context.set_input_shape(name, array.shape):
            raise SystemExit(f"The engine takes no {name} of shape {array.shape}")
        kind = TYPES.get(self.engine.get_tensor_dtype(name).name, array.dtype)  # TensorRT 8 takes int64 as int32.
        array = np.ascontiguousarray(array, kind)
        self.cuda.upload(self.allocate(name, array.nbytes), array)

    def bind_outputs(self) -> dict[str, tuple[int, Array]]:
        """Place outputs and scratch memory; return each output's address and an array for it."""
        if unresolved := self.context.infer_shapes():
            raise SystemExit(f"TensorRT cannot infer the shapes of {', '.join(unresolved)}")
        outputs = {}
        for name in [self.engine.get_tensor_name(number) for number in range(self.engine.num_io_tensors)]:
            if self.engine.get_tensor_mode(name) == self.library.TensorIOMode.OUTPUT:
                shape, kind = self.context.get_tensor_shape(name), self.engine.get_tensor_dtype(name).name
                if kind not in TYPES:
                    raise SystemExit(f"NumPy has no type for the engine's {name}, {kind}")
                host = np.empty(tuple(shape), TYPES[kind])
                outputs[name] = self.allocate(name, host.nbytes), host
        self.give_scratch()
        return outputs

    def give_scratch(self) -> None:
        if hasattr(self.context, "set_device_memory"):
            if size := self.context.update_device_memory_size_for_shapes() or self.engine.device_memory_size_v2:
                self.context.set_device_memory(self.cuda.allocate(size), size)
        elif self.engine.device_memory_size:
            self.context.device_memory = self.cuda.allocate(self.engine.device_memory_size)

    def allocate(self, name: str, size: int) -> int:
        address = self.cuda.allocate(max(size, 1))
        if not self.context.set_tensor_address(name, address):
            raise SystemExit(f"TensorRT refuses the address of {name}")
        return address

    def enqueue(self) -> None:
        if not self.context.execute_async_v3(self.cuda.handle):
            raise SystemExit("TensorRT could not enqueue the engine")

    def call(self) -> None:
        self.replay()
        self.cuda.synchronize()

    def outputs(self) -> list[Array]:
        arrays = []
        for name in self.names:
            address, host = self.results[name]
            self.cuda.download(host, address)
            is_bf16 = self.engine.get_tensor_dtype(name).name == "BF16"
            arrays.append((host.astype("u4") << 16).view("f4") if is_bf16 else host)
        return arrays


if __name__ == "__main__":
    main(Model)
