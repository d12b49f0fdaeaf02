"""profiler.measure as a notebook, a script and a test call it: what it returns, leaves, prints and refuses."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
from matrix_product import write_text
from not_installed import hide
from torch import nn

import profiler
import profiler.run.measure as run_measure
from profiler.job import plan
from profiler.results.columns import RESULTS, SAMPLES
from profiler.run.progress import Display

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
BUDGET: dict[str, Any] = {"seconds": 0.05, "min_samples": 3, "repeats": 0}
SCRIPT = f"""
import profiler
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
with open("started.txt", "a") as file:
    file.write("once ")
rows, _ = profiler.measure(
    model, (3, 8, 8), engines=["eager", "ort"], precisions=["fp32", "int8"], device="cpu", budget={BUDGET}
)
rows.collect().write_parquet("rows.parquet")
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make temporary folders here meanwhile."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A notebook's session: a module __main__ that is in no file."""
    session = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", session)
    return session


@pytest.mark.usefixtures("forkserver")
def test_the_examples_of_the_page_in_a_notebook(notebook, temporary, capfd, monkeypatch):
    monkeypatch.chdir(temporary)
    monkeypatch.setattr(run_measure, "QUICK", BUDGET)
    before = dict(os.environ)
    cell, test = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(cell, "<ipython-input-2>", "exec"), vars(notebook))
    rows = notebook.results.collect()
    assert rows.select("model", "variant", "precision", "batch_size", "status").rows() == [
        ("Sequential", "eager", "fp32", 8, "ok"),
        ("Sequential", "ort", "fp32", 8, "ok"),
    ], rows["reason"].to_list()
    assert (notebook.results.collect_schema(), notebook.samples.collect_schema()) == (RESULTS, SAMPLES)
    assert set(notebook.samples.collect()["case_id"]) == set(rows["case_id"])
    printed = f"{rows.select('variant', 'precision', 'latency_ms', 'rel_l2_error', 'status')}\n"
    assert capfd.readouterr() == (printed, ""), "what the example prints itself"
    assert notebook.model.training, "a copy of it was measured"
    exec(compile(test, "<ipython-input-3>", "exec"), vars(notebook))
    monkeypatch.setattr(plan, "BASE_PROCESSES", 3)  # As users have it.
    monkeypatch.setattr(plan, "CONFIRMING_PROCESSES", 3)
    notebook.test_the_export_is_right()
    assert os.environ == before
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("forkserver")
def test_the_example_of_the_readme(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "tests" / "golden" / "cpu", tmp_path / "results" / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profiler, "measure", partial(profiler.measure, budget=BUDGET, device="cpu"))
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    session: dict[str, Any] = {"module": nn.Sequential(nn.AvgPool2d(32), nn.Flatten(), nn.Linear(147, 4))}
    before, _, after = code.rpartition("results, samples")
    exec(compile(before, "README.md", "exec"), session)
    rows = session["results"].collect()
    assert rows.filter(status="ok")["variant"].to_list()[:1] == ["eager"]
    assert set(rows["variant"]) == {"eager", "compiled", "ort"}
    exec(compile(f"results, samples{after}", "README.md", "exec"), session)
    assert session["results"].collect().height > rows.height


@pytest.mark.usefixtures("forkserver")
def test_an_onnx_file_in_a_folder_that_is_kept(tmp_path, capfd):
    results, _ = profiler.measure(
        str(onnx_file(tmp_path)),
        {"b": np.ones((3, 2), np.float32), "a": np.ones((3, 2), np.float32)},
        engines=["eager", "ort"],
        batch={"a": 1, "b": 1},
        device="cpu",
        budget=BUDGET,
        output=tmp_path / "runs",
        name="sum",
        progress=True,
    )
    rows = results.collect()
    assert rows.select("model", "variant", "batch_size", "status").rows() == [
        ("sum", "eager", 2, "unsupported"),
        ("sum", "ort", 2, "ok"),
    ]
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "report.html").exists()
    assert profiler.load(run)[0].collect().equals(rows)
    assert "1 of 1 case to try; into" in capfd.readouterr().out


@pytest.mark.usefixtures("forkserver", "factories")
def test_a_model_that_fails_is_a_row():
    model = importlib.import_module("small_factories").raising
    results, samples = profiler.measure(model, (3, 8, 8), engines=["eager"], device="cpu", budget=BUDGET)
    (row,) = results.collect().to_dicts()
    assert (row["model"], row["status"]) == ("raising", "failed")
    assert "raised ValueError: no luck" in row["reason"]
    assert samples.collect().is_empty()


@pytest.mark.usefixtures("forkserver")
def test_an_interrupt_goes_on_and_leaves_what_was_measured(temporary, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Display, "ended", interrupt)
    with pytest.raises(KeyboardInterrupt, match="has what was measured") as caught:
        profiler.measure(nn.Conv2d(3, 4, 3), (3, 8, 8), engines=["eager", "ort"], device="cpu", budget=BUDGET)
    folder = re.findall(r"load\('(.*)'\)", str(caught.value))[0]
    assert Path(folder).is_relative_to(temporary)
    rows = profiler.load(folder)[0].collect()
    assert rows.select("variant", "status").rows() == [("eager", "ok"), ("ort", "waiting")]


