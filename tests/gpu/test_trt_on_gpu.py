"""TensorRT's run half on a GPU: pycuda or cuda-bindings beside torch, the session on a stand-in, rows where it is not.

The stand-in runs the graph by ONNX Runtime on the addresses and the stream that the session gives it (stand_in.py).
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from engines.tensorrt_engines import cuda_driver
from runs import Profiler

from engines import trt
from engines.base import Unsupported, Warning
from engines.catalog import CUDA_DRIVERS
from engines.device import ALIGNMENT, Buffers, capture
from exporters.source import ModelSource
from profiler import load
from profiler.job.case import Budget, Case
from profiler.nvml import visible_gpus
from profiler.processes.process import explain
from profiler.stats.samples import median
from profiler.worker.measure_case import measure_case
from profiler.worker.prepare_model import prepare_export, prepare_model
from profiler.worker.task import Prepared, Task

sys.path.insert(0, str(Path(__file__).resolve().parent))
import graphs
from graphs import job_of, run
from stand_in import MIB, StandIn, cuda

pytestmark = pytest.mark.gpu

FACTORY = """
from torch import nn

def tiny():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(32 * 14 * 14, 10),
    )
"""
PARAMETERS = 32 * 27 + 32 + 32 * 32 * 9 + 32 + 32 * 14 * 14 * 10 + 10
WIDE = 2 * MIB
"""Of the mixed graph, at a batch of 4: buffers of 64, 16, 8 and 16 MiB, each of which would be missed."""
SCRATCH = 64 * MIB
SLACK_MIB = 4
"""The driver takes memory in pieces of 2 MiB."""
JOB = """
models: [resnet18]
engines: [trt, trt-rtx]
passes: [inference]
precisions: [fp16]
batch_sizes: [1]
device: cuda
budget: {seconds: 0.3}
"""


@pytest.fixture(autouse=True)
def stream() -> Iterator[torch.cuda.Stream]:
    """The tests' current stream, which is not the default one; whatever becomes of it, it is put back."""
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        yield torch.cuda.current_stream()


# pycuda and torch


