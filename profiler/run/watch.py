"""Watch the machine while a run measures: the GPU's sensors, other runs on the device, and other work.

A separate process reads NVML and writes a line for each reading, so that it slows neither the measured process nor the
display. Runs on one device notice each other by a lock file in the temporary folder; the kernel unlocks it when a run
ends.
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

from exporters.named_files import whole_lines, write_whole
from profiler.errors import WHEN_IDLE
from profiler.machine import processor
from profiler.machine.nvml import UTILIZATION_SECONDS, Nvml, Reading
from profiler.machine.target import usable_cores
from profiler.processes.messages import Report
from profiler.processes.process import Call, Child
from profiler.run.progress import Display
from profiler.tables.numbers import counted, duration, percent
from profiler.worker.disturbance import CARD, disturbances

PATIENCE_SECONDS = 60.0
"""Longest wait for a quiet machine without --wait-for-idle and --within."""
_LOOK_SECONDS = 0.5
_ALONE = 0.85
"""Spinning threads get at least this share of an idle machine's processors."""
_HERTZ = 10.0
_FIELDS = tuple(field.name for field in dataclasses.fields(Reading))
"""Columns of telemetry.csv."""


def watch(argument: tuple[str, Path], report: Report) -> None:
    """Append a reading of the GPU ten times a second until killed; (UUID, file)."""
    uuid, path = argument
    nvml = Nvml(uuid)
    with path.open("a", buffering=1) as file:
        while True:
            reading = nvml.read()
            values = [getattr(reading, name) for name in _FIELDS]
            file.write(",".join("" if value is None else f"{value:.10g}" for value in values) + "\n")
            time.sleep(max(0.0, reading.seconds + 1 / _HERTZ - time.monotonic()))


class Watcher(AbstractContextManager["Watcher", None]):
    """A process that reads a GPU throughout a run. Without a GPU it has no readings."""

    def __init__(self, uuid: str | None, path: Path, log: Path) -> None:
        self._child: Child | None = None
        self._path, self._at = path, 0
        self._readings: list[Reading] = []
        if uuid is not None:
            if not path.exists():  # A resumed run appends to its file.
                write_whole(path, ",".join(_FIELDS) + "\n")
            self._at = path.stat().st_size
            self._child = Child(Call("profiler.run.watch:watch", (uuid, path), log, math.inf, math.inf))

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()

    def between(self, start: float, end: float) -> list[Reading]:
        """Return the readings from `start` to `end`, on time.monotonic(), and forget earlier ones."""
        if self._child is None:
            return []
        if self._child.poll() is not None:
            self._child = Child(self._child.call)  # It may have ended with the forkserver.
        with contextlib.suppress(FileNotFoundError):  # Somebody deleted the file.
            new = whole_lines(self._path, self._at)
            self._at += len(new)
            self._readings += filter(None, map(_parse, new.decode(errors="replace").splitlines()))
        self._readings = [reading for reading in self._readings if reading.seconds >= start]
        return [reading for reading in self._readings if reading.seconds <= end]


def _parse(line: str) -> Reading | None:
    """Parse a line; None for a half-written one."""
    try:
        values = [float(word) if word else None for word in line.split(",")]
        seconds, memory, power, clock, temperature, slowed = values
    except ValueError:
        return None
    return Reading(seconds or 0.0, memory, power, clock, temperature, None if slowed is None else int(slowed))


class DeviceLock(AbstractContextManager["DeviceLock", None]):
    """This run's claim on a device: a GPU's UUID, or "cpu". If its file cannot be created, each claim succeeds."""

    def __init__(self, device: str) -> None:
        self._path = lock_folder() / f"runtime-profiler-{device.replace('/', '-')}.lock"
        self._file: int | None = None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def is_taken(self) -> bool:
        """Claim the device; return True while another run has it."""
        try:
            self._file = _open_shared(self._path) if self._file is None else self._file
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def _open_shared(path: Path) -> int:
    """Open a lock file that may belong to another user, which filelock refuses."""
    usual = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, usual)  # In /tmp, Linux refuses O_CREAT on another user's file.
    except FileNotFoundError:
        file = os.open(path, usual | os.O_CREAT, 0o644)
        with contextlib.suppress(OSError):
            os.fchmod(file, 0o644)  # A umask may have locked others out.
        return file


