"""Tell our own work from others' between two readings, and see a busy process in the real ones."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
import types

import psutil
import pytest
from other_work import SPIN

from profiler.machine import processor
from profiler.machine.processor import Load, Reading, read


def test_others_had_what_was_neither_idle_nor_stolen_nor_our_own():
    """In 2 s two processors were idle for 1.5 s, 0.25 s were stolen; we used 1.25 s."""
    load = Reading(12.0, 2, 4.5, 1.25, 4.25, 0.75).since(Reading(10.0, 2, 3.0, 1.0, 3.0, 0.25))
    assert (load.seconds, load.processors) == (2.0, 2)
    assert load.others == pytest.approx((4 - 1.5 - 0.25 - 1.25) / 4)
    assert (load.steal, load.stolen_s) == (pytest.approx(0.25 / 2.5), pytest.approx(0.25))
    assert load.delayed == pytest.approx(0.25)


def test_a_kernel_that_counts_nothing_says_nothing(monkeypatch):
    """gVisor's processors are lines of zeros."""
    zeros = psutil.cpu_times()._replace(**dict.fromkeys(psutil.cpu_times()._fields, 0.0))
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [zeros] * 64)
    load = read().since(read())
    assert load == Load(load.seconds)


@pytest.mark.slow
def test_what_the_forkserver_has_started_is_our_own_and_the_parent_is_not(monkeypatch):
    this, sibling = os.getpid(), subprocess.Popen(["sleep", "600"])
    try:
        own = {process.pid for process in processor._family()}
        assert {this, sibling.pid} <= own and os.getppid() not in own
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: types.SimpleNamespace(pid=1))
        assert {os.getppid(), this, sibling.pid} <= {process.pid for process in processor._family()}
    finally:
        sibling.kill()
        sibling.wait()


@pytest.mark.slow
def test_a_child_that_works_is_our_own_and_one_that_ended_too():
    """A child's processor time, while it lives and once it has been waited for, counts as this process tree's."""
    before = read()
    child = subprocess.Popen(SPIN)
    while read().ours - before.ours < 0.3:
        time.sleep(0.05)
    child.kill()
    child.wait()
    assert read().ours - before.ours > 0.2  # The kernel may round an ended child's time down by a few ticks.


def test_what_other_processes_take_is_seen(busy_processors):
    def spun() -> float:
        return sum(processor._cpu_seconds(psutil.Process(pid)) for pid in busy_processors)

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
