"""Send a process's output into a log that it can neither close nor let grow without end."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from pathlib import Path

MOST_BYTES = 16 * 2**20
"""What a log may have; a process's part of one that others have filled gets `_LEAST_BYTES`."""
_LEAST_BYTES = 2**20
_READS = 100


class BoundedLog:
    """A log of which the beginning and the end are kept, whatever a process writes into it.

    Its writers append, so that the end can be cut off meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._start = path, 0
        with contextlib.suppress(OSError):
            self._start = path.stat().st_size
        self._half = max(MOST_BYTES - self._start, _LEAST_BYTES) // 2
        self._tail = b""
        self._left_out = 0

    def trim(self, done: bool = False) -> None:
        """Cut it where it is too long; once nobody writes any more (`done`) its end is put back.

        What is written just while it is cut may be lost. No error is one for the case.
        """
        middle = self._start + self._half
        with contextlib.suppress(OSError):
            size = self._path.stat(follow_symlinks=False).st_size
            if size <= middle + self._half and not (done and self._left_out):
                return
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return
                file.seek(max(middle, size - self._half))
                tail = self._tail
                for _ in range(_READS):  # What comes meanwhile is read, too, so that hardly anything is cut unread.
                    if not (read := file.read(self._half)):
                        break
                    tail = (tail + read)[-self._half :]
                self._left_out += file.tell() - middle + len(self._tail) - len(tail)
                self._tail = tail
                file.truncate(middle)
                if done:
                    file.seek(middle)
                    file.write(f"\n[… {self._left_out / 2**20:.1f} MiB left out here …]\n".encode() + tail)


class _Unclosable(io.TextIOWrapper):
    """What a model that closes its output has not closed for those who print after it."""

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.flush()


def redirect_output(log: Path) -> None:
    """Send both outputs, those of C libraries too, into a log: the terminal belongs to the parent.

    Python's have descriptors of their own, which last where a model closes 1 and 2.
    """
    flush_output()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    for name in ("stdout", "stderr"):
        raw = io.BufferedWriter(io.FileIO(os.dup(target), "w"))
        stream = _Unclosable(raw, "utf-8", "backslashreplace", line_buffering=name == "stderr")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.close(target)


def flush_output() -> None:
    """Write out what Python has buffered, whatever a model has made of its outputs."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
