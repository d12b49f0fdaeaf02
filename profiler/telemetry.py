"""What enters: a GPU's UUID. What leaves: its memory in use, clocks, power, temperature and throttle reasons, by NVML.

Polled by the parent process, which waits while a case is measured; blank where there is no NVML.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One visible GPU; `index` counts as CUDA does, over the devices that CUDA_VISIBLE_DEVICES leaves."""

    index: int
    uuid: str
    name: str
    memory_mib: float
    driver: str


@dataclass
class Readings:
    """What was read while a case ran: lists over time, one entry a poll."""

    memory_mib: list[float] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)
    sm_clock_mhz: list[float] = field(default_factory=list)
    temperature_c: list[float] = field(default_factory=list)
    reasons: int = 0
    """Clock-event reasons seen at any poll, as NVML's bits."""


def visible_gpus() -> list[Gpu]:
    """The GPUs that a process started now could use; empty without a driver. Creates no CUDA context."""
    nvml = _nvml()
    if nvml is None:
        return []
    driver = nvml.nvmlSystemGetDriverVersion()
    gpus = []
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total / MIB
        gpus.append(Gpu(number, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle), memory, driver))
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return gpus
    chosen = []
    for word in filter(None, wanted.split(",")):
        match = [g for g in gpus if word == str(g.index) or (not word.isdigit() and g.uuid.startswith(word))]
        if not match:
            break  # As CUDA does: an invalid entry hides itself and what follows.
        chosen.append(match[0])
    return [Gpu(i, g.uuid, g.name, g.memory_mib, g.driver) for i, g in enumerate(chosen)]


class Poller:
    """Reads one GPU at most `hertz` times a second; without a GPU every call does nothing."""

    def __init__(self, uuid: str | None, hertz: float = 10.0) -> None:
        self._nvml = _nvml() if uuid else None
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid) if self._nvml else None
        self._interval = 1.0 / hertz
        self._last = 0.0

    def memory_mib(self) -> float | None:
        """Device memory in use by all processes."""
        if self._nvml is None:
            return None
        return float(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used) / MIB

    def read(self, into: Readings, busy: bool) -> None:
        """Add one reading; clocks, power and temperature only while the device is `busy` being measured."""
        now = time.monotonic()
        if self._nvml is None or now - self._last < self._interval:
            return
        self._last = now
        nvml, handle = self._nvml, self._handle
        memory = self.memory_mib()
        if memory is not None:
            into.memory_mib.append(memory)
        if not busy:
            return
        with contextlib.suppress(nvml.NVMLError):
            into.power_w.append(nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        with contextlib.suppress(nvml.NVMLError):
            into.sm_clock_mhz.append(float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))
        with contextlib.suppress(nvml.NVMLError):
            into.temperature_c.append(float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))
        with contextlib.suppress(nvml.NVMLError):
            into.reasons |= nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)


def throttle_reasons(bits: int) -> list[str]:
    """Names of the reasons that make a figure doubtful; the power cap is the card's normal state under load."""
    nvml = _nvml()
    if nvml is None:
        return []
    doubtful = {
        "hw-slowdown": nvml.nvmlClocksThrottleReasonHwSlowdown,
        "sw-thermal-slowdown": nvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        "hw-thermal-slowdown": nvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "hw-power-brake-slowdown": nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    }
    return [name for name, bit in doubtful.items() if bits & bit]


def _nvml() -> Any:
    """The NVML module, initialized, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
