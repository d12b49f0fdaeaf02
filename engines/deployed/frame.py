"""Read a deployed model's inputs, time its calls, and print and save its output. run.py imports this."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
Array = np.ndarray[Any, Any]


def main(open_model: Callable[[dict[str, Any], list[Array]], Any]) -> None:
    """Run the model that `open_model` makes of config.json and the inputs.

    Its `call` returns once the result is there; its `output` is the first one of the last call.
    """
    parser = argparse.ArgumentParser(description="Run the model in this folder and time its calls.")
    parser.add_argument("--input", nargs="*", help=".npy files in the inputs' order; default: inputs.npz, else random")
    parser.add_argument("--output", help="a .npy file for the first output")
    arguments = parser.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    try:
        arrays = read_inputs(config["inputs"], arguments.input)
    except (OSError, ValueError, EOFError) as error:
        parser.error(f"--input: {error}")
    model = open_model(config, arrays)
    times: list[float] = []
    end = time.perf_counter() + 2
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        model.call()
        times.append(time.perf_counter() - start)
    output = model.output()
    if arguments.output:
        np.save(arguments.output, output)
    latency = 1000 * statistics.median(times[len(times) // 4 :])
    print(f"{config['model']}: output {output.shape}, median latency {latency:.3f} ms in {len(times)} calls")


def read_inputs(specs: list[dict[str, Any]], paths: list[str] | None) -> list[Array]:
    """Read these files, or inputs.npz, or draw random arrays. Raises OSError, ValueError, EOFError."""
    if paths and len(paths) != len(specs):
        raise ValueError(f"{len(paths)} files, but the inputs are {', '.join(spec['name'] for spec in specs)}")
    rng, arrays = np.random.default_rng(0), []
    measured = dict(np.load(HERE / "inputs.npz")) if (HERE / "inputs.npz").is_file() else {}
    for number, spec in enumerate(specs):
        # NumPy has no bf16: a runtime that takes it rounds by itself.
        dtype = np.dtype("float32" if spec["dtype"] == "bfloat16" else spec["dtype"])
        drawn = rng.integers(0, 2, spec["shape"]) if dtype.kind in "biu" else rng.standard_normal(spec["shape"])
        array = np.load(paths[number]) if paths else measured.get(spec["name"], drawn)
        if paths and list(array.shape) != spec["shape"]:
            shape = tuple(spec["shape"])
            raise ValueError(f"{paths[number]} has shape {array.shape}; {spec['name']} of this export takes {shape}")
        arrays.append(np.ascontiguousarray(array, dtype))
    return arrays
