"""TensorRT's run half without a GPU: the real session on a stand-in for TensorRT, in host memory."""

from __future__ import annotations

import gc
import importlib.util
import sys
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from engines import trt
from engines.base import Building, Job, Unsupported, Warning
from engines.device import Allocator
from exporters.inputs import input_specs, seeded_inputs
from profiler.job.case import Case
from profiler.worker import checks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import graphs
import stand_in
from graphs import run
from stand_in import DataType, StandIn

has_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="TensorRT for RTX is not installed"
)


class Graph:
    """torch.cuda.CUDAGraph and torch.cuda.graph in one: it keeps what the stand-in did not run, and replays it."""

    def __init__(self, library: StandIn) -> None:
        self.library, self.work = library, []
        weakref.finalize(self, library.events.append, "graph freed")

    def __enter__(self) -> None:
        self.library.recording = []

    def __exit__(self, *error: object) -> None:
        self.work, self.library.recording = self.library.recording, None
        if self.library.broken_off:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def replay(self) -> None:
        for execute in self.work:
            execute()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(trt, "library", lambda engine: made)
    monkeypatch.setattr(trt, "build_engine", made.build_engine)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    stream = SimpleNamespace(cuda_stream=7, synchronize=lambda: None)
    for name, value in {
        "get_device_capability": lambda: (9, 0),
        "get_device_name": lambda: "NVIDIA H200",
        "current_device": lambda: 0,
        "current_stream": lambda: stream,
        "graph_pool_handle": lambda: (0, 1),
        "CUDAGraph": lambda: Graph(made),
        "graph": lambda graph, **options: graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return made


def job_of(onnx: Path, precision: str = "native", **options: Any) -> Job[Any]:
    return replace(graphs.job_of(onnx, precision, **options), device="cpu")


@pytest.fixture
def convolution(tmp_path: Path) -> Path:
    return graphs.convolution(tmp_path / "convolution.onnx")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return graphs.mixed(tmp_path / "mixed.onnx")


def expected(job: Job[Any]) -> Any:
    session = onnxruntime.InferenceSession(job.onnx, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), job.inputs, strict=True)))[0]


def case_of(job: Job[Any]) -> Case:
    names = ("net", "trt", "trt", "inference", job.precision)
    return Case(*names, job.batch_size, "cuda", 0, job.source, asdict(job.options))


def nothing_is_held(library: StandIn) -> None:
    gc.collect()
    for thing in ("runtime", "engine", "context"):
        assert library.events.count(f"{thing} made") == library.events.count(f"{thing} freed")


def test_the_first_run_is_plain_and_the_others_are_replays(library, convolution):
    phases: list[str] = []
    at_peak: list[int] = []
    job = replace(job_of(convolution, "fp32", cuda_graph=True), phase=phases.append)
    session = trt.open_session(replace(job, at_peak=lambda: at_peak.append(session.context.enqueued)))
    assert phases == ["build", "load"]
    for _ in range(4):
        (output,) = run(session)
        np.testing.assert_allclose(output, expected(job), rtol=1e-5, atol=1e-6)
    assert (session.context.enqueued, at_peak) == (2, [1]), "one plain, one captured"
    memory = session.memory()
    assert memory.weights == 4 * graphs.WEIGHTS
    assert memory.activations == library.scratch + 4 * graphs.BATCH * (3 * 16 * 16 + graphs.CLASSES)
    assert memory.slack == 0
    assert session.context.nvtx_verbosity is library.ProfilingVerbosity.NONE
    proof = session.proof()
    assert (proof.library, proof.compute_types) == ("TensorRT 10.13.0", {"float32": 2})
    assert (proof.tf32, proof.cuda_graph, proof.cuda_graph_fallback) == (False, True, None)
    assert proof.build == Building(seconds=12.5, cached=False)
    assert Warning("engine-cache", "so says the stand-in") in proof.warnings
    assert checks.mismatch(case_of(job), proof) is None
    layers = session.layers()
    assert [(layer.kind, layer.nodes) for layer in layers] == [
        ("CaskConvolution", ("conv",)), ("kgen", ("relu",)), ("kgen", ("pool",)), ("kgen", ("flatten",)),
        ("gemm", ("fc",)),
    ]  # fmt: skip
    assert [layer.ms for layer in layers] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.25])
    weakref.finalize(session.scratch, library.events.append, "memory freed")
    del library.events[:]
    session.close()
    assert library.events == ["graph freed", "context freed", "engine freed", "runtime freed", "memory freed"]


