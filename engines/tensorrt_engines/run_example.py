"""Runs model.engine in TensorRT with the options of config.json. Needs requirements.txt, and nothing else."""

import argparse
import importlib
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cuda.bindings import runtime as cuda

HERE = Path(__file__).resolve().parent
TYPES = {"FLOAT": "f4", "HALF": "f2", "BF16": "u2", "INT8": "i1", "UINT8": "u1", "INT32": "i4", "INT64": "i8"}


def call(answer: tuple[Any, ...]) -> Any:
    """What a CUDA function returned besides its status."""
    if answer[0] != cuda.cudaError_t.cudaSuccess:
        raise SystemExit(f"CUDA: {answer[0]}")
    return answer[1] if len(answer) > 1 else None


def to_bf16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The upper halves of fp32 numbers, rounded: NumPy has no bf16."""
    bits = np.ascontiguousarray(array, "f4").view("u4")
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, "u2")


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--input", nargs="*", help=".npy files in the order of the inputs; random ones if left out")
    command.add_argument("--output", help="a .npy file for the first output")
    arguments = command.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    library = importlib.import_module(config["settings"]["module"])
    runtime = library.Runtime(library.Logger(library.Logger.WARNING))
    engine = runtime.deserialize_cuda_engine((HERE / "model.engine").read_bytes())
    if engine is None:
        raise SystemExit("The engine does not load: it is for the GPU and the version of TensorRT in config.json")
    how: Any = library.ExecutionContextAllocationStrategy.USER_MANAGED
    kernels = getattr(library, "DynamicShapesKernelSpecializationStrategy", None)
    if kernels is not None:  # TensorRT for RTX: the kernels are to be compiled now, not beside the first calls.
        runtime_config = engine.create_runtime_config()
        runtime_config.set_execution_context_allocation_strategy(how)
        assert hasattr(runtime_config, "dynamic_shapes_kernel_specialization_strategy")
        runtime_config.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
        how = runtime_config
    context, stream = engine.create_execution_context(how), call(cuda.cudaStreamCreate())

    rng, names = np.random.default_rng(0), [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    to_device, to_host = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice, cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
    for number, spec in enumerate(config["inputs"]):
        array = np.load(arguments.input[number]) if arguments.input else rng.random(spec["shape"])
        bf16 = spec["dtype"] == "bfloat16"
        array = to_bf16(array) if bf16 else np.ascontiguousarray(array, spec["dtype"])
        if not context.set_input_shape(spec["name"], array.shape):
            raise SystemExit(f"The engine takes no {spec['name']} of shape {array.shape}")
        context.set_tensor_address(spec["name"], address := call(cuda.cudaMalloc(max(array.nbytes, 1))))
        call(cuda.cudaMemcpy(address, array.ctypes.data, array.nbytes, to_device))
    context.infer_shapes()
    outputs = []
    for name in [name for name in names if engine.get_tensor_mode(name) == library.TensorIOMode.OUTPUT]:
        host = np.empty(tuple(context.get_tensor_shape(name)), TYPES[engine.get_tensor_dtype(name).name])
        context.set_tensor_address(name, address := call(cuda.cudaMalloc(max(host.nbytes, 1))))
        outputs.append((name, address, host))
    if scratch := context.update_device_memory_size_for_shapes() or engine.device_memory_size_v2:
        context.set_device_memory(call(cuda.cudaMalloc(scratch)), scratch)

    def enqueue() -> None:
        if not context.execute_async_v3(int(stream)):
            raise SystemExit("TensorRT could not enqueue the engine")

    enqueue()
    call(cuda.cudaStreamSynchronize(stream))
    graph = None
    if config["options"].get("cuda_graph"):
        call(cuda.cudaStreamBeginCapture(stream, cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
        enqueue()
        graph = call(cuda.cudaGraphInstantiate(call(cuda.cudaStreamEndCapture(stream)), 0))
    times: list[float] = []
    end = time.perf_counter() + 2
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        call(cuda.cudaGraphLaunch(graph, stream)) if graph else enqueue()
        call(cuda.cudaStreamSynchronize(stream))
        times.append(time.perf_counter() - start)
    _, address, output = next(entry for entry in outputs if entry[0] == config["outputs"][0])
    call(cuda.cudaMemcpy(output.ctypes.data, address, output.nbytes, to_host))
    if engine.get_tensor_dtype(config["outputs"][0]).name == "BF16":
        output = (output.astype("u4") << 16).view("f4")
    if arguments.output:
        np.save(arguments.output, output)
    latency = 1000 * median(times[len(times) // 4 :])
    print(f"{config['model']}: output {output.shape}, median latency {latency:.3f} ms in {len(times)} calls")


if __name__ == "__main__":
    main()
