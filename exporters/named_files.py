"""Read the files that users name, regular ones of a bounded size; write a file whole, or leave the old one."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import time
from pathlib import Path

from exporters.errors import ConfigError, cut

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_ROOM = (*FULL, errno.EROFS, errno.EIO)
"""Error numbers of a disk that takes no more: full, over quota or its largest file; read-only, broken."""
_STALE_SECONDS = 60
"""Age of a scratch file that nobody writes any more, even on another host."""


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


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace the file; its content reaches the disk before its name, so that readers see the old or the new file.

    Links stay links; special files, such as /dev/stdout, are written in place. Raises OSError, which names `path`.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    target = path.resolve()
    scratch = scratch_beside(target)
    try:
        if path.exists() and not path.is_file():  # Not `target`: a pipe behind /dev/stdout has no path.
            path.write_bytes(data)
            return
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def scratch_beside(target: Path) -> Path:
    """Name this process's scratch file beside the target; remove old ones of killed processes."""
    stem = f".{target.name[:200]}."
    for old in target.parent.glob(f"{glob.escape(stem)}*.tmp"):
        pid = old.name.removeprefix(stem).removesuffix(".tmp")
        with contextlib.suppress(OSError):
            if pid.isdigit() and not Path("/proc", pid).exists() and time.time() - old.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
    return target.with_name(f"{stem}{os.getpid()}.tmp")


def whole_lines(path: Path, at: int) -> bytes:
    """Return the file from byte `at` to its last line break: an unfinished line comes next time."""
    with path.open("rb") as file:
        file.seek(at)
        text = file.read()
    return text[: text.rfind(b"\n") + 1]
