"""Time calls by several clocks, in milliseconds.

docs/method.md defines the clocks. A session owns no clock: it calls `mark` at inner boundaries, and the clock records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import perf_counter as perf_counter  # Bound before a model's code can replace it.
from time import perf_counter_ns
from typing import TYPE_CHECKING

from engines.base import Mark, ignore

if TYPE_CHECKING:
    import torch

TimedCall = Callable[[Mark], object]
Samples = dict[str, list[float]]
"""Intervals in milliseconds by clock, in measured order."""

_LEAD_IN = 2
"""Untimed calls after a synchronize: these start on an idle device, unlike later ones."""
GATE_SLACK_MS = 0.5
"""A gate stays closed for twice the enqueue time plus this."""
_GATE_LONGEST_MS = 400.0
_CAPTURED_READS = 10
"""Calls of each chunk that read boundaries inside a captured graph; each needs a synchronize."""


class Clock:
    """Times calls on one device. This base assumes that calls have finished when they return."""

    headline: str
    """The clock whose median is the row's latency."""
    renew: Callable[[int], object] = staticmethod(lambda calls: None)
    """Gives the next calls new inputs; called before their interval."""

    def synchronize(self) -> None:
        """Wait until the device has finished."""

    def mark(self, name: str) -> None:
        """Record an inner boundary. A captured graph keeps the boundaries of the first run."""

    def time_calls(self, run: TimedCall, calls: int, block: int = 1) -> Samples:
        """Time `calls` calls in sequence on the headline clock; with `block` > 1, blocks of that many calls."""
        raise NotImplementedError

    def time_synchronized(self, run: TimedCall, calls: int) -> Samples:
        """Time each call from its start to its finished work ("host") and to its return ("enqueue")."""
        samples: Samples = {"host": [], "enqueue": []}
        for _ in range(calls):
            self.renew(1)
            self.synchronize()
            start = perf_counter_ns()
            run(ignore)
            returned = perf_counter_ns()
            self.synchronize()
            samples["host"].append((perf_counter_ns() - start) / 1e6)
            samples["enqueue"].append((returned - start) / 1e6)
        return samples

    def time_gated(self, run: TimedCall, enqueue_ms: float, calls: int, block: int = 1) -> Samples | None:
        """Time single calls, each fully enqueued before it starts ("gpu").

        Inner boundaries are "gpu_forward" and the like; a block of calls has none. Returns None if no gate lasts.
        """
        return {}

    def throughput(self, run: TimedCall, seconds: float, call_ms: float) -> float:
        """Return calls per second of a back-to-back loop of at least `seconds`; a call takes about `call_ms`."""
        # Count calls beforehand: the host could enqueue far more than `seconds` of work before the queue blocks it.
        calls = max(1, math.ceil(seconds * 1000 / call_ms))
        while True:
            self.synchronize()
            start = perf_counter()
            for _ in range(calls):
                run(ignore)
            self.synchronize()
            elapsed = perf_counter() - start
            if elapsed >= seconds:
                return calls / elapsed
            calls = math.ceil(calls * min(1.05 * seconds / elapsed, 10))


class CpuClock(Clock):
    """Host time: on the CPU a call has finished when it returns."""

    headline = "host"

    def time_calls(self, run: TimedCall, calls: int, block: int = 1) -> Samples:
        samples: Samples = {"host": []}
        marks: list[tuple[str, int]] = []

        def mark(name: str) -> None:
            marks.append((name, perf_counter_ns()))

        for _ in range(calls):
            self.renew(block)
            marks.clear()
            start = perf_counter_ns()
            for _ in range(block):
                run(mark)
            end = perf_counter_ns()
            samples["host"].append((end - start) / block / 1e6)
            parts: dict[str, float] = {}
            for name, at in marks if block == 1 else ():  # Adds up microbatches.
                parts[name] = parts.get(name, 0.0) + (at - start) / 1e6
                start = at
            _append(samples, parts)
        return samples

    def throughput(self, run: TimedCall, seconds: float, call_ms: float) -> float:
        calls, ms = 0, 0.0
        while ms < seconds * 1000:
            ms += self.time_calls(run, 1)["host"][0]
            calls += 1
        return calls * 1000 / ms


