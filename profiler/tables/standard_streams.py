"""Write to standard output and standard error as long as somebody takes it, and be silent from then on."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any, TextIO

from profiler.errors import ConfigError


class _Stream(io.RawIOBase):
    """A file descriptor that takes everything: once it cannot be written to, what follows is dropped.

    A pipe whose reader has left, a terminal that was closed and a disk that is full are no reason to end a run.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.lost: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        while self.lost is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # Another process has made the pipe that we share not wait for its reader.
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.lost = error
        return len(data)


def keep_writing() -> None:
    """Replace standard output and standard error; a character that their encoding lacks is written as its escape."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # It was closed. The next file that is opened would get its number, and the output of workers.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = (_text(n, old) for n, old in ((1, sys.stdout), (2, sys.stderr)))


def given_width() -> int | None:
    """Return the width of what is printed: as COLUMNS says, else 120 where nobody looks, since 80 would cut the tables;
    None is the terminal's own."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return None if sys.stdout.isatty() else 120


def check_written() -> None:
    """Raise ConfigError where what was printed is lost, but for a reader that wanted no more, such as `head`."""
    sys.stdout.flush()
    stream = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    lost = stream.lost if isinstance(stream, _Stream) else None
    if lost is not None and not isinstance(lost, BrokenPipeError):
        raise ConfigError(f"standard output: {lost.strerror}; what was printed is not all there")


def _text(descriptor: int, before: TextIO | None) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(_Stream(descriptor)),
        encoding=before.encoding if before else "utf-8",
        errors="backslashreplace",
        line_buffering=descriptor == 2 or (before is not None and before.isatty()),
        write_through=bool(getattr(before, "write_through", False)),
    )
