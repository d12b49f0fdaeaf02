"""When a row is disturbed: recorded loads on both sides of each threshold."""

from __future__ import annotations

import pytest

from engines.base import Warning
from profiler.machine.nvml import Nvml
from profiler.machine.processor import Load
from profiler.worker.disturbance import Card, counts, disturbances, share, warnings_of

QUIET = Load(2.0, 2, others=0.02, steal=0.0, stolen_s=0.0, delayed=0.01)


def load(seconds: float = 2.0, processors: int = 2, **more: float) -> Load:
    given = {"others": 0.0, "steal": 0.0, "stolen_s": 0.0, "delayed": 0.0, **more}
    return Load(seconds, processors, **given)


TOOK, WAITED = (
    "other processes took {} % of the processors' time",
    "threads waited {} % of the time for other processes",
)
STOLE = "the hypervisor took 3 % of the processors' time"


@pytest.mark.parametrize(
    ("given", "texts", "most"),
    [
        (QUIET, [], 0.02),
        (Load(2.0), [], None),
        (load(others=0.48), [TOOK.format(48)], 0.48),
        (load(others=0.3, processors=1), [TOOK.format(30)], 0.3),
        (load(steal=0.03, stolen_s=0.12), [STOLE], 0.03),
        (load(others=0.1, steal=0.03, stolen_s=0.1), [TOOK.format(10), STOLE], 0.1),
        # One busy process among 64 processors is no matter, unless it is in the way of one of our threads.
        (load(others=1 / 64, processors=64, delayed=0.5), [WAITED.format(50)], 0.5),
        # Waiting counts only as far as others ran.
        (load(others=0.51, delayed=0.97), [TOOK.format(51), WAITED.format(97)], 0.97),
        (load(others=0.51, delayed=0.4), [TOOK.format(51), WAITED.format(40)], 0.51),
        (load(others=0.1, delayed=0.9), [TOOK.format(10), WAITED.format(20)], 0.2),
        (load(others=0.0, delayed=0.5), [], 0.0),  # Our own threads waited for each other.
        (load(seconds=0.05, others=0.4, delayed=0.4), [], 0.0),  # 40 ms of two processors: a few ticks.
        (load(seconds=0.05, steal=0.3, stolen_s=0.03), [], 0.0),
        (load(steal=0.009, stolen_s=0.1), [], 0.009),
    ],
)
def test_what_disturbs_and_by_how_much(given, texts, most):
    assert disturbances(given) == texts
    assert share([given]) == (most if most is None else pytest.approx(most))
    assert warnings_of([given]) == [Warning("disturbed", " and ".join(texts))] * bool(texts)


def test_it_is_said_of_the_headline_clock_first():
    busy, quiet = load(others=0.48), load()
    assert warnings_of([busy, busy]) == [Warning("disturbed", TOOK.format(48))]
    assert warnings_of([quiet, busy]) == warnings_of([busy, busy])
    assert share([quiet, busy]) == share([busy, quiet]) == 0.48


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
def test_whose_latency_a_busy_processor_makes_doubtful(device, clocks, kinds, does):
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
        ([set(), {8}, {8, 9}], {8: 0.9}, [0.0], []),
        # A container that sees no process, or no process's share: what the GPU did before us counts.
        ([set()], {}, [0.6], ["other processes took 60 % of the GPU's time"]),
        ([{7}, {7, 8}, {7, 8}], None, [0.6], ["other processes took 60 % of the GPU's time"]),
        ([set()], {}, [0.9, 0.4, 0.02], []),  # The case before.
        # No GPU, no driver.
        ([None], None, [None], []),
    ],
)
def test_who_else_had_the_gpu(pids, used, busy, says):
    slept: list[float] = []
    card = Card(Recorded(pids, used, busy), slept.append)
    card.opened()
    assert [warning.text for warning in warnings_of([], card.share(0.0))] == says
    assert sum(slept) < 1.3


def test_without_a_gpu_nothing_is_seen_of_one():
    card = Card(Nvml(None))
    card.opened()
    assert card.share(0.0) == 0.0
    assert share([], 0.0) is None
