"""Read the GPUs that NVML sees: memory in use, clocks, power, temperature, throttle reasons; blank without a driver."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
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
    compute_capability: str | None = None


@dataclass(frozen=True)
class Reading:
    """One poll of the device; None where it does not answer."""

    seconds: float
    """On the machine's monotonic clock."""
    memory_mib: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    reasons: int | None
    """NVML's bits for clock events."""


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
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        gpus.append(Gpu(number, uuid, name, memory, driver, _compute_capability(nvml, handle)))
    requested = os.environ.get("CUDA_VISIBLE_DEVICES")
    if requested is None:
        return gpus
    chosen = []
    for word in filter(None, requested.split(",")):
        match = [g for g in gpus if word == str(g.index) or (not word.isdigit() and g.uuid.startswith(word))]
        if not match:
            break  # As CUDA does: an invalid entry hides itself and what follows.
        chosen.append(match[0])
    return [replace(gpu, index=number) for number, gpu in enumerate(chosen)]


class Nvml:
    """One GPU's readings; without a GPU or a driver each of them is None."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml = _nvml() if uuid else None
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid) if self._nvml else None

    def memory_mib(self) -> float | None:
        """Device memory in use by all processes."""
        return self._ask("nvmlDeviceGetMemoryInfo", lambda memory: memory.used / MIB)

    def energy_mj(self) -> float | None:
        """Millijoules since the driver was loaded."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption")

    def users(self) -> int | None:
        """How many processes compute on the device; one that only draws a screen does not count."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", len)
        return None if found is None else int(found)

    def utilization(self) -> float | None:
        """Share of the last period, a sixth of a second to a second, in which any process had a kernel running."""
        return self._ask("nvmlDeviceGetUtilizationRates", lambda rates: rates.gpu / 100)

    def read(self) -> Reading:
        """Everything that is polled."""
        nvml = self._nvml
        return Reading(
            time.monotonic(),
            self.memory_mib(),
            self._ask("nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1000),
            self._ask("nvmlDeviceGetClockInfo", float, *([nvml.NVML_CLOCK_SM] if nvml else [])),
            self._ask("nvmlDeviceGetTemperature", float, *([nvml.NVML_TEMPERATURE_GPU] if nvml else [])),
            self._reasons(),
        )

    def _reasons(self) -> int | None:
        # Older bindings have the function under its older name.
        for name in ("ClocksEventReasons", "ClocksThrottleReasons"):
            found = self._ask(f"nvmlDeviceGetCurrent{name}")
            if found is not None:
                return int(found)
        return None

    def _ask(self, function: str, convert: Any = float, *arguments: Any) -> float | None:
        if self._nvml is None:
            return None
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return float(convert(getattr(self._nvml, function)(self._handle, *arguments)))
        return None


def summarize(readings: Iterable[Reading]) -> dict[str, float | None]:
    """By column the medians of what was read, and `throttled`: whether the card slowed down; None without readings."""
    readings = list(readings)
    found: dict[str, float | None] = {}
    for name in ("power_w", "sm_clock_mhz", "temperature_c"):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        found[name] = statistics.median(values) if values else None
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    return found | {"throttled": any(map(slowdowns, reasons)) if reasons else None}


_SLOWDOWNS = {
    "hw-slowdown": 0x8,
    "sw-thermal-slowdown": 0x20,
    "hw-thermal-slowdown": 0x40,
    "hw-power-brake-slowdown": 0x80,
}
_POWER_CAP = 0x4
"""NVML's bits: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"""


def slowdowns(reasons: int) -> list[str]:
    """Names of the reasons that make a figure doubtful; the power cap is a card's normal state under load."""
    return [name for name, bit in _SLOWDOWNS.items() if reasons & bit]


def power_capped(reasons: int) -> bool:
    """Whether the card was at its power limit, which slows its clocks and is no fault."""
    return bool(reasons & _POWER_CAP)


def _compute_capability(nvml: Any, handle: Any) -> str | None:
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        return ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    return None


def _nvml() -> Any:
    """The NVML module, initialized, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
