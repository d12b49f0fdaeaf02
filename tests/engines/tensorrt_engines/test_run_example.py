"""The script that runs a deployed engine, on the stand-in for TensorRT."""

from __future__ import annotations

import ast
import ctypes
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from matrix_product import WEIGHT, write_theirs
from numpy.typing import NDArray
from onnx import helper

from engines.deployment import write_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))
import stand_in
from stand_in import StandIn

SCRIPT = Path(__file__).resolve().parents[3] / "engines" / "tensorrt_engines" / "run_example.py"
BATCH = 2

pytestmark = pytest.mark.slow


def seeded(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal(shape, dtype=np.float32)


class HostCuda(ModuleType):
    """cuda.bindings.runtime as far as the example uses it: host memory plays the device's."""

    cudaError_t = SimpleNamespace(cudaSuccess=0)
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self, library: StandIn) -> None:
        super().__init__("cuda.bindings.runtime")
        self.library, self.taken, self.replays = library, [np.zeros(0, np.uint8)], 0

    def cudaStreamCreate(self) -> tuple[int, int]:
        return 0, 7

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        self.taken.append(np.zeros(size + 256, np.uint8))
        return 0, -(-self.taken[-1].ctypes.data // 256) * 256

    def cudaMemcpy(self, target: int, source: int, size: int, kind: int) -> tuple[int]:
        ctypes.memmove(target, source, size)
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        return (0,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:
        self.library.recording = []
        return (0,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[int, Any]:
        work, self.library.recording = self.library.recording, None
        return 0, work

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[int, Any]:
        return 0, graph

    def cudaGraphLaunch(self, graph: Any, stream: int) -> tuple[int]:
        self.replays += 1
        for step in graph:
            step()
        return (0,)


def run_trt_example(folder: Path, library: StandIn, monkeypatch: pytest.MonkeyPatch, x: NDArray[Any]) -> NDArray[Any]:
    """The example's output on the stand-in for TensorRT, whose engines are ONNX files with a profile."""
    graphs = onnx.load(folder / "model.onnx")  # With its weights.
    shapes = {"values": [list(x.shape)] * 3}
    helper.set_model_props(graphs, {"profile": json.dumps(shapes)})
    (folder / "model.engine").write_bytes(graphs.SerializeToString())
    spec = {"name": "values", "shape": list(x.shape), "dtype": "float32"}
    settings = {"settings": {"module": "tensorrt"}, "options": {"cuda_graph": True}, "model": "theirs"}
    (folder / "config.json").write_text(json.dumps({**settings, "inputs": [spec], "outputs": ["scores"]}))
    write_run(str(SCRIPT), folder)
    monkeypatch.setitem(sys.modules, "tensorrt", library)  # type: ignore[arg-type]
    logger = type("Logger", (stand_in.ILogger,), {"__init__": lambda self, level: None, "made": True, "log": print})
    monkeypatch.setattr(library, "Logger", logger, raising=False)
    np.save(folder / "x.npy", x)
    monkeypatch.setattr(sys, "argv", ["run.py", "--input", str(folder / "x.npy"), "--output", str(folder / "y.npy")])
    runpy.run_path(str(folder / "run.py"), run_name="__main__")
    output: NDArray[Any] = np.load(folder / "y.npy")
    return output


REFUSALS = {
    "deserialize_cuda_engine": "The engine does not load",
    "create_execution_context": "could not create an execution context",
    "set_tensor_address": "refuses the address of",
    "infer_shapes": "cannot infer shapes: nothing_of_that_name",
}
"""By the call that fails what the example says."""


def test_tensorrts_example_binds_and_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_theirs(tmp_path / "model.onnx")
    library = StandIn("cpu", scratch=4096)
    cuda = HostCuda(library)
    names = ("cuda", "cuda.bindings")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["cuda.bindings"], "runtime", cuda, raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    x = seeded(BATCH, 6)
    y = run_trt_example(tmp_path, library, monkeypatch, x)
    np.testing.assert_allclose(y, x @ WEIGHT, rtol=1e-5)
    assert cuda.replays >= 20
    for step, words in REFUSALS.items():
        library.fails = step
        with pytest.raises(SystemExit, match=words):
            run_trt_example(tmp_path, library, monkeypatch, x)
    library.fails, library.strange_types = None, {"scores": stand_in.DataType.FP8}
    with pytest.raises(SystemExit, match="NumPy has no type for the engine's scores, FP8"):
        run_trt_example(tmp_path, library, monkeypatch, x)


@pytest.mark.gpu
def test_tensorrts_example_uses_cuda_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.runtime")
    write_theirs(tmp_path / "model.onnx")
    x = seeded(BATCH, 6)
    y = run_trt_example(tmp_path, StandIn("cuda"), monkeypatch, x)
    np.testing.assert_allclose(y, x @ WEIGHT, rtol=1e-4)


def test_bf16_is_rounded_to_the_nearest() -> None:
    source = ast.parse(SCRIPT.read_text())
    (function,) = (n for n in source.body if isinstance(n, ast.FunctionDef) and n.name == "to_bf16")
    space: dict[str, Any] = {"np": np, "Array": NDArray[Any]}
    exec(compile(ast.Module([function], []), "trt.py", "exec"), space)
    values = np.float32([1.0, 1.00390625, 1.01171875, -3.1415927, 1e-30, 65280.0, 0.0])
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(space["to_bf16"](values), expected)
