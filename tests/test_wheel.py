"""Install the wheel where the project is not, and run what the README says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import polars as pl
import pytest
from not_installed import hide

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
UNDER_OTHER_NAMES = ("onnxruntime-gpu", "onnxscript", "onnx", "torch")
"""Distributions that are not installed, although their modules are, as with a build of one's own."""

JOB = """
models: [{name: mine, factory: "networks:small", input: [3, 8, 8]}]
engines: [eager, ort]
passes: [inference]
precisions: [fp32, int8]
batch_sizes: [1]
device: cpu
budget: {seconds: 0.05, min_samples: 3, repeats: 0}
exclude: [{engine: eager, precision: int8}, {replicate: [1, 2]}]
"""
NETWORKS = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    # It builds a wheel and installs that.
    install = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-compile", str(ROOT)], check=True)
    # Not by PYTHONPATH, which would bring the checkout that is installed there, too.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    hide(UNDER_OTHER_NAMES, (), packages)
    return folder / "venv" / "bin"


def call(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([program, *arguments], cwd=cwd, env=variables, capture_output=True, text=True, check=False)


def test_suites_and_published_figures_come_with_it(installed, tmp_path):
    done = call(installed / "runtime-profiler", "suites", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runtime-profiler suites run cnn-benchmarks" in done.stdout
    assert len([line for line in done.stdout.splitlines() if "Based on" in line]) == 6, done.stdout
    where = (
        "from profiler.bundled import suites; from profiler.published import references\n"
        "print(suites()['convnet-layers'], references.FOLDER, *references.read('cnn-benchmarks')[:1], sep='\\n')"
    )
    found = call(installed / "python", "-c", where, cwd=tmp_path)
    suite, folder, *_ = found.stdout.splitlines()
    assert suite.startswith(str(installed.parent)), found.stdout + found.stderr
    assert folder.startswith(str(installed.parent)), found.stdout + found.stderr


def test_a_run_and_its_report_next_to_files_with_the_names_of_its_packages(installed, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "networks.py").write_text(NETWORKS)
    for name in ("profiler.py", "exporters.py"):
        (tmp_path / name).write_text("raise SystemExit('this is not the profiler')\n")
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "__init__.py").write_text("raise SystemExit('these are not the engines')\n")
    done = call(installed / "runtime-profiler", "job.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "Warning:" not in done.stdout
    (run,) = (tmp_path / "results").iterdir()
    rows = pl.read_parquet(run / "results.parquet").sort("variant", "precision")
    cells = [("eager", "fp32"), ("ort", "fp32"), ("ort", "int8")]
    rows = rows.filter(replicate=0)  # Not the winner's further ones.
    assert rows.select("variant", "precision", "status", "reason").rows() == [(*cell, "ok", None) for cell in cells]
    assert rows["onnxruntime_version"][-1], "as the module says"
    environment = json.loads((run / "environment.json").read_text())
    assert not set(UNDER_OTHER_NAMES) & environment["packages"].keys()
    assert (run / "report.html").stat().st_size > 10_000


def test_a_folder_with_a_package_of_that_name_is_said(installed, tmp_path):
    (tmp_path / "engines.py").touch()
    done = call(installed / "python", "-m", "profiler", "--version", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path / 'engines.py'} ") and "call runtime-profiler" in done.stderr
    assert call(installed / "runtime-profiler", "--version", cwd=tmp_path).stdout.startswith("runtime-profiler 0.")
