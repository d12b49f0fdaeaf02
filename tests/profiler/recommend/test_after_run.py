"""The first answer: what it says of results, and `python -m profiler model.onnx` to the end."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matrix_product import write_product
from runs import Profiler, on_console

from profiler.job.config import load_config
from profiler.recommend.after_run import conclude
from profiler.recommend.answer import recommend
from profiler.recommend.options import Request
from profiler.results.reading import load
from profiler.run import model_job

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def resnet50() -> pl.DataFrame:
    """The rows of one model on an H200."""
    return load(ROOT / "tests" / "golden" / "h200")[0].filter(model="resnet50").collect()


def said(results: pl.DataFrame) -> str:
    """What follows the tables of a run with these results."""
    return on_console(lambda console: conclude(Path("a run"), results, console), width=200)


def test_one_model_has_a_headline_for_each_aim_and_several_have_a_table(resnet50: pl.DataFrame) -> None:
    inference = resnet50.filter(pl.col("pass") == "inference")
    text = " ".join(said(inference).split())
    for aim, batch, option in (("lowest latency", 1, ""), ("highest throughput", 16, " --objective throughput")):
        assert f"resnet50, {aim}: Deploy compiled fp16, batch {batch}: " in text
        assert f"Export: python -m profiler recommend 'a run'{option} --export deploy/" in text
    assert "throughput" not in said(inference.filter(batch_size=16))
    both = said(resnet50)
    assert "--export" not in both
    rows = [line.split() for line in both.splitlines() if "resnet50" in line and "training" not in line]
    assert [(row[1], row[2], row[3:5]) for row in rows[:2]] == [
        ("latency", "1", ["compiled", "fp16"]), ("throughput", "16", ["compiled", "fp16"]),
    ]  # fmt: skip
    training = said(resnet50.filter(pl.col("pass") == "training"))
    assert "resnet50 training, lowest latency: Deploy eager fp32, batch 1" in training
    assert "--pass training" in training and "--export" not in training


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_it_names_what_recommend_chooses(objective: str) -> None:
    results = load(ROOT / "tests" / "golden" / "h200")[0].collect()
    for model in results["model"].unique():
        rows = results.filter(pl.col("pass") == "inference", model=model)
        winner = recommend(results, Request(model, objective=objective)).winner
        assert winner is not None
        assert f"Deploy {winner.variant} {winner.precision}, batch {winner.batch_size}: " in said(rows)


def test_nothing_is_said_of_a_run_without_figures(resnet50: pl.DataFrame) -> None:
    assert said(resnet50.with_columns(status=pl.lit("failed"))) == ""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A fully connected layer."""
    return write_product(tmp_path / "tiny.onnx", np.ones((32, 8), np.float32) / 32)


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
    named = re.findall(r"Deploy ort fp32, batch (\d): ", done.stdout)
    assert len(named) == 2 and named[0] == "1", done.stdout
    assert "The same again: python -m profiler job.yaml" in done.stdout
    # What it says to go on with is what it was of.
    commands = re.findall(r"Export: python -m profiler (recommend .*) --export deploy/", done.stdout)
    batches = []
    for words in map(shlex.split, commands):
        found = profiler(*words, "--format", "json", cwd=folder, **variables)
        batches.append(str(json.loads(found.stdout)["winner"]["batch_size"]))
    assert batches == named
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
