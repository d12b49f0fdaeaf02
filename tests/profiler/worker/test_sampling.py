"""The order of a measurement against a fake session in virtual time."""

from __future__ import annotations

import itertools
import random

import pytest

from engines.base import Mark, Warning
from profiler.job.case import Budget
from profiler.machine import processor
from profiler.worker.clock import GATE_SLACK_MS, Samples, TimedCall
from profiler.worker.sampling import (
    Measurement,
    energy_per_call,
    first_run,
    host_bound,
    inconsistent,
    measure,
    warm_up,
)

NOISE = random.Random(4).choices([7.0, 13.0], k=5000)
"""Durations in milliseconds whose median no number of samples makes certain."""


class World:
    """A session and its clock in virtual time.

    A call takes `call_ms` on the device and `enqueue_ms` on the host; on the host clock, `call_ms` passes in `run`.
    `durations` overrides the calls one by one.
    """

    def __init__(
        self,
        headline: str,
        call_ms: float = 1.0,
        enqueue_ms: float = 0.1,
        event_ms: float | None = None,
        durations: list[float] | None = None,
    ) -> None:
        self.headline, self.returns_when_done = headline, headline == "host"
        self.call_ms, self.enqueue_ms = call_ms, enqueue_ms
        self.event_ms = call_ms if event_ms is None else event_ms
        self.durations = list(durations or [])
        self.gates_hold = True
        self.ms, self.busy_until = 0.0, 0.0
        self.calls, self.renewed, self.renew_ms = 0, 0, 0.0
        self.asked: list[tuple[str, int, int]] = []

    def now(self) -> float:
        return self.ms / 1000

    # The session.

    def run(self, mark: Mark) -> None:
        self.calls += 1
        duration = self.durations.pop(0) if self.durations else self.call_ms
        if self.headline == "host":
            self.ms += duration
            return
        self.ms += self.enqueue_ms
        self.busy_until = max(self.busy_until, self.ms) + duration

    # The clock.

    def mark(self, name: str) -> None:
        pass

    def renew(self, calls: int) -> None:
        self.ms += self.renew_ms * calls
        self.renewed += calls

    def synchronize(self) -> None:
        self.ms = max(self.ms, self.busy_until)

    def time_calls(self, run: TimedCall, calls: int, block: int = 1) -> Samples:
        self.asked.append(("time_calls", calls, block))
        samples = []
        for _ in range(calls):
            start = self.ms
            for _ in range(block):
                run(lambda name: None)
            self.synchronize()
            samples.append((self.ms - start) / block if self.headline == "host" else self.event_ms)
        return {self.headline: samples}

    def time_synchronized(self, run: TimedCall, calls: int) -> Samples:
        self.asked.append(("time_synchronized", calls, 1))
        samples: Samples = {"host": [], "enqueue": []}
        for _ in range(calls):
            start = self.ms
            run(lambda name: None)
            samples["enqueue"].append(self.ms - start)
            self.synchronize()
            samples["host"].append(self.ms - start)
        return samples

    def time_gated(self, run: TimedCall, enqueue_ms: float, calls: int, block: int = 1) -> Samples | None:
        self.asked.append(("time_gated", calls, block))
        for _ in range(calls * block if self.gates_hold else 0):
            self.synchronize()
            self.ms += 2 * enqueue_ms + GATE_SLACK_MS
            run(lambda name: None)
        self.synchronize()
        return {"gpu": [self.call_ms] * calls} if self.gates_hold else None

    def throughput(self, run: TimedCall, seconds: float, call_ms: float) -> float:
        self.asked.append(("throughput", 0, 1))
        self.synchronize()
        if self.headline == "event":
            self.ms += seconds * 1000
            return 1000 / self.event_ms
        start, calls = self.ms, 0
        while self.ms - start < seconds * 1000:
            run(lambda name: None)
            calls += 1
        return calls / (self.ms - start) * 1000

    def measure(self, expected_ms: float | None = None, report=lambda samples: None, **budget: float) -> Measurement:
        expected_ms = self.call_ms if expected_ms is None else expected_ms
        return measure(self, self, Budget(**budget), expected_ms, report, self.now)

    def warm_up(self, **budget: float) -> tuple[float, bool]:
        return warm_up(self, self, Budget(**budget), self.now)

    def blocks(self) -> set[int]:
        return {block for what, _, block in self.asked if what in ("time_calls", "time_gated")}


