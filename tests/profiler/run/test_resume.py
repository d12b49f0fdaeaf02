"""A run is resumed only where it was made and with the networks that it measured; each row keeps its environment."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from matrix_product import write_product
from runs import Profiler

from profiler.results.run_folder import append_line as append
from profiler.results.run_folder import read_lines

FACTORY = """
import helper
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return helper.head(self.layer(x))

def net():
    return Net()
"""
BROKEN = """
def make():
    raise RuntimeError("not yet")
"""
MENDED = "from torch import nn\n\ndef make():\n    return nn.Linear(8, 4)\n"
HELPER = "def head(y):\n    return y * 2\n"
JOB = """
models:
  - {name: net, factory: "mine:net", input: [8]}
  - {name: weighted, factory: "mine:net", input: [8], weights: weights.pt}
  - {name: outside, onnx: outside.onnx}
  - {name: broken, factory: "other:make", input: [8]}
engines: [eager, ort]
device: cpu
batch_sizes: [1, 2]
budget: {seconds: 0.05, min_samples: 3}
exclude: [{model: [net, weighted, broken], engine: ort}]
"""
FIRST = ["--only", "batch_size=1", "--no-report"]


def write_graph(path: Path, factor: float) -> None:
    data = path.with_name(f"{path.name}.data")
    data.unlink(missing_ok=True)
    write_product(path, np.full((3, 2), factor, np.float32), batch="batch", beside=data.name)


def write_weights(path: Path, factor: float) -> None:
    torch.save({"layer.weight": torch.full((4, 8), float(factor)), "layer.bias": torch.zeros(4)}, path)


def write_all(folder: Path) -> None:
    (folder / "mine.py").write_text(FACTORY)
    (folder / "helper.py").write_text(HELPER)
    (folder / "other.py").write_text(BROKEN)
    (folder / "job.yaml").write_text(JOB)
    write_weights(folder / "weights.pt", 1)
    write_graph(folder / "outside.onnx", 1)


def rows_of(run: Path) -> dict[str, dict[str, Any]]:
    return {row["case_id"]: row for row in pl.read_parquet(run / "results.parquet").to_dicts()}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    write_all(folder)
    done = profiler("job.yaml", *FIRST, cwd=folder, PROFILER_CACHE=str(folder / "cache"), AS_IF_QUIET="yes")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def place(begun: Path, tmp_path: Path) -> Path:
    """The same workplace, with files as they were and a copy of its run in `run`."""
    write_all(begun)
    (run,) = (begun / "results").iterdir()
    shutil.copytree(run, tmp_path / "run")
    return tmp_path


@pytest.fixture
def resume(begun: Path, place: Path, profiler: Profiler) -> Callable[..., CompletedProcess[str]]:
    def start(*arguments: str, **variables: str) -> CompletedProcess[str]:
        variables |= {"PROFILER_CACHE": str(begun / "cache"), "AS_IF_QUIET": "yes"}
        return profiler("--resume", str(place / "run"), "--no-report", *arguments, cwd=begun, **variables)

    return start


def files_of(run: Path) -> dict[str, bytes]:
    found = (f for f in run.rglob("*") if f.is_file() and "logs" not in f.parts and f.name != "lock")
    return {str(f.relative_to(run)): f.read_bytes() for f in found}


def assert_refused(done: CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in (*words, "start a new run"):
        assert word in " ".join(done.stderr.split())


CHANGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a helper": (
        "net",
        lambda folder: (folder / "helper.py").write_text(HELPER.replace("2", "1000")),
        "code (helper)",
    ),
    "weights": ("weighted", lambda folder: write_weights(folder / "weights.pt", 2), "weights"),
    "a graph's data": ("outside", lambda folder: write_graph(folder / "outside.onnx", 2), "files"),
    "a factory that raises now": ("net", lambda folder: (folder / "helper.py").write_text("1 / 0"), "cannot be loaded"),
}
MACHINES = {"gpu": "Some GPU", "cpu": "Some Processor", "cpu_cores": 1000, "torch_version": "1.0", "device": "cuda"}


@pytest.mark.parametrize("what", [*CHANGES, *MACHINES, "journal"])
def test_a_run_of_another_network_machine_or_version_is_not_resumed(begun, place, resume, what):
    run = place / "run"
    if what in CHANGES:
        model, change, words = CHANGES[what]
        change(begun)
        told = [f"model '{model}' ", words]
    elif what in MACHINES:
        facts = json.loads((run / "environment.json").read_text()) | {what: MACHINES[what]}
        (run / "environment.json").write_text(json.dumps(facts))
        told = [f"{MACHINES[what]}, here it is"]
    else:
        journal = run / "journal.jsonl"
        journal.write_text(journal.read_text().replace('"samples"', '"times"'))  # As another version might call them.
        told = ["this version reads none of journal.jsonl's"]
    before = files_of(run)
    assert_refused(resume(), *told)
    assert files_of(run) == before, "and nothing has been written"


def test_another_network_than_was_measured_is_not_exported(begun, place, profiler):
    model, change, words = CHANGES["a helper"]
    change(begun)
    arguments = (
        "recommend",
        str(place / "run"),
        "--model",
        model,
        "--only",
        "variant=eager",
        "--export",
        str(place / "out"),
    )
    done = profiler(*arguments, cwd=begun, PROFILER_CACHE=str(begun / "cache"))
    assert_refused(done, f"--export: model '{model}' has changed since the run measured it: ", words)
    assert not (place / "out").exists()


def test_a_run_is_resumed_where_nothing_has_changed_and_rows_keep_their_environment(begun, place, resume):
    run = place / "run"
    # The run was begun on another host of the same kind, as its rows say.
    lines = read_lines(run / "journal.jsonl")
    (run / "journal.jsonl").unlink()
    for line in map(json.loads, lines):
        line["environment"]["host"] = "elsewhere"
        append(run / "journal.jsonl", json.dumps(line))
    # A model without a measured row may be mended.
    (begun / "other.py").write_text(MENDED)

    done = resume("--retry")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(run)
    assert {row["status"] for row in rows.values() if row["model"] == "broken"} == {"ok"}
    measured = [row for row in rows.values() if row["model"] != "broken" and row["status"] == "ok"]
    hosts = {(row["batch_size"], row["host"]) for row in measured}
    assert hosts == {(1, "elsewhere"), (2, socket.gethostname())}
    models = json.loads((run / "models.json").read_text())
    assert set(models) == {"net", "weighted", "outside", "broken"}