@pytest.mark.usefixtures("forkserver")
def test_two_threads_take_turns():
    def run(name: str) -> list[Any]:
        given: dict[str, Any] = {"engines": ["eager"], "device": "cpu", "budget": BUDGET, "name": name}
        training = {"optimizers": ["sgd"], "head": "mean-square", "accumulation": 2}
        given |= {"passes": ["training"], "batch_sizes": [2], "training": training}
        rows = profiler.measure(nn.Linear(4, 4), (4,), **given)[0].collect()
        assert set(rows["setting"]) == {"optimizer=sgd/head=mean-square/accumulation=2"}
        return rows["status"].to_list()

    before = dict(os.environ)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, ("one", "two"))) == [["ok"], ["ok"]]
    assert os.environ == before


OWN_FORKSERVER = f"""
import multiprocessing, os, sys
import profiler
from torch import nn

def is_there(name):
    return name in sys.modules

def measure(expected):
    try:
        rows, _ = profiler.measure(nn.Linear(4, 4), (4,), engines=["eager"], device="cpu", budget={BUDGET})
        assert set(rows.collect()["status"]) == {{expected}}
    except profiler.ConfigError as error:
        assert expected in str(error), error

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    with context.Pool(1) as pool:
        first = pool.apply(os.getppid)
        measure("ok")
        assert pool.apply(os.getppid) == first
    with context.Pool(1) as pool:
        assert pool.apply(os.getppid) == first, "it has its own forkserver again"
        assert not pool.apply(is_there, ("profiler.worker.preload",)), "which has not imported ours"
    daemon = multiprocessing.get_context("fork").Process(target=measure, args=("may start no processes",), daemon=True)
    daemon.start()
    daemon.join()
    assert daemon.exitcode == 0
"""


@pytest.mark.slow
def test_a_process_with_a_forkserver_of_its_own_keeps_it_and_a_daemon_is_told(tmp_path):
    (tmp_path / "script.py").write_text(OWN_FORKSERVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_that_cannot_start_others_is_told(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(profiler.ConfigError, match="SIGCHLD is ignored"):
            profiler.measure("resnet18")
    finally:
        signal.signal(signal.SIGCHLD, before)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(profiler.ConfigError, match="the current folder has been removed"):
        profiler.measure("resnet18")


@pytest.mark.slow
def test_a_script_that_guards_nothing_without_onnx_runtime(tmp_path, everyones_folder):
    """Only what needs it is unsupported."""
    hide(["onnxruntime", "onnxruntime-gpu"], ["onnxruntime"], everyones_folder)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(everyones_folder), str(ROOT)])}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "started.txt").read_text() == "once "
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.parquet", "script.py", "started.txt"]
    rows = pl.read_parquet(tmp_path / "rows.parquet").sort("variant", "precision").to_dicts()
    assert (rows[0]["model"], rows[0]["variant"], rows[0]["status"]) == ("Sequential", "eager", "ok"), rows[0]["reason"]
    assert rows[0]["rel_l2_error"] is not None
    why = "onnxruntime is not installed: pip install 'onnxruntime>=1.24' (Python 3.11 or later)"
    found = {(row["variant"], row["precision"]): (row["status"], row["reason"]) for row in rows}
    assert found["ort", "fp32"] == found["ort", "int8"] == ("unsupported", why)


def onnx_file(folder: Path) -> Path:
    """A sum of two inputs, each a batch of `n` items of `width` floats."""
    text = "sum (float[n, width] a, float[n, width] b) => (float[n, width] y) { y = Add (a, b) }"
    return write_text(folder / "sum.onnx", text)


def hooked(register: str) -> nn.Module:
    """Clip a gradient as it comes, which a pickled copy would not."""
    model = nn.Linear(3, 2)
    getattr(model.weight, register)(lambda gradient: None)
    return model


FLOATS = np.ones((2, 3), np.float32)
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("resnet81", None, {}, r"models\[0\]\.network: unknown network 'resnet81'; did you mean 'resnet18'"),
    ("resnet18", FLOATS, {}, "resnet18 brings its inputs; a factory returns"),
    ("resnet18", None, {"name": "mine", "precisions": ("fp23",)}, r"^precisions\[0\]: unknown precision 'fp23'"),
    ("resnet18", None, {"budget": {"second": 1}}, "budget.second: unknown key 'second'; did you mean 'seconds'"),
    ("missing.onnx", None, {}, "there is no file missing.onnx"),
    (lambda: None, None, {}, "no other process can import this; put it in a module"),
    *[
        (hooked(register), (3,), {"passes": ("training",)}, "weight has a hook, which a copy .*: give a function")
        for register in ("register_hook", "register_post_accumulate_grad_hook")
    ],
    (7, None, {}, "model: expected a torch.nn.Module, .* got int"),
    ("sum.onnx", None, {"data": FLOATS}, "data: give a path, a function of a module"),
    ("sum.onnx", None, {"data": lambda: iter("x")}, "data: give a path, a function of a module"),
    ("sum.onnx", None, {"data": "nowhere.npz"}, "nowhere.npz is no folder and no .npz file"),
    ("a:b", np.float32(1), {}, "inputs: expected the shape of one item, .* got float32"),
    ("sum.onnx", FLOATS, {}, "sum.onnx takes .*'a'.*'b'.*: give an example of each"),
    ("sum.onnx", (FLOATS, np.ones(2)), {}, "sum.onnx takes .*: give an example of each"),
]


@pytest.mark.parametrize(("model", "inputs", "options", "sentence"), REFUSED)
def test_what_cannot_be_used_is_an_error_that_leaves_nothing(tmp_path, monkeypatch, model, inputs, options, sentence):
    monkeypatch.chdir(tmp_path)
    onnx_file(tmp_path)
    with pytest.raises(profiler.ConfigError, match=sentence):
        profiler.measure(model, inputs, output="runs", **options)
    assert list(tmp_path.glob("runs/*")) == []
