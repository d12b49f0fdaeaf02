"""Run model.engine in TensorRT with the options of config.json. Needs only requirements.txt."""

import importlib
from typing import Any

import numpy as np
from cuda.bindings import runtime as cuda
from frame import HERE, Array, main

KINDS = "FLOAT f4, HALF f2, BF16 u2, INT8 i1, UINT8 u1, INT32 i4, INT64 i8, BOOL ?"
TYPES = dict(kind.split() for kind in KINDS.split(", "))


def check(answer: tuple[Any, ...]) -> Any:
    """Return a CUDA function's result; exit on an error."""
    if answer[0] != cuda.cudaError_t.cudaSuccess:
        raise SystemExit(f"CUDA: {answer[0]}")
    return answer[1] if len(answer) > 1 else None


def to_bf16(array: Array) -> Array:
    """Round fp32 numbers to bf16, which NumPy lacks, as their upper 16 bits."""
    bits = np.ascontiguousarray(array, "f4").view("u4")
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, "u2")


class Model:
    def __init__(self, config: dict[str, Any], arrays: list[Array]) -> None:
        self.library = importlib.import_module(config["settings"]["module"])
        logger = self.library.Logger(self.library.Logger.WARNING)
        self.library.init_libnvinfer_plugins(logger, "")
        self.runtime = self.library.Runtime(logger)
        self.engine = self.runtime.deserialize_cuda_engine((HERE / "model.engine").read_bytes())
        if self.engine is None:  # TensorRT has printed why.
            raise SystemExit("The engine does not load: it is for the GPU and the version of TensorRT in config.json")
        self.context = self.engine.create_execution_context(self.context_config())
        if self.context is None:
            raise SystemExit("TensorRT could not create an execution context")
        self.stream = check(cuda.cudaStreamCreate())
        for spec, array in zip(config["inputs"], arrays, strict=True):
            self.upload(spec["name"], to_bf16(array) if spec["dtype"] == "bfloat16" else array)
        self.first = config["outputs"][0]
        self.address, self.host = self.bind_outputs()
        self.graph = None
        self.call()
        if config["options"].get("cuda_graph"):
            mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            check(cuda.cudaStreamBeginCapture(self.stream, mode))
            self.enqueue()
            self.graph = check(cuda.cudaGraphInstantiate(check(cuda.cudaStreamEndCapture(self.stream)), 0))

    def context_config(self) -> Any:
        strategy = self.library.ExecutionContextAllocationStrategy.USER_MANAGED
        kernels = getattr(self.library, "DynamicShapesKernelSpecializationStrategy", None)
        if kernels is None:
            return strategy
        # TensorRT for RTX: the kernels are to be compiled now, not next to the first calls.
        self.runtime_config = self.engine.create_runtime_config()
        self.runtime_config.set_execution_context_allocation_strategy(strategy)
        assert hasattr(self.runtime_config, "dynamic_shapes_kernel_specialization_strategy")
        self.runtime_config.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
        return self.runtime_config

    def upload(self, name: str, array: Array) -> None:
        if not self.context.set_input_shape(name, array.shape):
            raise SystemExit(f"The engine takes no {name} of shape {array.shape}")
        address = self.allocate(name, array.nbytes)
        check(cuda.cudaMemcpy(address, array.ctypes.data, array.nbytes, cuda.cudaMemcpyKind.cudaMemcpyHostToDevice))

    def bind_outputs(self) -> tuple[int, Array]:
        """Place outputs and scratch memory; return the first output's address and an array for it."""
        if lacking := self.context.infer_shapes():
            raise SystemExit(f"TensorRT cannot infer shapes: {', '.join(lacking)} lack theirs")
        outputs = {}
        for name in [self.engine.get_tensor_name(number) for number in range(self.engine.num_io_tensors)]:
            if self.engine.get_tensor_mode(name) == self.library.TensorIOMode.OUTPUT:
                shape, kind = self.context.get_tensor_shape(name), self.engine.get_tensor_dtype(name).name
                if kind not in TYPES:
                    raise SystemExit(f"NumPy has no type for the engine's {name}, {kind}")
                host = np.empty(tuple(shape), TYPES[kind])
                outputs[name] = self.allocate(name, host.nbytes), host
        if scratch := self.context.update_device_memory_size_for_shapes() or self.engine.device_memory_size_v2:
            self.context.set_device_memory(check(cuda.cudaMalloc(scratch)), scratch)
        return outputs[self.first]

    def allocate(self, name: str, size: int) -> int:
        address: int = check(cuda.cudaMalloc(max(size, 1)))
        if not self.context.set_tensor_address(name, address):
            raise SystemExit(f"TensorRT refuses the address of {name}")
        return address

    def enqueue(self) -> None:
        if not self.context.execute_async_v3(int(self.stream)):
            raise SystemExit("TensorRT could not enqueue the engine")

    def call(self) -> None:
        check(cuda.cudaGraphLaunch(self.graph, self.stream)) if self.graph else self.enqueue()
        check(cuda.cudaStreamSynchronize(self.stream))

    def output(self) -> Array:
        kind = cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        check(cuda.cudaMemcpy(self.host.ctypes.data, self.address, self.host.nbytes, kind))
        is_bf16 = self.engine.get_tensor_dtype(self.first).name == "BF16"
        return (self.host.astype("u4") << 16).view("f4") if is_bf16 else self.host


if __name__ == "__main__":
    main(Model)
