"""`python -m profiler build` as a user starts it: engines of TensorRT for RTX, ahead of time, without a GPU."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from robustness.command_runs import Run

from engines.catalog import ENGINES, Requirement
from profiler.commands import build as build_module
from profiler.commands.build import Options, find_engine, make_tasks
from profiler.errors import ConfigError
from profiler.machine import nvml
from profiler.machine.nvml import Gpu

Build = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    write_graph(folder / "good.onnx", "Conv", ["batch", 3, 16, 16])
    write_graph(folder / "fixed.onnx", "Conv", [2, 3, 16, 16])
    write_graph(folder / "strange.onnx", "Wobble", ["batch", 3, 16, 16], domain="of.its.own")
    write_graph(folder / "heavy.onnx", "Conv", ["batch", 3, 16, 16], layers=2000)
    return folder


def write_graph(
    path: Path, operator: str, shape: list[Any], domain: str = "", layers: int = 1, of: int = TensorProto.FLOAT
) -> None:
    values = [helper.make_tensor_value_info(name, of, shape) for name in ("x", "y")]
    weight = np.random.default_rng(0).standard_normal((3, 3, 3, 3)).astype(helper.tensor_dtype_to_np_dtype(of))
    pads = {"pads": [1, 1, 1, 1]} if operator == "Conv" else {}
    names = ["x", *(f"t{number}" for number in range(layers - 1)), "y"]
    nodes = [
        helper.make_node(operator, [names[n], "w"], [names[n + 1]], name=f"culprit{n}", domain=domain, **pads)
        for n in range(layers)
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.fixture(scope="module")
def build(workplace: Path, profiler: Build) -> Build:
    """`build("--model", "good.onnx", …)` for trt-rtx, in the workplace, where no GPU is seen."""

    def run(*arguments: str, engine: str = "trt-rtx") -> CompletedProcess[str]:
        variables = {"PROFILER_CACHE": str(workplace / "cache"), "CUDA_VISIBLE_DEVICES": ""}
        return profiler("build", "--engine", engine, *arguments, cwd=workplace, **variables)

    return run


LINE = re.compile(
    r"(\S+) (\S+) batch (\S+): (built|from the cache|failed|unsupported)(?:, (\S+) s, (\S+) MiB: ([^\s;]+))?"
)


def rows(done: CompletedProcess[str]) -> list[tuple[str, ...]]:
    """Model, precision, batch, what came of it, seconds, MiB and path of each engine."""
    return [found.groups(default="") for found in map(LINE.match, done.stdout.splitlines()) if found]


GOOD = ("--model", "good.onnx", "--batch", "4,8", "--target", "sm89")


def test_engines_are_taken_from_the_cache_unless_they_are_damaged(build, workplace):
    first = build(*GOOD)
    Path(rows(first)[0][6]).write_bytes(Path(rows(first)[0][6]).read_bytes()[:100])
    second = build(*GOOD)
    for done, source in ((first, "built"), (second, "from the cache")):
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        assert [row[:4] for row in rows(done)] == [("good", "fp32", "4", "built"), ("good", "fp32", "8", source)]
    assert "; engine-cache: a damaged or foreign file was built again" in second.stdout
    assert rows(first)[1][4:] == rows(second)[1][4:], "the figures are the build's"
    for row in rows(second):
        seconds, size, path = row[4:]
        assert float(seconds) >= 0
        assert f"{Path(path).stat().st_size / 2**20:.1f}" == size
        assert Path(path).is_relative_to(workplace / "cache" / "engines")
        assert Path(path).stat().st_size > 100
    assert not list((workplace / "cache").glob("reference/*")), "a build needs no reference outputs"


def test_what_cannot_be_built_is_a_row_and_the_rest_is_built(build, workplace):
    done = build("--model", "strange.onnx", "--model", "good.onnx", "--batch", "4", "--target", "sm89")
    assert done.returncode == 1
    failed, good = rows(done)
    assert failed[:4] == ("strange", "fp32", "4", "unsupported")
    assert Path(good[6]).is_file()
    assert "node 0 'culprit0' (Wobble): " in done.stdout
    assert "Plugin not found" in done.stdout
    assert f"The library's output is in {workplace / 'cache' / 'logs'}" in done.stdout
    assert "Wobble" in (workplace / "cache" / "logs" / "build-trt-rtx-strange-fp32-batch-4.log").read_text()
    assert done.stderr == ""


def test_a_batch_that_the_file_does_not_have_is_unsupported(build):
    done = build("--model", "fixed.onnx", "--batch", "4", "--target", "sm89")
    assert done.returncode == 1
    assert "fixed fp32 batch 4: unsupported: fixed has a fixed batch of 2: use --batch 2" in done.stdout


WRONG = {
    "engine of another kind": ("ort", GOOD, "--engine: 'ort' builds nothing ahead of time"),
    "no GPU for TensorRT": ("trt", GOOD[:4], "--engine trt: no NVIDIA GPU answers here"),
    "target of TensorRT": ("trt", GOOD, "--target: trt builds only for the GPU that it runs on"),
    "no target": ("trt-rtx", GOOD[:4], "no NVIDIA GPU answers here; give --target, such as sm89"),
    "precision of a file": ("trt-rtx", (*GOOD, "--precision", "bf16"), "bf16: no bf16 graph can be made"),
    "unknown precision": (
        "trt-rtx", ("--model", "resnet18", "--precision", "fp61", *GOOD[2:]), "'fp61'; did you mean 'fp16'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_give_2_and_one_line(build, name):
    engine, arguments, words = WRONG[name]
    done = build(*arguments, engine=engine)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stdout + done.stderr
    assert words in done.stderr


@pytest.mark.slow
def test_ctrl_c(workplace):
    """It ends the parent with 130 and takes the child along."""
    log = workplace / "cache" / "logs" / "build-trt-rtx-heavy-fp32-batch-64.log"
    arguments = ["build", "--engine", "trt-rtx", "--model", "heavy.onnx", "--batch", "64", "--target", "all"]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job ignores it.
    try:
        run = Run(*arguments, cwd=workplace, PROFILER_CACHE=str(workplace / "cache"), CUDA_VISIBLE_DEVICES="")
    finally:
        signal.signal(signal.SIGINT, handler)
    while not log.exists():
        assert run.code is None, run.err
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(400) == 130, run.err
    assert "Traceback" not in run.err
    assert run.left_behind() == []


# What is asked of the machine before anything is started.


def card(capability: str) -> Gpu:
    return Gpu(0, "GPU-1", "A card", 81_920.0, "580.95", capability)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    lacking = Requirement("no_bindings", "pip install 'the-libs' 'the-bindings'")
    for name in ("trt", "trt-rtx"):
        monkeypatch.setitem(ENGINES, name, dataclasses.replace(ENGINES[name], requirements=(lacking,)))
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [card("8.9")])
    for name in ("trt", "trt-rtx"):
        with pytest.raises(ConfigError) as raised:
            find_engine(name, None)
        assert str(raised.value).endswith("no_bindings is not installed: pip install 'the-libs' 'the-bindings'")


def test_card_that_the_library_does_not_support_needs_a_target(monkeypatch):
    monkeypatch.setattr(build_module, "missing", lambda *_, **__: "")
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [card("9.0")])
    with pytest.raises(ConfigError, match=r"compute capability 9.0; .* give --target, such as sm89"):
        find_engine("trt-rtx", None)
    assert find_engine("trt-rtx", "sm89") == (ENGINES["trt-rtx"], None), "it builds without the GPU"
    assert find_engine("trt", None) == (ENGINES["trt"], card("9.0"))
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [card("8.9")])
    assert find_engine("trt-rtx", None) == (ENGINES["trt-rtx"], card("8.9"))


def test_a_float32_file_has_the_lanes_of_a_run_and_any_other_is_as_it_is(workplace):
    def lanes(file: str, *precisions: str) -> list[str]:
        options = Options(engine="trt-rtx", models=[str(workplace / file)], batches="4", precisions=precisions)
        return [task.case.precision for task in make_tasks(ENGINES["trt-rtx"], options)]

    assert lanes("good.onnx") == ["fp32"]
    assert lanes("good.onnx", "fp32", "tf32", "fp16", "int8") == ["fp32", "tf32", "fp16", "int8"]
    write_graph(workplace / "half.onnx", "Conv", ["batch", 3, 16, 16], of=TensorProto.FLOAT16)
    assert lanes("half.onnx") == ["native"]


def test_a_file_is_built_in_half_precision_and_quantized(build):
    arguments = (*GOOD[:2], "--precision", "fp16", "--precision", "int8", "--batch", "4", *GOOD[4:])
    done = build(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row[:4] for row in rows(done)] == [("good", "fp16", "4", "built"), ("good", "int8", "4", "built")]
    assert "; calibration: seeded data" in done.stdout
    assert {row[3] for row in rows(build(*arguments))} == {"from the cache"}