def test_inputs_and_outputs_of_other_types_keep_their_order_and_take_new_values(library, mixed):
    job = job_of(mixed)
    session = trt.open_session(job)
    others = seeded_inputs(input_specs(graphs.source_of(mixed)), graphs.BATCH, first=graphs.BATCH)
    for numbers, halves in (job.inputs, others):
        session.feed([numbers, halves])
        positive, scaled = run(session, 2)
        assert (positive.dtype, scaled.dtype) == (np.bool_, np.float32)
        np.testing.assert_array_equal(positive, numbers > 0)
        np.testing.assert_allclose(scaled, numbers * halves.astype(np.float32), rtol=2**-8)
    del session
    nothing_is_held(library)


@pytest.mark.usefixtures("library")
def test_an_output_in_host_memory_is_waited_for_and_no_memory_of_the_device(mixed, monkeypatch):
    session, waited = trt.open_session(job_of(mixed)), []
    run(session)
    monkeypatch.setattr(torch.cuda.current_stream(), "synchronize", lambda: waited.append(1))
    session.outputs()
    assert waited
    allocator = Allocator("cpu")
    on_host, on_device = allocator.buffer((4, 2), torch.float32, on_host=True), allocator.buffer((3,), torch.float16)
    assert (on_host.bound.data_ptr(), allocator.size) == (on_host.twin.data_ptr(), on_device.bound.nbytes)


@pytest.mark.parametrize(("how", "says"), [("by waiting", "not permitted"), ("beforehand", "cannot be captured")])
def test_an_engine_that_cannot_be_captured_is_enqueued_anew_each_time(library, convolution, how, says):
    library.refuses_capture = how
    job = job_of(convolution, cuda_graph=True)
    session = trt.open_session(job)
    (output,) = run(session, 3)
    assert session.context.enqueued == 3
    np.testing.assert_allclose(output, expected(job), rtol=1e-5, atol=1e-6)
    proof = session.proof()
    assert (proof.cuda_graph, says in proof.cuda_graph_fallback) == (False, True)
    assert "no-cuda-graph" in [warning.kind for warning in checks.remarks(case_of(job), proof)]


STEPS = (
    *("Runtime", "deserialize_cuda_engine", "create_execution_context", "set_input_shape", "set_tensor_address"),
    *("infer_shapes", "set_device_memory", "execute_async_v3"),
)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_says_why_and_frees_what_was_taken(library, mixed, step):
    if step == "execute_async_v3":
        session = trt.open_session(job_of(mixed))
        library.fails = step
        with pytest.raises(RuntimeError, match=r"could not enqueue the engine: .*illegal memory access"):
            run(session)
        session.close()
    else:
        library.fails = step
        with pytest.raises(RuntimeError, match=f"{step} fails, as it was told to"):
            trt.open_session(job_of(mixed))
    nothing_is_held(library)


@pytest.mark.parametrize("number", range(5))
def test_an_allocation_that_fails_frees_what_was_taken(library, mixed, number, monkeypatch):
    job, empty, asked = job_of(mixed), torch.empty, []

    def allocate(*shape: Any, **options: Any) -> torch.Tensor:
        asked.append(shape)
        if len(asked) > number:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*shape, **options)

    monkeypatch.setattr(trt.torch, "empty", allocate)
    with pytest.raises(torch.OutOfMemoryError):
        trt.open_session(job)
    assert len(asked) == number + 1
    nothing_is_held(library)


def test_the_build_is_told_what_the_options_say(library, convolution):
    trt.open_session(job_of(convolution))
    trt.open_session(job_of(convolution, "tf32"))
    plain, asked = library.builds
    assert plain.shapes == {"x": ((graphs.BATCH, 3, 16, 16),) * 3}
    assert (plain.gpu, plain.target) == ("NVIDIA H200, compute capability 9.0", None)
    assert asked.precision == "tf32"