@pytest.fixture(scope="module", params=CUDA_DRIVERS.values())
def driver(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each driver in turn, as the one that sessions of this process take."""
    module = next(name for name, distribution in CUDA_DRIVERS.items() if distribution == request.param)
    torch.cuda.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "CUDA_DRIVERS", {module: request.param})
        try:
            loaded, _ = cuda_driver.load("trt")
        except Unsupported as error:
            pytest.skip(str(error))
        yield loaded


@pytest.fixture
def pycuda_driver(driver: Any) -> Any:
    if isinstance(driver, cuda_driver.CudaBindings):
        pytest.skip("streams are pycuda's here")
    return driver


@pytest.fixture
def buffers(driver: Any) -> Iterator[Buffers]:
    torch.zeros(1, device="cuda")
    taken = Buffers(driver, 0)
    yield taken
    taken.free()


@pytest.fixture
def pycuda_stream(pycuda_driver: Any) -> Any:
    driver = pycuda_driver
    torch.zeros(1, device="cuda")
    driver.Device(0).retain_primary_context().push()
    made = driver.Stream()
    driver.Context.pop()
    return made


def as_tensor(buffer: Any) -> torch.Tensor:
    """torch's view of a buffer of float32."""
    words = {"shape": buffer.shape, "typestr": "<f4", "data": (buffer.address, False), "version": 3}
    holder = type("Holder", (), {"__cuda_array_interface__": words})()
    return torch.as_tensor(holder, device="cuda")


def current_context() -> int:
    found = ctypes.c_void_p()
    cuda("cuCtxGetCurrent", ctypes.byref(found))
    return found.value or 0


def test_the_driver_and_torch_are_in_one_context(driver: Any) -> None:
    torch.zeros(1, device="cuda")
    before = current_context()
    primary = driver.Device(0).retain_primary_context()
    assert primary.handle == before != 0
    primary.detach()
    buffers = Buffers(driver, 0)
    buffers.tensor((3,), torch.float32)
    is_current = getattr(driver.Context, "get_current", lambda: None)  # cuda-bindings keep no list of their own.
    assert is_current() is None, "pycuda would end the process with one that is current"
    buffers.free()
    assert current_context() == before
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_what_one_writes_the_other_reads(buffers: Buffers, stream: torch.cuda.Stream) -> None:
    ours = buffers.tensor((1000,), torch.float32)
    assert ours.address % ALIGNMENT == 0
    values = np.arange(1000, dtype=np.float32)
    ours.upload(values)
    theirs = as_tensor(ours)
    assert theirs.data_ptr() == ours.address
    theirs.mul_(2)
    stream.synchronize()
    np.testing.assert_array_equal(ours.download(), 2 * values)


def test_an_event_of_torchs_orders_a_copy_of_pycudas(
    buffers: Buffers, driver: Any, pycuda_stream: Any, stream: torch.cuda.Stream
) -> None:
    ours = buffers.tensor((1000,), torch.float32)
    ours.upload(np.zeros(1000, np.float32))
    theirs = as_tensor(ours)
    torch.cuda._sleep(50_000_000)
    theirs.fill_(7)
    written = torch.cuda.Event()
    written.record(stream)
    torch.cuda.ExternalStream(pycuda_stream.handle).wait_event(written)
    driver.memcpy_dtoh_async(ours.pinned, ours.address, pycuda_stream)
    pycuda_stream.synchronize()
    assert (ours.pinned.view(np.float32) == 7).all()


def test_torchs_events_time_work_on_pycudas_stream(driver: Any, pycuda_stream: Any) -> None:
    external = torch.cuda.ExternalStream(pycuda_stream.handle)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(external):
        start.record()
        torch.cuda._sleep(2_000_000)
        end.record()
    pycuda_stream.synchronize()
    assert pycuda_stream.is_done()
    assert start.elapsed_time(end) > 0


def test_torch_captures_work_on_pycudas_buffers(buffers: Buffers, stream: torch.cuda.Stream) -> None:
    ours = buffers.tensor((1000,), torch.float32)
    ours.upload(np.ones(1000, np.float32))
    theirs = as_tensor(ours)
    theirs.add_(0)
    stream.synchronize()

    def work() -> None:
        # The driver's own call, with the raw address and stream, and torch's kernel.
        cuda("cuMemsetD8Async", ctypes.c_uint64(ours.address), 0, ctypes.c_size_t(400), raw(stream))
        theirs.add_(3)

    graph = capture(work)
    stream.synchronize()
    assert (ours.download() == 1).all(), "captured, not run"
    for _ in range(2):
        graph.replay()
    stream.synchronize()
    np.testing.assert_array_equal(ours.download(), [3.0] * 100 + [7.0] * 900)


def raw(stream: torch.cuda.Stream) -> ctypes.c_void_p:
    return ctypes.c_void_p(stream.cuda_stream)


@pytest.mark.parametrize("breaks_off", [True, False], ids=["broken off", "refused"])
def test_a_capture_that_fails_leaves_stream_and_allocator_usable(
    buffers: Buffers, stream: torch.cuda.Stream, breaks_off: bool
) -> None:
    def refuse() -> None:
        if breaks_off:
            cuda("cuStreamSynchronize", raw(stream), check=False)
        raise RuntimeError("not here")

    with pytest.raises(RuntimeError):
        capture(refuse)
    assert not torch.cuda.is_current_stream_capturing()
    held = torch.ones(MIB, device="cuda")
    del held
    torch.cuda.empty_cache()
    theirs = as_tensor(buffers.tensor((10,), torch.float32))
    theirs.fill_(1)
    theirs.add_(0)
    stream.synchronize()
    graph = capture(lambda: theirs.add_(1))  # type: ignore[arg-type, return-value]
    graph.replay()
    assert theirs.sum().item() == 20


# The session


@pytest.fixture
def library(driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    made = StandIn(scratch=SCRATCH)
    monkeypatch.setattr(trt, "library", lambda engine: made)
    monkeypatch.setattr(trt, "build_engine", made.build_engine)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    return made


def expected(onnx: Path, inputs: Any) -> list[Any]:
    """ONNX Runtime's outputs on the CPU."""
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), inputs, strict=True)))


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_outputs_are_the_graphs(library: StandIn, tmp_path: Path, cuda_graph: bool) -> None:
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), cuda_graph=cuda_graph)
    session = trt.open_session(job)
    for _ in range(3):
        (output,) = run(session)
        np.testing.assert_allclose(output, expected(job.onnx, job.inputs)[0], rtol=1e-3, atol=1e-4)
    assert session.context.enqueued == (2 if cuda_graph else 3)
    session.close()


def test_tensors_of_every_kind_are_where_the_engine_looks(library: StandIn, tmp_path: Path) -> None:
    job = job_of(graphs.mixed(tmp_path / "mixed.onnx", width=1000))
    session = trt.open_session(job)
    assert {str(b.dtype) for b in session.buffers.values()} == {
        "torch.int64", "torch.float16", "torch.bool", "torch.bfloat16",
    }  # fmt: skip
    assert all(buffer.address % ALIGNMENT == 0 for buffer in session.buffers.values())
    positive, scaled = run(session, 2)
    numbers, halves = job.inputs
    np.testing.assert_array_equal(positive, numbers > 0)
    np.testing.assert_allclose(scaled, numbers * halves.astype(np.float32), rtol=2**-8)
    session.close()


