"""When a row is disturbed: recorded loads on both sides of each threshold."""

from __future__ import annotations

import pytest

from engines.base import Warning
from profiler.nvml import Nvml
from profiler.processor import Load
from profiler.worker.disturbance import Card, CardLoad, counts, disturbed, reasons, share

QUIET = Load(2.0, 2, others=0.02, steal=0.0, stolen_s=0.0, delayed=0.01)


def load(seconds: float = 2.0, processors: int = 2, **more: float) -> Load:
    given = {"others": 0.0, "steal": 0.0, "stolen_s": 0.0, "delayed": 0.0, **more}
    return Load(seconds, processors, **given)


def test_a_quiet_machine_carries_no_mark() -> None:
    assert disturbed([QUIET, QUIET]) == []
    assert share([QUIET]) == 0.02


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert disturbed([Load(2.0)]) == []
    assert share([Load(2.0)]) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (load(others=0.48), "other processes took 48 % of 2 processors"),
        (load(others=0.05), "other processes took 5 % of 2 processors"),
        (load(others=0.3, processors=1), "other processes took 30 % of the one processor"),
        (load(steal=0.03, stolen_s=0.12), "the hypervisor took 3 % of the processors' time"),
        # One busy process among 64 processors is no matter, unless it is in the way of one of our threads.
        (load(others=1 / 64, processors=64, delayed=0.5), "threads waited 50 % of the time for other processes"),
    ],
)
def test_what_disturbs(given: Load, text: str) -> None:
    assert reasons(given) == [text]


def test_the_share_that_decides_between_takes_is_among_the_reasons() -> None:
    took, waited = "other processes took 51 % of 2 processors", "threads waited {} % of the time for other processes"
    assert reasons(load(others=0.51, delayed=0.97)) == [took, waited.format(97)]
    assert reasons(load(others=0.51, delayed=3.0)) == [took, waited.format(100)]
    assert reasons(load(others=0.51, delayed=0.4)) == [took]


@pytest.mark.parametrize(
    "given",
    [
        load(others=0.049),
        load(others=1 / 64, processors=64, delayed=0.04),
        load(others=0.0, delayed=0.5),  # Our own threads waited for each other.
        load(others=0.02, delayed=0.9),
        load(seconds=0.05, others=0.4),  # 40 ms of two processors: a few ticks.
        load(seconds=0.05, steal=0.3, stolen_s=0.03),
        load(steal=0.009, stolen_s=0.1),
    ],
)
def test_what_does_not(given: Load) -> None:
    assert reasons(given) == []


def test_the_share_is_the_largest_and_waiting_counts_only_as_far_as_others_ran() -> None:
    assert share([load(others=0.1, steal=0.2, stolen_s=0.1, delayed=0.05)]) == 0.2
    assert share([load(others=0.1, delayed=0.9)]) == 0.2
    assert share([load(others=0.0, delayed=0.9)]) == 0.0


def test_a_few_ticks_are_no_share_of_a_short_time() -> None:
    assert share([load(seconds=0.05, others=0.4, delayed=0.4, steal=0.2, stolen_s=0.02)]) == 0.0


def test_it_is_said_of_the_headline_clock_first() -> None:
    busy, quiet = load(others=0.48), load()
    assert disturbed([busy, busy]) == [Warning("disturbed", "other processes took 48 % of 2 processors")]
    text = "other processes took 48 % of 2 processors while the other clocks were sampled"
    assert disturbed([quiet, busy]) == [Warning("disturbed", text)]
    assert share([quiet, busy]) == share([busy, quiet]) == 0.48
    both = load(others=0.1, steal=0.03, stolen_s=0.1)
    text = "other processes took 10 % of 2 processors and the hypervisor took 3 % of the processors' time"
    assert disturbed([both]) == [Warning("disturbed", text)]


@pytest.mark.parametrize(
    ("device", "clocks", "kinds", "does"),
    [
        ("cpu", ["host"], [], True),
        ("cuda", ["event", "enqueue", "gpu"], ["outliers"], False),
        ("cuda", ["event", "enqueue", "gpu"], ["outliers", "host-bound"], True),
        ("cuda", ["event", "enqueue", "gpu"], ["queue-bound"], True),
        ("cuda", ["event", "enqueue"], ["gate-overrun"], True),
        ("cuda", ["event"], [], True),  # A try's for the largest batch.
    ],
)
def test_whose_latency_a_busy_processor_makes_doubtful(
    device: str, clocks: list[str], kinds: list[str], does: bool
) -> None:
    assert counts(device, clocks, kinds) == does


class Recorded(Nvml):
    """NVML's answers in the order in which they are asked for, the last one again and again."""

    def __init__(self, pids: list[set[int] | None], used: dict[int, float] | None, busy: list[float | None]) -> None:
        self._pids, self._used, self._recorded = pids, used, busy

    def pids(self) -> frozenset[int] | None:
        found = self._pids.pop(0) if len(self._pids) > 1 else self._pids[0]
        return None if found is None else frozenset(found)

    def used_by(self, since: float) -> dict[int, float] | None:
        return self._used

    def utilization(self) -> float | None:
        return self._recorded.pop(0) if len(self._recorded) > 1 else self._recorded[0]


@pytest.mark.parametrize(
    ("pids", "used", "busy", "says"),
    [
        # There before us, and idle; busy; one that came while we measured; all by the numbers that NVML has.
        ([{7}, {7, 8}, {7, 8}], {8: 0.98}, [0.0], []),
        ([{7}, {7, 8}, {7, 8}], {7: 0.5, 8: 0.5}, [0.5], ["other processes took 50 % of the GPU's time"]),
        ([{7}, {7, 8}, {7, 8}], {7: 0.04, 8: 0.9}, [0.5], []),
        ([set(), {8}, {8, 9}], {8: 0.5, 9: 0.5}, [0.0], ["other processes took 50 % of the GPU's time"]),
        ([set(), {8}, {8, 9}], {8: 0.9}, [0.0], ["another process began to compute on the GPU"]),
        ([set(), {8}, {8}], {8: 1.0}, [0.0], []),
        # A container that sees no process, or no process's share: what the GPU did before us counts.
        ([set()], {}, [0.6], ["others had 60 % of the GPU's time before the case"]),
        ([{7}, {7, 8}, {7, 8}], None, [0.6], ["others had 60 % of the GPU's time before the case"]),
        ([set()], {}, [0.9, 0.4, 0.02], []),  # The case before.
        # No GPU, no driver.
        ([None], None, [None], []),
    ],
)
def test_who_else_had_the_gpu(pids, used, busy, says) -> None:
    slept: list[float] = []
    card = Card(Recorded(pids, used, busy), slept.append)
    card.opened()
    found = card.load(0.0)
    assert found.reasons() == says
    assert [warning.text for warning in disturbed([], found)] == says
    assert sum(slept) < 1.3


def test_without_a_gpu_nothing_is_seen_of_one() -> None:
    card = Card(Nvml(None))
    card.opened()
    assert card.load(0.0) == CardLoad()
    assert share([], card.load(0.0)) is None
