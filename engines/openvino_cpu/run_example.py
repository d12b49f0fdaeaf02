"""Runs model.onnx in OpenVINO with the options of config.json. Needs requirements.txt, and nothing else."""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import openvino

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", nargs="*", help=".npy files in the order of the inputs; random ones if left out")
    parser.add_argument("--output", help="a .npy file for the first output")
    arguments = parser.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    core = openvino.Core()
    model = core.read_model(HERE / "model.onnx")
    model.reshape({port: spec["shape"] for port, spec in zip(model.inputs, config["inputs"], strict=True)})
    request = core.compile_model(model, "CPU", config["settings"]).create_infer_request()

    rng = np.random.default_rng(0)
    for number, spec in enumerate(config["inputs"]):
        array = np.load(arguments.input[number]) if arguments.input else rng.random(spec["shape"])
        request.set_input_tensor(number, openvino.Tensor(np.ascontiguousarray(array, spec["dtype"])))
    times: list[float] = []
    end = time.perf_counter() + 2
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        request.infer()
        times.append(time.perf_counter() - start)
    output = np.array(request.get_output_tensor(0).data)
    if arguments.output:
        np.save(arguments.output, output)
    latency = 1000 * statistics.median(times[len(times) // 4 :])
    print(f"{config['model']}: output {output.shape}, median latency {latency:.3f} ms in {len(times)} calls")


if __name__ == "__main__":
    main()
