"""Watch a TensorRT build: its errors, its progress in words, its peak memory.

The library calls these objects back, from threads of its own too: whatever they would raise must not reach it.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engines.host_memory import HostMeter
from exporters.errors import cut

MIB = 2**20
_PROGRESS_SECONDS = 0.3
_POLL_SECONDS = 0.1
_KEPT_ERRORS = 20
_SKIPPED = re.compile(r"skipping tactic|insuff?icient to use tactic", re.IGNORECASE)
"""In messages about a kernel that the builder tried and left out, which is no failure."""
_NO_MEMORY = re.compile(r"out ?of ?memory|insufficient memory|allocat", re.IGNORECASE)
_NO_KERNEL_LEFT = "Could not find any implementation"
"""What the builder says where all kernels of a layer were left out: then why they were is what matters."""
_LOGGERS: list[tuple[Any, Any]] = []
_NO_DRIVER = "catchCudaError"
"""In messages that follow another error where there is no driver, from asking the device for one."""


def logger_of(library: Any) -> Any:
    """The process's logger: prints warnings and errors to standard error and keeps the last errors, for `reasons`. Only
    one: as long as anything made with it lives, the library sends it everything, whatever logger it is given."""
    for known, logger in _LOGGERS:
        if known is library:
            return logger
    _LOGGERS.append((library, _new_logger(library)))
    return _LOGGERS[-1][1]


def _new_logger(library: Any) -> Any:
    class Logger(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=_KEPT_ERRORS)
            self.skipped: deque[str] = deque(maxlen=_KEPT_ERRORS)
            """What is about kernels that a build tried and left out."""
            self.error: BaseException | None = None
            """Ctrl-C while the library logged, which would swallow it: `check` raises it."""

        def log(self, severity: Any, message: str) -> None:
            try:
                self._keep(severity in (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR), message)
                if severity in (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR, library.ILogger.WARNING):
                    print(f"{library.__name__}: {message}", file=sys.stderr)
            except BaseException as error:
                self.error = self.error or (None if isinstance(error, Exception) else error)

        def _keep(self, wrong: bool, message: str) -> None:
            if _SKIPPED.search(message):
                # An allocation that fails is an error in the log just before the warning that its kernel is skipped.
                if self.errors and _NO_MEMORY.search(self.errors[-1]):
                    self.skipped.append(self.errors.pop())
                self.skipped.append(message)
            elif wrong:
                self.errors.append(message)

    return Logger()


def logged(logger: Any, limit: int, *more: str) -> str:
    """Why the library failed, by its logger, then `more`; skipped kernels only where none was left for a layer."""
    errors = list(logger.errors)
    skipped = list(logger.skipped) if any(_NO_KERNEL_LEFT in error for error in errors) else []
    return reasons([*more, *skipped, *errors], limit)


def forget(logger: Any) -> None:
    """Let what was logged until here be no reason for what fails later."""
    logger.errors.clear()
    logger.skipped.clear()


def reasons(messages: list[str], limit: int) -> str:
    """What the library logged, on one line of at most `limit` characters, without what only a missing driver adds. The
    newest message comes first, the cause of what has just failed: what came before it may have been overcome."""
    lines = dict.fromkeys(" ".join(line.split()) for message in reversed(messages) for line in message.splitlines())
    return cut("; ".join([line for line in lines if line and _NO_DRIVER not in line] or lines), limit)


@dataclass
class Phase:
    """A phase of a build, as the library announces it: it has steps, and phases inside of them."""

    parent: str | None
    steps: int
    done: int = 0


@dataclass
class Progress:
    """How far a build is, in percent, from its nested phases: never back, but where another outermost phase begins."""

    percent: int = 0
    _open: dict[str, Phase] = field(default_factory=dict)

    def start(self, name: str, parent: str | None, steps: int) -> None:
        if parent not in self._open:
            self.percent, parent = 0, None
        if name not in self._open:
            self._open[name] = Phase(parent, max(steps, 1))

    def step(self, name: str, number: int) -> None:
        if name in self._open:
            self._open[name].done = number + 1
            outermost = next(name for name in reversed(self._open) if self._open[name].parent is None)
            self.percent = max(self.percent, round(100 * min(self._share(outermost), 1.0)))

    def finish(self, name: str) -> None:
        """Phases inside of it that were not finished are, too."""
        self._open.pop(name, None)
        for inner in [inner for inner, phase in self._open.items() if phase.parent == name]:
            self.finish(inner)

    def _share(self, name: str) -> float:
        phase = self._open[name]
        inner = next((n for n in reversed(self._open) if self._open[n].parent == name), None)
        return (phase.done + (min(self._share(inner), 1.0) if inner is not None else 0.0)) / phase.steps


def new_monitor(library: Any, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Any:
    """A progress monitor that reports "building 45 %" a few times a second.

    What `report` raises, or Ctrl-C, ends the build at its next step, and is raised by `check`. (Python's handler for
    Ctrl-C runs only in Python code, which these methods are, and the logger's.)
    """
    logger = logger_of(library)

    class Monitor(library.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            library.IProgressMonitor.__init__(self)
            self.error: BaseException | None = None
            self._progress, self._lock = Progress(), threading.Lock()
            self._reported = clock() - _PROGRESS_SECONDS

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._do(lambda: self._progress.start(phase_name, parent_phase, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._do(lambda: self._step(phase_name, step))
            return self.error is None and logger.error is None

        def phase_finish(self, phase_name: str) -> None:
            self._do(lambda: self._progress.finish(phase_name))

        def _step(self, name: str, number: int) -> None:
            self._progress.step(name, number)
            if clock() - self._reported >= _PROGRESS_SECONDS:
                self._reported = clock()
                report(f"building {self._progress.percent} %")

        def _do(self, what: Callable[[], None]) -> None:
            try:
                with self._lock:
                    what()
            except BaseException as error:
                self.error = self.error or error

    return Monitor()


def check(kept_by: Any) -> None:
    """Raise what a monitor or a logger has kept, if anything: it ended the build, or would have."""
    error, kept_by.error = kept_by.error, None  # Kept there, it would keep the builder: its traceback refers to both.
    try:
        if error is not None:
            raise error
    finally:
        del error


@dataclass
class Peaks:
    """The most memory in use while something was done above what was before, in MiB; None where it cannot be known."""

    host_mib: float | None = None
    device_mib: float | None = None


@contextlib.contextmanager
def watch_memory(device: bool) -> Iterator[Peaks]:
    """Fill the Peaks once the block has ended: the host's is this process's resident memory, the device's all in
    use, polled by torch from a thread, which the builder lets run."""
    import torch

    peaks, host, ended = Peaks(), HostMeter(), threading.Event()
    host.start_measuring()
    # Of this thread: another one's device would be the first.
    of = torch.cuda.current_device() if device and torch.cuda.is_available() else None
    poller = threading.Thread(target=_poll_device, args=(peaks, ended, of), daemon=True)
    poller.start()
    try:
        yield peaks
    finally:
        ended.set()
        poller.join()
        peaks.host_mib = host.peak_mib()


def _poll_device(peaks: Peaks, ended: threading.Event, device: int | None) -> None:
    import torch

    if device is None:
        return
    before = torch.cuda.mem_get_info(device)[0]
    least = before
    while not ended.wait(_POLL_SECONDS):
        least = min(least, torch.cuda.mem_get_info(device)[0])
        peaks.device_mib = (before - least) / MIB
