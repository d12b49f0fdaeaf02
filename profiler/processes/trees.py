"""Find and end what a process has started, in sessions of their own too. On Linux: elsewhere nothing is found."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
STARTED_FOR = "PROFILER_STARTED_FOR"
"""What a forkserver, and all that comes of it, has in its environment: the process that it was started for."""
_ROUNDS = 100
_GONE_SECONDS = 5.0
"""How long what was killed may take to go: the driver takes a while to free what a process had on a GPU."""


def adopt_orphans(adopt: bool = True) -> None:
    """Have this process become the parent of every process below it whose own parent ends, in place of the machine's
    first (man 2 PR_SET_CHILD_SUBREAPER)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopt))


def adopts_orphans() -> bool:
    """Whether it does."""
    answer = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


def end_with_parent(end: bool = True) -> None:
    """Have the kernel kill this process as soon as the thread ends that has started it, or no longer."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL if end else 0))


def take_all_along() -> None:
    """Have this process, as it exits, end all that is below it; not what it forks and what leaves by os._exit."""
    adopt_orphans()
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid", UserWarning)  # Such an orphan.
    own = os.getpid()
    atexit.register(lambda: end_below(own) if os.getpid() == own else None)


def waited_for(
    happened: Callable[[], bool], seconds: float, step: float = 0.01, wait: Callable[[float], None] = time.sleep
) -> bool:
    """Whether it happens within so many seconds that this process waits, in steps.

    No clock is asked: it goes on while the machine is paused, or has no time for the process that is to do it.
    """
    for _ in range(round(seconds / step)):
        if happened():
            return True
        wait(step)
    return happened()


def end_below(root: int, spared: Collection[int] = (), meant: Callable[[int], bool] = lambda pid: True) -> None:
    """End every process below `root`, but for its children that are `spared` or not `meant`, and what is below those.

    They are stopped first, so that none starts others meanwhile.
    """
    if _has_only(root, spared):
        return
    ended: set[int] = set()
    looks_without = 0
    for _ in range(_ROUNDS):
        new = _below(root, spared, meant) - ended
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        ended |= new
        looks_without = 0 if new else looks_without + 1
        if looks_without == 2:  # One look may miss what gets another parent meanwhile, as its own one ends.
            break
    for pid in ended:
        _signal(pid, signal.SIGKILL)
    waited_for(lambda: not ended & _processes().keys(), _GONE_SECONDS)
    if root == os.getpid():
        for pid in ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _has_only(root: int, spared: Collection[int]) -> bool:
    """Whether all of its children are `spared`, as a kernel with CONFIG_PROC_CHILDREN says at one look."""
    lists = list(Path(f"/proc/{root}/task").glob("*/children"))
    with contextlib.suppress(OSError):
        return bool(lists) and all(int(pid) in spared for file in lists for pid in file.read_text().split())
    return False


def _below(root: int, spared: Collection[int], meant: Callable[[int], bool]) -> set[int]:
    by_parent: dict[int, list[int]] = {}
    for pid, parent in _processes().items():
        by_parent.setdefault(parent, []).append(pid)
    waiting = [pid for pid in by_parent.get(root, ()) if pid not in spared and meant(pid)]
    found: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += by_parent.get(pid, ())
    return found


def _processes() -> dict[int, int]:
    """The parents of all that are alive: man 5 proc_pid_stat."""
    found = {}
    with contextlib.suppress(OSError):
        for folder in os.scandir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(folder.name)
                # The command's name, which comes before it in parentheses, may hold anything.
                state, parent, *_ = Path(folder, "stat").read_bytes().rpartition(b")")[2].split(maxsplit=2)
                if state not in b"ZXx":
                    found[pid] = int(parent)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
