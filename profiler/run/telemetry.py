"""Watch a GPU all through a run, and give each case the readings of its own time.

A process of its own reads NVML and writes one line a reading, so that neither the measured process nor the display is
disturbed; the parent takes out the lines of a case once it has ended. Without a GPU there are none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from pathlib import Path
from typing import BinaryIO

from exporters.whole_file import write_whole
from profiler.nvml import Nvml, Reading
from profiler.processes.messages import Report
from profiler.processes.process import Call, Child

_HERTZ = 10.0
_FIELDS = tuple(field.name for field in dataclasses.fields(Reading))
"""Columns of telemetry.csv."""
_MOST_STARTS = 4
"""How many readers a run starts: one that ends again and again would end the next time, too."""


def watch(argument: tuple[str, Path], report: Report) -> None:
    """Read the GPU of that UUID ten times a second and append a line each time, until the process is ended."""
    uuid, path = argument
    nvml = Nvml(uuid)
    with path.open("a", buffering=1) as file:
        while True:
            reading = nvml.read()
            values = [getattr(reading, name) for name in _FIELDS]
            file.write(",".join("" if value is None else f"{value:.10g}" for value in values) + "\n")
            time.sleep(max(0.0, reading.seconds + 1 / _HERTZ - time.monotonic()))


class Watcher:
    """The process that reads a GPU all through a run. Without a GPU there is none, and no readings."""

    def __init__(self, uuid: str | None, path: Path, log: Path) -> None:
        self._call: Call | None = None
        self._child: Child | None = None
        self._starts = 1
        self._file: BinaryIO | None = None
        self._readings: list[Reading] = []
        if uuid is not None:
            if not path.exists():  # A resumed run goes on with its file.
                write_whole(path, ",".join(_FIELDS) + "\n")
            self._file = path.open("rb")
            self._file.seek(0, os.SEEK_END)
            self._call = Call("profiler.run.telemetry:watch", (uuid, path), log, math.inf, math.inf)
            self._child = Child(self._call)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
        if self._file is not None:
            self._file.close()

    def ended(self) -> bool:
        """Whether the reading process has ended since this was asked last, as it never should while the run lasts.

        Another one goes on then, unless so many have ended that it would, too.
        """
        if self._call is None or (self._child is not None and self._child.poll() is None):
            return False
        self._child, self._starts = None, self._starts + 1
        if self._starts <= _MOST_STARTS:
            self._child = Child(self._call)
        return True

    def between(self, start: float, end: float) -> list[Reading]:
        """Readings from `start` to `end`, on time.monotonic(); earlier ones are forgotten."""
        if self._file is not None:
            # A line that is being written is left for the next time.
            at, text = self._file.tell(), self._file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._file.seek(at + len(whole))
            self._readings += filter(None, map(_parse, whole.decode(errors="replace").splitlines()))
        self._readings = [reading for reading in self._readings if reading.seconds >= start]
        return [reading for reading in self._readings if reading.seconds <= end]


def _parse(line: str) -> Reading | None:
    """None of a line that is none: a reader that is killed while it writes leaves half of one to the next."""
    with contextlib.suppress(ValueError):
        seconds, memory, power, clock, temperature, reasons = (
            float(word) if word else None for word in line.split(",")
        )
        return Reading(seconds or 0.0, memory, power, clock, temperature, None if reasons is None else int(reasons))
    return None
