"""Measure this process's resident memory, and the peaks of host and device while something is done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MIB = 2**20
_POLL_SECONDS = 0.1


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


@dataclass
class Peaks:
    """The most memory in use while something was done above what was before, in MiB."""

    host_mib: float | None = None
    device_mib: float | None = None


@contextlib.contextmanager
def watch_memory(device: bool) -> Iterator[Peaks]:
    """Fill the Peaks once the block has ended.

    The host's is this process's resident memory; the device's is all in use, polled by torch from a thread.
    """
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
    if device is None:
        return
    import torch

    before = torch.cuda.mem_get_info(device)[0]
    least = before
    while not ended.wait(_POLL_SECONDS):
        least = min(least, torch.cuda.mem_get_info(device)[0])
        peaks.device_mib = (before - least) / _MIB
