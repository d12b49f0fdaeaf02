"""`python -m profiler model.onnx` to the end: the commands that it names go on with what it measured."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matrix_product import write_product

from profiler.errors import resuming
from profiler.job.config import load_config
from profiler.run import model_job


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_product(tmp_path / "tiny.onnx", np.ones((32, 8), np.float32) / 32)


def test_a_model_to_the_end(model, profiler, monkeypatch):
    folder = model.parent
    monkeypatch.setattr(model_job, "_BUDGET", {"seconds": 0.05, "repeats": 0.0})
    variables = {"PROFILER_CACHE": str(folder / "cache"), "AS_IF_QUIET": "yes"}
    line = ["tiny.onnx", "--batch", "1,4", "--engine", "ort,openvino", "--device", "cpu", "--threads", "1"]
    done = profiler(*line, cwd=folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "results").iterdir()
    rows = pl.read_parquet(run / "results.parquet")
    assert {*rows.select("suite", "model", "variant", "batch_size", "status").rows()} == {
        ("tiny", "tiny", name, size, "ok") for name in ("openvino", "ort") for size in (1, 4)
    }
    named = re.findall(r"tiny, .*?: (?:Deploy .*?, batch (\d): |No recommendation yet: )", done.stdout)
    assert len(named) == 2, done.stdout
    assert all("--threads 1" in command for command in re.findall("--resume .*", done.stdout))
    assert resuming(run).endswith(" --threads 1")
    # What it says to go on with is what it was of.
    commands = re.findall(r"Export: python -m profiler (recommend .*) --export deploy/", done.stdout)
    batches = []
    for words in map(shlex.split, commands):
        found = profiler(*words, "--format", "json", cwd=folder, **variables)
        batches.append(str(json.loads(found.stdout)["winner"]["batch_size"]))
    assert batches == [batch for batch in named if batch]
    again = load_config(run / "bench.yaml", "cpu")
    assert (again.models[0].onnx, again.batch_sizes) == (model, [1, 4])
    assert [entry.label for entry in again.engines] == ["ort", "openvino"]


def test_a_model_that_cannot_be_had_is_a_sentence_and_leaves_nothing(tmp_path, profiler):
    (tmp_path / "net.py").write_text("def make():\n    return 7\n")
    for word, why in (("net:made", "net has no 'made'; did you mean 'make'?"), ("net:make", "not a torch.nn.Module")):
        done = profiler(word, "--input", "3", "--device", "cpu", cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert why in done.stderr
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.glob("results/*")) == []
