"""Sample a session by each of its clocks until the stop rule is satisfied.

The order is: first run, warm-up, the headline clock, then host and enqueue time, gated time, and the back-to-back loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from engines.base import Mark, Session, Warning, ignore
from profiler import processor
from profiler.job.case import Budget
from profiler.results.result import set_by_host
from profiler.stats.intervals import CONTRADICTION
from profiler.stats.samples import StopRule, median
from profiler.tables.numbers import milliseconds
from profiler.worker.clock import GATE_SLACK_MS, Clock, Samples

Now = Callable[[], float]

_SHORT_MS = 0.05
"""Shorter calls are timed in blocks that last this long: below it, recording the events shows in the interval."""
_WARM_UP_CALLS, _WARM_UP_SECONDS = 10, 0.2
_WARM_UP_AGREEMENT = 0.02
_CHUNK_SECONDS = 0.1
_FEWEST = 3
"""Samples of every clock but the headline's."""
_THROUGHPUT_SECONDS = 0.5
_NEARLY = 0.9
"""From this share of the loop's seconds on, the timed calls replace the loop: gaps between them are not timed."""
ENERGY_SECONDS = 5.0
"""The counter moves only some ten to fifty times a second, so a loop of this length is known to about 1 %."""
_SHARES = {"headline": 0.5, "synchronized": 0.2, "gated": 0.3}
"""Shares of a CUDA case's sampling seconds; the one clock of a CPU has all of them."""


@dataclass
class Measurement:
    """Samples, calls per second, and what the processors did during the headline clock and during the others."""

    samples: Samples = field(default_factory=dict)
    throughput: float | None = None
    stop_reason: str | None = None
    warnings: list[Warning] = field(default_factory=list)
    loads: list[processor.Load] = field(default_factory=list)


def first_run(session: Session, clock: Clock) -> float:
    """Return the seconds of the very first call, to finished work, with lazy loading, algorithm search and capture."""
    start = perf_counter()
    session.run(clock.mark)
    clock.synchronize()
    return perf_counter() - start


def warm_up(session: Session, clock: Clock, budget: Budget, now: Now = perf_counter) -> tuple[float, bool]:
    """Run until two consecutive windows agree within 2 %; returns milliseconds per call, and whether they did.

    It takes at least 10 calls and 200 ms, or one call that is slower than that, and at most half the budget's seconds:
    if the last two windows disagree then, and there was time for more, the case is not steady.
    """
    start = now()
    last = _window(session, clock, 1, now)
    calls, size, agree = 1, 1, False
    while True:
        elapsed = now() - start
        enough = calls >= _WARM_UP_CALLS and elapsed >= _WARM_UP_SECONDS
        over = elapsed >= max(budget.seconds / 2, _WARM_UP_SECONDS) or elapsed + last * size / 1000 > budget.seconds
        if over or (enough and agree):
            return last, agree or not enough
        size = max(1, min(calls, int(_CHUNK_SECONDS * 1000 / max(last, 1e-3))))
        this = _window(session, clock, size, now)
        calls += size
        agree, last = abs(this - last) <= _WARM_UP_AGREEMENT * last, this


def measure(
    session: Session,
    clock: Clock,
    budget: Budget,
    expected_ms: float,
    report: Callable[[Samples], None] = lambda samples: None,
    now: Now = perf_counter,
    headline_only: bool = False,
    read: Callable[[], processor.Reading] = processor.read,
) -> Measurement:
    """Sample every clock of the device, or only the headline's. `expected_ms` is the warm-up's; `report` gets partial
    samples. The processors are read before and after, never while something is timed."""
    block = 1 if expected_ms >= _SHORT_MS else max(1, round(_SHORT_MS / max(expected_ms, 1e-4)))
    result = Measurement()
    sampling = _Sampling(session, clock, budget, expected_ms, report, now, block, result)
    before = read()
    sampling.headline()
    between = read()
    result.loads.append(between.since(before))
    if not headline_only:
        sampling.other_clocks()
        result.loads.append(read().since(between))
    return result


