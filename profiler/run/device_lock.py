"""Tell the runs that measure on one device of each other, by locks on two files of the temporary folder.

The first run locks the one for itself, and all that measure although it does share the other one: so the first one
notices the later ones as they notice it. The kernel frees a lock as soon as its process ends, however it ends. Where
files cannot be written or locked, as in a folder that is read-only, nobody is noticed, and nothing fails.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiler.processes.file_lock import FileLock


class DeviceLock:
    """This run's place among those on a device: a GPU's UUID, or "cpu". `run` is its folder, which others are told."""

    def __init__(self, device: str, run: Path) -> None:
        name = f"runtime-profiler-{device.replace('/', '-')}"
        self._first, self._later = (
            FileLock(lock_folder() / f"{name}.{kind}", everyones=True) for kind in ("lock", "later")
        )
        self._who = {"pid": os.getpid(), "folder": str(run.resolve())}

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, *_: object) -> None:
        self._first.close()
        self._later.close()

    def other(self, measures: bool = True) -> str | None:
        """Which other run measures on this device now, like "another run (process 7, into /a/b)"; None without one.

        Call it before and after everything that is measured: the lock is taken as soon as it
        is free. A run that waits, and does not measure, is none that the others are told of.
        """
        if self._first.take(fcntl.LOCK_EX, self._who):
            self._later.free()
            if self._later.take(fcntl.LOCK_EX):
                self._later.free()
                return None
            return _words(self._later.who())
        if measures:
            self._later.take(fcntl.LOCK_SH, self._who)
        else:
            self._later.free()
        return _words(self._first.who())


def lock_folder() -> Path:
    """Where every user's runs find each other's locks."""
    return Path(tempfile.gettempdir())


def _words(who: Mapping[str, Any]) -> str:
    known = f" (process {who['pid']}, into {who['folder']})" if {"pid", "folder"} <= set(who) else ""
    return f"another run{known}"
