"""Read the load of this machine's processors, and our share of it.

`read().since(before)` shows other work between two readings.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""The kernel's unit of processor time, usually 10 ms."""


@dataclass(frozen=True)
class Load:
    """Use of this process's allowed processors between two readings; None for an unknown figure."""

    seconds: float
    processors: int = 0
    others: float | None = None
    """Share of the processors' time used outside our process tree, including interrupts."""
    steal: float | None = None
    """Share of the processors' busy time that the hypervisor gave to other machines."""
    stolen_s: float | None = None
    """Seconds that the hypervisor took, all processors together."""
    delayed: float | None = None
    """Seconds per second that our threads were ready and waited for a processor, all threads together."""


@dataclass(frozen=True)
class Reading:
    """The kernel's counters of this process's allowed processors at one moment, in seconds."""

    seconds: float
    """On the machine's monotonic clock."""
    processors: int
    """Number of processors; 0 if the kernel does not count their time."""
    idle: float
    stolen: float
    ours: float
    """Processor time of this process and its `_family`, dead or alive."""
    waited: float
    """Time that this process's threads waited for a processor."""

    def since(self, before: Reading) -> Load:
        seconds = max(self.seconds - before.seconds, 1e-9)
        if not self.processors:
            return Load(seconds)
        capacity = seconds * self.processors
        idle, stolen = max(self.idle - before.idle, 0.0), max(self.stolen - before.stolen, 0.0)
        # Busy is neither idle nor stolen: the kernel measures idle time, but only samples the kinds of work.
        busy = max(capacity - stolen - idle, 0.0)
        others = min(max(busy - (self.ours - before.ours), 0.0) / capacity, 1.0)
        delayed = max(self.waited - before.waited, 0.0) / seconds
        return Load(seconds, self.processors, others, stolen / max(busy + stolen, TICK_S), stolen, delayed)


def read() -> Reading:
    """Read the kernel's counters. This takes milliseconds: never call it during a timing."""
    seconds, allowed = monotonic(), os.sched_getaffinity(0)
    # A sandbox (gVisor) has lines of zeros.
    times = [cpu for n, cpu in enumerate(psutil.cpu_times(percpu=True)) if n in allowed and any(cpu)]
    idle, stolen = sum(cpu.idle + cpu.iowait for cpu in times), sum(cpu.steal for cpu in times)
    return Reading(seconds, len(times), idle, stolen, sum(map(_cpu_seconds, _family())), _waited())


def _family() -> list[psutil.Process]:
    """Return this run's living processes: this one, its forkserver, and their descendants.

    The forkserver's parent does not count: it may be a user's program that called `profiler.measure`.
    """
    root, parent = psutil.Process(), multiprocessing.parent_process()
    if parent and parent.pid != os.getppid():  # A forkserver forked this process.
        root = root.parent() or root
    return [root, *root.children(recursive=True)]


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the seconds of a process and of its dead children; 0 once it is gone."""
    with contextlib.suppress(psutil.Error):
        return float(sum(process.cpu_times()[:4]))
    return 0.0


def _waited() -> float:
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # The thread has just ended.
            nanoseconds += int(path.read_text().split()[1])
    return nanoseconds / 1e9
