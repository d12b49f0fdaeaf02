"""Look up and read the files that users name: regular files of a bounded size."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from exporters.errors import ConfigError, cut


def is_file(path: Path) -> bool:
    """Return True for a regular file, False for a folder or a free name. Raises ConfigError for all else."""
    mode = _mode(path)
    if mode and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(f"{path}: is a pipe or a device; give a regular file")
    return stat.S_ISREG(mode)


def exists(path: Path) -> bool:
    """Return True if the path exists. Raises ConfigError for an unusable path."""
    return bool(_mode(path))


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (OSError, ValueError) as error:  # Too long, a loop of links, no permission; a null character.
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{cut(str(path), 200)}: {why}; give another path") from None


def read_bytes(path: Path, limit: int = 2**28) -> bytes:
    """Read a regular file of up to `limit` bytes. Raises ConfigError for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # Never wait for a pipe.
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: is not a regular file")
            if status.st_size > limit:
                raise ConfigError(f"{path}: has {status.st_size:,} bytes, over the limit of {limit:,}")
            return file.read(limit)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{cut(str(path), 200)}: cannot be read: {why}") from None
