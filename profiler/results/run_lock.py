"""Keep a run's folder to the one process that measures into it, and tell readers of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from exporters.whole_file import NO_ROOM
from profiler.errors import ConfigError, resuming
from profiler.processes.file_lock import FileLock

_NAME = "lock"
_MOMENT = 0.1
"""Seconds, for which a reader that looks who writes has the lock at most."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only process that writes into a run's folder.

    Raises ConfigError where another one does, and where the disk takes no more: what the journal holds stays.
    """
    lock = FileLock(folder / _NAME)
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    who = {"pid": os.getpid(), "since": since}
    if not lock.take(fcntl.LOCK_EX, who):
        time.sleep(_MOMENT)
    if not lock.take(fcntl.LOCK_EX, who):
        raise ConfigError(f"{folder}: {_words(lock)} measures into it; wait until that ends, or end it")
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ConfigError(
            f"{error.filename or folder}: {error.strerror}; the journal keeps what has been measured: make room, then "
            f"go on with: {resuming(folder)}"
        ) from None
    finally:
        lock.close()


def writer(folder: Path) -> str | None:
    """Which other process measures into the run's folder, like "process 7, since 2026-01-02 12:00 UTC,", if any."""
    if not (folder / _NAME).exists():
        return None
    lock = FileLock(folder / _NAME)
    try:
        return None if lock.take(fcntl.LOCK_SH) or lock.who().get("pid") == os.getpid() else _words(lock)
    finally:
        lock.close()


def _words(lock: FileLock) -> str:
    who = lock.who()
    return f"process {who['pid']}, since {who['since']}," if {"pid", "since"} <= set(who) else "another process"
