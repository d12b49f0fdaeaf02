"""Read a deployed model's inputs, time its calls, and print, check and save its outputs. run.py imports this."""

import argparse
import json
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
Array = np.ndarray[Any, Any]


def main(open_model: Callable[[dict[str, Any], list[Array]], Any]) -> None:
    """Run the model that `open_model` makes from config.json and the inputs.

    Its `call` waits for the result; `outputs` returns the last call's outputs in the model's order.
    """
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # End as other tools do if the reader of a pipe ends first.
    parser = argparse.ArgumentParser(description="Run the model in this folder and time its calls.")
    parser.add_argument(
        "--input", nargs="*", help="NAME=FILE.npy for every input, or files in order; default: inputs.npz, else random"
    )
    parser.add_argument("--output", help="a .npy file for the first output, or a .npz file for all")
    parser.add_argument("--seconds", type=float, default=2, help="seconds to time calls, at least 20; default: 2")
    arguments = parser.parse_args()
    config = json.loads((HERE / "config.json").read_text())
    try:
        arrays = read_inputs(config["inputs"], arguments.input)
    except (OSError, ValueError, EOFError) as error:
        parser.error(f"--input: {error}")
    model = open_model(config, arrays)
    times: list[float] = []
    end = time.perf_counter() + arguments.seconds
    while len(times) < 20 or time.perf_counter() < end:
        start = time.perf_counter()
        model.call()
        times.append(time.perf_counter() - start)
    outputs: list[Array] = model.outputs()
    names = config.get("outputs") or [str(number) for number in range(len(outputs))]
    if (arguments.output or "").endswith(".npz"):
        np.savez(arguments.output, **dict(zip(names, outputs, strict=True)))
    elif arguments.output:
        np.save(arguments.output, outputs[0])
    latency = 1000 * statistics.median(times[len(times) // 4 :])
    shapes = ", ".join(str(output.shape) for output in outputs)
    kinds = "output" if len(outputs) == 1 else "outputs"
    print(f"{config['model']}: {kinds} {shapes}, median latency {latency:.3f} ms in {len(times)} calls")
    if not arguments.input and (HERE / "expected.npz").is_file():
        for number, expected in np.load(HERE / "expected.npz").items():
            items = np.moveaxis(outputs[int(number)], config.get("items_axes", {}).get(number, 0), 0)
            check(names[int(number)], items, expected, config["usual_error"])


def check(name: str, output: Array, expected: Array, usual: float) -> None:
    """Compare an output's first items with the expected ones; exit with code 1 if they differ."""
    ours, finite = np.asarray(output[: len(expected)], "float64"), np.isfinite(expected)
    if ours.shape != expected.shape:
        error = np.inf
    elif expected.dtype.kind in "biu":
        error = float(np.mean(ours != expected))
    else:
        error = float(np.linalg.norm(ours[finite] - expected[finite]) / (np.linalg.norm(expected[finite]) or 1.0))
    if not error <= usual:
        raise SystemExit(f"output {name} is WRONG: error {error:.1e} to expected.npz, usual is {usual:.1e}")
    print(f"output {name} is right: error {error:.1e} to expected.npz")


def read_inputs(specs: list[dict[str, Any]], paths: list[str] | None) -> list[Array]:
    """Read these files, or inputs.npz, or draw random arrays. Raises OSError, ValueError, EOFError."""
    names = [spec["name"] for spec in specs]
    files = dict(path.partition("=")[::2] for path in paths or () if path.partition("=")[0] in names)
    files = files or dict(zip(names, paths or (), strict=False))
    if unknown := [path for path in paths or () if "=" in path and path.partition("=")[0] not in names]:
        raise ValueError(f"{unknown[0]}: the inputs are called {', '.join(names)}")
    if paths and (len(paths) != len(specs) or len(files) != len(specs)):
        raise ValueError(f"{len(paths)} files, but the inputs are {', '.join(names)}")
    rng, arrays = np.random.default_rng(0), []
    measured = dict(np.load(HERE / "inputs.npz")) if (HERE / "inputs.npz").is_file() else {}
    for spec in specs:
        # NumPy has no bf16: a runtime that takes it rounds by itself.
        dtype = np.dtype("float32" if spec["dtype"] == "bfloat16" else spec["dtype"])
        drawn = rng.integers(0, 2, spec["shape"]) if dtype.kind in "biu" else rng.standard_normal(spec["shape"])
        array = np.load(files[spec["name"]]) if paths else measured.get(spec["name"], drawn)
        if paths and (list(array.shape) != spec["shape"] or (array.dtype.kind == "f" and dtype.kind in "biu")):
            actual, expected = f"shape {array.shape}, {array.dtype}", f"{tuple(spec['shape'])}, {spec['dtype']}"
            raise ValueError(f"{files[spec['name']]} has {actual}; {spec['name']} of this export takes {expected}")
        for axis, size in enumerate(spec["shape"]):  # inputs.npz has a few items: repeat them.
            array = array.take(np.arange(size) % array.shape[axis], axis)
        arrays.append(np.ascontiguousarray(array, dtype))
    return arrays
