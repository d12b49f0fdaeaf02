"""TensorRT itself on the GPU: what docs/verification.md says of its first execution."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matrix_product import write_text
from runs import Profiler, run_job, until

from engines import device, trt
from engines.base import Unsupported
from engines.catalog import ENGINES
from engines.requirements import missing
from engines.trt_releases import is_weakly_typed
from profiler import load
from profiler.processes.process import explain as outcome_of

sys.path.insert(0, str(Path(__file__).resolve().parent))
import graphs
from graphs import job_of, run

lacking = missing(ENGINES["trt"], "cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(lacking), reason=lacking)]

JOB = """
models: [resnet18]
engines: [eager, trt, {name: trt, label: no-graph, cuda_graph: false}]
precisions: [fp32, tf32, fp16, bf16, int8]
batch_sizes: [4]
device: cuda
profile: true
budget: {seconds: 0.3, min_samples: 5, build_timeout: 600}
exclude: [{variant: no-graph, precision: [tf32, bf16, int8]}, {engine: eager, precision: int8}]
"""
TEXT = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")

    def forward(self, ids):
        return self.layer(self.table(ids)).mean(1)

def words():
    return Words(), {"ids": torch.randint(99, (8, 12))}, {"ids": {1: torch.export.Dim("sequence")}}
"""
VARIED = """
models: [{name: words, factory: "nets:words"}]
engines: [eager, trt]
shapes: {sequence: [8, 32]}
precisions: [fp16]
batch_sizes: [1, 8]
device: cuda
budget: {seconds: 0.2, min_samples: 5, build_timeout: 600}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trt")


@pytest.fixture(scope="module")
def finished(folder: Path, profiler: Profiler) -> Path:
    return run_job(profiler, folder, JOB)


@pytest.fixture(scope="module")
def rows(finished: Path) -> dict[tuple[str, str], dict[str, Any]]:
    results = load(finished)[0].collect().to_dicts()
    return {(row["variant"], row["precision"]): row for row in results if row["engine"] == "trt"}


@pytest.fixture(autouse=True)
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


@functools.cache
def weak() -> bool:
    return is_weakly_typed(trt.library("trt"))


def test_every_precision_runs_as_asked_and_the_proof_says_so(rows):
    bounds = {"fp32": (0, 1e-5), "tf32": (1e-5, 5e-3), "fp16": (1e-5, 1e-2), "bf16": (1e-4, 5e-2), "int8": (1e-3, 0.1)}
    for (variant, precision), row in rows.items():
        if precision == "bf16" and weak():
            assert (row["status"], "has no bf16" in row["reason"]) == ("unsupported", True)
            continue
        assert row["status"] == "ok", row["reason"]
        proof = json.loads(row["proof"])
        kind = {"fp16": "float16", "int8": "int8", "bf16": "bfloat16"}.get(precision, "float32")
        assert set(proof["compute_types"]) == {kind}, proof["compute_types"]
        assert sum(proof["compute_types"].values()) == 21
        assert (proof["tf32"], proof["tf32_kernels"] > 0) == (precision == "tf32",) * 2
        assert proof["cuda_graph"] == (variant == "trt")
        assert proof["memory_by"].startswith("pycuda" if device.pycuda() else "torch")
        low, high = bounds[precision]
        assert low <= row["rel_l2_error"] < high
        assert not [w for w in row["warnings"] if w.startswith("unproven")], row["warnings"]


def test_layers_have_times_and_nodes(finished, rows, profiler, folder):
    done = profiler("layers", str(finished), "--only", "model=resnet18", cwd=folder)
    print(done.stdout)
    assert done.returncode == 0
    for variant, precision in (("trt", "fp32"), ("trt", "fp16"), ("trt", "int8")):
        times = layers_of(finished, f"resnet18/{variant}/inference/{precision}/b4/r0")
        assert 0.3 < sum(ms for _, ms, _ in times) / rows[variant, precision]["latency_ms"] < 3
        named = {node for _, _, nodes in times for node in nodes}
        assert sum("conv" in node.lower() for node in named) >= 20


def layers_of(finished: Path, case: str) -> list[tuple[str, float, list[str]]]:
    for line in (finished / "journal.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("case_id") == case and record.get("layers"):
            return [(layer["layer"], layer["ms"], layer["nodes"]) for layer in record["layers"]]
    raise AssertionError(f"no layers of {case}")


def test_a_range_of_batches_and_lengths_in_one_engine(folder, profiler):
    (folder / "nets.py").write_text(TEXT)
    (folder / "varied.yaml").write_text(VARIED + "output: varied\n")
    done = profiler("varied.yaml", cwd=folder)
    print(done.stdout)
    (varied,) = (folder / "varied").iterdir()
    found = [row for row in load(varied)[0].collect().to_dicts() if row["engine"] == "trt"]
    assert len(found) >= 4
    for row in found:
        assert row["status"] == "ok", row["reason"]
        assert row["rel_l2_error"] < 1e-2


def test_an_exported_folder_runs_by_itself(finished, folder, profiler):
    words = ("--model", "resnet18", "--only", "engine=trt", "--max-error", "0.1", "--export", "deploy")
    done = profiler("recommend", str(finished), *words, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    # Without torch, which it does not need.
    alone = "import runpy, sys; sys.path.insert(0, '.'); sys.modules['torch'] = None; sys.argv = ['run.py']; "
    alone += "runpy.run_path('run.py', run_name='__main__')"
    command = [sys.executable, "-c", alone]
    ran = subprocess.run(command, cwd=folder / "deploy", capture_output=True, text=True, timeout=300)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0, ran.stderr
    assert "is right: error" in ran.stdout


def test_build_ahead_of_time(folder, profiler, finished):
    words = ("build", "--engine", "trt", "--model", "resnet18", "--precision", "fp16", "--batch", "4")
    done = profiler(*words, cwd=folder)
    assert (done.returncode, "from the cache" in done.stdout) == (0, True), done.stdout + done.stderr


# Small graphs, in this process.


def test_outputs_and_memory_are_alike_with_pycuda_and_with_torch(tmp_path, monkeypatch):
    if device.pycuda() is None:
        pytest.skip("pycuda is not installed")
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), "fp32", cuda_graph=True)
    found = []
    for use in (True, False):
        if not use:
            monkeypatch.setattr(device, "pycuda", lambda: None)
        session = trt.open_session(job)
        (outputs,) = run(session, 3)
        session.feed([2 * job.inputs[0]])
        (doubled,) = run(session, 2)
        found.append((outputs, doubled, session.memory().activations, session.proof().details["memory_by"]))
        session.close()
    pycuda, plain = found
    np.testing.assert_array_equal(pycuda[0], plain[0])
    np.testing.assert_array_equal(pycuda[1], plain[1])
    assert not np.allclose(pycuda[0], pycuda[1])
    assert pycuda[2] == plain[2]
    assert (pycuda[3].split()[0], plain[3].split()[0]) == ("pycuda", "torch")


def free_mib() -> float:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / 2**20


def test_a_hundred_sessions_give_their_memory_back(tmp_path, monkeypatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), "fp32", cuda_graph=True)
    for number in range(100):
        session = trt.open_session(job)
        run(session, 3)
        session.close()
        del session
        if number == 9:
            before = free_mib()
    assert free_mib() == pytest.approx(before, abs=8)


def test_a_capture_that_fails_leaves_plain_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), "fp32", cuda_graph=True)
    session = trt.open_session(job)
    enqueue = session._enqueue

    def wait_inside() -> None:
        enqueue()
        torch.cuda.current_stream().synchronize()  # What no capture allows.

    session._enqueue = wait_inside
    (first,) = run(session)
    session._enqueue = enqueue
    (second,) = run(session, 3)
    np.testing.assert_allclose(first, second)
    proof = session.proof()
    assert (proof.cuda_graph, bool(proof.cuda_graph_fallback)) == (False, True)
    print("fallback:", proof.cuda_graph_fallback)
    session.close()
    again = trt.open_session(job)
    run(again, 3)
    assert again.proof().cuda_graph
    again.close()


def det(path: Path) -> Path:
    return write_text(path, "g (float[batch, 3, 3] x) => (float[batch] y) { [determinant] y = Det (x) }")


def test_failures_say_their_cause(tmp_path, monkeypatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Unsupported, match=r"ONNX parser: node 0 'determinant' \(Det\)") as caught:
        trt.open_session(job_of(det(tmp_path / "det.onnx"), "fp32"))
    print("parser:", caught.value)
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), "fp32")
    trt.open_session(job).close()
    (plan,) = (tmp_path / "cache").rglob("*.engine")
    whole = plan.read_bytes()
    plan.write_bytes(whole[: len(whole) // 2])
    session = trt.open_session(job)
    assert "engine-cache" in [warning.kind for warning in session.warnings]
    session.close()
    monkeypatch.setattr(trt, "build_engine", lambda *a, **k: trt.Built(path=bad, cached=True, seconds=1.0))
    bad = tmp_path / "bad.engine"
    for content in (b"no engine" * 100, whole[: len(whole) // 2], whole[:200] + bytes(100) + whole[300:]):
        bad.write_bytes(content)
        with pytest.raises(RuntimeError, match="cannot load the engine") as broken:
            trt.open_session(job)
        print("damaged:", broken.value)


def test_a_card_without_memory_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), "fp32", batch=4)
    trt.open_session(job).close()
    full = [torch.empty(int(torch.cuda.mem_get_info()[0] - 2**26), dtype=torch.uint8, device="cuda")]
    large = job_of(tmp_path / "net.onnx", "fp32", batch=200_000)
    with pytest.raises(Exception) as caught:
        trt.open_session(large)
    print("memory:", caught.value)
    assert outcome_of(caught.value).status == "oom", caught.value
    full.clear()  # Deleting the name would not do: the error's traceback keeps this frame's variables.
    assert free_mib() > 1024


def test_control_c_ends_a_long_build(tmp_path):
    (tmp_path / "job.yaml").write_text("models: [resnet101]\nengines: [trt]\nprecisions: [fp16]\nbatch_sizes: [16]\n")
    environment = {**os.environ, "PROFILER_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "out.txt").open("w") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "profiler", "job.yaml", "--device", "cuda"],
            cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        until(lambda: "  build" in (tmp_path / "out.txt").read_text() or child.poll() is not None, 90)
        time.sleep(3)
        started = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)
        code = child.wait(timeout=60)
    print((tmp_path / "out.txt").read_text()[-600:], f"ended after {time.monotonic() - started:.1f} s")
    assert code == 130
