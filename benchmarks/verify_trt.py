"""Compare TensorRT's rows of a run with a script of TensorRT's own documentation, on the GPU that ran them.

    python benchmarks/verify_trt.py results/<run>

Of each row the cached engine is loaded anew, and timed by CUDA events around replays of a CUDA graph, and around plain
enqueues. Nothing here goes through a session or a clock of the profiler's.
"""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.verify_plain import event_ms, replayed_ms
from profiler import load


def main() -> None:
    """Print a line a row: its device time, the script's, their ratio, and the plain enqueue loop's."""
    rows = [
        row for row in load(sys.argv[1])[0].collect().to_dicts() if row["engine"] == "trt" and row["status"] == "ok"
    ]
    torch.cuda.set_stream(torch.cuda.Stream())
    print(f"{'row':42} {'ours':>8} {'script':>8} {'ratio':>6} {'latency':>8} {'enqueue':>8}")
    for row in rows:
        graph, plain = timed(engine_of(row))
        ours = row["gpu_ms"] or row["latency_ms"]
        print(f"{row['case_id']:42} {ours:8.4f} {graph:8.4f} {ours / graph:6.3f} {row['latency_ms']:8.4f} {plain:8.4f}")


def engine_of(row: dict[str, Any]) -> str:
    """Return the path of the row's engine, which its run has left in the cache."""
    words = ("--model", row["model"], "--precision", row["precision"], "--batch", str(row["batch_size"]))
    command = [sys.executable, "-m", "profiler", "build", "--engine", "trt", *words]
    told = " ".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert "from the cache" in told, told
    return next(word for word in told.replace(";", " ").split() if word.endswith(".engine"))


def timed(path: str) -> tuple[float, float]:
    """Return the median milliseconds of a replayed graph, and of a plain enqueue."""
    tensorrt = importlib.import_module("tensorrt")
    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    engine = tensorrt.Runtime(logger).deserialize_cuda_engine(Path(path).read_bytes())
    context = engine.create_execution_context()
    kept = []
    for number in range(engine.num_io_tensors):
        name = engine.get_tensor_name(number)
        if engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT:
            context.set_input_shape(name, engine.get_tensor_profile_shape(name, 0)[1])
    for number in range(engine.num_io_tensors):
        name = engine.get_tensor_name(number)
        dtype = {"FLOAT": torch.float32, "HALF": torch.float16}[engine.get_tensor_dtype(name).name]
        kept.append(torch.randn(math.prod(context.get_tensor_shape(name)), device="cuda").to(dtype))
        context.set_tensor_address(name, kept[-1].data_ptr())

    def call() -> None:
        context.execute_async_v3(torch.cuda.current_stream().cuda_stream)

    call()
    torch.cuda.synchronize()
    return replayed_ms(call), event_ms(call)


if __name__ == "__main__":
    main()
