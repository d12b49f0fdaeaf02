"""Meter the memory of a process and of a GPU.

NVML reads the memory of the whole device, other processes' too: figures by process are not available everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

from engines.base import Memory
from profiler.results.result import Figures
from profiler.results.roofline import MIB

_held_mib = 0.0


@contextlib.contextmanager
def holding() -> Iterator[None]:
    """Count this block's allocations as memory of the processes that are forked later.

    Pages of files, such as mapped weights, count in the process that reads them.
    """
    global _held_mib
    before = resident_mib("RssAnon")
    yield
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    after = resident_mib("RssAnon")
    _held_mib = 0.0 if before is None or after is None else after - before


class HostMeter:
    """Growth of this process's resident memory in MiB, including a model that a holder made; None if unknown."""

    def __init__(self) -> None:
        now = resident_mib("VmRSS")
        self._baseline = None if now is None else now - _held_mib

    def start_measuring(self) -> None:
        """Reset the kernel's peak, if it supports that (proc(5), clear_refs)."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_mib(self) -> float | None:
        """Return the peak since the start, or since `start_measuring`."""
        peak = resident_mib("VmHWM")
        return None if peak is None or self._baseline is None else max(peak - self._baseline, 0.0)


def resident_mib(key: str) -> float | None:
    """Read a line of /proc/self/status in MiB; a sandbox may leave it out."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:")), None)


class DeviceMeter:
    """Reads device memory at a case's boundaries: before CUDA, with the context, with the model, and at the end."""

    def __init__(self, used_mib: Callable[[], float | None]) -> None:
        self._used_mib = used_mib
        self._baseline = used_mib()
        self.context_mib: float | None = None
        self._loaded: float | None = None
        self._peak: float | None = None

    def context_created(self) -> None:
        """Call this when only the CUDA context exists."""
        self.context_mib = self._step(self.read())

    def loaded(self) -> None:
        """Call this when the model is on the device, before it runs."""
        self._loaded = self.read()

    def read(self) -> float | None:
        """Read the memory. Call it at any boundary that may be the peak."""
        used = self._used_mib()
        if used is not None:
            self._peak = max(used, self._peak or 0.0)
        return used

    def parts(self, declared: Memory) -> Figures:
        """Return the parts of the peak: context, weights, gradients, optimizer, activations and other.

        `other` is the sum of `slack`, unused memory in the engine's allocator, and `library`: loaded kernels, and
        handles of cuDNN and cuBLAS. Undeclared activations are the growth after loading, in the first run and the
        search for algorithms.
        """
        peak, activations, slack = self._step(self._peak), _mib(declared.activations), _mib(declared.slack)
        if activations is None and self._peak is not None and self._loaded is not None:
            activations = max(self._peak - self._loaded, 0.0)
        parts = {"context_mib": self.context_mib, **declared_parts(declared), "activations_mib": activations}
        if peak is not None and None not in (self.context_mib, parts["weights_mib"], activations):
            other = peak - sum(part for part in parts.values() if part is not None)
            library = None if slack is None else other - slack
            parts |= {"other_mib": other, "slack_mib": slack, "library_mib": library}
        return parts | {
            "peak_memory_mib": peak,
            "baseline_mib": self._baseline,
            "torch_allocated_mib": _mib(declared.torch_allocated),
            "torch_reserved_mib": _mib(declared.torch_reserved),
        }

    def _step(self, used: float | None) -> float | None:
        return None if used is None or self._baseline is None else used - self._baseline


def declared_parts(declared: Memory) -> Figures:
    """Return the parts that an engine declares on any device: weights, gradients and optimizer."""
    return {
        "weights_mib": _mib(declared.weights),
        "gradients_mib": _mib(declared.gradients),
        "optimizer_mib": _mib(declared.optimizer),
    }


def _mib(size: int | None) -> float | None:
    return None if size is None else size / MIB
