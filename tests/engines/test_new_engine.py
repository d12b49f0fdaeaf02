"""A new engine is one file and one row: docs/extending.md's is taken through every command, as it stands there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest

import engines
from engines import catalog
from exporters.cache import Cache
from profiler.processes import process

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "extending.md").read_text().partition("## Adding an engine")[2].partition("\n## ")[0]
FILE, ROW, PRESET = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)
OPTIONS, _, ENGINE = ROW.rpartition("\n\n\n")
# A worker that calls its function through this module has the row in its catalog.
REGISTERED = f"""
import importlib
from dataclasses import dataclass
from engines.catalog import ENGINES, PRESETS, Engine, Preset, Requirement

{OPTIONS}

ENGINES["reference"] = {ENGINE}
PRESETS["reference"] = {PRESET}

def __getattr__(function):
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)
"""
NETWORK = """
import torch
from torch import nn

def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10))
"""
JOB = """
models: [{name: net, factory: "networks:net", input: [3, 2, 2]}]
engines: [reference, {name: reference, label: reference-quiet, verbose: 0}]
precisions: [fp32, fp16]
device: cpu
budget: {seconds: 0.1, min_samples: 3, repeats: 0}
"""
WITHOUT_TORCH = """
[[tool.mypy.overrides]]
module = ["torch", "torch.*"]
follow_imports = "skip"
"""
"""The file imports no torch, whose types take two thirds of a check that finds no cache."""
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(profiler: Run, exports: Cache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the new engine into one/run, and a part of its rows into two/run; register it in this process, too."""
    place = tmp_path_factory.mktemp("engine")
    # The file is where the row says, in the package that it would be in.
    (place / "onnx_reference.py").write_text(FILE)
    found = f"import engines; engines.__path__.append({str(place)!r})\n"
    (place / "registered.py").write_text(found + REGISTERED)
    (place / "networks.py").write_text(NETWORK)
    (place / "job.yaml").write_text(JOB)
    begin = process.Child.__init__

    def registered(child: process.Child, call: process.Call) -> None:
        begin(child, replace(call, function=f"registered:{call.function}", path=(str(place), *call.path)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "__path__", [*engines.__path__, str(place)])
        for rows_of in (catalog.ENGINES, catalog.PRESETS):
            patch.setitem(rows_of, "reference", None)
        exec(REGISTERED, {"__name__": __name__})
        patch.setattr(process.Child, "__init__", registered)
        done = profiler("job.yaml", "--output", "one", "--no-report", cwd=place, PROFILER_CACHE=str(exports.root))
        assert done.returncode == 0, done.stdout + done.stderr
        (made,) = (place / "one").iterdir()
        made.rename(place / "one" / "run")
        shutil.copytree(place / "one" / "run", place / "two" / "run")
        for name in ("results.parquet", "samples.parquet"):
            rows = pl.read_parquet(place / "one" / "run" / name).filter(pl.col("case_id").str.contains("/reference/"))
            rows.with_columns(run_id=pl.lit("two")).write_parquet(place / "two" / "run" / name)
        yield place


@pytest.fixture
def run(profiler: Run, exports: Cache, folder: Path) -> Run:
    """Runs a command there; it must end with the exit code 0."""

    def start(*arguments: str, code: int = 0) -> CompletedProcess[str]:
        done = profiler(*arguments, cwd=folder, PROFILER_CACHE=str(exports.root))
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return start


pytestmark = pytest.mark.slow


def test_the_file_passes_the_projects_type_check_and_rules(folder):
    config = folder / "pyproject.toml"
    config.write_text((ROOT / "pyproject.toml").read_text() + WITHOUT_TORCH)
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--follow-imports", "silent"]
    command += ["--cache-dir", ".mypy_cache/page", folder / "onnx_reference.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stdout
    assert "write_text" not in FILE, "files are replaced whole"


def test_it_is_measured_checked_and_refused_where_its_row_says_so(folder):
    rows = pl.read_parquet(folder / "one" / "run" / "results.parquet")
    cells = {(row["variant"], row["precision"]): row for row in rows.iter_rows(named=True)}
    for variant in ("reference", "reference-quiet"):
        row = cells[variant, "fp32"]
        assert row["status"] == "ok", row["reason"]
        assert row["engine"] == "reference"
        assert row["latency_ms"] > 0
        assert row["rel_l2_error"] < 1e-5
        assert json.loads(row["proof"])["compute_types"] == {"float32": 2}
        assert cells[variant, "fp16"]["status"] == "unsupported"
    assert json.loads(cells["reference-quiet", "fp32"]["options"]) == {"verbose": 0}


def test_its_options_are_checked(run, folder):
    (folder / "wrong.yaml").write_text(JOB.replace("verbose: 0", "verbose: loud"))
    assert "verbose: must be a whole number, got 'loud'" in run("wrong.yaml", "--dry-run", code=2).stderr


def test_report_and_compare_read_its_runs(run, folder):
    run("report", "one/run")
    assert "reference" in (folder / "one" / "run" / "report.html").read_text()
    assert "reference" in run("compare", "one/run", "two/run").stdout


def test_it_is_recommended_and_exported_and_runs_without_us(run, folder):
    assert "reference" in run("recommend", "two/run", "--only", "engine=reference", "--export", "out").stdout
    made = folder / "out"
    assert {path.name for path in made.iterdir()} == {
        *("config.json", "model.onnx", "README.txt", "requirements.txt", "run.py", "inputs.npz", "expected.npz"),
    }
    assert re.fullmatch(r"onnx==[\d.]+\nnumpy\n", (made / "requirements.txt").read_text())
    assert "model.onnx is the model." in " ".join((made / "README.txt").read_text().split())
    ran = subprocess.run([sys.executable, "-I", str(made / "run.py")], capture_output=True, text=True, check=True)
    assert ran.stdout == "net (1, 10)\n"
