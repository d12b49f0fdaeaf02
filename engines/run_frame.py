"""Read a deployed model's inputs, time its calls, and print and save its output.

`engines.deployment.write_run` puts this and a runtime's `run_example.py` into one run.py, which needs neither.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
INPUTS = "inputs.npz"
Array = np.ndarray[Any, Any]


def main(open_model: Callable[[dict[str, Any], list[Array]], Any]) -> None:
    """`open_model` takes config.json's content and the inputs; what it returns has `call`, which returns once the
    result is there, and `output`, the first one of the last call."""
    parser = argparse.ArgumentParser(description=__doc__)
    usual = "those of inputs.npz if there is one, else random ones, if left out"
    parser.add_argument("--input", nargs="*", help=f".npy files in the order of the inputs; {usual}")
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
    """The arrays in these files, or those in inputs.npz, or random ones. Raises OSError, ValueError, EOFError."""
    if paths and len(paths) != len(specs):
        raise ValueError(f"{len(paths)} files, but the inputs are {', '.join(spec['name'] for spec in specs)}")
    rng, arrays = np.random.default_rng(0), []
    measured = dict(np.load(HERE / INPUTS)) if (HERE / INPUTS).is_file() else {}
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
