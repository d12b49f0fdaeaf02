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


def test_what_to_deploy_for_each_aim(resnet50: pl.DataFrame) -> None:
    text = said(resnet50)
    assert "Lowest latency: compiled fp16, batch 1 (0.460 ms per call, error 1.5e-3)" in text
    assert "The runner-up, ort-tuned fp16, batch 1, is 1.127× slower (1.126–1.127)." in text
    assert "as long as 130,000 items save." in text
    assert "Highest throughput: compiled fp16, batch 16 (16,984 items/s, error 1.6e-3)" in text
    assert "python -m profiler recommend 'a run' --objective throughput --export deploy/" in text
    assert text.count("\n") < 16, "a few lines"


def test_training_has_nothing_to_export(resnet50: pl.DataFrame) -> None:
    text = said(resnet50.filter(pl.col("pass") == "training"))
    assert "Lowest latency: eager fp32, batch 1 (8.02 ms per call)" in text
    assert "--batch 1 --pass training" in text
    assert "--export" not in text


def test_one_batch_size_has_one_answer(resnet50: pl.DataFrame) -> None:
    text = said(resnet50.filter(batch_size=16))
    assert "Lowest latency: compiled fp16, batch 16" in text
    assert "throughput" not in text


def test_a_disturbed_choice_is_not_certain(resnet50: pl.DataFrame) -> None:
    noisy = pl.when(variant="ort-tuned").then(pl.lit(["disturbed: others"], pl.List(pl.String))).otherwise("warnings")
    text = said(resnet50.with_columns(warnings=noisy))
    latency, throughput = text.split("Highest throughput")
    assert "Not certain: ort-tuned fp16, batch 1 was disturbed.\n" in latency
    assert text.count("Caution: disturbed (ort-tuned fp16, batch 1): other work ran on") == 1
    assert "Lowest latency so far: " not in latency, "the choice itself was not"
    assert "slower" not in latency
    assert "has 1.469× lower throughput" in throughput, "there another one is the runner-up"


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
    answer = done.stdout.partition("What to deploy")[2]
    so_far = "( so far)?"  # Where this machine is busy.
    assert re.search(rf"Lowest latency{so_far}: ort fp32, batch 1 \([\d.]+ ms per call, (but|error)", answer), (
        done.stdout
    )
    assert re.search(rf"Highest throughput{so_far}: ort fp32, batch \d \([\d,.]+ items/s, (but|error)", answer)
    assert "The same again: python -m profiler job.yaml" in answer
    # What it says to go on with is what it was of.
    commands = [shlex.split(text) for text in re.findall(r"python -m profiler (recommend \S+[^(\n]*)", answer)]
    batches = []
    for words in commands:
        asked = [word for word in words if word not in ("--export", "deploy/")]
        found = profiler(*asked, "--format", "json", cwd=folder, **variables)
        batches.append(json.loads(found.stdout)["choice"]["batch_size"])
    named = [int(size) for size in re.findall(r"ort fp32, batch (\d) \(", answer)]
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
