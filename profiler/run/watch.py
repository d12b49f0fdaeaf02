"""Watch the machine while a run measures: the GPU's sensors, other runs on the device, and other work.

A process of its own reads NVML and writes one line a reading, so that it slows neither the measured process nor the
display. Runs on one device find each other by a locked file in the temporary folder, which the kernel frees as soon as
a run ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import math
import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from exporters.whole_file import whole_lines, write_whole
from profiler import processor
from profiler.errors import WHEN_IDLE
from profiler.machine import usable_cores
from profiler.nvml import UTILIZATION_SECONDS, Nvml, Reading
from profiler.processes.messages import Report
from profiler.processes.process import Call, Child
from profiler.run.progress import Display
from profiler.tables.numbers import counted, percent
from profiler.worker.disturbance import CARD, reasons

PATIENCE_SECONDS = 60.0
"""Longest wait for a quiet machine that nobody asked for; none if the run's time is limited."""
_LOOK_SECONDS = 0.5
_ALONE = 0.85
"""Share of all processors that spinning threads get at least where nobody else works."""
_HERTZ = 10.0
_FIELDS = tuple(field.name for field in dataclasses.fields(Reading))
"""Columns of telemetry.csv."""


def watch(argument: tuple[str, Path], report: Report) -> None:
    """Append a reading of the GPU of that UUID ten times a second, until the process is ended."""
    uuid, path = argument
    nvml = Nvml(uuid)
    with path.open("a", buffering=1) as file:
        while True:
            reading = nvml.read()
            values = [getattr(reading, name) for name in _FIELDS]
            file.write(",".join("" if value is None else f"{value:.10g}" for value in values) + "\n")
            time.sleep(max(0.0, reading.seconds + 1 / _HERTZ - time.monotonic()))


class Watcher(AbstractContextManager["Watcher", None]):
    """The process that reads a GPU all through a run; without a GPU there is none, and no readings."""

    def __init__(self, uuid: str | None, path: Path, log: Path) -> None:
        self._call: Call | None = None
        self._child: Child | None = None
        self._path, self._at = path, 0
        self._readings: list[Reading] = []
        if uuid is not None:
            if not path.exists():  # A resumed run goes on with its file.
                write_whole(path, ",".join(_FIELDS) + "\n")
            self._at = path.stat().st_size
            self._call = Call("profiler.run.watch:watch", (uuid, path), log, math.inf, math.inf)
            self._child = Child(self._call)

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()

    def between(self, start: float, end: float) -> list[Reading]:
        """Take the readings from `start` to `end`, on time.monotonic(); earlier ones are forgotten."""
        if self._call is None or self._child is None:
            return []
        if self._child.poll() is not None:
            self._child = Child(self._call)  # It has ended, with the forkserver say; the next rows have readings again.
        with contextlib.suppress(FileNotFoundError):  # Who deletes it has no readings.
            new = whole_lines(self._path, self._at)
            self._at += len(new)
            self._readings += filter(None, map(_parse, new.decode(errors="replace").splitlines()))
        self._readings = [reading for reading in self._readings if reading.seconds >= start]
        return [reading for reading in self._readings if reading.seconds <= end]


def _parse(line: str) -> Reading | None:
    """Read a line; None for half of one, which a killed reader leaves."""
    try:
        values = [float(word) if word else None for word in line.split(",")]
        seconds, memory, power, clock, temperature, slowed = values
    except ValueError:
        return None
    return Reading(seconds or 0.0, memory, power, clock, temperature, None if slowed is None else int(slowed))


class DeviceLock(AbstractContextManager["DeviceLock", None]):
    """This run's claim on a device: a GPU's UUID, or "cpu".

    Where the lock cannot be made, as in a folder that is read-only, every run has the device to itself.
    """

    def __init__(self, device: str) -> None:
        self._path = lock_folder() / f"runtime-profiler-{device.replace('/', '-')}.lock"
        self._file: int | None = None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def is_taken(self) -> bool:
        """Return True while another run has the device; else this one has it from now on."""
        try:
            self._file = _open_shared(self._path) if self._file is None else self._file
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def _open_shared(path: Path) -> int:
    """Open a lock that may be another user's, which filelock refuses."""
    usual = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, usual)  # Linux lets nobody create, in /tmp, what another user owns.
    except FileNotFoundError:
        file = os.open(path, usual | os.O_CREAT, 0o644)
        with contextlib.suppress(OSError):
            os.fchmod(file, 0o644)  # A umask may have kept the others out.
        return file


