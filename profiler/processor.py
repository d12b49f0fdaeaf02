"""Read how busy this machine's processors are, and how much of that is our own work; Linux only, blank elsewhere.

Two readings tell what others took in between: `read().since(before)`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""The unit of /proc: 10 ms on every usual kernel. Nothing shorter is known of a processor."""


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
    """Seconds idle and stolen of each that any thread of this process may run on."""
    own: float
    """Processor time of this process and its `_family`, whether they live or have ended."""
    waited: Mapping[int, float]
    """Seconds that each thread of this process waited for a processor."""

    def since(self, before: Reading) -> Load:
        seconds = max(self.seconds - before.seconds, 1e-9)
        both = [(before.processors[n], self.processors[n]) for n in before.processors if n in self.processors]
        others = steal = stolen = delayed = None
        if both:
            capacity = seconds * len(both)
            idle, stolen = (sum(now[part] - then[part] for then, now in both) for part in (0, 1))
            stolen = max(stolen, 0.0)
            # What is neither idle nor stolen is busy: the kernel measures idle time, and only samples kinds of work.
            busy = max(capacity - stolen - idle, 0.0)
            others = min(max(busy - (self.own - before.own), 0.0) / capacity, 1.0)
            steal = stolen / max(busy + stolen, TICK_S)
        if self.waited and before.waited:
            # A thread that ended is not known; of one whose number is used again all of the time counts.
            pairs = [(now, before.waited.get(thread, 0.0)) for thread, now in self.waited.items()]
            delayed = sum(now - then if now >= then else now for now, then in pairs) / seconds
        return Load(seconds, len(both), others, steal, stolen, delayed)


def read(proc: Path = PROC) -> Reading:
    """Read what the kernel has counted. Takes about a millisecond, so never call it while something is timed."""
    seconds, processors = time.monotonic(), _processors(proc)
    own = _own_seconds() + sum(_cpu_seconds(proc / str(pid)) for pid in _family(proc))
    return Reading(seconds, processors, own, _waited(proc))


def _processors(proc: Path) -> dict[int, tuple[float, float]]:
    allowed, found = _allowed(proc), {}
    for line in _text(proc / "stat").splitlines():
        name, *ticks = line.split()
        number = name.removeprefix("cpu")
        # A sandbox (gVisor) has lines of zeros, which say nothing.
        if name.startswith("cpu") and number.isdigit() and int(number) in allowed and any(map(int, ticks)):
            idle, iowait, stolen = (int([*ticks, *["0"] * 4][place]) * TICK_S for place in (3, 4, 7))
            found[int(number)] = (idle + iowait, stolen)
    return found


def _allowed(proc: Path) -> set[int]:
    """Return the processors that any thread may run on: a runtime may have bound its threads to one each."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    allowed = set(os.sched_getaffinity(0))
    for thread in _numbered(proc / "self" / "task"):
        with contextlib.suppress(OSError):  # It has just ended.
            allowed |= os.sched_getaffinity(thread)
    return allowed


def _own_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _family(proc: Path) -> set[int]:
    """Return the other processes of this run that live: this one's descendants, and its forkserver's besides.

    Not the parent, which is the user's own program where a measurement was called from Python.
    """
    found, parent = {*_descendants(proc, "self")}, multiprocessing.parent_process()
    if parent and parent.pid != os.getppid():  # It was forked by a forkserver.
        found |= {os.getppid(), *_descendants(proc, os.getppid())}
    return found - {os.getpid()}


def _descendants(proc: Path, pid: int | str) -> list[int]:
    found = []
    for thread in _numbered(proc / str(pid) / "task"):
        for child in _text(proc / str(pid) / "task" / str(thread) / "children").split():
            found += [int(child), *_descendants(proc, child)]
    return found


def _cpu_seconds(process: Path) -> float:
    return sum(map(int, _text(process / "stat").rpartition(")")[2].split()[11:15])) * TICK_S


def _waited(proc: Path) -> dict[int, float]:
    """Return seconds by thread; empty where the kernel does not count it, and has zeros."""
    tasks = proc / "self" / "task"
    counted = {thread: _text(tasks / str(thread) / "schedstat").split() for thread in _numbered(tasks)}
    if not any(fields and fields[0] != "0" for fields in counted.values()):
        return {}
    return {thread: int(fields[1]) / 1e9 for thread, fields in counted.items() if fields}


def _numbered(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit())
    return []


def _text(path: Path) -> str:
    """Read a file; empty where there is none, or the process that it is about has just ended."""
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
