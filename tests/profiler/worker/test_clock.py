"""The CUDA clock's gate and loop in virtual time, a stream behind a host that stalls at times; the real CPU clock."""

from __future__ import annotations

import types

import pytest

from engines.base import Mark
from profiler.worker.clock import CpuClock, CudaClock

QUEUE = 100
"""Calls that the launch queue holds; enqueueing another waits until one has run."""


class Device:
    """A host at `now` and a stream that is busy until `busy`, in milliseconds."""

    def __init__(self) -> None:
        self.now = self.busy = 0.0
        self.ends: list[float] = []

    def enqueue(self, host_ms: float, device_ms: float) -> None:
        self.now += host_ms
        waiting = [end for end in self.ends if end > self.now]
        if len(waiting) >= QUEUE:
            self.now = waiting[-QUEUE]
        self.busy = max(self.busy, self.now) + device_ms
        self.ends.append(self.busy)

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy)


class Call:
    """Takes `enqueue_ms` on the host and `device_ms` on the device; the host stalls in the calls of `stalls`."""

    def __init__(self, device: Device, enqueue_ms: float, device_ms: float, stalls: dict[int, float] | None = None):
        self.device, self.times, self.stalls, self.calls = device, (enqueue_ms, device_ms), stalls or {}, 0

    def __call__(self, mark: Mark) -> None:
        self.calls += 1
        enqueue_ms, device_ms = self.times
        self.device.enqueue(enqueue_ms + self.stalls.get(self.calls, 0.0), device_ms)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def clock(device: Device, monkeypatch: pytest.MonkeyPatch) -> CudaClock:
    class Event:
        at = 0.0

        def __init__(self, **_: bool) -> None:
            pass

        def record(self, stream: object) -> None:
            device.now += 0.001
            self.at = device.busy = max(device.busy, device.now)

        def query(self) -> bool:
            return device.now >= self.at

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    cuda = types.SimpleNamespace(
        Event=Event,
        _sleep=lambda cycles: device.enqueue(0.005, cycles / 1e6),
        is_current_stream_capturing=lambda: False,
    )
    clock = CudaClock.__new__(CudaClock)
    clock._torch, clock.stream = types.SimpleNamespace(cuda=cuda), device  # type: ignore[assignment]
    clock._events, clock._marks, clock._captured = [], [], []
    clock.before_gated, clock._cycles_per_ms = lambda: None, 1e6
    return clock


def test_a_gated_call_is_as_long_as_the_device_works(clock: CudaClock, device: Device) -> None:
    gated = clock.time_gated(Call(device, 2.0, 1.0), 2.0, 10)
    assert gated == {"gpu": pytest.approx([1.0] * 10)}


def test_a_host_that_stalls_costs_one_longer_gate_and_no_more(clock: CudaClock, device: Device) -> None:
    assert clock.time_gated(Call(device, 0.02, 0.1), 0.02, 100) is not None
    quiet, device.now, device.busy = device.now, 0.0, 0.0
    gated = clock.time_gated(Call(device, 0.02, 0.1, {5: 1.0, 50: 3.0, 90: 10.0}), 0.02, 100)
    assert gated == {"gpu": pytest.approx([0.1] * 100)}
    assert device.now < quiet + 100  # A gate that stayed at 35 ms would hold the 10 last calls alone for 350 ms.


def test_a_block_that_the_queue_does_not_hold_is_halved_and_gated_anew(clock: CudaClock, device: Device) -> None:
    gated = clock.time_gated(Call(device, 0.001, 0.01), 0.001, 20, block=150)
    assert gated == {"gpu": pytest.approx([0.01] * 20)}
    # One block of 150 overruns gates of up to 400 ms; those of 75 take little more than a millisecond each.
    assert device.now < 1000


def test_a_call_that_no_gate_holds_gives_none(clock: CudaClock, device: Device) -> None:
    def run(mark: Mark) -> None:
        for _ in range(2 * QUEUE):
            device.enqueue(0.01, 0.01)

    assert clock.time_gated(run, 2.0, 3) is None


def test_the_boundaries_of_a_gated_call_have_no_launch_gaps(clock: CudaClock, device: Device) -> None:
    def run(mark: Mark) -> None:
        for name, device_ms in (("forward", 1.0), ("backward", 2.0), ("step", 0.5)):
            device.enqueue(3.0, device_ms)
            mark(name)

    gated = clock.time_gated(run, 9.0, 4)
    assert gated == {
        "gpu": pytest.approx([3.5] * 4),
        "gpu_forward": pytest.approx([1.0] * 4),
        "gpu_backward": pytest.approx([2.0] * 4),
        "gpu_step": pytest.approx([0.5] * 4),
    }


def test_a_gate_that_opened_too_early_leaves_no_boundaries(clock: CudaClock, device: Device) -> None:
    def run(mark: Mark) -> None:
        device.enqueue(4.0, 1.0)
        mark("forward")

    gated = clock.time_gated(run, 0.0, 3)
    assert gated == {"gpu": pytest.approx([1.0] * 3), "gpu_forward": pytest.approx([1.0] * 3)}


def test_a_block_has_no_boundaries(clock: CudaClock, device: Device) -> None:
    def run(mark: Mark) -> None:
        device.enqueue(0.001, 0.01)
        mark("forward")

    assert clock.time_gated(run, 0.01, 5, block=4) == {"gpu": pytest.approx([0.01] * 5)}


@pytest.mark.parametrize(("enqueue_ms", "device_ms", "longest"), [(0.1, 2.0, 2.0), (3.0, 1.0, 3.0)])
def test_throughput_counts_whole_loops(
    clock: CudaClock,
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    enqueue_ms: float,
    device_ms: float,
    longest: float,
) -> None:
    monkeypatch.setattr("profiler.worker.clock.time.perf_counter", lambda: device.now / 1000)
    # What a call is said to take may be far off: the loop is then lengthened.
    assert clock.throughput(Call(device, enqueue_ms, device_ms), 0.5, 10.0) == pytest.approx(1000 / longest, rel=0.02)


@pytest.mark.parametrize("said_ms", [1.0, 9.0, 100.0])
def test_on_the_cpu_the_time_ends_the_loop_whatever_a_call_was_said_to_take(
    device: Device, monkeypatch: pytest.MonkeyPatch, said_ms: float
) -> None:
    monkeypatch.setattr("profiler.worker.clock.time.perf_counter", lambda: device.now / 1000)
    assert CpuClock().throughput(Call(device, 10.0, 0.0), 0.5, said_ms) == pytest.approx(100)
    assert device.now == pytest.approx(500, abs=10)


def test_the_cpu_clocks_boundaries_add_up_to_no_more_than_the_call():
    def run(mark: Mark) -> None:
        sum(range(2000))
        mark("forward")
        sum(range(4000))
        mark("backward")

    samples = CpuClock().time_calls(run, 20)
    assert set(samples) == {"host", "forward", "backward"}
    assert {len(values) for values in samples.values()} == {20}
    for total, forward, backward in zip(samples["host"], samples["forward"], samples["backward"], strict=True):
        assert forward > 0
        assert backward > 0
        assert forward + backward <= total


def test_the_cpu_clock_runs_every_call_of_a_block_and_gives_no_boundaries_of_it():
    marked: list[int] = []

    def run(mark: Mark) -> None:
        marked.append(1)
        mark("forward")

    samples = CpuClock().time_calls(run, calls=4, block=3)
    assert len(marked) == 12
    assert {name: len(values) for name, values in samples.items()} == {"host": 4}


def test_the_cpu_clock_has_no_gate():
    assert not CpuClock().time_gated(lambda mark: None, 1.0, 3)
