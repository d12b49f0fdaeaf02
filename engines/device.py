"""Record CUDA graphs on torch's current stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

_ABANDONED: list[torch.cuda.CUDAGraph] = []


def capture(enqueue: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record what `enqueue` enqueues on torch's current stream; none of it runs.

    Raises RuntimeError where it cannot be recorded; the stream stays usable.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    stream = torch.cuda.current_stream()
    # As in trtexec: another thread's work on the device meanwhile is no reason to fail.
    recording = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    try:
        with recording:
            enqueue()
    except RuntimeError:
        # If the driver has broken the recording off, torch's allocators go on as if it lasted: they keep a pointer to
        # the graph, and memory would never be given back (CUDAGraph::capture_end, torch 2.11).
        _ABANDONED.append(graph)
        # Private names. Where the recording did end, the first raises, and the graph goes on owning the pool.
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
        raise
    return graph
