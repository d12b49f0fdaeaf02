"""Write to standard output and standard error as long as somebody takes it, and be silent from then on."""

from __future__ import annotations

import errno
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

    def __init__(self, descriptor: int, closed: bool) -> None:
        self._descriptor, self._closed = descriptor, closed
        self.lost: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        if self._closed:
            self.lost = OSError(errno.EBADF, "it was closed")
        while self.lost is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # Another process has made the pipe that we share not wait for its reader.
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.lost = error
        return len(data)


def keep_writing(encoding: str | None = None) -> None:
    """Replace standard output and standard error; what was closed takes everything, too.

    `encoding` is in place of theirs; a character that it lacks is written as its escape.
    """
    closed = set()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # The next file that is opened would get its number, and the output of workers.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            closed.add(descriptor)
    sys.stdout = _text(_Stream(1, 1 in closed), sys.stdout, encoding)
    sys.stderr = _text(_Stream(2, 2 in closed), sys.stderr, encoding)


def given_width() -> int | None:
    """The width of what is printed: as COLUMNS says, else 120 where nobody looks, since 80 would cut the tables; None
    is the terminal's own."""
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


def _text(stream: _Stream, before: TextIO | None, encoding: str | None) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(stream),
        encoding=encoding or (before.encoding if before else "utf-8"),
        errors="backslashreplace",
        line_buffering=stream.fileno() == 2 or (before is not None and before.isatty()),
        write_through=bool(getattr(before, "write_through", False)),
    )
