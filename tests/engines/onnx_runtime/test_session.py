"""What a deployed folder says of ONNX Runtime's settings."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from engines.base import Job
from engines.catalog import OrtOptions
from engines.ort import write_graph
from exporters.source import ModelSource

pytestmark = pytest.mark.slow


def test_onnx_runtime_gets_the_options_that_were_measured(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    path = tmp_path / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    options = OrtOptions(prefer_nhwc=True, cuda_graph=True, conv_search="HEURISTIC")
    job = Job(ModelSource("net", onnx=path), "inference", "tf32", 2, "cuda", options, (), onnx=path, engine="ort")
    folder = tmp_path / "out"
    folder.mkdir()
    deployed = write_graph(job, folder, None)
    assert {file.name for file in folder.iterdir()} == {"model.onnx", "run.py"}
    assert deployed.config["inputs"] == [{"name": "x", "shape": [2, 6], "dtype": "float32"}]
    (name, settings), other = deployed.config["settings"]["providers"]
    assert (name, other) == ("CUDAExecutionProvider", ["CPUExecutionProvider", {}])
    assert settings == {
        "device_id": "0", "use_tf32": "1", "prefer_nhwc": "1", "enable_cuda_graph": "1", "fuse_conv_bias": "0",
        "cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested",
    }  # fmt: skip
    assert deployed.config["settings"]["dimensions"] == {"n": 2}
