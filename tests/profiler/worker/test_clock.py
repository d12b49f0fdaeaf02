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
    clock._torch, clock.stream = types.SimpleNamespace(cuda=cuda), device
    clock._events, clock._marks, clock._captured = [], [], []
    clock.before_gated, clock._cycles_per_ms = lambda: None, 1e6
    return clock


def test_gates_hold_calls_and_blocks_whatever_the_host_does(clock, device):
    assert clock.time_gated(Call(device, 2.0, 1.0), 2.0, 10) == {"gpu": pytest.approx([1.0] * 10)}
    device.now = device.busy = 0.0
    assert clock.time_gated(Call(device, 0.02, 0.1), 0.02, 100) is not None
    quiet, device.now, device.busy = device.now, 0.0, 0.0
    gated = clock.time_gated(Call(device, 0.02, 0.1, {5: 1.0, 50: 3.0, 90: 10.0}), 0.02, 100)
    assert gated == {"gpu": pytest.approx([0.1] * 100)}
    assert device.now < quiet + 100  # A gate that stayed at 35 ms would hold the 10 last calls alone for 350 ms.
    device.now = device.busy = 0.0
    gated = clock.time_gated(Call(device, 0.001, 0.01), 0.001, 20, block=150)
    assert gated == {"gpu": pytest.approx([0.01] * 20)}
    # One block of 150 overruns gates of up to 400 ms; those of 75 take little more than a millisecond each.
    assert device.now < 1000


def test_a_call_that_no_gate_holds_gives_none(clock, device):
    def run(mark: Mark) -> None:
        for _ in range(2 * QUEUE):
            device.enqueue(0.01, 0.01)

    assert clock.time_gated(run, 2.0, 3) is None


STEP = {"forward": 1.0, "backward": 2.0, "step": 0.5}


@pytest.mark.parametrize(
    ("parts", "host_ms", "enqueue_ms", "block", "times"),
    [
        (STEP, 3.0, 9.0, 1, 1),
        ({"forward": 1.0}, 4.0, 0.0, 1, 1),
        ({"forward": 0.01}, 0.001, 0.01, 4, 1),
        ({"forward": 1.0, "backward": 2.0}, 3.0, 9.0, 1, 4),
    ],
    ids=["no launch gaps", "a gate that opened too early", "a block has no boundaries", "parts of a batch add up"],
)
def test_the_boundaries_of_a_gated_call(clock, device, parts, host_ms, enqueue_ms, block, times):
    def run(mark: Mark) -> None:
        for name, device_ms in [*parts.items()] * times:
            device.enqueue(host_ms, device_ms)
            mark(name)

    expected = {"gpu": sum(parts.values())} | ({f"gpu_{name}": ms for name, ms in parts.items()} if block == 1 else {})
    gated = clock.time_gated(run, enqueue_ms, 4, block)
    assert gated == {name: pytest.approx([times * ms] * 4) for name, ms in expected.items()}


@pytest.mark.parametrize(("enqueue_ms", "device_ms", "longest"), [(0.1, 2.0, 2.0), (3.0, 1.0, 3.0)])
def test_throughput_counts_whole_loops(clock, device, monkeypatch, enqueue_ms, device_ms, longest):
    monkeypatch.setattr("profiler.worker.clock.perf_counter", lambda: device.now / 1000)
    # What a call is said to take may be far off: the loop is then lengthened.
    assert clock.throughput(Call(device, enqueue_ms, device_ms), 0.5, 10.0) == pytest.approx(1000 / longest, rel=0.02)


@pytest.mark.parametrize("said_ms", [1.0, 9.0, 100.0])
def test_on_the_cpu_the_time_ends_the_loop_whatever_a_call_was_said_to_take(device, monkeypatch, said_ms):
    monkeypatch.setattr("profiler.worker.clock.perf_counter_ns", lambda: int(device.now * 1e6))
    assert CpuClock().throughput(Call(device, 10.0, 0.0), 0.5, said_ms) == pytest.approx(100)
    assert device.now == pytest.approx(500, abs=10)


def test_the_cpu_clock_gives_boundaries_of_calls_and_none_of_blocks():
    marked: list[int] = []

    def run(mark: Mark) -> None:
        for _ in range(2):
            sum(range(1000))
            mark("forward")
            sum(range(2000))
            mark("backward")
        marked.append(1)

    samples = CpuClock().time_calls(run, 20)
    assert {name: len(values) for name, values in samples.items()} == dict.fromkeys(("host", "forward", "backward"), 20)
    for total, forward, backward in zip(samples["host"], samples["forward"], samples["backward"], strict=True):
        assert min(forward, backward) > 0
        assert forward + backward <= total
    marked.clear()
    samples = CpuClock().time_calls(run, calls=4, block=3)
    assert (len(marked), {name: len(values) for name, values in samples.items()}) == (12, {"host": 4})
    assert not CpuClock().time_gated(run, 1.0, 3)


@pytest.mark.parametrize("block", [1, 3])
def test_every_call_has_new_inputs_and_none_of_the_time_that_they_take(device, clock, monkeypatch, block):
    monkeypatch.setattr("profiler.worker.clock.perf_counter_ns", lambda: int(device.now * 1e6))
    left = [0]

    def renew(calls: int) -> None:
        left[0] = calls
        device.enqueue(7.0, 9.0)

    def run(mark: Mark) -> None:
        left[0] -= 1
        assert left[0] >= 0, "a call with old inputs"
        device.enqueue(1.0, 2.0)

    host = CpuClock()
    host.renew = clock.renew = renew
    assert host.time_calls(run, 4, block) == {"host": pytest.approx([1.0] * 4)}
    assert host.throughput(run, 0.01, 1.0) == pytest.approx(1000)
    assert clock.time_calls(run, 4, block) == {"event": pytest.approx([2.0] * 4, abs=0.01)}
    assert clock.time_synchronized(run, 4) == {"host": pytest.approx([3.0] * 4), "enqueue": pytest.approx([1.0] * 4)}
    assert clock.time_gated(run, block, 4, block) == {"gpu": pytest.approx([2.0] * 4, abs=0.01)}
