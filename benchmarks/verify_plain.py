"""Load and run a job's model as its library's documentation does, and compare outputs with a reference in numpy.

Nothing here goes through a session, a clock or a check of the profiler's: those are what is verified.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from exporters.build_model import build
from exporters.inputs import arguments
from profiler.worker.parity import Outputs

_QUEUED, _LEAD_IN = 20, 2
"""Calls that are enqueued before the script waits for the device, and how many of them are not counted."""


def module_call(job: Any, compiled: bool = False) -> Callable[[], Any]:
    """Return a call of the module with the job's weights, inputs and options, in inference mode, on its device."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(job.precision, torch.float32)
    torch.backends.cudnn.benchmark = job.options.cudnn_benchmark
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = job.precision == "tf32"
    module = build(job.source)
    module.load_state_dict(torch.load(job.state, weights_only=True))
    module = module.to(job.device, dtype).eval()
    tensors = [torch.from_numpy(array).to(job.device) for array in job.inputs]
    cast = [each.to(dtype) if each.is_floating_point() else each for each in tensors]
    if job.options.channels_last:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        cast = [each.to(memory_format=torch.channels_last) if each.dim() == 4 else each for each in cast]
    positional, keywords = arguments(job.specs, cast)
    called = torch.compile(module, mode=job.options.mode, dynamic=False) if compiled else module

    def call() -> Any:
        with torch.inference_mode():
            return called(*positional, **keywords)

    for _ in range(3 if compiled else 1):
        call()
    return call


def arrays(result: Any) -> list[np.ndarray]:
    """List the tensors of a result in order: of a tensor, a tuple, a dict or a ModelOutput."""
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [array for part in result for array in arrays(part)]
    return [] if result is None else [result.float().cpu().numpy()]


def numpy_error(outputs: list[np.ndarray], reference: Path) -> float:
    """Return the median over items of the largest ‖output − reference‖ / ‖reference‖.

    `reference` was saved by `profiler.worker.parity.Outputs`, in the outputs' order.
    """
    truths = [saved[0].astype(np.float64) for saved in Outputs.read(reference).arrays.values()]
    errors = []
    for output, truth in zip(outputs, truths, strict=True):
        items = min(len(output), len(truth))
        pairs = [(o.astype(np.float64), t) for o, t in zip(output[:items], truth[:items], strict=True)]
        errors.append([float(np.sqrt(((o - t) ** 2).sum() / (t**2).sum())) for o, t in pairs])
    return float(np.median(np.max(errors, axis=0)))


def replayed_ms(call: Callable[[], Any]) -> float:
    """Return the median milliseconds of a replay of the call's own CUDA graph, on the current stream."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        call()
    return event_ms(graph.replay)


def event_ms(call: Callable[[], Any], seconds: float = 0.6) -> float:
    """Return the median milliseconds between events around one call, with more calls queued behind it.

    A call that is awaited before the next begins would have the host's time to its first launch in it.
    """
    import torch

    found: list[float] = []
    while sum(found) < seconds * 1e3:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_QUEUED + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        events[-1].synchronize()
        found += [first.elapsed_time(last) for first, last in pairwise(events)][_LEAD_IN:]
    return statistics.median(found)
