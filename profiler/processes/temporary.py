"""Make temporary folders that go with their process: what a killed one has left the next one removes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "profiler-tmp-"
_SHORT = "/tmp"
_MOST_FOR_SOCKETS = 60
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")


class OwnFolder:
    """A temporary folder, locked as long as its process lives: the kernel frees the lock however that ends."""

    def __init__(self, for_sockets: bool = False) -> None:
        """One `for_sockets` has a short path: a socket's has 107 bytes at most (man 7 unix)."""
        is_short = len(os.fsencode(tempfile.gettempdir())) <= _MOST_FOR_SOCKETS
        # A name of its own until it is locked: nobody sweeps it before.
        new = tempfile.mkdtemp(".new", _PREFIX, None if is_short or not for_sockets else _SHORT)
        self._lock = _locked(new)
        self.path = new.removesuffix(".new")
        Path(new).rename(self.path)

    def remove(self) -> None:
        """Remove it and all that is in it, as far as that goes."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None  # First: after an interrupt this is called again.
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A temporary folder that is removed in the end, or else by the next run."""
    folder = OwnFolder()
    try:
        yield Path(folder.path)
    finally:
        folder.remove()


def sweep() -> None:
    """Remove the temporary folders of processes of this user that are gone."""
    for parent in {tempfile.gettempdir(), _SHORT}:
        with contextlib.suppress(OSError):
            for folder in Path(parent).iterdir():
                if _NAME.fullmatch(folder.name) and (lock := _locked(str(folder))) is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)


def _locked(folder: str) -> int | None:
    """The descriptor that locks the folder; None where it is another's, a link, or cannot be locked."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
        os.close(descriptor)
    return None
