"""TensorRT's run half on a GPU: captures, and the session on a stand-in.

The stand-in runs the graph by ONNX Runtime on the addresses and the stream that the session gives it (stand_in.py).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from engines import trt
from engines.device import capture
from profiler.processes.process import explain

sys.path.insert(0, str(Path(__file__).resolve().parent))
import graphs
from graphs import job_of, run
from stand_in import MIB, StandIn, cuda

pytestmark = pytest.mark.gpu

WIDE = 2 * MIB
"""MiB of the mixed graph's buffers at batch 4: 64, 16, 8 and 16, each large enough to be missed."""
SCRATCH = 64 * MIB
SLACK_MIB = 4
"""The driver takes memory in pieces of 2 MiB."""


@pytest.fixture(autouse=True)
def stream() -> Iterator[torch.cuda.Stream]:
    """The tests' current stream, which is not the default one; whatever becomes of it, it is put back."""
    with torch.cuda.stream(torch.cuda.Stream()):
        yield torch.cuda.current_stream()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    made = StandIn(scratch=SCRATCH)
    monkeypatch.setattr(trt, "library", lambda engine: made)
    monkeypatch.setattr(trt, "build_engine", made.build_engine)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    return made


@pytest.mark.parametrize("breaks_off", [True, False], ids=["broken off", "refused"])
def test_a_capture_that_fails_leaves_stream_and_allocator_usable(stream: torch.cuda.Stream, breaks_off: bool) -> None:
    def refuse() -> None:
        if breaks_off:
            cuda("cuStreamSynchronize", ctypes.c_void_p(stream.cuda_stream), check=False)
        raise RuntimeError("not here")

    with pytest.raises(RuntimeError):
        capture(refuse)
    assert not torch.cuda.is_current_stream_capturing()
    held = torch.ones(MIB, device="cuda")
    del held
    torch.cuda.empty_cache()
    x = torch.ones(10, device="cuda")
    x.add_(0)
    stream.synchronize()
    capture(lambda: x.add_(1)).replay()  # type: ignore[arg-type, return-value]
    assert x.sum().item() == 20


def expected(job: Any) -> Any:
    session = onnxruntime.InferenceSession(job.onnx, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), job.inputs, strict=True)))[0]


@pytest.mark.parametrize("refuses", [None, "by waiting", "beforehand"])
def test_outputs_are_the_graphs_replayed_or_not(library: StandIn, tmp_path: Path, refuses: str | None) -> None:
    library.refuses_capture = refuses
    job = job_of(graphs.convolution(tmp_path / "net.onnx"), cuda_graph=True)
    session = trt.open_session(job)
    for _ in range(3):
        (output,) = run(session)
        np.testing.assert_allclose(output, expected(job), rtol=1e-3, atol=1e-4)
    assert session.context.enqueued == (3 if refuses else 2)
    assert session.proof().cuda_graph is (refuses is None)
    session.feed([0 * job.inputs[0]])
    assert not np.allclose(run(session)[0], output), "it reads the inputs anew"
    session.close()


def free_mib() -> float:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / MIB


STEPS = ("", "unclosed", "create_execution_context", "set_tensor_address", "set_device_memory", "execute_async_v3")


def test_memory_is_what_a_session_takes_and_gives_back_however_it_ends(library: StandIn, tmp_path: Path) -> None:
    job = job_of(graphs.mixed(tmp_path / "wide.onnx", WIDE), cuda_graph=True)
    warm = trt.open_session(job)
    run(warm, 3)  # The kernels that it needs are loaded.
    warm.close()
    before = free_mib()
    for step in STEPS:
        library.fails = step or None
        if step in ("", "unclosed", "execute_async_v3"):
            library.fails = None
            session = trt.open_session(job)
            taken, memory = before - torch.cuda.mem_get_info()[0] / MIB, session.memory()
            assert memory.activations == SCRATCH + 4 * WIDE * (8 + 2 + 1 + 2)
            assert (memory.activations + memory.slack) / MIB == pytest.approx(taken, abs=SLACK_MIB)
            library.fails = step if step == "execute_async_v3" else None
            if library.fails:
                with pytest.raises(RuntimeError, match=r"could not enqueue the engine: .*illegal memory access"):
                    run(session)
            else:
                run(session, 3)
            if step != "unclosed":
                session.close()
            del session
        else:
            with pytest.raises(RuntimeError, match=f"{step} fails, as it was told to"):
                trt.open_session(job)
        assert free_mib() == pytest.approx(before, abs=SLACK_MIB), step
    library.fails, library.scratch = None, 2**45  # 32 TiB
    with pytest.raises(Exception, match="out of memory") as caught:
        trt.open_session(job)
    assert explain(caught.value).status == "oom"
    del caught
    assert free_mib() >= before - SLACK_MIB
