"""Sample a session by each of its clocks until the stop rule is satisfied.

The order is: first run, warm-up, the headline clock, then host and enqueue time, gated time, and the back-to-back loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engines.base import Warning
from profiler.job.case import Budget
from profiler.stats.samples import median
from profiler.stats.stop_rule import StopRule
from profiler.worker.clock import GATE_SLACK_MS, Clock, Mark, Samples

Now = Callable[[], float]

_SHORT_MS = 0.05
"""Shorter calls are timed in blocks that last as long: below this, recording the events shows in the interval."""
_WARM_UP_CALLS, _WARM_UP_SECONDS = 10, 0.2
_WARM_UP_AGREEMENT = 0.02
_CHUNK_SECONDS = 0.1
_THROUGHPUT_SECONDS = 0.5
ENERGY_SECONDS = 5.0
"""The counter moves only some ten to fifty times a second, so a loop of this length is known to about 1 %."""
_CONTRADICTION = 1.1
_NOT_TAKEN = "not taken"
_SHARES = {"headline": 0.5, "synchronized": 0.2, "gated": 0.3}
"""How a CUDA case divides its sampling seconds among the clocks; on the CPU there is one clock, which has them all."""


class Runnable(Protocol):
    """The one thing of a session that is timed."""

    def run(self, mark: Mark) -> None:
        """See engines.base.Session."""


@dataclass
class Measurement:
    """What was measured; `throughput` in calls per second."""

    clock: str
    samples: Samples = field(default_factory=dict)
    throughput: float | None = None
    stop_reason: str = ""
    warnings: list[Warning] = field(default_factory=list)


def first_run(session: Runnable, clock: Clock) -> float:
    """Seconds of the very first call, to finished work: lazy loading, algorithm search and graph capture are in it."""
    start = time.perf_counter()
    session.run(clock.mark)
    clock.synchronize()
    return time.perf_counter() - start


def warm_up(session: Runnable, clock: Clock, budget: Budget, now: Now = time.perf_counter) -> tuple[float, bool]:
    """Run until two consecutive windows agree within 2 %; returns milliseconds per call, and whether they did.

    At least 10 calls and 200 ms; where one call is slower than that, as on a CPU, one call. At most half the budget's
    seconds: if two windows had the time to disagree until then, the case is not steady.
    """
    start = now()
    last = _window(session, clock, 1, now)
    calls, size = 1, 1
    while True:
        elapsed = now() - start
        enough = calls >= _WARM_UP_CALLS and elapsed >= _WARM_UP_SECONDS
        if elapsed >= max(budget.seconds / 2, _WARM_UP_SECONDS) or elapsed + last * size / 1000 > budget.seconds:
            return last, not enough
        size = max(1, min(calls, int(_CHUNK_SECONDS * 1000 / max(last, 1e-3))))
        this = _window(session, clock, size, now)
        calls += size
        if enough and abs(this - last) <= _WARM_UP_AGREEMENT * last:
            return this, True
        last = this


def measure(
    session: Runnable,
    clock: Clock,
    budget: Budget,
    expected_ms: float,
    report: Callable[[Samples], None] = lambda samples: None,
    now: Now = time.perf_counter,
    headline_only: bool = False,
) -> Measurement:
    """Sample every clock of the device, or the headline's alone. `expected_ms` is the warm-up's; `report` gets partial
    samples."""
    result = Measurement(clock.headline)
    only = clock.headline == "host"
    block = 1 if expected_ms >= _SHORT_MS else max(1, round(_SHORT_MS / max(expected_ms, 1e-4)))
    if block > 1:
        result.warnings.append(Warning("short-calls", f"timed in blocks of {block}"))
    seconds = budget.seconds * (1.0 if only else _SHARES["headline"])
    rule = StopRule(budget.min_samples, budget.max_samples, seconds, min_seconds=seconds / 2)
    result.stop_reason = _sample(
        result.samples,
        clock.headline,
        rule,
        expected_ms * block,
        lambda n: clock.time_calls(session.run, n, block),
        report,
        now,
    )
    if headline_only:
        return result
    if only:
        # Calls on the CPU are synchronous, so the timed calls were a back-to-back loop already, if they lasted long
        # enough; what lies between them (the stop rule, reports to the parent) is no part of it.
        samples = result.samples["host"]
        elapsed = sum(samples) * block / 1000
        long_enough = elapsed >= _THROUGHPUT_SECONDS
        result.throughput = (
            len(samples) * block / elapsed
            if long_enough
            else clock.throughput(session.run, _THROUGHPUT_SECONDS, median(samples) or expected_ms)
        )
        return result

    rule = StopRule(5, budget.max_samples, budget.seconds * _SHARES["synchronized"])
    _sample(result.samples, "host", rule, expected_ms, lambda n: clock.time_synchronized(session.run, n), report, now)
    _gated(session, clock, budget, block, result, now)
    event_ms = median(result.samples[clock.headline]) or expected_ms
    result.throughput = clock.throughput(session.run, _THROUGHPUT_SECONDS, event_ms)
    result.warnings += host_bound(result.samples) + inconsistent(event_ms, 1000 / result.throughput)
    return result


def energy_per_call(
    session: Runnable, clock: Clock, energy_mj: Callable[[], float], call_ms: float, now: Now = time.perf_counter
) -> float:
    """Millijoules of a call, all of the device's counted, from a back-to-back loop of at least 5 s."""
    # Half a second of calls between looks at the time: the device is never without work for longer than a synchronize.
    chunk, calls = max(1, round(500 / max(call_ms, 1e-3))), 0
    clock.synchronize()
    before, start = energy_mj(), now()
    while now() - start < ENERGY_SECONDS:
        for _ in range(chunk):
            session.run(_ignore)
        clock.synchronize()
        calls += chunk
    return (energy_mj() - before) / calls


