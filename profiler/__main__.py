"""Start the program, called `python -m profiler` or `runtime-profiler`, before slow imports."""

import errno
import io
import os
import signal
import sys
from typing import Any, NoReturn


class _Stream(io.FileIO):
    """Drop output once its reader or terminal is gone, so that the run goes on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(data)


def start() -> NoReturn:
    """Prepare the process, and run the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Before the command begins nothing needs cleaning up, and imports would answer with a traceback.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(130))
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            continue
        raw = io.BufferedWriter(_Stream(stream.fileno(), "w", closefd=False))
        options = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, errors="backslashreplace", **options))
    _check_names()
    from profiler.cli import main

    main()


def _check_names() -> None:
    """Exit if the current folder, which `python -m` searches first, hides one of our packages."""
    from importlib.util import find_spec
    from pathlib import Path

    for name in ("engines", "exporters"):
        spec = find_spec(name)
        if spec and spec.origin and not Path(spec.origin).resolve().is_relative_to(Path(__file__).resolve().parents[1]):
            print(f"{spec.origin} hides a package of the profiler: call runtime-profiler here", file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    start()
