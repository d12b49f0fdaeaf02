"""Wait until a machine is quiet, and mark rows that were measured while another run measured on the device."""

from __future__ import annotations

import time

from engines.base import Warning
from profiler import processor
from profiler.errors import WHEN_IDLE
from profiler.nvml import UTILIZATION_SECONDS, Nvml
from profiler.results.result import WAIT, Result, WallTime
from profiler.run.device_lock import DeviceLock
from profiler.run.progress import Display
from profiler.tables.numbers import percent, significant
from profiler.worker.disturbance import CARD, reasons

_SECONDS = UTILIZATION_SECONDS
"""For so long nobody else may have had the machine."""


class Quiet:
    """Looks, before a case is measured, whether others have the machine or the GPU, and afterwards whether a run had.

    Before each case `start` waits up to `minutes` until nobody has; None is not at all.
    """

    def __init__(
        self, lock: DeviceLock, gpu: str | None, minutes: float | None, display: Display, wall: WallTime
    ) -> None:
        self._lock, self._nvml, self._minutes, self._display, self._wall = lock, Nvml(gpu), minutes, display, wall
        self._other: str | None = None
        self._gave_up = False

    def begin(self) -> None:
        """Wait before anything is done that would disturb another run on the device, or say that it disturbs us."""
        self.start()
        if self._other and not self._gave_up:
            hint = f"{WHEN_IDLE} waits for its end"
            self._display.announce(f"{self._other} measures on this device: figures will be disturbed; {hint}")

    def start(self) -> None:
        """Call this right before something is measured."""
        self._wait()
        self._other = self._lock.other()

    def mark(self, result: Result) -> None:
        """Warn of another run that measured on the device since `start`, or since the last case was marked."""
        before, self._other = self._other, self._lock.other()
        if other := before or self._other:
            result.warnings.append(Warning("disturbed", f"{other} measured on the same device"))

    def _wait(self) -> None:
        if self._minutes is None:
            return
        with self._wall.span(WAIT):
            seconds = min(60 * self._minutes, 1e9)  # The calendar has an end.
            end, form = time.monotonic() + seconds, "%H:%M" if seconds < 86_400 else "%Y-%m-%d"
            until = f"{time.strftime(form, time.localtime(time.time() + seconds))} at most"
            while (who := self._busy()) and time.monotonic() < end:
                self._display.waiting(f"waiting for the machine to be quiet, until {until}: {who}")
        if who and not self._gave_up:
            self._gave_up = True
            waited = f"{significant(self._minutes)} minutes of waiting"
            self._display.announce(f"the machine is not quiet after {waited}, and is measured as it is: {who}")

    def _busy(self) -> str | None:
        """Who else has the machine in the second that this takes; None if nobody has."""
        found = other_work(self._nvml)
        other = self._lock.other(measures=False)
        return f"{other} measures on this device" if other else found


def other_work(nvml: Nvml) -> str | None:
    """What other processes do on the processors and the GPU in the second that this takes; None for nothing."""
    before = processor.read()
    time.sleep(_SECONDS)
    if users := nvml.users():
        return f"other processes on the GPU: {users}"
    if (utilization := nvml.utilization() or 0.0) >= CARD:
        return f"the GPU is busy for {percent(utilization)} % of the time"
    return next(iter(reasons(processor.read().since(before))), None)
