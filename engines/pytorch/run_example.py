"""Runs model.pt2 in PyTorch with the options of config.json. Needs requirements.txt, and nothing else."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export.passes import move_to_device_pass

HERE = Path(__file__).resolve().parent
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def capture(run: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    """A CUDA graph's replay, and the result that it writes anew each time."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", nargs="*", help=".npy files in the order of the inputs; random ones if left out")
    parser.add_argument("--output", help="a .npy file for the first output")
    arguments = parser.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    options, device, dtype = config["options"], config["device"], DTYPES[config["precision"]]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config["precision"] == "tf32"
    torch.backends.cudnn.enabled = options.get("cudnn", True)
    torch.backends.cudnn.benchmark = options.get("cudnn_benchmark", False)
    order = torch.channels_last if options.get("channels_last") else torch.contiguous_format
    program = torch.export.load(HERE / "model.pt2")
    if device == "cuda":
        program = move_to_device_pass(program, device)
    model: Callable[..., Any] = program.module().to(memory_format=order)  # type: ignore[call-overload]
    if config["engine"] == "compiled":
        model = torch.compile(model, mode=options.get("mode", "reduce-overhead"), dynamic=False)

    rng, inputs = np.random.default_rng(0), []
    for number, spec in enumerate(config["inputs"]):
        array = np.load(arguments.input[number]) if arguments.input else rng.random(spec["shape"])
        tensor = torch.from_numpy(np.ascontiguousarray(array, spec["dtype"])).to(device)
        tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
        inputs.append(tensor.contiguous(memory_format=order if tensor.dim() == 4 else torch.contiguous_format))
    run: Callable[[], Any] = lambda: model(*inputs)  # noqa: E731
    result = run()
    if options.get("cuda_graph"):
        run, result = capture(run)
    times: list[float] = []
    end = time.perf_counter() + 2
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        fresh = run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    result = result if fresh is None else fresh
    first = torch.utils._pytree.tree_leaves(result)[0].float().cpu().numpy()
    if arguments.output:
        np.save(arguments.output, first)
    latency = 1000 * statistics.median(times[len(times) // 4 :])
    print(f"{config['model']}: output {first.shape}, median latency {latency:.3f} ms in {len(times)} calls")


if __name__ == "__main__":
    main()
