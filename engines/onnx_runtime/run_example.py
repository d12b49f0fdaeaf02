"""Runs model.onnx in ONNX Runtime with the options of config.json. Needs requirements.txt, and nothing else."""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

HERE = Path(__file__).resolve().parent
TYPES = {"float": np.float32, "float16": np.float16, "double": np.float64, "int32": np.int32, "int64": np.int64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", nargs="*", help=".npy files in the order of the inputs; random ones if left out")
    parser.add_argument("--output", help="a .npy file for the first output")
    arguments = parser.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    settings, device = config["settings"], config["device"]
    if device == "cuda":
        ort.preload_dlls()  # CUDA and cuDNN from pip's packages, where they are not installed system-wide.
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    if not settings["optimize"]:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in settings["session"].items():
        options.add_session_config_entry(key, value)
    for name, size in settings["dimensions"].items():
        options.add_free_dimension_override_by_name(name, size)
    providers = [(name, its_options) for name, its_options in settings["providers"]]
    session = ort.InferenceSession(HERE / "model.onnx", options, providers=providers)
    if session.get_providers()[0] != providers[0][0]:
        raise SystemExit(
            f"ONNX Runtime could not load {providers[0][0]}, and fell back to {session.get_providers()[0]}"
        )

    # Buffers are bound once: a CUDA graph wants fixed addresses, and no call then copies more than it must.
    rng, binding = np.random.default_rng(0), session.io_binding()
    for number, spec in enumerate(config["inputs"]):
        array = np.load(arguments.input[number]) if arguments.input else rng.random(spec["shape"])
        value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array, spec["dtype"]), device, 0)
        binding.bind_ortvalue_input(spec["name"], value)
    for node in session.get_outputs():
        kind = TYPES.get(node.type.removeprefix("tensor(").removesuffix(")"))
        if kind and all(isinstance(size, int) for size in node.shape):
            value = ort.OrtValue.ortvalue_from_shape_and_type(node.shape, kind, device, 0)
            binding.bind_ortvalue_output(node.name, value)
        else:
            binding.bind_output(node.name, device)

    times: list[float] = []
    end = time.perf_counter() + 2
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        times.append(time.perf_counter() - start)
    output = binding.copy_outputs_to_cpu()[0]
    if arguments.output:
        np.save(arguments.output, output)
    latency = 1000 * statistics.median(times[len(times) // 4 :])
    print(f"{config['model']}: output {output.shape}, median latency {latency:.3f} ms in {len(times)} calls")


if __name__ == "__main__":
    main()