def test_a_replay_reads_the_inputs_anew(library: StandIn, tmp_path: Path) -> None:
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), cuda_graph=True)
    session = trt.open_session(job)
    run(session, 2)
    other = 2 * job.inputs[0] + 1
    session.buffers["x"].upload(other)
    (output,) = run(session)
    np.testing.assert_allclose(output, expected(job.onnx, [other])[0], rtol=1e-3, atol=1e-4)
    session.close()


@pytest.mark.parametrize("how", ["politely", "by waiting", "beforehand"])
def test_where_capture_fails_the_session_goes_on_without(library: StandIn, tmp_path: Path, how: str) -> None:
    library.refuses_capture = how
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), cuda_graph=True)
    session = trt.open_session(job)
    (output,) = run(session, 3)
    np.testing.assert_allclose(output, expected(job.onnx, job.inputs)[0], rtol=1e-3, atol=1e-4)
    proof = session.proof()
    assert proof.cuda_graph is False
    says = "cannot be captured" if how == "beforehand" else "not permitted when stream is capturing"
    assert says in proof.cuda_graph_fallback
    session.close()
    torch.cuda.empty_cache()


# What it holds, and gives back


def free_mib() -> float:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / MIB


@pytest.fixture
def wide(library: StandIn, tmp_path: Path) -> Path:
    """The mixed graph with large buffers, run once: the kernels that it needs are loaded."""
    path = graphs.mixed(tmp_path / "wide.onnx", WIDE)
    session = trt.open_session(job_of(path))
    run(session)
    session.close()
    return path


def test_memory_is_what_the_session_takes(library: StandIn, wide: Path) -> None:
    before = free_mib()
    session = trt.open_session(job_of(wide))
    taken = before - torch.cuda.mem_get_info()[0] / MIB
    memory = session.memory()
    assert memory.activations == SCRATCH + 4 * WIDE * (8 + 2 + 1 + 2)
    assert memory.activations / MIB == pytest.approx(taken, abs=SLACK_MIB)
    assert memory.slack == 0
    session.close()


def test_a_closed_session_has_given_back_its_memory(library: StandIn, wide: Path) -> None:
    before = free_mib()
    session = trt.open_session(job_of(wide, cuda_graph=True))
    run(session, 3)
    assert before - free_mib() > 150
    session.close()
    assert free_mib() == pytest.approx(before, abs=SLACK_MIB)


def test_so_has_one_that_nobody_closed(library: StandIn, wide: Path) -> None:
    before = free_mib()
    session = trt.open_session(job_of(wide))
    run(session)
    del session
    assert free_mib() == pytest.approx(before, abs=SLACK_MIB)


