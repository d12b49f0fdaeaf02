"""Load and run a job's model as its library's documentation does, and compare outputs with a reference in numpy.

Nothing here goes through a session, a clock or a check of the profiler's: those are what is verified.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from exporters.build_model import build
from exporters.inputs import arguments


def module_call(job: Any, compiled: bool = False) -> Callable[[], Any]:
    """A call of the module with the job's weights and inputs, in inference mode, on the job's device."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(job.precision, torch.float32)
    module = build(job.source)
    module.load_state_dict(torch.load(job.state, weights_only=True))
    module = module.to(job.device, dtype).eval()
    tensors = [torch.from_numpy(array).to(job.device) for array in job.inputs]
    cast = [each.to(dtype) if each.is_floating_point() else each for each in tensors]
    positional, keywords = arguments(job.specs, cast)
    called = torch.compile(module, mode=job.options.mode, dynamic=False) if compiled else module

    def call() -> Any:
        with torch.inference_mode():
            return called(*positional, **keywords)

    for _ in range(3 if compiled else 1):
        call()
    return call


def arrays(result: Any) -> list[np.ndarray]:
    """The tensors of a result in their order: of a tensor, a tuple, a dict or a ModelOutput."""
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [array for part in result for array in arrays(part)]
    return [] if result is None else [result.float().cpu().numpy()]


def numpy_error(outputs: list[np.ndarray], reference: Path) -> float:
    """The largest ‖output − reference‖ / ‖reference‖, of a reference saved by `np.savez` in the outputs' order."""
    with np.load(reference) as saved:
        truths = [saved[key].astype(np.float64) for key in saved.files]
    errors = []
    for output, truth in zip(outputs, truths, strict=True):
        items = min(len(output), len(truth))
        apart = output[:items].astype(np.float64) - truth[:items]
        errors.append(float(np.sqrt((apart**2).sum() / (truth[:items] ** 2).sum())))
    return max(errors)


def replayed_ms(call: Callable[[], Any], seconds: float = 0.6) -> float:
    """Median milliseconds of a replay of the call's own CUDA graph, between two events of its own."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return event_ms(graph.replay, stream, seconds)


def event_ms(call: Callable[[], Any], stream: Any, seconds: float = 0.6) -> float:
    """Median milliseconds of a call on a stream, between two events."""
    import torch

    found: list[float] = []
    with torch.cuda.stream(stream):
        while sum(found) < seconds * 1e3 or len(found) < 20:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            last.synchronize()
            found.append(first.elapsed_time(last))
    return statistics.median(found[len(found) // 5 :])
