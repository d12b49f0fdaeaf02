"""Read how busy this machine's processors are, and how much of that is our own work; Linux only, blank elsewhere.

Two readings tell what others took in between: `read().since(before)`. It serves the process that measures, whose own
work is what it measures, and the parent, which waits and asks whether the machine is quiet.
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
"""What /proc counts in: 10 ms on every usual kernel. Nothing shorter is known of a processor."""


@dataclass(frozen=True)
class Load:
    """What happened between two readings on the processors that this process may run on; None is what is not known."""

    seconds: float
    processors: int = 0
    """How many those are."""
    others: float | None = None
    """Share of their time that other processes had, interrupts included; those of our process tree are not others."""
    steal: float | None = None
    """Share of the time in which they had something to run that the hypervisor gave to other machines."""
    stolen_s: float | None = None
    """How many seconds those are, all processors together."""
    delayed: float | None = None
    """Seconds per second that our own threads could have run and waited for a processor, all threads together."""


@dataclass(frozen=True)
class _Processor:
    """Seconds since the machine started, of one processor."""

    idle: float
    stolen: float


@dataclass(frozen=True)
class Reading:
    """What the kernel had counted at one moment, in seconds; empty or None where it does not say."""

    seconds: float
    """On the machine's monotonic clock."""
    processors: Mapping[int, _Processor]
    """By number, those that any thread of this process may run on."""
    own: float
    """Processor time of this process and its `_family`, whether they live or have ended."""
    waited: Mapping[int, float]
    """By thread of this process how long it waited for a processor."""

    def since(self, before: Reading) -> Load:
        seconds = max(self.seconds - before.seconds, 1e-9)
        both = [(before.processors[n], self.processors[n]) for n in before.processors if n in self.processors]
        others = steal = stolen = None
        if both:
            capacity = seconds * len(both)
            stolen = max(sum(now.stolen - then.stolen for then, now in both), 0.0)
            # What is neither idle nor stolen is busy: the kernel measures idle time, and only samples kinds of work.
            busy = max(capacity - stolen - sum(now.idle - then.idle for then, now in both), 0.0)
            others = min(max(busy - (self.own - before.own), 0.0) / capacity, 1.0)
            steal = stolen / max(busy + stolen, TICK_S)
        return Load(
            seconds,
            len(both),
            others,
            steal,
            stolen,
            self._waited_since(before) / seconds if self.waited and before.waited else None,
        )

    def _waited_since(self, before: Reading) -> float:
        """What a thread waited that ended in between is not known; of one whose number is used again, all of it is."""
        waits = ((now, before.waited.get(thread, 0.0)) for thread, now in self.waited.items())
        return sum(now - then if now >= then else now for now, then in waits)


def read(proc: Path = PROC) -> Reading:
    """What the kernel has counted until now. Takes about a millisecond, so never call it while something is timed."""
    seconds = time.monotonic()
    processors = _processors(proc)
    own = _own_seconds() + sum(_cpu_seconds(proc / str(pid)) for pid in _family(proc))
    return Reading(seconds, processors, own, _waited(proc))


def _processors(proc: Path) -> dict[int, _Processor]:
    allowed = _allowed(proc)
    found = {}
    for line in _text(proc / "stat").splitlines():
        name, *ticks = line.split()
        number = name.removeprefix("cpu")
        # A sandbox (gVisor) has lines of zeros, which say nothing.
        if name.startswith("cpu") and number.isdigit() and int(number) in allowed and any(map(int, ticks)):
            _, _, _, idle, iowait, _, _, stolen, *_ = (int(tick) * TICK_S for tick in [*ticks, *["0"] * 4])
            found[int(number)] = _Processor(idle + iowait, stolen)
    return found


def _allowed(proc: Path) -> set[int]:
    """The processors that any thread may run on: a runtime may have bound its threads, and this one, to one each."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    allowed = set(os.sched_getaffinity(0))
    for thread in _numbered(proc / "self" / "task"):
        with contextlib.suppress(OSError):  # It has just ended.
            allowed |= os.sched_getaffinity(thread)
    return allowed


def _own_seconds() -> float:
    """Processor seconds of this process and its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _family(proc: Path) -> set[int]:
    """The other processes of this run that live: this one's descendants, and what its forkserver has started besides.

    Not the parent, which is the user's own program where a measurement was called from Python.
    """
    found, parent = {*_descendants(proc, "self")}, multiprocessing.parent_process()
    if parent and parent.pid != os.getppid():  # It was forked by a forkserver.
        found |= {os.getppid(), *_descendants(proc, os.getppid())}
    return found - {os.getpid()}


def _descendants(proc: Path, pid: int | str) -> list[int]:
    """The processes that were started by this one or by its children, and live."""
    found = []
    for thread in _numbered(proc / str(pid) / "task"):
        for child in _text(proc / str(pid) / "task" / str(thread) / "children").split():
            found += [int(child), *_descendants(proc, child)]
    return found


def _cpu_seconds(process: Path) -> float:
    fields = _text(process / "stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * TICK_S


def _waited(proc: Path) -> dict[int, float]:
    """By thread; empty where the kernel does not count it, and has zeros."""
    tasks = proc / "self" / "task"
    counted = {thread: _text(tasks / str(thread) / "schedstat").split() for thread in _numbered(tasks)}
    if not any(fields and fields[0] != "0" for fields in counted.values()):
        return {}
    return {thread: int(fields[1]) / 1e9 for thread, fields in counted.items() if fields}


def _numbered(folder: Path) -> list[int]:
    try:
        return sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit())
    except OSError:
        return []


def _text(path: Path) -> str:
    """A file's text; empty where there is none, or the process that it is about has just ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