STEPS = [
    "deserialize_cuda_engine",
    "create_execution_context",
    "set_input_shape",
    "set_tensor_address",
    "infer_shapes",
    "set_device_memory",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_gives_back_what_was_taken(library: StandIn, wide: Path, step: str) -> None:
    before = free_mib()
    library.fails = step
    with pytest.raises(RuntimeError, match=f"{step} fails, as it was told to"):
        trt.open_session(job_of(wide))
    assert free_mib() == pytest.approx(before, abs=SLACK_MIB)


def test_want_of_memory_is_told_as_such_and_the_rest_given_back(library: StandIn, wide: Path) -> None:
    before = free_mib()
    library.scratch = 2**45  # 32 TiB
    with pytest.raises(Exception, match="out of memory") as caught:
        trt.open_session(job_of(wide))
    assert explain(caught.value).status == "oom"
    del caught
    assert free_mib() >= before - SLACK_MIB  # More, where an earlier session's memory came back only now.


def test_a_run_that_fails_says_why_and_the_memory_comes_back(library: StandIn, wide: Path) -> None:
    before = free_mib()
    session = trt.open_session(job_of(wide))
    library.fails = "execute_async_v3"
    with pytest.raises(RuntimeError, match=r"could not enqueue the engine: .*illegal memory access"):
        run(session)
    session.close()
    assert free_mib() == pytest.approx(before, abs=SLACK_MIB)


# Through the worker


Measure = Callable[..., Any]


@pytest.fixture
def measure(library: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """`measure("fp16", cuda_graph=True)`: the Result of the exported tiny network; or of a user's `onnx`."""
    (tmp_path / "tiny_for_trt.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny_for_trt", raising=False)

    def tell(message: object) -> None:
        pass

    def run_case(precision: str, onnx: Path | None = None, **options: Any) -> Any:
        source = ModelSource("tiny", factory="tiny_for_trt:tiny", input_shape=(3, 32, 32))
        source = source if onnx is None else graphs.source_of(onnx)
        prepared: Prepared = prepare_model((source, ("cpu",), tmp_path / "cache"), tell)
        if onnx is None:
            export = prepare_export((source, precision, None, tmp_path / "cache"), tell)
            prepared = replace(prepared, onnx={precision: export})
        case = Case("tiny", "trt", "trt", "inference", precision, 8, "cuda", 0, source, options)  # type: ignore[arg-type]
        return measure_case(Task(case, prepared, Budget(seconds=0.5), visible_gpus()[0].uuid), tell)

    return run_case


def test_a_row_has_parity_clocks_memory_and_proof(measure: Measure) -> None:
    for precision, bound, width in (("fp32", 1e-4, 4), ("fp16", 1e-2, 2)):
        result = measure(precision)
        assert (result.status, result.reason) == ("ok", None)
        assert result.figures["rel_l2_error"] < bound
        ms = {name: median(result.samples[name]) or 0 for name in ("event", "gpu", "enqueue", "host", "h2d", "d2h")}
        assert min(ms.values()) > 0, ms
        assert ms["gpu"] < 1.1 * ms["event"], "the launches' gaps are out of it"
        assert ms["enqueue"] < ms["host"], "to its return, and to its finished work"
        assert ms["gpu"] < 1.1 * ms["host"]
        buffers = 8 * (3 * 32 * 32 + 10) * width
        assert result.figures["activations_mib"] == (SCRATCH + buffers) / MIB
        assert result.figures["weights_mib"] == pytest.approx(PARAMETERS * width / MIB, rel=0.02)
        parts = [result.figures[f"{part}_mib"] for part in ("context", "weights", "activations", "other")]
        assert sum(parts) == pytest.approx(result.figures["peak_memory_mib"])
        assert result.figures["build_s"] == 12.5
        assert result.proof.compute_types == {"float32" if width == 4 else "float16": 3}
        assert Warning("engine-cache", "so says the stand-in") in result.warnings


def test_a_replayed_row_enqueues_sooner(measure: Measure) -> None:
    plain, replayed = measure("fp16"), measure("fp16", cuda_graph=True)
    assert (replayed.status, replayed.reason) == ("ok", None)
    assert replayed.proof.cuda_graph is True
    assert replayed.figures["rel_l2_error"] < 1e-2
    assert median(replayed.samples["enqueue"]) < median(plain.samples["enqueue"])  # type: ignore[operator]


def test_a_row_whose_capture_breaks_off_is_ok_and_warned_of(measure: Measure, library: StandIn) -> None:
    library.refuses_capture = "by waiting"
    result = measure("fp16", cuda_graph=True)
    assert (result.status, result.reason) == ("ok", None)
    (warning,) = (w for w in result.warnings if w.kind == "no-cuda-graph")
    assert "not permitted when stream is capturing" in warning.text
    assert min(len(result.samples[name]) for name in ("event", "gpu", "h2d", "d2h")) > 0


def test_a_row_of_a_graph_of_several_types(measure: Measure, tmp_path: Path) -> None:
    result = measure("native", graphs.mixed(tmp_path / "mixed.onnx", width=1000))
    assert (result.status, result.reason) == ("ok", None)
    assert result.figures["rel_l2_error"] < 1e-2


def test_a_row_that_computed_in_fp32_instead_of_fp16_is_failed(measure: Measure, library: StandIn) -> None:
    library.tactic = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32"
    result = measure("fp16")
    assert (result.status, result.reason) == ("failed", "asked for fp16, computed in float32 (3×)")


# Where TensorRT is not


def test_what_cannot_run_here_is_an_unsupported_row(tmp_path: Path, profiler: Profiler) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = profiler("job.yaml", cwd=tmp_path)
    (path,) = (tmp_path / "results").iterdir()
    rows = {row["variant"]: row for row in load(path)[0].collect().to_dicts()}
    assert rows.keys() == {"trt", "trt-rtx"}
    absent = importlib.util.find_spec("tensorrt") is None
    if absent:
        assert rows["trt"]["status"] == "unsupported", rows["trt"]["reason"]
        assert "tensorrt" in rows["trt"]["reason"]
        assert "pip install" in rows["trt"]["reason"]
    assert rows["trt-rtx"]["status"] == "unsupported", rows["trt-rtx"]["reason"]
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    assert f"compute capability {capability}" in rows["trt-rtx"]["reason"]
    assert done.returncode == (1 if absent else 0), done.stdout + done.stderr


def test_the_session_itself_says_why_it_cannot_run_here(tmp_path: Path) -> None:
    job = replace(job_of(graphs.convolution(tmp_path / "net.onnx")), engine="trt-rtx")
    there = all(importlib.util.find_spec(name) for name in ("tensorrt_rtx_bindings", "tensorrt_rtx_libs"))
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    says = (
        rf"does not support compute capability {capability} \(.*\); it supports 7\.5, 8\.0" if there else "pip install"
    )
    with pytest.raises(Unsupported, match=says):
        trt.open_session(job)
