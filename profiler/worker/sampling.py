"""Sample a session on each clock until the stop rule ends it.

Order: first run, warm-up, headline clock, host and enqueue time, gated time, back-to-back loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from engines.base import Mark, Session, Warning, ignore
from profiler.job.case import Budget
from profiler.machine import processor
from profiler.results.result import set_by_host
from profiler.stats.intervals import CONTRADICTION
from profiler.stats.samples import StopRule, median
from profiler.tables.numbers import milliseconds
from profiler.worker.clock import GATE_SLACK_MS, Clock, Samples

Now = Callable[[], float]

_SHORT_MS = 0.05
"""Shorter calls are timed in blocks of this duration, since recording events would lengthen their intervals."""
_WARM_UP_CALLS, _WARM_UP_SECONDS = 10, 0.2
_WARM_UP_AGREEMENT = 0.02
_CHUNK_SECONDS = 0.1
_FEWEST = 3
"""Fewest samples of the other clocks."""
_THROUGHPUT_SECONDS = 0.25
_LOOP_SHARE = 0.9
"""Timed calls replace the loop if they last this share of its seconds; gaps between them take the rest."""
ENERGY_SECONDS = 5.0
"""The counter moves ten to fifty times a second, so a loop this long is accurate to about 1 %."""
_SHARES = {"headline": 0.5, "synchronized": 0.2, "gated": 0.3}
"""Shares of a CUDA case's sampling seconds; a CPU's only clock has all of them."""


@dataclass
class Measurement:
    """Samples, calls per second, and the processors' load during the headline clock and during the others."""

    samples: Samples = field(default_factory=dict)
    throughput: float | None = None
    stop_reason: str | None = None
    warnings: list[Warning] = field(default_factory=list)
    loads: list[processor.Load] = field(default_factory=list)


def first_run(session: Session, clock: Clock) -> float:
    """Return the seconds of the very first call, which loads lazily, searches algorithms and captures."""
    start = perf_counter()
    session.run(clock.mark)
    clock.synchronize()
    return perf_counter() - start


def warm_up(session: Session, clock: Clock, budget: Budget, now: Now = perf_counter) -> tuple[float, bool]:
    """Run until two consecutive windows agree within 2 %; return milliseconds per call, and whether the case is steady.

    Takes at least 10 calls and 200 ms, unless calls are slow, and at most half the budget's seconds. The case is not
    steady if the last two windows of a warm-up with enough calls disagree.
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
    """Sample every clock of the device, or only the headline's.

    `expected_ms` is the warm-up's time of a call, and `report` gets partial samples. Reads the processors before and
    after, but never while timing.
    """
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
    """Samples a session clock by clock into `result`, short calls in blocks of `block`."""

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
        """Derive the throughput from the timed calls if they lasted long enough, else from a loop."""
        samples = self.result.samples["host"]
        elapsed, call_ms = sum(samples) * self.block / 1000, median(samples) or self.expected_ms
        if elapsed >= _LOOP_SHARE * self.loop_seconds:
            self.result.throughput = len(samples) * self.block / elapsed
        else:
            self.result.throughput = self.clock.throughput(self.session.run, self.loop_seconds, call_ms)
        self.result.warnings += inconsistent(call_ms, 1000 / self.result.throughput)

    def gated(self) -> None:
        enqueue_ms = median(self.result.samples["enqueue"]) or 1.0
        event_ms = median(self.result.samples[self.clock.headline]) or 1.0
        # The gate stays closed for about twice the enqueue time, then the call runs.
        sample_ms = self.block * (2 * enqueue_ms + event_ms) + GATE_SLACK_MS
        rule = StopRule(_FEWEST, self.budget.max_samples, self.budget.seconds * _SHARES["gated"])
        take = partial(self.clock.time_gated, self.session.run, enqueue_ms, block=self.block)
        if self._take("gpu", rule, sample_ms, take) is None:
            for name in [name for name in self.result.samples if name.startswith("gpu")]:
                del self.result.samples[name]
            self.result.warnings.append(Warning("gate-overrun", "the launches of one call outlast any gate"))

    def throughput(self) -> None:
        """Run the back-to-back loop, and warn if clocks contradict each other or the host is the limit."""
        call_ms = median(self.result.samples[self.clock.headline]) or self.expected_ms
        loop = partial(self.clock.throughput, seconds=self.loop_seconds, call_ms=call_ms)
        self.result.throughput = loop(self.session.run)
        if call_ms > CONTRADICTION * 1000 / self.result.throughput:  # The model may remember the loop's inputs.
            self.result.throughput = loop(self._run_renewed)
        self.result.warnings += host_bound(self.result.samples)
        self.result.warnings += inconsistent(call_ms, 1000 / self.result.throughput)

    def _run_renewed(self, mark: Mark) -> None:
        self.clock.renew(1)
        self.session.run(mark)

    def _take(self, watched: str, rule: StopRule, call_ms: float, take: Callable[[int], Samples | None]) -> str | None:
        """Take chunks of about 0.1 s until the rule stops; return its reason, or None if a chunk fails."""
        into, chunk, start = self.result.samples, int(_CHUNK_SECONDS * 1000 / max(call_ms, 1e-3)), self.now()
        while True:
            samples = take(max(1, min(chunk, rule.max_samples - len(into.get(watched, [])))))
            if samples is None:
                return None
            for name, values in samples.items():
                into.setdefault(name, []).extend(values)
            reason = rule.reason(into[watched], self.now() - start)
            if reason is not None:
                return reason
            self.report(into)


def energy_per_call(
    session: Session, clock: Clock, energy_mj: Callable[[], float], call_ms: float, now: Now = perf_counter
) -> float:
    """Measure a call's millijoules, the whole device's, in a back-to-back loop of at least 5 s."""
    # Look at the time every half second of calls: the device idles only during a synchronize.
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
    """Warn if the host sets the latency, or if the device causes gaps between launches."""
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
    """Warn if latency and throughput differ by over 10 %, as after bursts of other work.

    The throughput comes from the back-to-back loop, on the CPU from the mean of the samples.
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
