"""Lock a file, and say in it who has it. The kernel frees a lock as soon as its process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class FileLock:
    """A file that is locked, and says by whom. Where it cannot be made or locked, every attempt succeeds."""

    def __init__(self, path: Path, everyones: bool = False) -> None:
        """`everyones` is a file that processes of all users lock."""
        self._file = _open(path, everyones)
        self._taken: int | None = None

    def take(self, how: int, who: Mapping[str, Any] | None = None) -> bool:
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
                os.pwrite(self._file, json.dumps(who).encode(), 0)
        return True

    def free(self) -> None:
        """Let others have it."""
        if self._file is not None and self._taken is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._taken = None

    def who(self) -> dict[str, Any]:
        """What the one who has it wrote into the file; empty if that cannot be read."""
        assert self._file is not None, "nobody else can have a lock that there is not"
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(os.pread(self._file, 10_000, 0))
            return known if isinstance(known, dict) else {}
        return {}

    def close(self) -> None:
        """Free it for good."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(path: Path, everyones: bool) -> int | None:
    """The file, made where it is not there; None where that cannot be."""
    usual = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    # Not created if it is there: Linux lets nobody create, in a folder that all may write in, what another user owns.
    for how in (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            file = os.open(path, how | usual, 0o666)
            if everyones:
                with contextlib.suppress(OSError):  # Nor may any but its owner change whose it is.
                    os.fchmod(file, 0o666)
            return file
    return None
