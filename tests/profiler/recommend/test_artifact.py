"""Run what --export writes where nothing of this project is installed, and compare the outputs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import handmade
import numpy as np
import onnx
import polars as pl
import pytest
import torch
from matrix_product import WEIGHT, write_theirs
from numpy.typing import NDArray
from onnx import TensorProto
from runs import Profiler, run_job

from engines.deployment import Deployed
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.machine.target import host_and_user
from profiler.recommend.answer import Request, recommend
from profiler.recommend.artifact import _case, check_folder, write_papers

ROOT = Path(__file__).resolve().parents[3]
BATCH = 2
OPENVINO = importlib.util.find_spec("openvino") is not None
RTX = any(importlib.util.find_spec(name) for name in ("tensorrt_rtx", "tensorrt_rtx_bindings"))

TINY = """
import torch
from torch import nn


def good():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.scale if x.sum() > 0 else x


def branching():
    return Branching()
"""
JOB = f"""
models:
  - {{name: good, factory: "tiny:good", input: [3, 16, 16]}}
  - {{name: branching, factory: "tiny:branching", input: [4]}}
  - {{name: theirs, onnx: parts/theirs.onnx}}
engines: [eager, ort{", openvino" if OPENVINO else ""}]
batch_sizes: [{BATCH}]
device: cpu
budget: {{seconds: 0.05, min_samples: 3}}
exclude: [{{model: branching, engine: [ort, openvino]}}, {{model: theirs, engine: openvino}}]
"""
RUNTIMES = ("onnxruntime", "openvino", "torch", "numpy")
"""torch's folder may hold an ONNX Runtime for the CPU: the one that was measured comes first."""
WITHOUT_US = """
import os, runpy, sys

sys.dont_write_bytecode = True
others = ("exporters", "engines", "profiler", "onnx", "onnxscript", "polars", "pydantic", "rich", "safetensors")
sys.modules.update(dict.fromkeys(others))  # None is a module that cannot be imported.
scripts, own, given = sys.argv[1].split(":"), int(sys.argv[2]), sys.argv[3:]
for number, script in enumerate(scripts):
    sys.argv = [script, "--seconds", "0", *(given if number >= own else ()), "--output", f"y{number}.npy"]
    sys.path.insert(0, os.path.dirname(script))  # As where it is run by its name.
    sys.modules.pop("frame", None)
    runpy.run_path(script, run_name="__main__")
"""
"""Runs examples as in an environment that has their runtime alone."""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    (folder / "tiny.py").write_text(TINY)
    (folder / "parts").mkdir()
    write_theirs(folder / "parts" / "theirs.onnx")
    return folder


@pytest.fixture(scope="module")
def results(profiler: Profiler, workplace: Path) -> Path:
    return run_job(profiler, workplace, JOB, PROFILER_CACHE=str(workplace / "cache"))


def only(variant: str) -> tuple[str, str]:
    """A configuration that is named is exported, in doubt or not."""
    return "--only", f"variant={variant}"


Export = Callable[..., Path]


@pytest.fixture(scope="module")
def export(profiler: Profiler, workplace: Path, results: Path) -> Export:
    """`export("good", "ort")` has that case chosen, being the only one, and returns the artifact's folder."""
    made: dict[str, Path] = {}

    def run(model: str, variant: str, **changes: Any) -> Path:
        place = workplace / f"{model}-{variant}"
        if place.name not in made:
            alone = place / "alone"
            shutil.copytree(results, alone)
            rows = pl.read_parquet(results / "results.parquet").filter(model=model)
            if "engine" in changes:  # A variant that the job lacks stands on the row of one that it has.
                rows = rows.filter(variant="eager").with_columns(pl.lit(v).alias(k) for k, v in changes.items())
                rows = rows.with_columns(variant=pl.lit(variant))
            rows.filter(variant=variant).write_parquet(alone / "results.parquet")
            cache = str(workplace / "cache")
            if variant == "ort":  # Into what a link names.
                (place / "linked").mkdir()
                (place / "out").symlink_to("linked")
            done = profiler("recommend", str(alone), *only(variant), "--export", "out", cwd=place, PROFILER_CACHE=cache)
            if done.returncode:
                raise RuntimeError(f"exit code {done.returncode}: {done.stderr}")
            sizes, where = done.stderr.splitlines()[-2:]
            assert where.endswith(" to out; its README.txt says how to run it")
            assert all(str(tuple(spec["shape"])) in sizes for spec in config_of(place / "out")["inputs"])
            made[place.name] = place / "out"
        return made[place.name]

    return run


