"""Measure this process's resident memory."""

from __future__ import annotations

import contextlib
from pathlib import Path


class HostMeter:
    """Resident memory of this process above what it started with, in MiB; None where there is no /proc."""

    def __init__(self) -> None:
        self._baseline = _status("VmRSS")

    def start_measuring(self) -> bool:
        """Let the kernel count the peak again from here (proc(5), clear_refs); return whether it did."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            return True
        return False

    def now_mib(self) -> float | None:
        """Return what is held now."""
        now = _status("VmRSS")
        return None if now is None or self._baseline is None else now - self._baseline

    def peak_mib(self) -> float | None:
        """Return the peak since the start, or since `start_measuring`."""
        peak = _status("VmHWM")
        return None if peak is None or self._baseline is None else max(peak - self._baseline, 0.0)


def _status(key: str) -> float | None:
    """Read a line of /proc/self/status in MiB."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return float(line.split()[1]) / 1024
    return None