def host_bound(samples: Samples) -> list[Warning]:
    """The warning that the host sets the latency or is close to it: enqueueing takes over 0.8 of the device's time.

    `event` / `gpu` > 1.05 tells of gaps between launches. Where enqueueing is far faster than the device works, it is
    not the host that makes them: the device itself is slower with more work in its queue.
    """
    event, gpu, enqueue = (median(samples.get(name, [])) for name in ("event", "gpu", "enqueue"))
    if not event:
        return []
    if not gpu:
        gaps = enqueue is not None and enqueue > 0.8 * event
        return (
            [Warning("host-bound", f"of {event:.3g} ms a call the host enqueues for {enqueue:.3g} ms")] if gaps else []
        )
    slow_host = enqueue is None or enqueue > 0.8 * gpu
    if event / gpu > 1.05:
        if slow_host:
            return [Warning("host-bound", f"of {event:.3g} ms a call the device works {gpu:.3g} ms")]
        return [Warning("queue-bound", f"{event:.3g} ms a call with more calls queued behind it, {gpu:.3g} ms alone")]
    if slow_host and enqueue is not None:
        said = f"enqueueing takes {enqueue:.3g} ms of the device's {gpu:.3g} ms; a slower host would show"
        return [Warning("host-bound", said)]
    return []


def inconsistent(event_ms: float, call_ms: float) -> list[Warning]:
    """The warning that two clocks contradict each other by over 10 %, as they do where the machine was disturbed.

    `call_ms` is a call's time in the back-to-back loop, which events measure one by one.
    """
    if max(event_ms / call_ms, call_ms / event_ms) <= _CONTRADICTION:
        return []
    return [Warning("inconsistent", f"{event_ms:.3g} ms a call by events, {call_ms:.3g} ms in the back-to-back loop")]


def _gated(session: Runnable, clock: Clock, budget: Budget, block: int, result: Measurement, now: Now) -> None:
    enqueue = median(result.samples["enqueue"]) or 1.0
    event = median(result.samples[clock.headline]) or 1.0
    gated: Samples = {}
    # What a sample takes: the gate is held for about twice the enqueueing, then the call runs.
    sample_ms = block * (2 * enqueue + event) + GATE_SLACK_MS
    rule = StopRule(5, budget.max_samples, budget.seconds * _SHARES["gated"])
    reason = _sample(
        gated,
        "gpu",
        rule,
        sample_ms,
        lambda n: clock.time_gated(session.run, enqueue, n, block),
        lambda samples: None,
        now,
    )
    if reason == _NOT_TAKEN:
        result.warnings.append(Warning("gate-overrun", "the launches of one call outlast any gate"))
    else:
        result.samples |= gated


def _sample(
    into: Samples,
    watched: str,
    rule: StopRule,
    call_ms: float,
    take: Callable[[int], Samples | None],
    report: Callable[[Samples], None],
    now: Now,
) -> str:
    """Take chunks of samples until the rule says why to stop, or a chunk could not be taken.

    A chunk lasts about 0.1 s, and one call at least.
    """
    start = now()
    while True:
        chunk = int(_CHUNK_SECONDS * 1000 / max(call_ms, 1e-3))
        count = max(1, min(chunk, rule.max_samples - len(into.get(watched, []))))
        taken = take(count)
        if taken is None:
            return _NOT_TAKEN
        for name, values in taken.items():
            into.setdefault(name, []).extend(values)
        reason = rule.reason(into[watched], now() - start)
        if reason is not None:
            return reason
        report(into)


def _window(session: Runnable, clock: Clock, calls: int, now: Now) -> float:
    """Milliseconds per call of one window of calls."""
    clock.synchronize()
    start = now()
    for _ in range(calls):
        session.run(_ignore)
    clock.synchronize()
    return (now() - start) * 1000 / calls


def _ignore(name: str) -> None:
    pass
