"""The first answer: `python -m profiler model.onnx` to the end, and that its commands are what a user goes on with."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper, numpy_helper

from profiler.job.config import load_config
from profiler.run import model_job

Profiler = Callable[..., CompletedProcess[str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A fully connected layer."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 32), ("y", 8)))
    weights = numpy_helper.from_array(np.ones((32, 8), np.float32) / 32, "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    path = tmp_path / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_a_model_to_the_end(model: Path, profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model.parent
    monkeypatch.setattr(model_job, "_BUDGET", {"seconds": 0.05, "repeats": 0.0})
    variables = {"PROFILER_CACHE": str(folder / "cache")}
    line = ["tiny.onnx", "--batch", "1,4", "--engine", "ort", "--device", "cpu", "--write-yaml", "job.yaml"]
    done = profiler(*line, cwd=folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "results").iterdir()
    rows = pl.read_parquet(run / "results.parquet")
    assert rows.select("suite", "model", "variant", "batch_size", "status").rows() == [
        ("tiny", "tiny", "ort", size, "ok") for size in (1, 4)
    ]
    answer = done.stdout.partition("What to deploy")[2]
    assert re.search(r"Lowest latency: ort native, batch 1 \([\d.]+ ms per call, error", answer), done.stdout
    assert re.search(r"Highest throughput: ort native, batch \d \([\d,.]+ items/s, error", answer)
    assert "The same again: python -m profiler job.yaml" in answer
    # What it says to go on with is what it was of.
    commands = [shlex.split(text) for text in re.findall(r"python -m profiler (recommend \S+[^(\n]*)", answer)]
    batches = []
    for words in commands:
        asked = [word for word in words if word not in ("--export", "deploy/")]
        found = profiler(*asked, "--format", "json", cwd=folder, **variables)
        batches.append(json.loads(found.stdout)["choice"]["batch_size"])
    named = [int(size) for size in re.findall(r"ort native, batch (\d) \(", answer)]
    assert batches == [*named, named[0]]
    assert [" --export deploy/" in shlex.join(words) for words in commands] == [True, True, False]
    # Both files say the same job again.
    for file in (folder / "job.yaml", run / "bench.yaml"):
        again = load_config(file, "cpu")
        assert (again.models[0].onnx, again.batch_sizes) == (model, [1, 4])
        assert [entry.label for entry in again.engines] == ["ort"]


def test_a_model_that_cannot_be_had_is_a_sentence_and_leaves_nothing(tmp_path: Path, profiler: Profiler) -> None:
    (tmp_path / "net.py").write_text("def make():\n    return 7\n")
    for word, why in (("net:made", "net has no 'made'; did you mean 'make'?"), ("net:make", "not a torch.nn.Module")):
        done = profiler(word, "--input", "3", "--device", "cpu", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()