@dataclass(frozen=True)
class _Sampling:
    """The sampling of a session clock by clock, into `result`; short calls in blocks of `block`."""

    session: Session
    clock: Clock
    budget: Budget
    expected_ms: float
    report: Callable[[Samples], None]
    now: Now
    block: int
    result: Measurement

    @property
    def loop_seconds(self) -> float:
        return min(_THROUGHPUT_SECONDS, self.budget.seconds)

    def headline(self) -> None:
        if self.block > 1:
            self.result.warnings.append(Warning("short-calls", f"timed in blocks of {self.block}"))
        name, budget = self.clock.headline, self.budget
        seconds = budget.seconds * (_SHARES["headline"] if name == "event" else 1.0)
        longest = max(seconds, budget.timeout / 2)  # The other half is for the other clocks.
        rule = StopRule(budget.min_samples, budget.max_samples, seconds, min_seconds=seconds / 2, longest=longest)
        self.result.stop_reason = self._take(
            name, rule, self.expected_ms * self.block, lambda n: self.clock.time_calls(self.session.run, n, self.block)
        )

    def other_clocks(self) -> None:
        if self.clock.headline == "host":
            self.throughput_of_samples()
            return
        rule = StopRule(_FEWEST, self.budget.max_samples, self.budget.seconds * _SHARES["synchronized"])
        self._take("host", rule, self.expected_ms, lambda n: self.clock.time_synchronized(self.session.run, n))
        self.gated()
        self.throughput()

    def throughput_of_samples(self) -> None:
        """Take the throughput from the timed calls if they lasted long enough, else from a loop."""
        samples = self.result.samples["host"]
        elapsed, call_ms = sum(samples) * self.block / 1000, median(samples) or self.expected_ms
        if elapsed >= _NEARLY * self.loop_seconds:
            self.result.throughput = len(samples) * self.block / elapsed
        else:
            self.result.throughput = self.clock.throughput(self.session.run, self.loop_seconds, call_ms)
        self.result.warnings += inconsistent(call_ms, 1000 / self.result.throughput)

    def gated(self) -> None:
        enqueue_ms = median(self.result.samples["enqueue"]) or 1.0
        event_ms = median(self.result.samples[self.clock.headline]) or 1.0
        # What a sample takes: the gate is held for about twice the enqueueing, then the call runs.
        sample_ms = self.block * (2 * enqueue_ms + event_ms) + GATE_SLACK_MS
        rule = StopRule(_FEWEST, self.budget.max_samples, self.budget.seconds * _SHARES["gated"])
        take = partial(self.clock.time_gated, self.session.run, enqueue_ms, block=self.block)
        if self._take("gpu", rule, sample_ms, take) is None:
            for name in [name for name in self.result.samples if name.startswith("gpu")]:
                del self.result.samples[name]
            self.result.warnings.append(Warning("gate-overrun", "the launches of one call outlast any gate"))

    def throughput(self) -> None:
        """Run the back-to-back loop, and warn where clocks contradict each other or the host is the limit."""
        call_ms = median(self.result.samples[self.clock.headline]) or self.expected_ms
        loop = partial(self.clock.throughput, seconds=self.loop_seconds, call_ms=call_ms)
        self.result.throughput = loop(self.session.run)
        if call_ms > CONTRADICTION * 1000 / self.result.throughput:  # As if it remembered the loop's inputs.
            self.result.throughput = loop(self._run_renewed)
        self.result.warnings += host_bound(self.result.samples)
        self.result.warnings += inconsistent(call_ms, 1000 / self.result.throughput)

    def _run_renewed(self, mark: Mark) -> None:
        self.clock.renew(1)
        self.session.run(mark)

    def _take(self, watched: str, rule: StopRule, call_ms: float, take: Callable[[int], Samples | None]) -> str | None:
        """Take chunks of samples, of about 0.1 s or one call, until the rule says why to stop, and return that.

        None if a chunk could not be taken.
        """
        into, chunk, start = self.result.samples, int(_CHUNK_SECONDS * 1000 / max(call_ms, 1e-3)), self.now()
        while True:
            taken = take(max(1, min(chunk, rule.max_samples - len(into.get(watched, [])))))
            if taken is None:
                return None
            for name, values in taken.items():
                into.setdefault(name, []).extend(values)
            reason = rule.reason(into[watched], self.now() - start)
            if reason is not None:
                return reason
            self.report(into)


def energy_per_call(
    session: Session, clock: Clock, energy_mj: Callable[[], float], call_ms: float, now: Now = perf_counter
) -> float:
    """Measure a call's millijoules, all of the device's counted, in a back-to-back loop of at least 5 s."""
    # Half a second of calls between looks at the time: the device is never without work for longer than a synchronize.
    chunk, calls = max(1, round(500 / max(call_ms, 1e-3))), 0
    clock.synchronize()
    before, start = energy_mj(), now()
    while now() - start < ENERGY_SECONDS:
        for _ in range(chunk):
            session.run(ignore)
        clock.synchronize()
        calls += chunk
    return (energy_mj() - before) / calls


def host_bound(samples: Samples) -> list[Warning]:
    """Warn where the host sets the latency, and where gaps between launches are the device's own."""
    event, gpu, enqueue = (median(samples.get(name, [])) for name in ("event", "gpu", "enqueue"))
    if not event:
        return []
    has_gaps, text = bool(gpu and event / gpu > 1.05), f"{milliseconds(event)} a call"
    text += f", {milliseconds(gpu)} alone on the device" if gpu else ""
    text += f", {milliseconds(enqueue)} to enqueue" if enqueue else ""
    if not set_by_host(event, gpu, enqueue):
        return [Warning("queue-bound", text)] if has_gaps else []
    return [Warning("host-bound", text)] if has_gaps or enqueue is not None else []


def inconsistent(call_ms: float, loop_ms: float) -> list[Warning]:
    """Warn that latency and throughput differ by over 10 %, as bursts of other work make them.

    The throughput is the back-to-back loop's, on the CPU the mean of the samples.
    """
    if max(call_ms / loop_ms, loop_ms / call_ms) <= CONTRADICTION:
        return []
    return [Warning("inconsistent", f"{milliseconds(call_ms)} a call, {milliseconds(loop_ms)} by the throughput")]


def _window(session: Session, clock: Clock, calls: int, now: Now) -> float:
    clock.synchronize()
    start, renewing = now(), 0.0
    for _ in range(calls):
        before = now()
        clock.renew(1)
        renewing += now() - before
        session.run(ignore)
    clock.synchronize()
    return (now() - start - renewing) * 1000 / calls
