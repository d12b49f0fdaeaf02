"""Read how busy this machine's processors are, and how much of that is our own work.

Two readings tell what others took in between: `read().since(before)`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""The kernel's unit of processor time: 10 ms usually."""


@dataclass(frozen=True)
class Load:
    """Hold what happened between two readings on the processors that this process may run on; None is not known."""

    seconds: float
    processors: int = 0
    others: float | None = None
    """Share of their time that other processes had, interrupts included; those of our process tree are not others."""
    steal: float | None = None
    """Share of the time in which they had something to run that the hypervisor gave to other machines."""
    stolen_s: float | None = None
    """Seconds that the hypervisor took, all processors together."""
    delayed: float | None = None
    """Seconds per second that our own threads could have run and waited for a processor, all threads together."""


@dataclass(frozen=True)
class Reading:
    """Hold what the kernel had counted at one moment, in seconds; empty where it does not say."""

    seconds: float
    """On the machine's monotonic clock."""
    processors: Mapping[int, tuple[float, float]]
    """Seconds idle and stolen of each that this process may run on."""
    own: float
    """Processor time of this process and its `_family`, whether they live or have ended."""
    waited: Mapping[int, float]
    """Seconds that each thread of this process waited for a processor."""

    def since(self, before: Reading) -> Load:
        seconds = max(self.seconds - before.seconds, 1e-9)
        # A thread's number may be used again, which counts as no waiting.
        waits = [max(now - before.waited.get(thread, 0.0), 0.0) for thread, now in self.waited.items()]
        delayed = sum(waits) / seconds if waits else None
        both = [(before.processors[n], self.processors[n]) for n in before.processors if n in self.processors]
        if not both:
            return Load(seconds, delayed=delayed)
        capacity = seconds * len(both)
        idle, stolen = (max(sum(now[part] - then[part] for then, now in both), 0.0) for part in (0, 1))
        # What is neither idle nor stolen is busy: the kernel measures idle time, and only samples kinds of work.
        busy = max(capacity - stolen - idle, 0.0)
        others = min(max(busy - (self.own - before.own), 0.0) / capacity, 1.0)
        return Load(seconds, len(both), others, stolen / max(busy + stolen, TICK_S), stolen, delayed)


def read() -> Reading:
    """Read what the kernel has counted. Takes milliseconds, so never call it while something is timed."""
    seconds, allowed = time.monotonic(), os.sched_getaffinity(0)
    times = {n: each for n, each in enumerate(psutil.cpu_times(percpu=True)) if n in allowed}
    # A sandbox (gVisor) has lines of zeros, which say nothing.
    processors = {n: (each.idle + each.iowait, each.steal) for n, each in times.items() if any(each)}
    return Reading(seconds, processors, sum(map(_cpu_seconds, _family())), _waited())


def _family() -> list[psutil.Process]:
    """Return the processes of this run that live: this one's and its forkserver's tree.

    Not the parent, which is the user's own program where a measurement was called from Python.
    """
    root, parent = psutil.Process(), multiprocessing.parent_process()
    if parent and parent.pid != os.getppid():  # It was forked by a forkserver.
        root = root.parent() or root
    return [root, *root.children(recursive=True)]


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the seconds of a process and of its children that have ended; 0 once it is gone itself."""
    with contextlib.suppress(psutil.Error):
        return float(sum(process.cpu_times()[:4]))
    return 0.0


def _waited() -> dict[int, float]:
    """Return by thread the seconds that it waited; empty where the kernel does not count it."""
    found = {}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # It has just ended.
            found[int(path.parent.name)] = int(path.read_text().split()[1]) / 1e9
    return found
