"""Profile iterations with torch.profiler, and read the operators and kernels that it saw.

torch.profiler (Kineto) writes Chrome's trace format: operators and annotations with their host interval, each kernel
with the call that launched it and the operator that was running then.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from engines.base import Layer

ITERATIONS = 5
"""Profiled after one that is left out: the profiler itself starts up in it."""
_ITERATION, _CALL = "profiler: iteration", "profiler: call"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Span:
    """An operator ("aten::relu") or an annotation on the host; times in microseconds on the trace's clock."""

    name: str
    start: float
    end: float
    thread: int
    is_annotation: bool
    id: int
    """By which kernels name the operator that launched them."""
    sequence: int | None
    """Shared by a forward operator and its backward one."""

    @property
    def ms(self) -> float:
        return (self.end - self.start) / 1000


@dataclass(frozen=True)
class Kernel:
    """A kernel, copy or fill on the device; `launched` in microseconds on the host, as Span's times."""

    name: str
    launched: float
    ms: float
    operator: int | None
    """`Span.id` of the operator that launched it."""


@dataclass
class Iteration:
    """What happened between `start` and `end`, in order: spans by their start, kernels as the device ran them.
    `returned` is when the call was back on the host; until `end` it was waited for."""

    start: float
    returned: float
    end: float
    spans: list[Span] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


@dataclass(frozen=True)
class Trace:
    """The profiled iterations; `unix_ns` is the Unix time, in nanoseconds, of the trace's time 0."""

    iterations: list[Iteration]
    unix_ns: int


def record(run: Callable[[], object], device: str) -> Trace:
    """Profile ITERATIONS calls of `run`, each waited for. Raises RuntimeError where a GPU's kernels cannot be seen."""
    on_cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    wait = torch.get_device_module(device).synchronize
    run()  # What a session does at its first call only, such as a search for algorithms, would swell the trace.
    wait()
    with profile(activities=activities) as profiler:
        for _ in range(1 + ITERATIONS):
            with record_function(_ITERATION):
                with record_function(_CALL):
                    run()
                wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = parse(json.loads(path.read_text()))
    del trace.iterations[0]
    if on_cuda and not all(iteration.kernels for iteration in trace.iterations):
        raise RuntimeError(
            "torch.profiler saw no kernel in some iterations: CUPTI could not be loaded, or another profiler holds it"
        )
    return trace


def parse(written: dict[str, Any]) -> Trace:
    """A trace in Chrome's format, as Kineto writes it, by iteration."""
    # What encloses others comes before them.
    events = sorted(
        (e for e in written["traceEvents"] if e.get("ph") == "X"), key=lambda e: (float(e["ts"]), -float(e["dur"]))
    )
    own = {
        name: [_interval(e) for e in events if (e.get("cat"), e["name"]) == ("user_annotation", name)]
        for name in (_ITERATION, _CALL)
    }
    iterations = [
        Iteration(start, returned, end) for (start, end), (_, returned) in zip(own[_ITERATION], own[_CALL], strict=True)
    ]
    launched = {e["args"].get("correlation"): float(e["ts"]) for e in reversed(events) if e.get("cat") in _LAUNCHES}
    for event in events:
        category, args, (start, end) = event.get("cat"), event.get("args", {}), _interval(event)
        if category in _KERNELS:
            at = launched.get(args.get("correlation"), start)
            if (inside := _at(iterations, at)) is not None:
                inside.kernels.append(Kernel(event["name"], at, (end - start) / 1000, args.get("External id")))
        elif category in ("cpu_op", "user_annotation") and event["name"] not in own:
            numbers = args.get("External id", -1), args.get("Sequence number")
            if (inside := _at(iterations, start)) is not None:
                annotates = category == "user_annotation"
                inside.spans.append(Span(event["name"], start, end, event["tid"], annotates, *numbers))
    return Trace(iterations, int(written.get("baseTimeNanoseconds", 0)))


def median_layers(iterations: Sequence[Sequence[Layer]]) -> list[Layer]:
    """Layer by layer the median over the iterations that ran the same layers in the same order; others are left out."""
    shapes = [tuple((layer.name, layer.kind, layer.nodes) for layer in layers) for layers in iterations]
    if not shapes:
        return []
    usual, _ = Counter(shapes).most_common(1)[0]
    like = [layers for layers, shape in zip(iterations, shapes, strict=True) if shape == usual]
    return [
        Layer(name, kind, nodes, median(layers[number].ms for layers in like))
        for number, (name, kind, nodes) in enumerate(usual)
    ]


def _interval(event: dict[str, Any]) -> tuple[float, float]:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _at(iterations: Sequence[Iteration], time: float) -> Iteration | None:
    return next((i for i in iterations if i.start <= time <= i.end), None)
