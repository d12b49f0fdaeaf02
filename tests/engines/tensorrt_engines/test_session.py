"""TensorRT's run half without a GPU: the real session on a stand-in for TensorRT, and memory that numpy plays.

What needs no GPU of the real TensorRT for RTX is tested with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import engines
from engines import trt
from engines.base import Building, Job, Unsupported, Warning
from engines.catalog import ENGINES, TrtOptions
from engines.device import ALIGNMENT
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import Export
from profiler.job.case import Budget, Case
from profiler.worker import checks, measure_case, prepare_model
from profiler.worker.task import Task

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))
import graphs
import stand_in
from graphs import job_of, run
from stand_in import DataType, StandIn

NAMES = Path(__file__).parent / "tensorrt_names"
has_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="TensorRT for RTX is not installed"
)


class Driver(ModuleType):
    """pycuda.driver as far as session.py uses it: host memory plays the device's, and every step is noted."""

    class Error(Exception):
        pass

    def __init__(self, events: list[str], misaligned: bool = False) -> None:
        super().__init__("pycuda.driver")
        self.events, self.misaligned = events, misaligned
        self.taken: dict[int, int] = {}
        self.fails_at = -1
        """Which allocation is the one for which there is no memory."""
        self.current: list[Primary] = []
        self.retained = 0
        self.allocations = self.pinned = 0

    def init(self) -> None:
        self.events.append("driver ready")

    @property
    def Device(self) -> Callable[[int], Any]:
        return lambda number: SimpleNamespace(retain_primary_context=lambda: Primary(self))

    @property
    def Context(self) -> Any:
        return SimpleNamespace(pop=self.current.pop)

    def mem_alloc(self, size: int) -> Allocation:
        assert self.current, "pycuda allocates in its current context"
        assert size > 0, "cuMemAlloc takes no 0"
        self.allocations += 1
        if self.allocations - 1 == self.fails_at:
            raise MemoryError("cuMemAlloc failed: out of memory")
        return Allocation(self, size)

    def pagelocked_empty(self, shape: int, dtype: str) -> np.ndarray[Any, Any]:
        assert self.current and shape > 0
        return np.ndarray(shape, dtype, buffer=pinned_type(self, shape)())

    def memcpy_htod(self, dest: int, src: np.ndarray[Any, Any]) -> None:
        self.check(dest, src.nbytes)
        ctypes.memmove(dest, src.ctypes.data, src.nbytes)

    def memcpy_dtoh(self, dest: np.ndarray[Any, Any], src: int) -> None:
        self.check(src, dest.nbytes)
        ctypes.memmove(dest.ctypes.data, src, dest.nbytes)

    def check(self, address: int, size: int) -> None:
        assert any(start <= address and address + size <= start + length for start, length in self.taken.items())


class Primary:
    """The primary context, retained."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.own: set[int] = set()
        driver.retained += 1

    def push(self) -> None:
        self.driver.current.append(self)

    def detach(self) -> None:
        assert not self.own, "memory must not outlive its context"
        self.driver.retained -= 1
        self.driver.events.append("context given back")


class Allocation:
    def __init__(self, driver: Driver, size: int) -> None:
        self.driver, self.context = driver, driver.current[-1]
        self.bytes = np.zeros(size + 2 * ALIGNMENT, np.uint8)
        self.address = -(-self.bytes.ctypes.data // ALIGNMENT) * ALIGNMENT + (16 if driver.misaligned else 0)
        driver.taken[self.address] = size
        self.context.own.add(self.address)

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        del self.driver.taken[self.address]
        self.context.own.remove(self.address)
        self.driver.events.append("memory freed")


def pinned_type(driver: Driver, size: int) -> type:
    class Pinned(ctypes.c_uint8 * size):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            driver.pinned += 1

        def free(self) -> None:
            driver.pinned -= 1

    return Pinned


class Stream:
    """torch's current stream."""

    cuda_stream = 7

    def synchronize(self) -> None:
        pass


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
def library() -> StandIn:
    return StandIn("cpu", scratch=4096)


@pytest.fixture
def driver(library: StandIn) -> Driver:
    return Driver(library.events)


