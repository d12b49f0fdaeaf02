"""Tell the runs that measure on one device of each other, by locks on two files of the temporary folder.

The first run locks the one for itself, and all that measure although it does share the other one: so the first one
notices the later ones as they notice it. The kernel frees a lock as soon as its process ends, however it ends. Where
files cannot be written or locked, as in a folder that is read-only, nobody is noticed, and nothing fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from pathlib import Path


class DeviceLock:
    """This run's place among those on a device: a GPU's UUID, or "cpu". `run` is its folder, which others are told."""

    def __init__(self, device: str, run: Path) -> None:
        name = f"cnn-runtime-profiler-{device.replace('/', '-')}"
        self._first, self._later = (_Lock(lock_folder() / f"{name}.{kind}") for kind in ("lock", "later"))
        self._who = json.dumps({"pid": os.getpid(), "folder": str(run.resolve())})

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
            return self._later.words()
        if measures:
            self._later.take(fcntl.LOCK_SH, self._who)
        else:
            self._later.free()
        return self._first.words()


def lock_folder() -> Path:
    """Where every user's runs find each other's locks."""
    return Path(tempfile.gettempdir())


class _Lock:
    """A file that is locked, and says by whom. Without a file every attempt succeeds."""

    def __init__(self, path: Path) -> None:
        self._file = _open(path)
        self._taken: int | None = None

    def take(self, how: int, who: str | None = None) -> bool:
        """Try to lock the file; `who` is written into it. False if another process has it."""
        if self._file is None or self._taken == how:
            return True
        try:
            fcntl.flock(self._file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # A network's file system may have no locks.
            self.close()
            return True
        self._taken = how
        if who is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, who.encode(), 0)
        return True

    def free(self) -> None:
        """Let others have it."""
        if self._file is not None and self._taken is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._taken = None

    def words(self) -> str:
        """Who has it, as far as the file says."""
        assert self._file is not None, "nobody else can have a lock that there is not"
        who = ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(os.pread(self._file, 10_000, 0))
            who = f" (process {known['pid']}, into {known['folder']})"
        return f"another run{who}"

    def close(self) -> None:
        """Free it for good."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: Path) -> int | None:
    """The file, for every user to lock; None where that cannot be."""
    usual = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    # Not created if it is there: Linux lets nobody create, in a folder that all may write in, what another user owns.
    for how in (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            file = os.open(path, how | usual, 0o666)
            with contextlib.suppress(OSError):  # Nor may any but its owner change whose it is.
                os.fchmod(file, 0o666)
            return file
    return None