def test_an_export_that_is_not_recommended_yet_says_so(profiler, workplace, results, tmp_path):
    words = "recommend", str(results), "--model", "good", *only("eager"), "--export", "out", "--format", "json"
    done = profiler(*words, cwd=tmp_path, PROFILER_CACHE=str(workplace / "cache"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["doubt"]["code"] == "only-left"
    assert "It is not proven best: " in done.stderr


def run_example(
    artifact: Path, place: Path, *inputs: NDArray[Any], python: str = sys.executable
) -> tuple[str, NDArray[Any]]:
    """Return what it prints and its first output, run in `place`, where only its runtime can be imported."""
    ((said, output),) = run_examples([artifact], place, *inputs, python=python)
    return said, output


def run_examples(
    artifacts: list[Path], place: Path, *inputs: NDArray[Any], python: str = sys.executable, own: int = 0
) -> list[tuple[str, NDArray[Any]]]:
    """Those of one runtime, one after another in one process: what each prints, a line, and its first output.

    The first `own` of them run on the inputs that were saved with them.
    """
    for number, array in enumerate(inputs):
        np.save(place / f"{number}.npy", array)
    given = ["--input", *(f"{number}.npy" for number in range(len(inputs)))] if inputs else []
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    folders = []
    if python == sys.executable:
        # Its runtimes, wherever they are, and CUDA's libraries, which may lie in another folder than the runtime.
        found = [importlib.util.find_spec(name) for name in RUNTIMES]
        folders = list(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin))
        cuda = [str(path) for folder in folders for path in Path(folder).glob("nvidia/*/lib")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*cuda, environment.get("LD_LIBRARY_PATH", "")]).strip(":")
    code = f"import sys\nsys.path[:0] = {folders!r}\n{WITHOUT_US}"
    done = subprocess.run(
        [python, "-I", "-c", code, ":".join(str(artifact / "run.py") for artifact in artifacts), str(own), *given],
        cwd=place,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # ONNX Runtime says here when it does not take its options.
    assert "Error" not in done.stdout + done.stderr
    said = [part for part in re.split(r"(?m)^(?=\w+: output )", done.stdout) if part]
    assert len(said) == len(artifacts), done.stdout
    return [(line, np.load(place / f"y{number}.npy")) for number, line in enumerate(said)]


def paths_in(artifact: Path, *folders: Path) -> list[str]:
    words = [os.fsencode(folder) for folder in (*folders, Path.home(), ROOT)]
    found = []
    for file in (path for path in artifact.rglob("*") if path.is_file()):
        archive = zipfile.ZipFile(file) if zipfile.is_zipfile(file) else None
        parts = [archive.read(name) for name in archive.namelist()] if archive else [file.read_bytes()]
        found += [f"{file.name}: {word!r}" for word in words for part in parts if word in part]
    return found


def seeded(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal(shape, dtype=np.float32)


def in_eager(x: NDArray[np.float32]) -> NDArray[np.float32]:
    space: dict[str, Any] = {"__name__": "tiny"}
    exec(TINY, space)
    with torch.no_grad():
        result: NDArray[np.float32] = space["good"]().eval()(torch.from_numpy(x)).numpy()
    return result


def config_of(artifact: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((artifact / "config.json").read_text())
    return data


COMPILED = {"engine": "compiled", "options": '{"mode": "default", "channels_last": true}'}


@pytest.mark.parametrize(
    ("variants", "files"),
    [
        ({"eager": {}, "compiled": COMPILED}, {"model.pt2", "weights.safetensors"}),
        ({"ort": {}}, {"model.onnx"}),
        pytest.param(
            {"openvino": {}}, {"model.onnx"}, marks=pytest.mark.skipif(not OPENVINO, reason="no openvino here")
        ),
    ],
)
def test_the_example_gives_the_models_outputs_with_its_runtime_alone(export, workplace, variants, files, tmp_path):
    artifacts = [export("good", variant, **changes) for variant, changes in variants.items()]
    x = seeded(BATCH, 3, 16, 16)
    for artifact in artifacts:
        assert not paths_in(artifact, workplace)
    count = len(artifacts)
    found = run_examples(artifacts * 2, tmp_path, x, own=count)
    assert all("output 0 is right" in said or "output y is right" in said for said, _ in found[:count])
    for variant, artifact, (said, y) in zip(variants, artifacts, found[count:], strict=True):
        papers = {"config.json", "run.py", "frame.py", "requirements.txt", "README.txt"}
        assert {path.name for path in artifact.iterdir()} == papers | files | {"inputs.npz", "expected.npz"}
        assert f"good: output ({BATCH}, 10), median latency " in said
        np.testing.assert_allclose(y, in_eager(x), rtol=1e-4, atol=1e-6)
        config = config_of(artifact)
        assert (config["model"], config["variant"], config["precision"]) == ("good", variant, "fp32")
        assert config["inputs"] == [{"name": "x", "shape": [BATCH, 3, 16, 16], "dtype": "float32"}]
        assert config["options"].get("channels_last", False) == (variant == "compiled")
        assert config["measured"]["latency_ms"] > 0
        assert config["measured"]["torch_version"] == torch.__version__
        readme = (artifact / "README.txt").read_text()
        assert readme.startswith("good in fp32 for ")
        assert "seeded" not in readme
        if variant != "compiled":
            lines = textwrap.dedent(readme.partition("In your own service:\n")[2].partition("\nIt takes")[0])
            space: dict[str, Any] = {"x": torch.from_numpy(x) if variant == "eager" else x}
            with contextlib.chdir(artifact):
                exec(lines, space)
            np.testing.assert_allclose(space["outputs"][0], in_eager(x), rtol=1e-4, atol=1e-6)
        assert len((artifact / "run.py").read_text().splitlines()) < 120


def test_the_example_ends_quietly_where_its_reader_does(export):
    artifact, (end, begin) = export("good", "ort"), os.pipe()
    os.close(end)
    done = subprocess.run(
        [sys.executable, "run.py", "--seconds", "0"], cwd=artifact, stdout=begin, stderr=subprocess.PIPE
    )
    os.close(begin)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_it_runs_in_a_fresh_environment_that_has_its_requirements(export, tmp_path):
    artifact = export("good", "ort")
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    requirements = str(artifact / "requirements.txt")
    subprocess.run([*pip, "install", "--quiet", "--no-compile", "-r", requirements], check=True)
    installed = {one.name.partition("-")[0] for one in (tmp_path / "venv").rglob("*.dist-info")}
    assert "onnxruntime" in installed
    assert not any("torch" in name for name in installed)
    x = seeded(BATCH, 3, 16, 16)
    _, y = run_example(artifact, tmp_path, x, python=str(python))
    np.testing.assert_allclose(y, in_eager(x), rtol=1e-4, atol=1e-6)


def test_a_users_onnx_file_comes_with_its_data(export, workplace, tmp_path):
    artifact = export("theirs", "ort")
    assert (artifact / "weights.bin").read_bytes() == (workplace / "parts" / "weights.bin").read_bytes()
    assert config_of(artifact)["settings"]["dimensions"] == {"n": BATCH}
    assert config_of(artifact)["outputs"] == ["scores"]
    x = seeded(BATCH, 6)
    _, y = run_example(artifact, tmp_path, x)
    np.testing.assert_allclose(y, x @ WEIGHT, rtol=1e-5)
    said, y = run_example(artifact, tmp_path)
    assert "theirs: output (2, 5)" in said and np.isfinite(y).all(), "without an input it has those that were saved"
    assert re.search(r"output scores is right: error \d\.\de[-+]\d\d to expected.npz", said)
    np.savez(artifact / "expected.npz", **{"0": np.load(artifact / "expected.npz")["0"] + 1})
    with pytest.raises(AssertionError, match=r"output scores is WRONG: error .* usual is"):
        run_example(artifact, tmp_path)


def test_a_model_that_torch_cannot_export_leaves_nothing_behind(export, workplace):
    words = r"exit code 1: (?s:.*)--export out: nothing was written: model 'branching': torch.export failed"
    with pytest.raises(RuntimeError, match=words):
        export("branching", "eager")
    assert [path.name for path in (workplace / "branching-eager").iterdir()] == ["alone"]


def test_a_folder_that_cannot_be_written_is_answered_with_the_option_for_another(results, profiler, tmp_path):
    for option, line in {"--export": ["recommend", "--model", "good", *only("ort")], "--output": ["report"]}.items():
        done = profiler(line[0], str(results), *line[1:], option, "/proc/nowhere", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, done.stderr
        assert "cannot be written: " in done.stderr and done.stderr.endswith(f" by {option}\n")


def test_a_run_without_a_job_cannot_be_exported(results, profiler, tmp_path):
    (tmp_path / "published").mkdir()
    rows = pl.read_parquet(results / "results.parquet").filter(model="good", variant="ort")
    rows.write_parquet(tmp_path / "published" / "results.parquet")
    done = profiler("recommend", "published", *only("ort"), "--export", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "--export: published has no bench.yaml, which says where good comes from" in done.stderr


def test_a_folder_that_holds_something_is_left_as_it_is(results, profiler, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    done = profiler("recommend", str(results), "--model", "good", "--export", "full", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "--export full: something is there already; give a new folder\n"
    assert not done.stdout
    with pytest.raises(ConfigError, match=r"mine\.txt: something is there already; give a new folder"):
        check_folder(tmp_path / "full" / "mine.txt")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "no" / "such", tmp_path / "empty"):
        check_folder(folder)


@pytest.mark.skipif(not RTX, reason="TensorRT for RTX is not installed")
def test_an_engine_is_built_for_the_gpu_that_was_measured(results, profiler, workplace, tmp_path):
    rows = pl.read_parquet(results / "results.parquet").filter(model="good", variant="ort")
    changes = {"engine": "trt-rtx", "variant": "trt-rtx", "device": "cuda", "clock": "event", "gpu": "RTX 4090",
               "options": '{"cuda_graph": true}', "precision": "fp16", "machine": "RTX 4090"}  # fmt: skip
    alone = tmp_path / "alone"
    shutil.copytree(results, alone)
    rows.with_columns(pl.lit(value).alias(name) for name, value in changes.items()).write_parquet(
        alone / "results.parquet"
    )
    facts = {"gpu": "RTX 4090", "compute_capability": "8.9"}
    (alone / "environment.json").write_text(json.dumps({**host_and_user(), **facts}))
    words = "recommend", str(alone), *only("trt-rtx"), "--export", "out"
    done = profiler(*words, cwd=tmp_path, PROFILER_CACHE=str(workplace / "cache"))
    assert done.returncode == 0, done.stderr
    config, artifact = config_of(tmp_path / "out"), tmp_path / "out"
    assert (artifact / "model.engine").stat().st_size > 10_000
    assert onnx.load(artifact / "model.onnx").graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert config["inputs"][0]["dtype"] == "float16"
    assert config["settings"]["module"] in ("tensorrt_rtx", "tensorrt_rtx_bindings")
    assert config["outputs"] == ["y"]
    assert (artifact / "requirements.txt").read_text().splitlines()[0].startswith("tensorrt-rtx-cu13-bindings")


# On a GPU, and as if on one


GPU_JOB = f"""
models: [{{name: good, factory: "tiny:good", input: [3, 16, 16]}}]
engines: [eager, eager-tuned, compiled, ort, ort-tuned]
precisions: [fp16, tf32]
batch_sizes: [{BATCH}]
device: cuda
budget: {{seconds: 0.05, min_samples: 3}}
"""


@pytest.fixture(scope="module")
def gpu_results(profiler: Profiler, workplace: Path) -> Path:
    (workplace / "gpu.yaml").write_text(GPU_JOB)
    done = profiler("gpu.yaml", "--output", "gpu", cwd=workplace, PROFILER_CACHE=str(workplace / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (workplace / "gpu").iterdir()
    return folder


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp16", "tf32"])
@pytest.mark.parametrize("variant", ["eager", "eager-tuned", "compiled", "ort", "ort-tuned"])
def test_the_example_runs_on_the_gpu(profiler, gpu_results, workplace, tmp_path, variant, precision):
    alone = tmp_path / "alone"
    shutil.copytree(gpu_results, alone)
    rows = pl.read_parquet(gpu_results / "results.parquet").filter(variant=variant, precision=precision)
    rows.write_parquet(alone / "results.parquet")
    words = "recommend", str(alone), *only(variant), "--export", "out"
    done = profiler(*words, cwd=tmp_path, PROFILER_CACHE=str(workplace / "cache"))
    assert done.returncode == 0, done.stderr
    x = seeded(BATCH, 3, 16, 16)
    said, y = run_example(tmp_path / "out", tmp_path, x)
    print(said)
    np.testing.assert_allclose(y.astype(np.float32), in_eager(x), atol=5e-3)
    config = config_of(tmp_path / "out")
    assert config["device"] == "cuda"
    assert bool(config["options"].get("cuda_graph")) == variant.endswith("tuned")


# The papers


def case(engine: str, device: str = "cuda", precision: str = "fp16", **options: Any) -> Case:
    source = ModelSource("net", factory="tiny:good", input_shape=(3, 16, 16))
    return Case("net", engine, engine, "inference", precision, BATCH, device, 0, source, options)


VERSIONS = {
    "torch_version": "2.13.0+cpu",
    "onnxruntime_version": "1.31.1",
    "openvino_version": "2026.4.1-22100-b0d0e3b",
}
VERSIONS |= {"tensorrt_version": "11.4.0.106"}


@pytest.mark.parametrize(
    ("engine", "device", "lines"),
    [
        ("ort", "cuda", ["onnxruntime-gpu[cuda,cudnn]==1.31.1", "numpy"]),
        ("ort", "cpu", ["onnxruntime==1.31.1", "numpy"]),
        ("eager", "cuda", ["torch==2.13.0", "numpy"]),
        ("openvino", "cpu", ["openvino==2026.4.1", "numpy"]),
        ("trt", "cuda", ["tensorrt==11.4.0.106", "cuda-python", "numpy"]),
    ],
)
def test_the_papers_have_the_figures_and_the_runtime_as_it_was_measured(engine, device, lines, tmp_path):
    measured = handmade.row(engine, warnings=["drift: x"], machine="a Xeon", setting="", device="cpu")
    measured |= {"latency_low_ms": 0.9, "latency_high_ms": 1.2, **VERSIONS}
    winner = recommend(handmade.frame([measured]), Request("net")).best
    assert winner is not None
    inputs = [{"name": "ids", "shape": [1, 64], "dtype": "int64"}]
    deployed = Deployed({"inputs": inputs}, "model.onnx is the model.")
    write_papers(winner, case(engine, device, "fp32"), deployed, tmp_path)
    assert (tmp_path / "requirements.txt").read_text().splitlines() == lines
    readme = (tmp_path / "README.txt").read_text("utf-8")
    assert "\n    venv/bin/pip install -r requirements.txt\n    venv/bin/python run.py\n\n" in readme
    assert "It takes ids (1, 64) int64, in exactly these sizes." in readme
    assert "A call on a Xeon: 1.00 ms (0.90–1.20)." in readme and "\n- drift: " in readme
    told = json.loads((tmp_path / "config.json").read_text())["measured"]
    assert (told["latency_ms"], told["latency_low_ms"], told["latency_high_ms"]) == (1.0, 0.9, 1.2)
    assert told["footnotes"] == ["drift"]


def test_the_papers_fit_120_columns_and_any_locale(tmp_path):
    wide = {"latency_low_ms": 0.1, "latency_high_ms": 9.0, "machine": "é" * 40, "setting": "", "device": "cpu"}
    cell = recommend(handmade.frame([handmade.row("ort", **wide, **VERSIONS)]), Request("net")).best
    inputs = [{"name": f"input_{n}", "shape": [1, 64], "dtype": "int64"} for n in range(9)]
    (tmp_path / "frame.py").touch()
    write_papers(cell, case("ort", "cpu", "fp32"), Deployed({"inputs": inputs}, "The model."), tmp_path)
    (tmp_path / "config.json").read_bytes().decode("ascii")
    lines = (tmp_path / "README.txt").read_text("utf-8").splitlines()
    assert max(len(line) for line in lines if not line.startswith("    ")) <= 120
    assert " ".join(lines[:2]).startswith(
        f"net in fp32 for ort, in batches of 2. A call on {'é' * 40}: latency unknown "
    )


@pytest.mark.parametrize("warned", [False, True])
def test_what_went_on_without_a_cuda_graph_is_exported_without(tmp_path, warned):
    row: dict[str, Any] = {
        "engine": "ort",
        "device": "cuda",
        "model": "resnet18",
        "model_kind": "canonical",
        "variant": "ort-tuned",
    }
    row |= {"precision": "fp16", "batch_size": 1, "options": '{"cuda_graph": true}', "shape": None}
    row["footnotes"] = ["no-cuda-graph"] if warned else []
    (tmp_path / "bench.yaml").write_text("models: [resnet18]\nengines: [ort-tuned]\n")
    run = SimpleNamespace(address=str(tmp_path))
    case, _ = _case(row, run, False)
    assert case.options["cuda_graph"] is not warned
    with pytest.raises(ConfigError, match="--export: foreign cannot be exported"):
        _case(row | {"engine": "foreign"}, run, False)