class CudaClock(Clock):
    """CUDA events on one explicit stream, which becomes torch's current one.

    Creates the CUDA context: choose the device and read its memory first.
    """

    headline = "event"

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        import torch

        self._torch = torch
        self.stream = stream or torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self._events: list[torch.cuda.Event] = []
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._captured: list[tuple[str, torch.cuda.Event]] = []
        self.before_gated: Callable[[], None] = lambda: None
        """Called before each gated call, outside its interval. benchmarks/verify_gpu.py flushes the L2 cache here."""
        self._cycles_per_ms = self._calibrate()

    def synchronize(self) -> None:
        self.stream.synchronize()

    def mark(self, name: str) -> None:
        """Record the boundary `name`. During a capture, record an external event, which every replay records again."""
        if self._torch.cuda.is_current_stream_capturing():
            event = self._torch.cuda.Event(enable_timing=True, external=True)
            self._captured.append((name, event))
        else:
            event = self._torch.cuda.Event(enable_timing=True)
            self._marks.append((name, event))
        event.record(self.stream)

    def time_calls(self, run: TimedCall, calls: int, block: int = 1) -> Samples:
        events = self._pool(2 * calls)
        for _ in range(_LEAD_IN):
            self.renew(1)
            run(self.mark)
        self._marks.clear()
        boundaries: list[list[tuple[str, torch.cuda.Event]]] = []
        for i in range(calls):
            self.renew(block)
            events[2 * i].record(self.stream)
            for _ in range(block):
                run(self.mark)
            events[2 * i + 1].record(self.stream)
            boundaries.append(self._marks)
            self._marks = []
        self.synchronize()
        samples: Samples = {"event": [events[2 * i].elapsed_time(events[2 * i + 1]) / block for i in range(calls)]}
        if block == 1:
            for i, marks in enumerate(boundaries):
                _add_marks(samples, events[2 * i], marks)
        if self._captured:
            self._read_captured(run, min(calls, _CAPTURED_READS), samples)
        return samples

    def time_gated(self, run: TimedCall, enqueue_ms: float, calls: int, block: int = 1) -> Samples | None:
        """Block the stream with a spin kernel while one call is enqueued, as NVBench does (`gpu` in docs/method.md).

        One call a gate, since queued work can slow the call before it: ONNX Runtime's ResNet-50 (fp16, batch 16, H200)
        takes 2.45 ms alone and 2.79 ms with another call behind it.
        """
        samples: Samples = {"gpu": []}
        while len(samples["gpu"]) < calls:
            parts = self._gated(run, enqueue_ms, block)
            if parts is not None:
                for name, ms in parts.items():
                    samples.setdefault(name, []).extend(ms)
            elif block > 1:
                block //= 2
            else:
                return None
        return samples

    def time_copies(self, h2d_bytes: int, d2h_bytes: int, calls: int = 20) -> Samples:
        """Time pinned copies of that many bytes, to the device ("h2d") and back ("d2h")."""
        samples: Samples = {}
        for name, size in (("h2d", h2d_bytes), ("d2h", d2h_bytes)):
            host = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
            device = self._torch.empty(size, dtype=self._torch.uint8, device="cuda")
            source, target = (host, device) if name == "h2d" else (device, host)

            def copy(mark: Mark, source: torch.Tensor = source, target: torch.Tensor = target) -> None:
                target.copy_(source, non_blocking=True)

            captured, self._captured = self._captured, []
            samples[name] = self.time_calls(copy, calls)["event"]
            self._captured = captured
        return samples

    def _gated(self, run: TimedCall, enqueue_ms: float, block: int) -> Samples | None:
        """Sample `block` calls behind a gate; lengthen a gate that opens too early.

        Returns None if even the longest gate opens too early, as with more launches than the queue holds (about 1,000).
        """
        gate_ms = 2 * enqueue_ms * block + GATE_SLACK_MS
        while True:
            samples = self._gate(run, block, min(gate_ms, _GATE_LONGEST_MS))
            if samples is not None or gate_ms >= _GATE_LONGEST_MS:
                return samples
            gate_ms *= 4

    def _gate(self, run: TimedCall, block: int, gate_ms: float) -> Samples | None:
        """Sample `block` calls behind one gate; None if it opened before all of them were enqueued."""
        start, end = self._pool(2)
        opened = self._torch.cuda.Event()
        self.renew(block)
        self.synchronize()
        self.before_gated()
        self._torch.cuda._sleep(int(gate_ms * self._cycles_per_ms))
        opened.record(self.stream)
        self._marks.clear()
        start.record(self.stream)
        for _ in range(block):
            run(self.mark if block == 1 else ignore)
        end.record(self.stream)
        overrun = opened.query()
        self.synchronize()
        if overrun:
            return None
        samples: Samples = {"gpu": [start.elapsed_time(end) / block]}
        if block == 1:
            _add_marks(samples, start, self._marks + self._captured, "gpu_")
        return samples

    def _read_captured(self, run: TimedCall, calls: int, samples: Samples) -> None:
        """Read boundaries inside a CUDA graph before its next replay, which records the same events."""
        (start,) = self._pool(1)
        for _ in range(calls):
            start.record(self.stream)
            run(ignore)
            self.synchronize()
            _add_marks(samples, start, self._captured)

    def _pool(self, count: int) -> list[torch.cuda.Event]:
        """Return `count` timing events, made once: creating one costs as much as a small launch."""
        while len(self._events) < count:
            event = self._torch.cuda.Event(enable_timing=True)
            event.record(self.stream)
            self._events.append(event)
        return self._events[:count]

    def _calibrate(self) -> float:
        cycles = 2_000_000
        start, end = self._pool(2)
        for _ in range(2):
            start.record(self.stream)
            self._torch.cuda._sleep(cycles)
            end.record(self.stream)
        self.synchronize()
        return float(cycles / start.elapsed_time(end))


def _add_marks(
    samples: Samples, start: torch.cuda.Event, marks: list[tuple[str, torch.cuda.Event]], prefix: str = ""
) -> None:
    parts: dict[str, float] = {}
    for name, event in marks:
        parts[prefix + name] = parts.get(prefix + name, 0.0) + start.elapsed_time(event)
        start = event
    _append(samples, parts)


def _append(samples: Samples, parts: Mapping[str, float]) -> None:
    for name, ms in parts.items():
        samples.setdefault(name, []).append(ms)