def test_what_an_engine_cannot_take_is_unsupported(library, convolution, mixed, tmp_path):
    model = onnx.load(mixed)
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_param = "found"
    onnx.save(model, tmp_path / "by_value.onnx")
    with pytest.raises(Unsupported, match=r"output 'scaled', \(4, -1\), depends on values"):
        trt.open_session(job_of(tmp_path / "by_value.onnx"))
    library.strange_types = {"halves": DataType.INT4}
    with pytest.raises(Unsupported, match="'halves' is of TensorRT's type INT4"):
        trt.open_session(job_of(mixed))
    library.fails, library.logs = "Runtime", "[runtime.cpp] CUDA initialization failure with error: 35"
    with pytest.raises(Unsupported, match=r"newer CUDA than this driver's: update .* pip install 'tensorrt"):
        trt.open_session(job_of(convolution))


@pytest.mark.parametrize(
    ("precision", "kernel", "says"),
    [
        ("fp16", "gemm_f32f32_f32f32_f32", "asked for fp16, computed in float32 (2×)"),
        ("fp32", "gemm_f32f32_tf32f32_f32", "TF32 was on at fp32"),
        ("int8", "gemm_f16f16_f16f16_f16", "asked for int8, computed in float16"),
        ("tf32", "gemm_f32f32_tf32f32_f32", None),
    ],
)
def test_an_engine_that_computes_in_another_type_is_a_mismatch(library, convolution, precision, kernel, says):
    library.tactic = f"sm80_xmma_fprop_implicit_{kernel}_nhwckrsc"
    session = trt.open_session(job_of(convolution, precision))
    found = checks.mismatch(case_of(session.job), session.proof())
    session.close()
    assert found is None if says is None else says in (found or "")


def test_what_cannot_be_proven_is_warned_of(library, convolution):
    assert "unproven" in [w.kind for w in trt.open_session(job_of(convolution, "tf32")).proof().warnings]
    library.fails = "get_engine_information"
    proof = trt.open_session(job_of(convolution, "fp32")).proof()
    assert proof.compute_types == {"unknown": 2}
    assert "unproven" in [w.kind for w in proof.warnings]


@pytest.mark.parametrize("content", ["raise OSError('libnvinfer.so.10: undefined symbol')", "import no_such_bindings"])
def test_a_library_that_does_not_load_is_unsupported(tmp_path, monkeypatch, content):
    (tmp_path / "tensorrt.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    with pytest.raises(Unsupported, match=r"tensorrt is installed but does not load \(.*\); .*: pip install 'tensorrt"):
        trt.library("trt")


@has_rtx
def test_the_real_library_takes_our_types_logger_and_profiler():
    real = trt.library("trt-rtx")
    names = set(real.DataType.__members__)
    assert names - trt._DTYPES.keys() == {"FP4", "INT4", "E8M0"}, "packed, or a scale"
    sizes = {name: getattr(real.DataType, name).itemsize for name in trt._DTYPES}
    assert sizes == {name: dtype.itemsize for name, dtype in trt._DTYPES.items()}
    logger = trt.logger_of(real)
    assert real.Runtime(logger).deserialize_cuda_engine(b"no engine" * 100) is None
    assert "kEXPECTED_MAGIC_TAG" in trt.joined(list(logger.errors), 400)
    profiler = trt._profiler(real)
    for name, ms in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        profiler.report_layer_time(name, ms)
    assert list(profiler.ms.items()) == [("a", 4.0), ("b", 2.0)]


@has_rtx
def test_the_stand_ins_names_are_tensorrts():
    """The session runs on the stand-in, so it takes no other names; but for what it asks for before it takes it."""
    lean, rtx = pytest.importorskip("tensorrt_lean_bindings"), trt.library("trt-rtx")
    real = {"Engine": "ICudaEngine", "Context": "IExecutionContext"}
    kinds = ("Engine", "Context", "Runtime", "EngineInspector", "DataType", "TensorIOMode", "TensorLocation")
    for kind in (*kinds, "ExecutionContextAllocationStrategy", "LayerInformationFormat"):
        theirs = getattr(lean, real.get(kind, kind), None) or getattr(rtx, kind)  # The runtime alone has no inspector.
        assert {name for name in vars(getattr(stand_in, kind)) if name[0] != "_"} <= {*dir(theirs)}
    assert hasattr(rtx.ICudaEngine, "create_runtime_config")
    names = {"set_execution_context_allocation_strategy", "dynamic_shapes_kernel_specialization_strategy"}
    assert names <= {*dir(rtx.IRuntimeConfig)}