# Warm-up.


def test_warm_up_of_a_steady_session_runs_the_fewest_calls_and_time():
    world = World("host", call_ms=1.0)
    assert world.warm_up() == (pytest.approx(1.0), True)
    assert world.calls >= 10
    assert 200 <= world.ms < 600
    for call_ms, seconds in itertools.product((0.25, 1.0, 5.0, 12.0, 20.0), (0.3, 0.5, 0.6, 2.0)):
        assert World("host", call_ms=call_ms).warm_up(seconds=seconds)[1], (call_ms, seconds)


def test_warm_up_goes_on_until_two_windows_agree_or_half_the_budget_is_over():
    falling = [20.0 * 0.97**i for i in range(150)]
    world = World("host", call_ms=falling[-1], durations=falling)
    assert world.warm_up(seconds=60) == (pytest.approx(falling[-1], rel=0.02), True)
    assert not world.durations
    world = World("host", durations=[1.0 + (i * 7 % 5) * 3 * (1 + i // 10) for i in range(10_000)])
    assert not world.warm_up(seconds=2)[1]
    assert 1000 <= world.ms <= 2000


@pytest.mark.parametrize(("call_ms", "calls"), [(10_000.0, 1), (2_000.0, 1), (1_000.0, 2)])
def test_warm_up_of_a_slow_session_is_one_call_or_half_the_budget(call_ms, calls):
    world = World("host", call_ms=call_ms)
    assert (world.warm_up(seconds=3), world.calls) == ((call_ms, True), calls)


def test_warm_up_and_first_run_wait_for_the_device_and_show_the_clock_its_boundaries():
    world = World("host", call_ms=5.0)
    world.renew_ms = 0.3
    assert world.warm_up() == (pytest.approx(5.0), True)
    assert world.renewed == world.calls, "and what that takes is no call's time"
    world, seen = World("event", call_ms=5.0), []
    assert first_run(world, world) >= 0
    assert (world.calls, world.ms >= 5.0) == (1, True)

    class Session:
        def run(self, mark: Mark) -> None:
            seen.append(mark)

    first_run(Session(), world)
    assert seen == [world.mark]


@pytest.mark.parametrize(("event_ms", "renewed"), [(1.0, False), (1.2, True)])
def test_a_loop_that_is_faster_than_its_calls_runs_again_with_new_inputs(event_ms, renewed):
    world = World("event", call_ms=1.0, event_ms=event_ms)
    loops = list[bool]()

    def loop(run: TimedCall, seconds: float, call_ms: float) -> float:
        before = world.renewed
        run(lambda name: None)
        loops.append(world.renewed > before)
        return 1000 / (1.2 if loops[-1] else 1.0)

    world.throughput = loop
    assert world.measure().throughput == pytest.approx(1000 / event_ms)
    assert loops == [False] + [True] * renewed


# Clocks.


def test_on_the_cpu_there_is_the_host_clock_alone():
    result = World("host", call_ms=2.0).measure()
    assert result.samples == {"host": pytest.approx([2.0] * len(result.samples["host"]))}
    assert (result.stop_reason, result.warnings, result.throughput) == ("precision", [], pytest.approx(500))
    for call_ms, rate in ((600.0, 1000 / 600), (0.01, 100_000)):
        assert World("host", call_ms=call_ms).measure().throughput == pytest.approx(rate, rel=0.01)


def test_what_is_not_a_call_is_not_in_the_throughput():
    # Between chunks the samples are reported and the stop rule is asked; neither belongs to a back-to-back loop.
    world, seen = World("host", call_ms=10.0, durations=[8.0, 12.0] * 500), []

    def report(samples: Samples) -> None:
        world.ms += 50.0
        seen.append(len(samples["host"]))

    result = world.measure(report=report, seconds=2, min_samples=200, max_samples=200)
    assert result.throughput == pytest.approx(100, rel=0.01)
    assert seen == sorted(set(seen))
    assert len(seen) >= 5
    assert seen[-1] < len(result.samples["host"])


@pytest.mark.parametrize(
    ("budget", "call_ms", "durations", "reason", "count"),
    [
        ({"seconds": 3, "min_samples": 20}, 10.0, [10.0], "precision", 150),  # Half the time: a drift can show.
        ({"seconds": 1, "min_samples": 20}, 10.0, NOISE, "budget", 100),
        ({"seconds": 9, "min_samples": 20, "max_samples": 30}, 10.0, NOISE, "max_samples", 30),
        ({"seconds": 2.6, "min_samples": 20}, 10.0, NOISE, "plateau", 160),
        ({"seconds": 1}, 5000.0, [], "budget", 3),
        # So many samples as the job says, even if they take longer; but no more than half of the timeout.
        ({"seconds": 1, "min_samples": 10}, 500.0, [], "budget", 10),
        ({"seconds": 1, "min_samples": 100, "timeout": 100}, 5000.0, [], "budget", 10),
        ({"seconds": 3, "min_samples": 5, "max_samples": 7}, 0.2, [0.1, 0.3, 0.2], "max_samples", 7),
    ],
)
def test_sampling_stops_for_the_reason_it_gives(budget, call_ms, durations, reason, count):
    result = World("host", call_ms=call_ms, durations=durations * 10).measure(**budget)
    assert result.stop_reason == reason
    taken = len(result.samples["host"])
    assert 0.8 * count <= taken <= 1.2 * count
    assert taken == count or (durations == NOISE and reason != "max_samples")


def test_on_a_gpu_every_clock_has_samples():
    result = World("event", call_ms=4.0, enqueue_ms=0.5).measure()
    firsts = {name: values[0] for name, values in result.samples.items()}
    assert firsts == pytest.approx({"event": 4.0, "gpu": 4.0, "host": 4.5, "enqueue": 0.5})
    assert min(map(len, result.samples.values())) >= 5
    assert (result.throughput, result.warnings) == (pytest.approx(250), [])
    slow = World("event", call_ms=500.0).measure(seconds=1, min_samples=10)
    assert len(slow.samples["event"]) == 10
    assert {len(slow.samples[name]) for name in ("host", "gpu")} <= {3}, "the other clocks keep to the seconds"
    few = World("event", call_ms=0.06, enqueue_ms=0.01).measure(seconds=3, min_samples=5, max_samples=50)
    assert {name: len(few.samples[name]) for name in firsts} == dict.fromkeys(firsts, 50)


@pytest.mark.parametrize("headline", ["event", "host"])
def test_where_the_headline_is_enough_nothing_else_is_run(headline):
    world, budget = World(headline, call_ms=2000.0), Budget(seconds=0.3, min_samples=3, max_samples=3)
    result = measure(world, world, budget, 2000.0, now=world.now, headline_only=True)
    assert {name: len(values) for name, values in result.samples.items()} == {headline: 3}
    assert (result.throughput, result.stop_reason) == (None, "max_samples")
    assert [what for what, _, _ in world.asked] == ["time_calls"] * 3


def test_gated_calls_are_asked_for_in_chunks_that_count_the_gates_own_time():
    world = World("event", call_ms=40.0, enqueue_ms=5.0)
    world.measure()
    # A tenth of a second holds one gate of twice 5 ms and a little, with a call of 40 ms, and most of another.
    assert {calls for what, calls, _ in world.asked if what == "time_gated"} == {1}
    world.gates_hold = False
    result = world.measure()
    assert "gpu" not in result.samples
    assert [warning.kind for warning in result.warnings] == ["gate-overrun"]
    assert result.throughput is not None


@pytest.mark.parametrize("headline", ["host", "event"])
def test_short_calls_are_timed_in_blocks_and_the_row_says_so(headline):
    world = World(headline, call_ms=0.01, enqueue_ms=0.001)
    result = world.measure()
    assert world.blocks() == {5}
    assert Warning("short-calls", "timed in blocks of 5") in result.warnings
    assert result.samples[headline][0] == pytest.approx(0.01, rel=0.1)
    for call_ms in (0.05, 0.2):
        world = World("host", call_ms=call_ms)
        assert (world.measure().warnings, world.blocks()) == ([], {1})


def test_the_processors_are_read_around_the_sampling_and_never_within():
    """Before the headline clock, after it, and after the others; a try for the largest batch has no others."""
    world, seen = World("event", call_ms=1.0), []

    def read():
        seen.append([name for name, *_ in world.asked])
        return processor.Reading(world.now(), 0, 0.0, 0.0, 0.0, 0.0)

    measured = measure(world, world, Budget(), 1.0, now=world.now, read=read)
    before, between, after = seen
    assert (before, set(between)) == ([], {"time_calls"})
    assert after[-1] == "throughput"
    assert "time_calls" not in after[len(between) :]
    assert sum(load.seconds for load in measured.loads) == pytest.approx(world.now())
    assert len(measure(world, world, Budget(), 1.0, now=world.now, headline_only=True).loads) == 1


@pytest.mark.parametrize(("call_ms", "calls"), [(4.0, None), (9000.0, 1)])
def test_energy_is_the_counters_difference_over_the_calls_of_at_least_five_seconds(call_ms, calls):
    world = World("event", call_ms=call_ms, enqueue_ms=0.5)
    # 300 W whatever runs, and a counter that did not start at zero.
    spent = energy_per_call(world, world, lambda: 7e6 + 300 * world.ms, call_ms, world.now)
    assert world.now() >= 5
    assert spent == pytest.approx(300 * call_ms, rel=0.01)
    assert calls in (None, world.calls)


# Warnings.


@pytest.mark.parametrize(
    ("event", "gpu", "enqueue", "says"),
    [
        (2.4, 1.07, 2.3, "host-bound: 2.4 ms a call, 1.07 ms alone on the device, 2.3 ms to enqueue"),
        (1.06, 1.0, 0.81, "host-bound: 1.06 ms"),
        (1.0, 1.0, 0.79, None),
        (2.0, None, 0.1, None),
        (2.0, None, 1.7, "host-bound: 2 ms a call, 1.7 ms to enqueue"),
        (None, 1.0, 0.1, None),
        (2.79, 2.45, 1.2, "queue-bound: 2.79 ms a call, 2.45 ms alone"),
    ],
)
def test_host_bound(event, gpu, enqueue, says):
    given = {"event": event, "gpu": gpu, "enqueue": enqueue}
    warnings = host_bound({name: [value] * 3 for name, value in given.items() if value is not None})
    assert len(warnings) == (says is not None)
    assert all(str(warning).startswith(says) for warning in warnings)


@pytest.mark.parametrize(
    ("event", "loop", "contradict"), [(31.7, 20.9, 1), (5.1, 8.4, 1), (5.0, 5.4, 0), (5.0, 4.6, 0)]
)
def test_clocks_that_contradict_each_other(event, loop, contradict):
    text = f"{event} ms a call, {loop} ms by the throughput"
    assert inconsistent(event, loop) == [Warning("inconsistent", text)] * contradict


@pytest.mark.parametrize(("enqueue_ms", "kind"), [(0.9, "host-bound"), (0.1, "queue-bound")])
def test_a_session_with_gaps_carries_the_warning(enqueue_ms, kind):
    result = World("event", call_ms=1.0, event_ms=2.0, enqueue_ms=enqueue_ms).measure()
    assert [warning.kind for warning in result.warnings] == [kind]


def test_on_the_cpu_a_median_that_bursts_leave_alone_contradicts_the_throughput():
    """One call in five takes ten times as long: the median does not see it, the mean and the loop do."""
    durations = [100.0 if number % 5 == 4 else 10.0 for number in range(2000)]
    (warning,) = World("host", durations=durations).measure(10, seconds=10).warnings
    assert str(warning) == "inconsistent: 10 ms a call, 28 ms by the throughput"
    (warning,) = World("host", durations=[10.0] * 10 + [30.0] * 500).measure(10, seconds=1, max_samples=10).warnings
    assert str(warning) == "inconsistent: 10 ms a call, 30 ms by the throughput"