def lock_folder() -> Path:
    """Return the folder where all users' runs find each other's locks."""
    return Path(tempfile.gettempdir())


class Quiet:
    """Wait up to `minutes` for a quiet machine before a case; with 0 only say once that another run measures here."""

    def __init__(self, lock: DeviceLock, gpu: str | None, minutes: float, display: Display) -> None:
        self._lock, self._nvml, self._minutes, self._display = lock, Nvml(gpu), minutes, display
        self._is_told = False

    def start(self) -> None:
        """Call this before anything is prepared, and right before something is measured."""
        end = time.monotonic() + 60 * self._minutes
        waiting = f"waiting up to {self._minutes:g} minutes for the machine to be quiet: {{}}".format
        first = who = self._busy()
        while who and time.monotonic() < end:
            self._display.doing(waiting(first))  # The same line all the time: what is busy changes every second.
            who = self._busy()
        if who and not self._is_told:
            self._is_told = True
            hint = "" if self._minutes else f"; {WHEN_IDLE} waits for its end"
            self._display.announce(f"measuring beside other work: {who}{hint}")

    def is_shared(self) -> bool:
        """Return whether another run has the device now."""
        return self._lock.is_taken()

    def _busy(self) -> str | None:
        """Say who else has the machine; looking for other work takes a second, and is done where it is waited for."""
        work = other_work(self._nvml) if self._minutes else None
        return "another run measures on this device" if self.is_shared() else work


def busy_share() -> float:
    """Spin on every processor for half a second; return the share of them that other work took, or 0 if it is small."""
    cores, block, before = usable_cores(), bytes(2**20), processor.read()
    end = time.monotonic() + _LOOK_SECONDS

    def spin() -> float:
        while time.monotonic() < end:
            hashlib.sha256(block)  # Without the interpreter's lock.
        return time.thread_time()

    with ThreadPoolExecutor(cores) as threads:
        had = sum(thread.result() for thread in [threads.submit(spin) for _ in range(cores)])
    load = processor.read().since(before)
    # A container may have a smaller share of its processors by right, and some kernels count nothing.
    share = had / (cores * load.seconds)
    return 1 - share if share < _ALONE and (load.others is None or reasons(load)) else 0.0


def await_quiet(display: Display, patience: float = PATIENCE_SECONDS) -> None:
    """Say that the machine is busy; on a terminal, wait up to that many seconds, or until Ctrl-C."""
    began, is_told = time.monotonic(), False
    try:
        while share := busy_share():
            work = f"other work takes {percent(share)} % of {counted(usable_cores(), 'core')}"
            told = f"This machine is busy ({work}): figures would be useless"
            if not display.is_live or time.monotonic() - began >= patience:
                return display.announce(f"{told}; {WHEN_IDLE} waits for its end")
            if not is_told:
                display.announce(told)
            is_told = True
            display.doing(f"waiting up to {patience:.0f} s for a quiet machine, Ctrl-C to measure anyway")
            time.sleep(3 * _LOOK_SECONDS)
    except KeyboardInterrupt as interrupt:
        if not display.is_live or interrupt.args != (signal.SIGINT,):
            raise
        display.announce("Measuring beside other work")


def other_work(nvml: Nvml) -> str | None:
    """Say what other processes do on the processors and the GPU in the second that this takes; None for nothing."""
    before = processor.read()
    time.sleep(UTILIZATION_SECONDS)
    if pids := nvml.pids():
        return f"other processes on the GPU: {len(pids)}"
    if (utilization := nvml.utilization() or 0.0) >= CARD:
        return f"the GPU is busy for {percent(utilization)} % of the time"
    return next(iter(reasons(processor.read().since(before))), None)