def lock_folder() -> Path:
    """Return the folder of all users' locks."""
    return Path(tempfile.gettempdir())


class Quiet:
    """Waits up to `minutes` for a quiet machine before a case; with 0 it only reports another run, once.

    All waits together take at most `patience` seconds.
    """

    def __init__(
        self, lock: DeviceLock, gpu: str | None, minutes: float, display: Display, patience: float = math.inf
    ) -> None:
        self._lock, self._nvml, self._minutes, self._display = lock, Nvml(gpu), minutes, display
        self._has_warned, self._patience = False, patience

    def start(self) -> None:
        """Wait for a quiet machine. Call this before preparing, and right before measuring."""
        began, longest = time.monotonic(), min(60 * self._minutes, self._patience)
        end = began + longest
        waiting = f"waiting up to {duration(longest)} for the machine to be quiet: {{}}".format
        first = work = self._busy()
        while work and time.monotonic() < end:
            self._display.doing(waiting(first))  # Not `work`, which changes every second.
            work = self._busy()
        self._patience -= time.monotonic() - began
        if work and not self._has_warned:
            self._has_warned = True
            hint = "" if self._minutes else f"; {WHEN_IDLE} waits for its end"
            self._display.announce(f"measuring beside other work: {work}{hint}")

    def is_shared(self) -> bool:
        """Return whether another run has the device now."""
        return self._lock.is_taken()

    def _busy(self) -> str | None:
        """Say who else uses the machine. Looks for other work, which takes a second, only if it may wait."""
        work = other_work(self._nvml) if self._minutes else None
        return "another run measures on this device" if self.is_shared() else work


def busy_share() -> float:
    """Spin on every processor for half a second; return other work's share of their time, or 0 if it is small."""
    cores, block, before = usable_cores(), bytes(2**20), processor.read()
    end = time.monotonic() + _LOOK_SECONDS

    def spin() -> float:
        while time.monotonic() < end:
            hashlib.sha256(block)  # Releases the GIL.
        return time.thread_time()

    with ThreadPoolExecutor(cores) as threads:
        spun = sum(thread.result() for thread in [threads.submit(spin) for _ in range(cores)])
    load = processor.read().since(before)
    # A quota may limit a container's share, and some kernels count nothing.
    share = spun / (cores * load.seconds)
    return 1 - share if share < _ALONE and (load.others is None or disturbances(load)) else 0.0


def await_quiet(display: Display, patience: float = PATIENCE_SECONDS) -> None:
    """Warn of a busy machine; on a terminal, wait up to `patience` seconds or until Ctrl-C."""
    began, has_warned = time.monotonic(), False
    try:
        while share := busy_share():
            work = f"other work takes {percent(share)} % of {counted(usable_cores(), 'core')}"
            warning = f"This machine is busy ({work}): figures would be useless"
            if not display.is_live or time.monotonic() - began >= patience:
                return display.announce(f"{warning}; {WHEN_IDLE} waits for its end")
            if not has_warned:
                display.announce(warning)
            has_warned = True
            display.doing(f"waiting up to {patience:.0f} s for a quiet machine, Ctrl-C to measure anyway")
            time.sleep(3 * _LOOK_SECONDS)
    except KeyboardInterrupt as interrupt:
        if not display.is_live or interrupt.args != (signal.SIGINT,):
            raise
        display.announce("Measuring beside other work")


def other_work(nvml: Nvml) -> str | None:
    """Watch the processors and the GPU for a second; say what other processes do, or return None."""
    before = processor.read()
    time.sleep(UTILIZATION_SECONDS)
    if pids := nvml.pids():
        return f"other processes on the GPU: {len(pids)}"
    if (utilization := nvml.utilization() or 0.0) >= CARD:
        return f"the GPU is busy for {percent(utilization)} % of the time"
    return next(iter(disturbances(processor.read().since(before))), None)
