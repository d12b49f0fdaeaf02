"""Start the program, called `python -m profiler` or `runtime-profiler`; slow imports come once it has begun."""

import errno
import io
import os
import signal
import sys
from typing import Any, NoReturn


class _Stream(io.FileIO):
    """Drop what is written once the reader has left or the terminal was closed, which is no reason to end a run."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(data)


def start() -> NoReturn:
    """Prepare the process for a command, and run the one that the arguments name."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command begins there is nothing to put away, and imports would answer with a traceback.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            continue
        raw = io.BufferedWriter(_Stream(stream.fileno(), "w", closefd=False))
        options = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, errors="backslashreplace", **options))
    from profiler.cli import main

    main()


if __name__ == "__main__":
    start()