@pytest.fixture
def machine(library: StandIn, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, pycuda and TensorRT, all played."""
    package = ModuleType("pycuda")
    package.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    monkeypatch.setattr(trt, "library", lambda engine: library)
    monkeypatch.setattr(trt, "build_engine", library.build_engine)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(library))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: graph)


@pytest.fixture
def convolution(tmp_path: Path) -> Path:
    return graphs.convolution(tmp_path / "convolution.onnx")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return graphs.mixed(tmp_path / "mixed.onnx")


def expected(onnx: Path, job: Job) -> list[Any]:
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), job.inputs, strict=True)))


# What runs


def test_outputs_are_the_graphs_after_every_run(machine: None, convolution: Path) -> None:
    job = job_of(convolution)
    session = engines.open_session("trt", job)
    for _ in range(2):
        (output,) = run(session)
        np.testing.assert_allclose(output, expected(convolution, job)[0], rtol=1e-5, atol=1e-6)


def test_replays_compute_with_inputs_that_are_fed(machine: None, mixed: Path) -> None:
    session = trt.open_session(job_of(mixed))
    run(session, times=3)
    numbers, halves = seeded_inputs(input_specs(graphs.source_of(mixed)), graphs.BATCH, first=graphs.BATCH)
    session.feed([numbers, halves])
    positive, scaled = run(session)
    np.testing.assert_array_equal(positive, numbers > 0)
    np.testing.assert_allclose(scaled, numbers * halves.astype(np.float32), rtol=2**-8)


def test_several_inputs_and_outputs_of_other_types_keep_their_order(machine: None, mixed: Path) -> None:
    job = job_of(mixed)
    positive, scaled = run(trt.open_session(job))
    numbers, halves = job.inputs
    assert positive.dtype == np.bool_
    np.testing.assert_array_equal(positive, numbers > 0)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, numbers * halves.astype(np.float32), rtol=2**-8)


def test_a_float16_graph_gets_inputs_cast_from_float32(machine: None, tmp_path: Path) -> None:
    onnx = graphs.convolution(tmp_path / "half.onnx", graphs.TensorProto.FLOAT16)
    full = job_of(graphs.convolution(tmp_path / "full.onnx"))
    session = trt.open_session(replace(full, onnx=onnx, precision="fp16"))
    (output,) = run(session)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, expected(full.onnx, full)[0], rtol=2e-2, atol=2e-2)


def test_every_address_is_aligned_where_cumemalloc_is_not(
    machine: None, driver: Driver, library: StandIn, mixed: Path
) -> None:
    driver.misaligned = True
    session = trt.open_session(job_of(mixed))
    assert all(buffer.address % ALIGNMENT == 0 for buffer in session.buffers.values())
    assert session.memory().slack > 0
    run(session)
    session.close()
    assert (driver.taken, driver.pinned) == ({}, 0)


def test_values_that_are_shapes_stay_on_the_host(machine: None, library: StandIn, driver: Driver, mixed: Path) -> None:
    library.host_tensors = ("numbers",)
    session = trt.open_session(job_of(mixed))
    assert session.buffers["numbers"].address not in driver.taken
    assert session.buffers["halves"].address in driver.taken
    positive, _ = run(session)
    assert positive.any()


def test_a_type_without_a_counterpart_is_named(machine: None, library: StandIn, mixed: Path) -> None:
    library.strange_types = {"halves": DataType.INT4}
    with pytest.raises(
        Unsupported, match=r"'halves' is of TensorRT's type INT4; inputs and outputs can be FLOAT, HALF"
    ):
        trt.open_session(job_of(mixed))


def test_an_output_whose_shape_depends_on_values_is_refused(machine: None, tmp_path: Path, mixed: Path) -> None:
    import onnx

    model = onnx.load(mixed)
    model.graph.output[1].type.tensor_type.shape.dim[1].dim_param = "found"
    onnx.save(model, mixed)
    with pytest.raises(Unsupported, match=r"output 'scaled', \(4, -1\), depends on values"):
        trt.open_session(job_of(mixed))


# What is built


def test_the_build_is_told_what_the_options_say(machine: None, library: StandIn, convolution: Path) -> None:
    trt.open_session(job_of(convolution, optimization_level=-1, workspace_mib=0))
    (request,) = library.builds
    assert (request.options.optimization_level, request.options.workspace_mib, request.target) == (-1, 0, None)
    assert request.shapes == {"x": ((graphs.BATCH, 3, 16, 16),) * 3}
    assert request.gpu == "NVIDIA H200, compute capability 9.0"
    trt.open_session(job_of(convolution, "tf32", optimization_level=0, workspace_mib=512, batch_range="1:8:32"))
    request = library.builds[-1]
    asked = request.precision, request.options.optimization_level, request.options.workspace_mib
    assert asked == ("tf32", 0, 512)
    assert request.shapes == {"x": tuple((batch, 3, 16, 16) for batch in (1, 8, 32))}


def test_dimensions_that_the_user_named_are_in_the_profile(machine: None, library: StandIn, tmp_path: Path) -> None:
    import onnx

    path = graphs.mixed(tmp_path / "named.onnx")
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "width"
    onnx.save(model, path)
    source = graphs.source_of(path, dimensions={"width": 5})
    inputs = tuple(seeded_inputs(input_specs(source), 2))
    run(trt.open_session(Job(source, "inference", "native", 2, "cuda", TrtOptions(), inputs, onnx=path, engine="trt")))
    assert library.builds[0].shapes == {"numbers": ((2, 5),) * 3, "halves": ((2, 5),) * 3}


def test_the_batch_must_lie_in_its_range(machine: None, convolution: Path) -> None:
    with pytest.raises(Unsupported, match="batch size 4 lies outside of batch_range 8:16:32"):
        trt.open_session(job_of(convolution, batch_range="8:16:32"))
    with pytest.raises(ValueError, match="neither a batch size such as 16 nor a range"):
        trt.open_session(job_of(convolution, batch_range="1-8"))


def test_a_fixed_batch_has_no_range(machine: None, convolution: Path) -> None:
    import onnx

    model = onnx.load(convolution)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = graphs.BATCH
    onnx.save(model, convolution)
    run(trt.open_session(job_of(convolution)))
    with pytest.raises(Unsupported, match="fixed batch of 4: leave out batch_range"):
        trt.open_session(job_of(convolution, batch_range="1:4:8"))


def test_phases_and_progress_are_told(machine: None, convolution: Path) -> None:
    phases: list[str] = []
    words: list[str] = []
    trt.open_session(replace(job_of(convolution), phase=phases.append, progress=words.append))
    assert phases == ["build", "load"]
    assert words == ["building 100 %"]


def test_a_cached_engine_that_does_not_load_is_built_again_once(
    machine: None, library: StandIn, convolution: Path
) -> None:
    library.takes_from_cache = True
    session = trt.open_session(job_of(convolution))
    assert len(library.builds) == 2
    run(session)
    (warning,) = (w for w in session.proof().warnings if "does not load" in w.text)
    assert warning.kind == "engine-cache"
    assert "magic tag" in warning.text
    session.close()
    library.fails = "deserialize_cuda_engine"
    with pytest.raises(RuntimeError, match=r"TensorRT cannot load the engine .*: deserialize_cuda_engine fails"):
        trt.open_session(job_of(convolution))
    assert len(library.builds) == 4


# What is freed


STEPS = [
    "Runtime",
    "deserialize_cuda_engine",
    "create_execution_context",
    "set_input_shape",
    "set_tensor_address",
    "infer_shapes",
    "set_device_memory",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_frees_what_was_taken(
    machine: None, library: StandIn, driver: Driver, mixed: Path, step: str
) -> None:
    library.fails = step
    with pytest.raises(RuntimeError, match=f"{step} fails, as it was told to"):
        trt.open_session(job_of(mixed))
    gc.collect()
    nothing_is_held(library, driver)


@pytest.mark.parametrize("number", range(5))
def test_want_of_memory_at_any_allocation_frees_the_others(
    machine: None, library: StandIn, driver: Driver, mixed: Path, number: int
) -> None:
    driver.fails_at = number
    with pytest.raises(MemoryError, match="out of memory"):
        trt.open_session(job_of(mixed))
    gc.collect()
    nothing_is_held(library, driver)


def nothing_is_held(library: StandIn, driver: Driver) -> None:
    assert (driver.taken, driver.pinned, driver.retained, driver.current) == ({}, 0, 0, [])
    for thing in ("runtime", "engine", "context"):
        assert library.events.count(f"{thing} made") == library.events.count(f"{thing} freed")


def test_a_closed_session_has_freed_everything_in_the_right_order(
    machine: None, library: StandIn, driver: Driver, convolution: Path
) -> None:
    session = trt.open_session(job_of(convolution, cuda_graph=True))
    run(session, 3)
    del library.events[:]
    session.close()
    assert session.buffers == {}, "what they point to is gone"
    freed = ["graph freed", "context freed", "engine freed", "runtime freed", *["memory freed"] * 3]
    assert library.events == [*freed, "context given back"]
    session.close()
    assert len(library.events) == 8


def test_a_session_that_nobody_closed_is_freed_with_its_last_reference(
    machine: None, library: StandIn, driver: Driver, mixed: Path
) -> None:
    session = trt.open_session(job_of(mixed))
    run(session)
    del session
    gc.collect()
    nothing_is_held(library, driver)


def test_a_session_whose_run_fails_says_why_and_can_be_closed(
    machine: None, library: StandIn, driver: Driver, convolution: Path
) -> None:
    session = trt.open_session(job_of(convolution))
    library.fails = "execute_async_v3"
    with pytest.raises(RuntimeError, match=r"could not enqueue the engine: .*illegal memory access"):
        run(session)
    session.close()
    nothing_is_held(library, driver)


# What is captured


def test_the_first_run_is_plain_and_the_others_are_replays(machine: None, library: StandIn, convolution: Path) -> None:
    at_peak: list[int] = []
    job = replace(job_of(convolution, cuda_graph=True), at_peak=lambda: at_peak.append(session.context.enqueued))
    session = trt.open_session(job)
    run(session, 4)
    assert session.context.enqueued == 2, "one plain, one captured"
    assert at_peak == [1], "before the capture"
    session.buffers["y"].upload(np.zeros((graphs.BATCH, graphs.CLASSES), np.float32))
    (output,) = run(session)
    np.testing.assert_allclose(output, expected(convolution, job)[0], rtol=1e-5, atol=1e-6)
    proof = session.proof()
    assert proof.cuda_graph is True
    assert proof.cuda_graph_fallback is None


@pytest.mark.parametrize(
    ("how", "says"),
    [("politely", "not permitted"), ("by waiting", "not permitted"), ("beforehand", "cannot be captured")],
)
def test_an_engine_that_cannot_be_captured_is_enqueued_anew_each_time(
    machine: None, library: StandIn, convolution: Path, how: str, says: str
) -> None:
    library.refuses_capture = how
    tried: list[None] = []
    job = replace(job_of(convolution, cuda_graph=True), at_peak=lambda: tried.append(None))
    session = trt.open_session(job)
    (output,) = run(session, 3)
    assert session.context.enqueued == 3
    assert len(tried) == 1
    np.testing.assert_allclose(output, expected(convolution, job)[0], rtol=1e-5, atol=1e-6)
    proof = session.proof()
    assert proof.cuda_graph is False
    assert says in proof.cuda_graph_fallback
    case = case_of(job)
    assert checks.mismatch(case, proof) is None
    assert any(w.kind == "no-cuda-graph" and says in w.text for w in checks.remarks(case, proof))


# What is told


def case_of(job: Job) -> Case:
    return Case(
        "net", "trt", "trt", "inference", job.precision, job.batch_size, "cuda", 0, job.source, asdict(job.options)
    )


def test_memory_is_the_buffers_and_the_block_it_asked_for(
    machine: None, library: StandIn, driver: Driver, convolution: Path
) -> None:
    session = trt.open_session(job_of(convolution))
    memory = session.memory()
    assert memory.weights == 4 * graphs.WEIGHTS
    assert memory.activations == library.scratch + 4 * graphs.BATCH * (3 * 16 * 16 + graphs.CLASSES)
    assert memory.activations == sum(driver.taken.values())
    assert memory.slack == 0


def test_a_library_without_statistics_leaves_the_weights_to_the_graph(
    machine: None, monkeypatch: pytest.MonkeyPatch, convolution: Path
) -> None:
    monkeypatch.delattr(StandIn, "EngineStat")
    assert trt.open_session(job_of(convolution)).memory().weights == 4 * graphs.WEIGHTS


def test_an_engine_without_scratch_needs_no_block(machine: None, library: StandIn, driver: Driver, mixed: Path) -> None:
    library.scratch = 0
    session = trt.open_session(job_of(mixed))
    assert driver.allocations == 4
    run(session)


def test_proof_has_types_build_and_state(machine: None, convolution: Path) -> None:
    session = trt.open_session(job_of(convolution, "fp32"))
    run(session)
    proof = session.proof()
    assert proof.library == "TensorRT 10.13.0"
    assert proof.compute_types == {"float32": 2}
    assert proof.details["layer_types"] == {"CaskConvolution": 1, "gemm": 1, "kgen": 3}
    assert (proof.details["layers"], proof.details["refittable"]) == (5, False)
    assert (proof.tf32, proof.cuda_graph) == (False, False)
    assert proof.build == Building(seconds=12.5, cached=False, peak_host_mib=900.0, peak_device_mib=300.0)
    assert Warning("engine-cache", "so says the stand-in") in proof.warnings
    assert checks.mismatch(case_of(session.job), proof) is None


@pytest.mark.parametrize(
    ("precision", "tactic", "says"),
    [
        (
            "fp16",
            "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc",
            "asked for fp16, computed in float32 (2×)",
        ),
        ("fp32", "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc", "TF32 was on at fp32"),
        ("int8", "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc", "asked for int8, computed in float16"),
    ],
)
def test_an_engine_that_computes_in_another_type_is_a_mismatch(
    machine: None, library: StandIn, convolution: Path, precision: str, tactic: str, says: str
) -> None:
    library.tactic = tactic
    session = trt.open_session(job_of(convolution, precision))
    assert says in (checks.mismatch(case_of(session.job), session.proof()) or "")


def test_tf32_without_a_kernel_that_uses_it_is_remarked(machine: None, library: StandIn, convolution: Path) -> None:
    session = trt.open_session(job_of(convolution, "tf32"))
    proof = session.proof()
    assert checks.mismatch(case_of(session.job), proof) is None
    assert any(str(w).startswith("unproven: TF32") for w in checks.remarks(case_of(session.job), proof))
    library.tactic = "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32"
    proof = trt.open_session(job_of(convolution, "tf32")).proof()
    assert not any(w.kind == "unproven" for w in checks.remarks(case_of(session.job), proof))


def test_an_unreadable_description_is_unproven_and_no_error(machine: None, library: StandIn, convolution: Path) -> None:
    library.fails = "get_engine_information"
    session = trt.open_session(job_of(convolution, "fp32"))
    proof = session.proof()
    assert proof.compute_types == {"unknown": 2}
    remarks = checks.remarks(case_of(session.job), proof)
    assert any("the engine's description cannot be read" in r.text for r in remarks if r.kind == "unproven")


def test_layers_are_timed_outside_of_the_graph(machine: None, library: StandIn, convolution: Path) -> None:
    session = trt.open_session(job_of(convolution, cuda_graph=True))
    run(session, 2)
    session.proof()
    layers = session.layers()
    assert [layer.name for layer in layers] == [f"{n} fused" for n in ("conv", "relu", "pool", "flatten", "fc")]
    assert [layer.kind for layer in layers] == ["CaskConvolution", "kgen", "kgen", "kgen", "gemm"]
    assert [layer.nodes for layer in layers] == [("conv",), ("relu",), ("pool",), ("flatten",), ("fc",)]
    assert [layer.ms for layer in layers] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.25])
    library.fails = "report_to_profiler"
    with pytest.raises(RuntimeError, match="gave no layer times: report_to_profiler fails"):
        session.layers()
    assert session.context.profiler is None, "it would time whatever runs later"


def test_a_driver_that_is_too_old_is_unsupported_with_the_command(
    machine: None, library: StandIn, convolution: Path
) -> None:
    library.fails, library.logs = "Runtime", "[runtime.cpp] CUDA initialization failure with error: 35"
    says = r"TensorRT 10\.13\.0 is for a newer CUDA than this driver's: .* pip uninstall .* && pip install 'tensorrt"
    with pytest.raises(Unsupported, match=says):
        trt.open_session(job_of(convolution))


def test_a_runtime_that_does_not_open_says_what_was_logged(machine: None, library: StandIn, convolution: Path) -> None:
    library.fails, library.logs = "Runtime", "CUDA initialization failure with error: 999"
    with pytest.raises(RuntimeError, match=r"could not open its runtime: .*error: 999; .*returned nullptr"):
        trt.open_session(job_of(convolution))


def test_launches_are_not_marked_for_a_profiler(machine: None, library: StandIn, convolution: Path) -> None:
    assert trt.open_session(job_of(convolution)).context.nvtx_verbosity is library.ProfilingVerbosity.NONE


def test_ctrl_c_in_the_librarys_log_is_raised(
    machine: None, library: StandIn, convolution: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*words: object, **to: object) -> None:
        raise KeyboardInterrupt

    session = trt.open_session(job_of(convolution))
    with monkeypatch.context() as patch:
        patch.setattr("builtins.print", interrupt)
        session.logger.log(library.ILogger.WARNING, "something")
    with pytest.raises(KeyboardInterrupt):
        run(session)
    run(session)


# Through the worker


@pytest.fixture
def measure(machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`measure(onnx, "native", cuda_graph=True)`: the Result of the case, its clock the CPU's."""
    open_bench = measure_case.open_bench

    def open_on_the_cpu(task: Task, phases: Any, report: Any) -> Any:
        return open_bench(replace(task, case=replace(task.case, device="cpu")), phases, report)

    monkeypatch.setattr(measure_case, "open_bench", open_on_the_cpu)

    def run_case(
        onnx: Path, precision: str = "native", graph: Path | None = None, profile: bool = False, **options: Any
    ) -> Any:
        source = graphs.source_of(onnx)
        prepared = prepare_model.prepare_model((source, ("cpu",), tmp_path / "cache"), lambda message: None)
        prepared = replace(prepared, onnx={precision: Export(graph or onnx)})
        case = Case("net", "trt", "trt", "inference", precision, graphs.BATCH, "cuda", 0, source, options)  # type: ignore[arg-type]
        return measure_case.measure_case(
            Task(case, prepared, Budget(seconds=0.05, min_samples=3), profile=profile), lambda message: None
        )

    return run_case


def test_a_row_has_the_recorded_build_time_and_the_builders_warnings(measure: Any, convolution: Path) -> None:
    result = measure(convolution, cuda_graph=True)
    assert (result.status, result.reason) == ("ok", None)
    assert result.figures["build_s"] == 12.5
    assert Warning("engine-cache", "so says the stand-in") in result.warnings
    assert result.figures["rel_l2_error"] < 1e-5


def test_layers_on_several_streams_are_said_to_overlap(measure: Any, library: StandIn, convolution: Path) -> None:
    library.auxiliary_streams = 2
    kinds = [warning.kind for warning in measure(convolution, profile=True).warnings]
    assert "parallel-layers" in kinds
    library.auxiliary_streams = 0
    result = measure(convolution, profile=True)
    assert len(result.layers) == 5
    assert "parallel-layers" not in [warning.kind for warning in result.warnings]


def test_a_row_of_several_types_is_ok(measure: Any, mixed: Path) -> None:
    result = measure(mixed)
    assert (result.status, result.reason) == ("ok", None)
    assert any(warning.kind == "unproven" for warning in result.warnings), "it has no convolution or product"


def test_a_row_asked_for_fp16_that_computes_in_fp32_is_failed(
    measure: Any, library: StandIn, convolution: Path, tmp_path: Path
) -> None:
    half = graphs.convolution(tmp_path / "half.onnx", graphs.TensorProto.FLOAT16)
    assert measure(convolution, "fp16", half).status == "ok"
    library.tactic = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32"
    result = measure(convolution, "fp16", half)
    assert (result.status, result.reason) == ("failed", "asked for fp16, computed in float32 (2×)")


def test_a_row_without_its_graph_is_ok_and_warned_of(measure: Any, library: StandIn, convolution: Path) -> None:
    library.refuses_capture = "politely"
    result = measure(convolution, cuda_graph=True)
    assert result.status == "ok"
    assert any(warning.kind == "no-cuda-graph" for warning in result.warnings)


# Absence


def test_a_library_that_is_not_there_is_unsupported() -> None:
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed")
    with pytest.raises(Unsupported, match=r"tensorrt is not installed: pip install 'tensorrt"):
        trt.library("trt")


@pytest.fixture
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`fake_package("raise OSError(…)")`: a package `tensorrt` of that content can be imported."""
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)

    def write(content: str) -> None:
        (tmp_path / "tensorrt.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    sys.modules.pop("tensorrt", None)


@pytest.mark.parametrize(
    "content",
    [
        "raise ImportError('libnvinfer.so.10: cannot open shared object file')",
        "raise OSError('libnvinfer.so.10: undefined symbol: createInferRuntime')",
        "import tensorrt_bindings_that_nobody_has",
    ],
)
def test_a_library_that_does_not_load_is_unsupported_and_says_why(fake_package: Any, content: str) -> None:
    fake_package(content)
    with pytest.raises(Unsupported, match=r"tensorrt is installed and does not load \(.*\); .*: pip install 'tensorrt"):
        trt.library("trt")


def test_a_library_that_is_too_old_is_unsupported(fake_package: Any) -> None:
    fake_package("__version__ = '8.6.1.post1'")
    with pytest.raises(Unsupported, match=r"TensorRT 8\.6\.1\.post1 is too old, 10\.13 is needed: pip install"):
        trt.library("trt")


def test_a_library_that_is_new_enough_is_given(fake_package: Any) -> None:
    fake_package("__version__ = '11.4.0.106'")
    assert trt.library("trt").__version__ == "11.4.0.106"


def test_libraries_and_bindings_of_two_versions_are_unsupported(
    fake_package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_package("__version__ = '11.4.0.106'")
    versions = {"tensorrt-cu13-bindings": "11.4.0.106", "tensorrt-cu13-libs": "11.3.0.10"}
    monkeypatch.setattr("engines.requirements.installed_version", versions.get)
    with pytest.raises(Unsupported, match=r"bindings 11\.4\.0\.106 and .*libs 11\.3\.0\.10 .*pip install --upgrade"):
        trt.library("trt")


def test_no_gpu_is_unsupported(monkeypatch: pytest.MonkeyPatch, convolution: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(trt, "library", lambda engine: StandIn("cpu"))
    with pytest.raises(Unsupported, match="torch finds no NVIDIA GPU"):
        trt.open_session(job_of(convolution))


def test_no_driver_for_buffers_is_unsupported(
    machine: None, monkeypatch: pytest.MonkeyPatch, convolution: Path
) -> None:
    for module in ("pycuda", "pycuda.driver", "cuda.bindings", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unsupported, match=r"pycuda is not .* and cuda-bindings is not .*: pip install cuda-bindings"):
        trt.open_session(job_of(convolution))


class Bindings(ModuleType):
    """cuda.bindings.driver over the same played memory: every function returns what went wrong, then what it gives."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_OUT_OF_MEMORY=2)

    def __init__(self, driver: Driver) -> None:
        super().__init__("cuda.bindings.driver")
        self.driver = driver
        self.allocations: dict[int, Allocation] = {}
        self.pinned: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        does = {
            "cuInit": lambda flags: self.driver.init(),
            "cuDeviceGet": lambda number: number,
            "cuDevicePrimaryCtxRetain": lambda device: Primary(self.driver),
            "cuDevicePrimaryCtxRelease": lambda device: setattr(self.driver, "retained", self.driver.retained - 1),
            "cuCtxPushCurrent": lambda context: self.driver.current.append(context),
            "cuCtxPopCurrent": lambda: self.driver.current.pop(),
            "cuMemAlloc": self.allocate,
            "cuMemFree": lambda address: self.allocations.pop(address).free(),
            "cuMemAllocHost": self.pin,
            "cuMemFreeHost": self.unpin,
            "cuMemcpyHtoD": ctypes.memmove,
            "cuMemcpyDtoH": ctypes.memmove,
        }

        def answer(*arguments: Any) -> tuple[Any, ...]:
            try:
                return 0, does[name](*arguments)
            except MemoryError:
                return (2,)

        if name not in does:
            raise AttributeError(name)
        return answer

    def allocate(self, size: int) -> int:
        made = self.driver.mem_alloc(size)
        self.allocations[int(made)] = made
        return int(made)

    def pin(self, size: int) -> int:
        memory = np.zeros(size, np.uint8)
        self.pinned[memory.ctypes.data] = memory
        return memory.ctypes.data

    def unpin(self, address: int) -> None:
        del self.pinned[address]


@pytest.fixture
def without_pycuda(machine: None, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Bindings:
    bindings = Bindings(driver)
    for module in ("pycuda", "pycuda.driver"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    return bindings


def test_cuda_bindings_take_pycudas_place(without_pycuda: Bindings, driver: Driver, convolution: Path) -> None:
    job = job_of(convolution)
    session = trt.open_session(job)
    assert without_pycuda.pinned
    assert driver.taken
    session.run(engines.base.ignore)
    assert session.proof().details["buffers_by"].startswith("cuda-bindings ")
    assert np.isfinite(session.outputs()[0]).all()
    session.close()
    assert not driver.taken
    assert not without_pycuda.pinned
    assert driver.retained == 0
    assert not driver.current


def test_no_memory_through_cuda_bindings_is_a_memory_error(
    without_pycuda: Bindings, driver: Driver, convolution: Path
) -> None:
    driver.fails_at = 0
    with pytest.raises(MemoryError, match="cuMemAlloc failed"):
        trt.open_session(job_of(convolution))
    assert not without_pycuda.pinned
    assert driver.retained == 0


def test_a_driver_that_does_not_answer_is_unsupported(
    machine: None, driver: Driver, monkeypatch: pytest.MonkeyPatch, convolution: Path
) -> None:
    def fail() -> None:
        raise Driver.Error("cuInit failed: system has unsupported display driver")

    monkeypatch.setattr(driver, "init", fail)
    with pytest.raises(Unsupported, match=r"no usable NVIDIA driver .cuInit failed.*update or reinstall the driver"):
        trt.open_session(job_of(convolution))


@has_rtx
def test_a_gpu_that_tensorrt_for_rtx_has_no_kernels_for_is_unsupported_before_pycuda_is_asked(
    machine: None, library: StandIn, monkeypatch: pytest.MonkeyPatch, convolution: Path
) -> None:
    real = importlib.import_module("tensorrt_rtx_bindings")
    monkeypatch.setattr(trt, "library", lambda engine: real)
    with pytest.raises(Unsupported) as caught:
        engines.open_session("trt-rtx", job_of(convolution))
    release = ".".join(real.__version__.split(".")[:3])
    assert str(caught.value) == (
        f"TensorRT for RTX {release} does not support compute capability 9.0 (NVIDIA H200); "
        f"it supports {', '.join(ENGINES['trt-rtx'].hardware['cuda'])}"
    )
    assert "driver ready" not in library.events


# The real TensorRT for RTX, as far as it goes without a GPU


@has_rtx
def test_the_real_library_is_found() -> None:
    assert trt.library("trt-rtx").__name__ in ("tensorrt_rtx", "tensorrt_rtx_bindings")


@has_rtx
def test_every_type_of_the_real_library_is_mapped_or_has_no_counterpart() -> None:
    names = set(trt.library("trt-rtx").DataType.__members__)
    assert trt._DTYPES.keys() <= names
    assert names - trt._DTYPES.keys() == {"FP4", "INT4", "E8M0"}, "packed, or a scale"
    sizes = {name: getattr(trt.library("trt-rtx").DataType, name).itemsize for name in trt._DTYPES}
    assert sizes == {name: dtype.itemsize for name, dtype in trt._DTYPES.items()}


@has_rtx
def test_the_real_runtime_says_why_an_engine_does_not_load() -> None:
    real = trt.library("trt-rtx")
    logger = trt.logger_of(real)
    assert real.Runtime(logger).deserialize_cuda_engine(b"no engine" * 100) is None
    assert "kEXPECTED_MAGIC_TAG" in trt.reasons(list(logger.errors), 400)


@has_rtx
def test_the_real_library_takes_our_profiler() -> None:
    profiler = trt._profiler(trt.library("trt-rtx"))
    for name, ms in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        profiler.report_layer_time(name, ms)
    assert list(profiler.ms.items()) == [("a", 4.0), ("b", 2.0)]


def double_names() -> dict[str, set[str]]:
    """What the stand-in offers, by the real class's name."""
    real = {"Engine": "ICudaEngine", "Context": "IExecutionContext", "Runtime": "Runtime"}
    own = {"profile", "model", "tensors", "library", "logger", "shapes", "addresses", "block", "made"}
    names = {}
    for ours in (*real, "EngineInspector", "ILogger", "IProfiler", *(c.__name__ for c in enums())):
        public = {name for name in vars(getattr(stand_in, ours)) if not name.startswith("_")}
        names[real.get(ours, ours)] = public - own
    names["ICudaEngine"] |= {"num_layers", "refittable", "streamable_weights_size", "num_aux_streams"}
    names["IExecutionContext"] |= {"enqueue_emits_profile"}
    names["EngineInspector"] |= {"execution_context"}
    names["IProfiler"] |= {"report_layer_time"}
    return names


def enums() -> list[type]:
    return [
        stand_in.DataType,
        stand_in.TensorIOMode,
        stand_in.TensorLocation,
        stand_in.ExecutionContextAllocationStrategy,
        stand_in.EngineStat,
        stand_in.LayerInformationFormat,
    ]


@pytest.mark.parametrize("release", ["10.13", "11.4"])
def test_the_stand_ins_names_are_tensorrts(release: str) -> None:
    """The session runs on the stand-in, so it takes no other names; but for what it asks for before it takes it."""
    names = set((NAMES / f"{release}.txt").read_text().split("\n"))
    ours = {f"{kind}.{name}" for kind, members in double_names().items() for name in members}
    asked_for = {
        "10.13": {"ICudaEngine.get_engine_stat"} | {n for n in ours if n.startswith("EngineStat")},
        "11.4": set(),
    }
    assert ours - names == asked_for[release]


@has_rtx
def test_the_stand_ins_names_are_those_of_tensorrt_for_rtx() -> None:
    real = trt.library("trt-rtx")
    for kind, members in double_names().items():
        assert {name for name in members if not hasattr(getattr(real, kind), name)} == set(), kind
