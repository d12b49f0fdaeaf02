"""The order of a measurement against a fake session in virtual time, and the real CPU clock on a tiny function."""

from __future__ import annotations

import random

import pytest

from engines.base import Mark, Warning
from profiler import processor
from profiler.job.case import Budget
from profiler.worker.clock import GATE_SLACK_MS, CpuClock, Run, Samples
from profiler.worker.sampling import (
    Measurement,
    energy_per_call,
    first_run,
    host_bound,
    inconsistent,
    measure,
    parts_contradict,
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
        self.calls = 0
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

    def synchronize(self) -> None:
        self.ms = max(self.ms, self.busy_until)

    def time_calls(self, run: Run, calls: int, block: int = 1) -> Samples:
        self.asked.append(("time_calls", calls, block))
        samples = []
        for _ in range(calls):
            start = self.ms
            for _ in range(block):
                run(lambda name: None)
            self.synchronize()
            samples.append((self.ms - start) / block if self.headline == "host" else self.event_ms)
        return {self.headline: samples}

    def time_synchronized(self, run: Run, calls: int) -> Samples:
        self.asked.append(("time_synchronized", calls, 1))
        samples: Samples = {"host": [], "enqueue": []}
        for _ in range(calls):
            start = self.ms
            run(lambda name: None)
            samples["enqueue"].append(self.ms - start)
            self.synchronize()
            samples["host"].append(self.ms - start)
        return samples

    def time_gated(self, run: Run, enqueue_ms: float, calls: int, block: int = 1) -> Samples | None:
        self.asked.append(("time_gated", calls, block))
        for _ in range(calls * block if self.gates_hold else 0):
            self.synchronize()
            self.ms += 2 * enqueue_ms + GATE_SLACK_MS
            run(lambda name: None)
        self.synchronize()
        return {"gpu": [self.call_ms] * calls} if self.gates_hold else None

    def throughput(self, run: Run, seconds: float, call_ms: float) -> float:
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

    def measure(self, budget: Budget | None = None, expected_ms: float | None = None, report=None) -> Measurement:
        return measure(
            self,
            self,
            budget or Budget(),
            self.call_ms if expected_ms is None else expected_ms,
            report or (lambda samples: None),
            self.now,
        )

    def warm_up(self, budget: Budget | None = None) -> tuple[float, bool]:
        return warm_up(self, self, budget or Budget(), self.now)


def test_warm_up_of_a_steady_session_runs_the_fewest_calls_and_time():
    world = World("host", call_ms=1.0)
    assert world.warm_up() == (pytest.approx(1.0), True)
    assert world.calls >= 10
    assert 200 <= world.ms < 600


@pytest.mark.parametrize("call_ms", [0.25, 1.0, 5.0, 12.0, 20.0])
@pytest.mark.parametrize("seconds", [0.3, 0.5, 0.6, 2.0])
def test_a_steady_session_is_steady_by_the_end_of_any_budget(call_ms, seconds):
    _, steady = World("host", call_ms=call_ms).warm_up(Budget(seconds=seconds))
    assert steady


def test_warm_up_goes_on_until_two_windows_agree():
    falling = [20.0 * 0.97**i for i in range(150)]
    world = World("host", call_ms=falling[-1], durations=falling)
    assert world.warm_up(Budget(seconds=60)) == (pytest.approx(falling[-1], rel=0.02), True)
    assert not world.durations


def test_warm_up_that_never_settles_ends_with_half_the_budget():
    world = World("host", durations=[1.0 + (i * 7 % 5) * 3 * (1 + i // 10) for i in range(10_000)])
    _, steady = world.warm_up(Budget(seconds=2))
    assert not steady
    assert 1000 <= world.ms <= 2000


@pytest.mark.parametrize(("call_ms", "calls"), [(10_000.0, 1), (2_000.0, 1), (1_000.0, 2)])
def test_warm_up_of_a_slow_session_is_one_call_or_half_the_budget(call_ms, calls):
    world = World("host", call_ms=call_ms)
    assert world.warm_up(Budget(seconds=3)) == (call_ms, True)
    assert world.calls == calls


def test_warm_up_waits_for_the_device():
    world = World("event", call_ms=5.0, enqueue_ms=0.01)
    assert world.warm_up() == (pytest.approx(5.0, rel=0.05), True)


def test_the_first_run_waits_for_the_device():
    world = World("event", call_ms=5.0)
    assert first_run(world, world) >= 0
    assert world.calls == 1
    assert world.ms >= 5.0


def test_the_first_run_lets_the_clock_see_its_boundaries():
    world, seen = World("event"), []

    class Session:
        def run(self, mark: Mark) -> None:
            seen.append(mark)

    first_run(Session(), world)
    assert seen == [world.mark]


def test_on_the_cpu_there_is_the_host_clock_alone():
    world = World("host", call_ms=2.0)
    result = world.measure()
    assert set(result.samples) == {"host"}
    assert result.samples["host"] == pytest.approx([2.0] * len(result.samples["host"]))
    assert result.stop_reason == "precision"
    assert result.warnings == []


def test_throughput_on_the_cpu_is_calls_per_second():
    assert World("host", call_ms=2.0).measure().throughput == pytest.approx(500)
    assert World("host", call_ms=600.0).measure().throughput == pytest.approx(1000 / 600)


def test_what_is_not_a_call_is_not_in_the_throughput():
    # Between chunks the samples are reported and the stop rule is asked; neither belongs to a back-to-back loop.
    world = World("host", call_ms=10.0, durations=[8.0, 12.0] * 500)

    def report(samples: Samples) -> None:
        world.ms += 50.0

    result = world.measure(Budget(seconds=2, min_samples=200, max_samples=200), report=report)
    assert result.throughput == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("budget", "noise", "reason", "count"),
    [
        (Budget(seconds=3, min_samples=20), [10.0], "precision", 150),  # half of the time, so that a drift can show
        (Budget(seconds=1, min_samples=20), NOISE, "budget", 100),
        (Budget(seconds=9, min_samples=20, max_samples=30), NOISE, "max_samples", 30),
        (Budget(seconds=2.6, min_samples=20), NOISE, "plateau", 160),
    ],
)
def test_sampling_stops_for_the_reason_it_gives(budget, noise, reason, count):
    world = World("host", call_ms=10.0, durations=noise * 10)
    result = world.measure(budget)
    assert result.stop_reason == reason
    taken = len(result.samples["host"])
    assert taken == count if reason in ("precision", "max_samples") else 0.8 * count <= taken <= 1.2 * count


def test_a_call_slower_than_the_budget_is_still_sampled_three_times():
    world = World("host", call_ms=5000.0)
    result = world.measure(Budget(seconds=1))
    assert (len(result.samples["host"]), result.stop_reason) == (3, "budget")


@pytest.mark.parametrize(("headline", "others"), [("host", set()), ("event", {"host", "gpu"})])
def test_so_many_samples_of_the_latency_as_the_job_says_are_taken_even_if_they_take_longer(headline, others):
    world = World(headline, call_ms=500.0)
    result = world.measure(Budget(seconds=1, min_samples=10))
    assert (len(result.samples[headline]), result.stop_reason) == (10, "budget")
    assert {len(result.samples[name]) for name in others} <= {3}, "the other clocks keep to the seconds"


def test_but_they_take_no_more_than_half_of_the_timeout():
    world = World("host", call_ms=5000.0)
    result = world.measure(Budget(seconds=1, min_samples=100, timeout=100))
    assert (len(result.samples["host"]), result.stop_reason) == (10, "budget")


def test_no_more_samples_are_taken_than_allowed():
    world = World("host", call_ms=0.2, durations=[0.1, 0.3, 0.2] * 1000)
    result = world.measure(Budget(seconds=3, min_samples=5, max_samples=7))
    assert len(result.samples["host"]) == 7


def test_on_a_gpu_every_clock_has_samples():
    world = World("event", call_ms=4.0, enqueue_ms=0.5)
    result = world.measure()
    assert set(result.samples) == {"event", "host", "enqueue", "gpu"}
    assert {name: values[0] for name, values in result.samples.items()} == {
        "event": 4.0,
        "gpu": 4.0,
        "host": pytest.approx(4.5),
        "enqueue": pytest.approx(0.5),
    }
    assert min(map(len, result.samples.values())) >= 5
    assert result.throughput == pytest.approx(250)
    assert result.warnings == []


@pytest.mark.parametrize("headline", ["event", "host"])
def test_where_the_headline_is_enough_nothing_else_is_run(headline):
    world = World(headline, call_ms=2000.0)
    result = measure(world, world, Budget(seconds=0.3, min_samples=3, max_samples=3), 2000.0, now=world.now,
                     headline_only=True)  # fmt: skip
    assert {name: len(values) for name, values in result.samples.items()} == {headline: 3}
    assert (result.throughput, result.stop_reason) == (None, "max_samples")
    assert [what for what, _, _ in world.asked] == ["time_calls"] * 3


def test_gated_calls_are_asked_for_in_chunks_that_count_the_gates_own_time():
    world = World("event", call_ms=40.0, enqueue_ms=5.0)
    world.measure()
    # A tenth of a second holds one gate of twice 5 ms and a little, with a call of 40 ms, and most of another.
    assert {calls for what, calls, _ in world.asked if what == "time_gated"} == {1}


def test_a_gate_that_cannot_hold_leaves_gpu_null_and_warns():
    world = World("event", call_ms=4.0, enqueue_ms=0.5)
    world.gates_hold = False
    result = world.measure()
    assert "gpu" not in result.samples
    assert [warning.kind for warning in result.warnings] == ["gate-overrun"]
    assert result.throughput is not None


@pytest.mark.parametrize("headline", ["host", "event"])
def test_short_calls_are_timed_in_blocks_and_the_row_says_so(headline):
    world = World(headline, call_ms=0.01, enqueue_ms=0.001)
    result = world.measure()
    blocks = {block for what, _, block in world.asked if what in ("time_calls", "time_gated")}
    assert blocks == {5}
    assert Warning("short-calls", "timed in blocks of 5") in result.warnings
    assert result.samples[headline][0] == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("call_ms", [0.05, 0.2])
def test_calls_that_are_not_short_are_timed_one_by_one(call_ms):
    world = World("host", call_ms=call_ms)
    assert world.measure().warnings == []
    assert {block for _, _, block in world.asked} <= {1}


def test_throughput_of_short_calls_counts_every_call_of_a_block():
    assert World("host", call_ms=0.01).measure().throughput == pytest.approx(100_000, rel=0.01)


@pytest.mark.parametrize(
    ("event", "gpu", "enqueue", "says"),
    [
        (2.4, 1.07, 2.3, "of 2.4 ms a call the device works 1.07 ms"),
        (1.06, 1.0, 0.81, "of 1.06 ms"),
        (1.04, 1.0, 0.1, None),
        (1.0, 1.0, 0.81, "enqueueing takes 0.81 ms"),
        (1.0, 1.0, 0.79, None),
        (2.0, None, 0.1, None),
        (2.0, None, 1.7, "of 2 ms a call the host enqueues for 1.7 ms"),
        (None, 1.0, 0.1, None),
        (1.0, 1.0, None, None),
    ],
)
def test_host_bound(event, gpu, enqueue, says):
    given = {"event": event, "gpu": gpu, "enqueue": enqueue}
    warnings = host_bound({name: [value] * 3 for name, value in given.items() if value is not None})
    assert len(warnings) == (says is not None)
    assert all(warning.kind == "host-bound" and says in warning.text for warning in warnings)


@pytest.mark.parametrize(("event", "enqueue"), [(2.79, 1.2), (1.06, 0.79)])
def test_gaps_that_the_host_does_not_make_are_the_queues(event, enqueue):
    (warning,) = host_bound({"event": [event], "gpu": [event / 1.06 if event < 2 else 2.45], "enqueue": [enqueue]})
    assert warning.kind == "queue-bound"
    assert f"{event:.3g} ms a call with more calls queued behind it" in warning.text


@pytest.mark.parametrize(("event", "loop"), [(31.7, 20.9), (5.1, 8.4)])
def test_clocks_that_contradict_each_other(event, loop):
    (warning,) = inconsistent(event, "by events", loop, "in the back-to-back loop")
    assert str(warning) == f"inconsistent: {event} ms a call by events, {loop} ms in the back-to-back loop"


@pytest.mark.parametrize(("event", "loop"), [(5.0, 5.4), (5.0, 4.6)])
def test_clocks_that_differ_a_little_do_not_contradict_each_other(event, loop):
    assert inconsistent(event, "by events", loop, "in the back-to-back loop") == []


def test_no_more_gated_samples_are_taken_than_allowed():
    world = World("event", call_ms=0.06, enqueue_ms=0.01)
    result = world.measure(Budget(seconds=3, min_samples=5, max_samples=50))
    assert {name: len(values) for name, values in result.samples.items()} == {
        "event": 50,
        "host": 50,
        "enqueue": 50,
        "gpu": 50,
    }


@pytest.mark.parametrize(("enqueue_ms", "kind"), [(0.9, "host-bound"), (0.1, "queue-bound")])
def test_a_session_with_gaps_carries_the_warning(enqueue_ms, kind):
    result = World("event", call_ms=1.0, event_ms=2.0, enqueue_ms=enqueue_ms).measure()
    assert [warning.kind for warning in result.warnings] == [kind]


def test_energy_is_the_counters_difference_over_the_calls_of_at_least_five_seconds():
    world = World("event", call_ms=4.0, enqueue_ms=0.5)
    # 300 W whatever runs, and a counter that did not start at zero.
    spent = energy_per_call(world, world, lambda: 7e6 + 300 * world.ms, 4.0, world.now)
    assert world.now() >= 5
    assert spent == pytest.approx(300 * 4.0, rel=0.01)


def test_energy_of_a_call_longer_than_the_loop_is_that_of_one_call():
    world = World("event", call_ms=9000.0, enqueue_ms=0.5)
    assert energy_per_call(world, world, lambda: 2 * world.ms, 9000.0, world.now) == pytest.approx(18_000, rel=0.01)
    assert world.calls == 1


def test_samples_so_far_are_reported_between_chunks():
    seen: list[int] = []
    world = World("host", call_ms=10.0, durations=list(NOISE))
    result = world.measure(Budget(seconds=1), report=lambda samples: seen.append(len(samples["host"])))
    assert seen == sorted(set(seen))
    assert len(seen) >= 5
    assert seen[-1] < len(result.samples["host"])


def test_the_real_cpu_clock_measures_a_real_function():
    class Session:
        def run(self, mark: Mark) -> None:
            sum(range(20_000))

    budget = Budget(seconds=0.05, min_samples=5, max_samples=50)
    clock, session = CpuClock(), Session()
    result = measure(session, clock, budget, warm_up(session, clock, budget)[0])
    assert 3 <= len(result.samples["host"]) <= 50
    assert min(result.samples["host"]) > 0
    assert result.throughput > 0


def test_on_the_cpu_a_median_that_bursts_leave_alone_contradicts_the_throughput():
    """One call in five takes ten times as long: the median does not see it, the mean and the loop do."""
    durations = [100.0 if number % 5 == 4 else 10.0 for number in range(2000)]
    (warning,) = World("host", durations=durations).measure(Budget(seconds=10), expected_ms=10).warnings
    assert str(warning) == "inconsistent: 10 ms a call in the median, 28 ms on average"
    samples = World("host", durations=[10.0] * 10 + [30.0] * 500)
    short = samples.measure(Budget(seconds=0.05, min_samples=3), expected_ms=10)
    assert [str(each) for each in short.warnings] == [
        "inconsistent: 10 ms a call in the median, 30 ms in the back-to-back loop"
    ]
    assert World("host", call_ms=10.0).measure().warnings == []


@pytest.mark.parametrize(("step", "says"), [(2.0, None), (2.9, None), (3.2, "10 ms an iteration, 11.2 ms")])
def test_parts_that_come_to_something_else_than_the_iteration(step, says):
    samples = {"event": [10.0] * 5, "forward": [3.0] * 5, "backward": [5.0] * 5, "step": [step] * 5}
    gated = {"gpu": [10.0] * 5} | {f"gpu_{name}": values for name, values in samples.items() if name != "event"}
    for warnings in (parts_contradict(samples, "event"), parts_contradict(gated, "gpu")):
        texts = [str(warning) for warning in warnings]
        assert texts == ([] if says is None else [f"inconsistent: {says} by forward + backward + step"])


def test_an_inference_has_no_parts_and_contradicts_nothing():
    assert parts_contradict({"event": [10.0] * 5}, "event") == []


def test_the_processors_are_read_around_the_sampling_and_never_within():
    """Before the headline clock, after it, and after the others; a try for the largest batch has no others."""
    world = World("event", call_ms=1.0)
    seen = []

    def read():
        seen.append([name for name, *_ in world.asked])
        return processor.Reading(world.now(), {}, 0.0, {})

    measured = measure(world, world, Budget(), 1.0, now=world.now, read=read)
    before, between, after = seen
    assert before == []
    assert set(between) == {"time_calls"}
    assert after[len(between) :][-1] == "throughput"
    assert "time_calls" not in after[len(between) :]
    assert sum(load.seconds for load in measured.loads) == pytest.approx(world.now())
    assert len(measure(world, world, Budget(), 1.0, now=world.now, headline_only=True).loads) == 1
