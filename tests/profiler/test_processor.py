"""Tell our own work from others' in a recorded /proc, and see a busy process in the real one."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
import types
from pathlib import Path

import pytest
from other_work import SPIN

from profiler import processor
from profiler.processor import PROC, TICK_S, Load, Reading, read

linux = pytest.mark.skipif(not (PROC / "stat").exists(), reason="/proc is Linux's")


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0, 2}, raising=False)


def record(folder: Path, idle: list[int], steal: list[int], waited: dict[int, int]) -> Path:
    """A /proc of as many processors as `idle` has numbers, in ticks; `waited` in nanoseconds by thread."""
    lines = [
        f"cpu{n} 5 5 5 {each} 0 0 0 {stolen} 0 0" for n, (each, stolen) in enumerate(zip(idle, steal, strict=True))
    ]
    (folder / "stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 7 0 1", "ctxt 9", ""]))
    for thread, nanoseconds in waited.items():
        (folder / "self" / "task" / str(thread)).mkdir(parents=True, exist_ok=True)
        (folder / "self" / "task" / str(thread) / "schedstat").write_text(f"12345 {nanoseconds} 7\n")
    return folder


def moved(reading: Reading, seconds: float, own: float) -> Reading:
    """A reading as if it had been made then, when our processes had used so much."""
    return Reading(seconds, reading.processors, own, reading.waited)


@pytest.mark.usefixtures("two_processors")
def test_others_had_what_was_neither_idle_nor_stolen_nor_our_own(tmp_path: Path) -> None:
    """In 2 s: processor 0 was idle for 0.5 s, 2 for 1 s, of which 0.25 s were stolen; we used 1.25 s; 1 is not ours."""
    ticks = round(1 / TICK_S)
    before = read(record(tmp_path, [0, 0, 0], [0, 0, 0], {7: 0, 8: 10}))
    idle, steal = [ticks // 2, 0, ticks], [0, 0, ticks // 4]
    after = read(record(tmp_path, idle, steal, {7: 400_000_000, 8: 100_000_010}))
    load = moved(after, 12.0, 4.25).since(moved(before, 10.0, 3.0))
    assert (load.seconds, load.processors) == (2.0, 2)
    assert load.others == pytest.approx((4 - 0.5 - 1 - 0.25 - 1.25) / 4)
    assert (load.steal, load.stolen_s) == (pytest.approx(0.25 / 2.5), pytest.approx(0.25))
    assert load.delayed == pytest.approx(0.25)


@pytest.mark.usefixtures("two_processors")
def test_a_thread_that_ended_or_began_in_between_takes_nothing_away(tmp_path: Path) -> None:
    before = Reading(0.0, {}, 0.0, {1: 1.0, 2: 5.0, 3: 2.0})
    after = Reading(2.0, {}, 0.0, {1: 1.5, 3: 0.25, 4: 0.25})  # 2 ended; 3 is another thread's number now.
    load = after.since(before)
    assert load.delayed == pytest.approx((0.5 + 0.25 + 0.25) / 2)
    assert (load.others, load.steal) == (None, None)


@pytest.mark.usefixtures("two_processors")
def test_a_kernel_that_counts_nothing_says_nothing(tmp_path: Path) -> None:
    """gVisor's processors are lines of zeros; without SCHED_INFO a thread's are zeros."""
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0 0 0\n")
    (tmp_path / "self" / "task" / "7").mkdir(parents=True)
    (tmp_path / "self" / "task" / "7" / "schedstat").write_text("0 0 0\n")
    load = read(tmp_path).since(read(tmp_path))
    assert (load.processors, load.others, load.steal, load.delayed) == (0, None, None, None)


def test_without_proc_and_affinity_there_are_readings_without_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    load = read(tmp_path / "none").since(read(tmp_path / "none"))
    assert load == Load(load.seconds)


def test_what_the_forkserver_has_started_is_our_own_and_the_parent_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70 is the parent; its forkserver, 71, has started this process and 72, which reads the GPU's sensors."""
    this = os.getpid()
    tree = {70: (0.25, [71]), 71: (0.5, [72, this]), 72: (1.0, []), 73: (50.0, []), this: (100.0, [])}
    for pid, (seconds, children) in tree.items():
        process, ticks = tmp_path / str(pid), round(seconds / TICK_S)
        (process / "task" / str(pid)).mkdir(parents=True)
        (process / "task" / str(pid) / "children").write_text(" ".join(map(str, children)))
        (process / "stat").write_text(f"{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1\n")
    monkeypatch.setattr(processor, "_own_seconds", lambda: 2.0)
    monkeypatch.setattr(os, "getppid", lambda: 71)
    assert read(tmp_path).own == 2.0, "nobody forked it"
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: types.SimpleNamespace(pid=70))
    assert read(tmp_path).own == pytest.approx(2.0 + 0.5 + 1.0)
    monkeypatch.setattr(os, "getppid", lambda: 70)
    assert read(tmp_path).own == 2.0, "the parent itself forked it, without a forkserver"


@linux
@pytest.mark.slow
def test_a_child_that_works_is_our_own_and_one_that_ended_too() -> None:
    """A child's processor time, while it lives and once it has been waited for, counts as this process tree's."""
    before = read()
    child = subprocess.Popen(SPIN)
    while read().own - before.own < 0.3:
        time.sleep(0.05)
    assert child.pid in processor._descendants(PROC, "self")
    child.kill()
    child.wait()
    assert child.pid not in processor._descendants(PROC, "self")
    assert read().own - before.own >= 0.3


@linux
def test_what_other_processes_take_is_seen(busy_processors: list[int]) -> None:
    def spun() -> float:
        return sum(processor._cpu_seconds(PROC / str(pid)) for pid in busy_processors)

    def counted(load: processor.Load) -> float:
        # A kernel that does not know when its machine is paused has stolen time in the processes' clocks.
        return load.others * load.processors * load.seconds + load.stolen_s

    # Where ticks come late, the processors' counts and the processes' clocks are 0.1 s and more apart. That much does
    # not grow with time, as what is forgotten or multiplied wrongly does: a hundredth is left of it in the end.
    before, spun_before, enough = read(), spun(), 0.5
    while enough <= 16:
        while (seconds := spun() - spun_before) < enough:  # However little they get of a machine that has more to do.
            time.sleep(0.05)
        load, enough = read().since(before), 2 * enough
        assert load.processors == len(busy_processors)
        if counted(load) > 0.9 * seconds:
            break
    assert counted(load) > 0.9 * seconds
