"""run.py of an exported folder: the frame that all share, and the scripts of ONNX Runtime and TensorRT."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import itertools
import json
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from matrix_product import WEIGHT, write_theirs
from onnx import helper

from engines.base import Job
from engines.deployment import copy_run, described_inputs
from engines.options import OrtOptions
from engines.ort import deploy
from exporters.inputs import TensorSpec, seeded_inputs
from exporters.source import ModelSource

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import stand_in
from stand_in import StandIn

PART = """
import json
import numpy as np
from frame import HERE, main

class Model:
    def __init__(self, config, arrays):
        assert json.loads((HERE / "config.json").read_text()) == config
        self.arrays, self.calls = arrays, 0

    def call(self):
        self.calls += 1

    def outputs(self):
        assert self.calls >= 20
        return [np.asarray(2 * self.arrays[0]), *self.arrays[1:]]

main(Model)
"""


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run the folder's run.py as a program of this process, with a clock of its own."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 10)
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "frame", raising=False)
    runpy.run_path(str(folder / "run.py"), run_name="__main__")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy_run("run_ort.py", tmp_path)
    (tmp_path / "run.py").write_text(PART)
    return tmp_path


def test_run_py_reads_files_or_draws_inputs_like_those_that_were_measured(folder, monkeypatch, capsys):
    inputs = [{"name": name, "shape": [2, 3], "dtype": dtype} for name, dtype in (("x", "float16"), ("y", "bfloat16"))]
    (folder / "config.json").write_text(json.dumps({"model": "net", "inputs": inputs, "usual_error": 1e-3}))
    x = np.arange(6, dtype=np.float64).reshape(2, 3)
    np.save(folder / "x.npy", x)
    given, output = str(folder / "x.npy"), str(folder / "y.npy")
    run(folder, monkeypatch, "--input", given, given, "--output", output)
    y = np.load(output)
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, 2 * x)
    assert capsys.readouterr().out == "net: outputs (2, 3), (2, 3), median latency 100.000 ms in 20 calls\n"
    run(folder, monkeypatch, "--input", given, given, "--output", str(folder / "all.npz"))
    every = np.load(folder / "all.npz")
    np.testing.assert_array_equal(every["0"], 2 * x)
    np.testing.assert_array_equal(every["1"], x)
    for second, says in ((x, "output 1 is right: error 0.0e+00"), (x + 1, "output 1 is WRONG: error ")):
        np.savez(folder / "inputs.npz", x=x, y=x)
        np.savez(folder / "expected.npz", **{"0": 2 * x, "1": second})
        with pytest.raises(SystemExit, match=says) if "WRONG" in says else contextlib.nullcontext():
            run(folder, monkeypatch)
        assert "output 0 is right" in (said := capsys.readouterr().out) and ("output 1 is right" in said) == (
            second is x
        )
    for name in ("inputs.npz", "expected.npz"):
        (folder / name).unlink()
    np.save(folder / "y.npy", np.ones((2, 3)))
    run(folder, monkeypatch, "--input", f"y={folder / 'y.npy'}", f"x={given}", "--output", output)
    np.testing.assert_array_equal(np.load(output), 2 * x)
    for dtype in ("float32", "float16", "bfloat16", "int64", "uint8", "bool"):
        specs = [TensorSpec("x", (4, 999), dtype)]
        (folder / "config.json").write_text(json.dumps({"model": "net", "inputs": described_inputs(specs, 4)}))
        run(folder, monkeypatch, "--output", output)
        ours, measured = np.load(output) / 2, seeded_inputs(specs, 4)[0].astype(np.float64)
        assert ours.mean() == pytest.approx(measured.mean(), abs=0.1)
        assert ours.std() == pytest.approx(measured.std(), abs=0.1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["x=nowhere.npy"], "No such file or directory: 'nowhere.npy'"),
        (["four.npy"], "four.npy has shape (4, 3), float64; x of this export takes (2, 3), float32"),
        (["i=float.npy"], "float.npy has shape (2,), float64; i of this export takes (2,), int64"),
        (["text.npy"], "--input: "),
        (["empty.npy"], "--input: "),
        (["four.npy", "four.npy"], "2 files, but the inputs are x"),
    ],
)
def test_run_py_says_what_is_wrong_with_an_input(given, says, folder, monkeypatch, capsys):
    name = "i" if given[0].startswith("i=") else "x"
    spec = {"i": {"shape": [2], "dtype": "int64"}, "x": {"shape": [2, 3], "dtype": "float32"}}[name]
    (folder / "config.json").write_text(json.dumps({"model": "net", "inputs": [{"name": name, **spec}]}))
    np.save(folder / "four.npy", np.zeros((4, 3)))
    np.save(folder / "float.npy", np.zeros(2))
    (folder / "text.npy").write_text("0 0 0")
    (folder / "empty.npy").touch()
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        run(folder, monkeypatch, "--input", *given)
    assert (ended.value.code, says in capsys.readouterr().err) == (2, True)


def test_onnx_runtime_gets_the_options_that_were_measured(tmp_path):
    write_theirs(tmp_path / "graph.onnx")
    options = OrtOptions(prefer_nhwc=True, cuda_graph=True, conv_search="HEURISTIC")
    source = ModelSource("net", onnx=tmp_path / "graph.onnx")
    job = Job(source, "inference", "tf32", 2, "cuda", options, (), onnx=tmp_path / "graph.onnx", engine="ort")
    (tmp_path / "out").mkdir()
    deployed = deploy(job, tmp_path / "out", None)
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"model.onnx", "run.py", "frame.py"}
    assert deployed.config["inputs"] == [{"name": "values", "shape": [2, 6], "dtype": "float32"}]
    (name, settings), other = deployed.config["settings"]["providers"]
    assert (name, other) == ("CUDAExecutionProvider", ["CPUExecutionProvider", {}])
    assert settings == {
        "device_id": "0", "use_tf32": "1", "prefer_nhwc": "1", "enable_cuda_graph": "1", "fuse_conv_bias": "0",
        "cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested",
    }  # fmt: skip


def test_onnx_runtime_runs_a_file_that_declares_a_wrong_size(tmp_path, monkeypatch, capsys):
    ends = helper.make_tensor_value_info("x", 1, ["N"]), helper.make_tensor_value_info("y", 7, [1, 1])
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "g", [ends[0]], [ends[1]])
    path, folder = tmp_path / "graph.onnx", tmp_path / "out"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    folder.mkdir()
    source = ModelSource("net", onnx=path)
    job = Job(source, "inference", "fp32", 4, "cpu", OrtOptions(), (), onnx=path, engine="ort")
    config = {"model": "net", "device": "cpu", **deploy(job, folder, None).config}
    (folder / "config.json").write_text(json.dumps(config))
    np.save(folder / "x.npy", np.ones(4, np.float32))
    run(folder, monkeypatch, "--input", str(folder / "x.npy"))
    assert capsys.readouterr().out.startswith("net: output (1, 4), ")


class HostCuda(ModuleType):
    """cuda.bindings.runtime as far as run_trt.py uses it: host memory plays the device's."""

    cudaError_t = SimpleNamespace(cudaSuccess=0)
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self, library: StandIn) -> None:
        super().__init__("cuda.bindings.runtime")
        self.library, self.taken, self.replays = library, [np.zeros(0, np.uint8)], 0
        self.cudaStreamCreate = lambda: (0, 7)
        self.cudaStreamSynchronize = lambda stream: (0,)
        self.cudaGraphInstantiate = lambda graph, flags: (0, graph)
        self.cudaStreamBeginCapture = lambda stream, mode: (setattr(library, "recording", []) or 0,)

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        self.taken.append(np.zeros(size + 256, np.uint8))
        return 0, -(-self.taken[-1].ctypes.data // 256) * 256

    def cudaMemcpy(self, target: int, source: int, size: int, kind: int) -> tuple[int]:
        ctypes.memmove(target, source, size)
        return (0,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[int, Any]:
        work, self.library.recording = self.library.recording, None
        return 0, work

    def cudaGraphLaunch(self, graph: Any, stream: int) -> tuple[int]:
        self.replays += 1
        for step in graph:
            step()
        return (0,)


def test_tensorrts_script_binds_replays_and_says_what_fails(tmp_path, monkeypatch):
    write_theirs(tmp_path / "model.onnx")
    copy_run("run_trt.py", tmp_path)
    library = StandIn()
    cuda = HostCuda(library)
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["cuda.bindings"], "runtime", cuda, raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", library)
    logger = type("Logger", (stand_in.ILogger,), {"__init__": lambda self, level: None, "made": True, "log": print})
    monkeypatch.setattr(library, "Logger", logger, raising=False)
    graph = onnx.load(tmp_path / "model.onnx")  # With its weights.
    helper.set_model_props(graph, {"profile": json.dumps({"values": [[2, 6]] * 3})})
    (tmp_path / "model.engine").write_bytes(graph.SerializeToString())
    spec = {"name": "values", "shape": [2, 6], "dtype": "float32"}
    settings = {"settings": {"module": "tensorrt"}, "options": {"cuda_graph": True}, "model": "theirs"}
    (tmp_path / "config.json").write_text(json.dumps({**settings, "inputs": [spec], "outputs": ["scores"]}))
    x = np.random.default_rng(5).standard_normal((2, 6), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")]
    run(tmp_path, monkeypatch, *arguments)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), x @ WEIGHT, rtol=1e-5)
    assert cuda.replays >= 20
    for step in ("deserialize_cuda_engine", "create_execution_context", "set_tensor_address", "infer_shapes"):
        library.fails = step
        with pytest.raises(SystemExit):
            run(tmp_path, monkeypatch, *arguments)


def test_bf16_is_rounded_to_the_nearest():
    source = ast.parse((Path(__file__).resolve().parents[2] / "engines" / "deployed" / "run_trt.py").read_text())
    (function,) = (n for n in source.body if isinstance(n, ast.FunctionDef) and n.name == "to_bf16")
    space: dict[str, Any] = {"np": np, "Array": np.ndarray}
    exec(compile(ast.Module([function], []), "trt.py", "exec"), space)
    values = np.float32([1.0, 1.00390625, 1.01171875, -3.1415927, 1e-30, 65280.0, 0.0])
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(space["to_bf16"](values), expected)
