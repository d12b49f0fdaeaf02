"""Read the GPUs that NVML sees: memory in use, clocks, power, temperature, throttle reasons; blank without a driver."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from profiler.errors import ConfigError

MIB = 2**20
_POWER_INSTANT = 186
"""NVML's field for milliwatts now: NVML_FI_DEV_POWER_INSTANT."""
UTILIZATION_SECONDS = 1.0
"""NVML's utilization is of the last sixth of a second to second: for so long it may be that of earlier work."""
_SLOWDOWNS = {
    "hw-slowdown": 0x8,
    "sw-thermal-slowdown": 0x20,
    "hw-thermal-slowdown": 0x40,
    "hw-power-brake-slowdown": 0x80,
}
_POWER_CAP = 0x4
"""NVML's bits: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"""


@dataclass(frozen=True)
class Gpu:
    """Describe a visible GPU; `index` counts as CUDA does, over the devices that CUDA_VISIBLE_DEVICES leaves."""

    index: int
    uuid: str
    name: str
    memory_mib: float
    driver: str
    compute_capability: str | None = None


@dataclass(frozen=True)
class Reading:
    """Hold one poll of the device; None where it does not answer."""

    seconds: float
    """On the machine's monotonic clock."""
    memory_mib: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    reasons: int | None
    """NVML's bits for clock events."""


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that a process started now could use, without a CUDA context; empty without a driver.

    Raises ConfigError where CUDA_VISIBLE_DEVICES names none of what is here, and does not ask for no GPU either.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    cards = []
    for number in range(nvml.nvmlDeviceGetCount()):
        card = nvml.nvmlDeviceGetHandleByIndex(number)
        capability = _answer(nvml, "nvmlDeviceGetCudaComputeCapability", card)
        uuid, name = nvml.nvmlDeviceGetUUID(card), nvml.nvmlDeviceGetName(card)
        memory, driver = nvml.nvmlDeviceGetMemoryInfo(card).total / MIB, nvml.nvmlSystemGetDriverVersion()
        cards.append(Gpu(number, uuid, name, memory, driver, capability and ".".join(map(str, capability))))
    requested = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = cards if requested is None else _requested(requested, cards)
    return [replace(gpu, index=number) for number, gpu in enumerate(chosen)]


def _requested(value: str, cards: list[Gpu]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, up to the first word that names none, or several.

    This is CUDA's rule: "If one of the indices is invalid, only the devices whose index precedes the invalid index are
    visible" (CUDA C++ Programming Guide, section "CUDA Environment Variables"). A UUID may be cut short.
    """
    chosen: list[Gpu] = []
    words = [word.strip() for word in value.split(",")]
    for word in words:
        match = [gpu for gpu in cards if word == str(gpu.index) or (word and gpu.uuid.startswith(word))]
        if len(match) != 1:
            break
        chosen += match
    # Slurm says NoDevFiles where a job has no GPU.
    if not chosen and cards and words[0] not in ("", "NoDevFiles") and not re.fullmatch(r"-\d+", words[0]):
        here = ", ".join(f"{gpu.index} or {gpu.uuid} ({gpu.name})" for gpu in cards)
        raise ConfigError(f"CUDA_VISIBLE_DEVICES={value} names no GPU, or several; there are {here}; or unset it")
    return chosen


class Nvml:
    """Read one GPU; without a GPU or a driver each figure is None."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml = _nvml() if uuid else None
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid) if self._nvml else None

    def memory_mib(self) -> float | None:
        return self._ask("MemoryInfo", lambda memory: memory.used / MIB)

    def energy_mj(self) -> float | None:
        """Return millijoules since the driver was loaded."""
        return self._ask("TotalEnergyConsumption")

    def pids(self) -> frozenset[int] | None:
        """Return the processes that compute on the device. A container may see none, or other numbers."""
        running = _answer(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._handle)
        return None if running is None else frozenset(int(process.pid) for process in running)

    def used_by(self, since: float) -> dict[int, float] | None:
        """Return by process its mean share of the device since then (time.time()); None where NVML does not tell."""
        if self._nvml is None:
            return None
        try:
            found = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, int(since * 1e6))
        except (self._nvml.NVMLError, AttributeError) as error:
            # So NVML says that there are no samples.
            none = getattr(error, "value", None) == getattr(self._nvml, "NVML_ERROR_NOT_FOUND", "")
            return {} if none else None
        used = [(int(one.pid), one.smUtil / 100) for one in found if one.timeStamp >= since * 1e6]
        return {pid: statistics.mean(share for of, share in used if of == pid) for pid, _ in used}

    def utilization(self) -> float | None:
        """Return the share of the last UTILIZATION_SECONDS or less in which any process had a kernel running."""
        return self._ask("UtilizationRates", lambda rates: rates.gpu / 100)

    def power_limits_w(self) -> tuple[float | None, float | None]:
        """Return the limit that is set, which slows a card down under load, and the card's default."""
        return self._ask("EnforcedPowerLimit", _watts), self._ask("PowerManagementDefaultLimit", _watts)

    def read(self) -> Reading:
        reasons = self._ask("CurrentClocksEventReasons")
        return Reading(
            time.monotonic(),
            self.memory_mib(),
            self._power_w(),
            self._ask("ClockInfo", float, "NVML_CLOCK_SM"),
            self._ask("Temperature", float, "NVML_TEMPERATURE_GPU"),
            None if reasons is None else int(reasons),
        )

    def _power_w(self) -> float | None:
        """Return the power at this instant, or where the driver has only that an average.

        nvmlDeviceGetPowerUsage averages over a second on most GPUs since Ampere, which is longer than many a case's
        samples (https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html).
        """
        values = _answer(self._nvml, "nvmlDeviceGetFieldValues", self._handle, [_POWER_INSTANT])
        if values and values[0].nvmlReturn == 0:
            return _watts(values[0].value.uiVal)
        return self._ask("PowerUsage", _watts)

    def _ask(self, what: str, convert: Any = float, *constants: str) -> float | None:
        """Return what the GPU answers to nvmlDeviceGet…"""
        arguments = (getattr(self._nvml, name, None) for name in constants)
        found = _answer(self._nvml, f"nvmlDeviceGet{what}", self._handle, *arguments)
        return None if found is None else float(convert(found))


def _watts(milliwatts: float) -> float:
    return milliwatts / 1000


def summarize(readings: Iterable[Reading]) -> dict[str, float | None]:
    """Return by column the medians, and `throttled` where the card slowed down; None without readings."""
    readings = list(readings)
    found: dict[str, float | None] = {}
    for name in ("power_w", "sm_clock_mhz", "temperature_c"):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        found[name] = statistics.median(values) if values else None
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    return found | {"throttled": any(map(slowdowns, reasons)) if reasons else None}


def slowdowns(reasons: int) -> list[str]:
    """Name the reasons that make a figure doubtful; the power cap is a card's normal state under load."""
    return [name for name, bit in _SLOWDOWNS.items() if reasons & bit]


def power_capped(reasons: int) -> bool:
    """Return whether the card was at its power limit, which slows its clocks and is no fault."""
    return bool(reasons & _POWER_CAP)


def _answer(nvml: Any, function: str, *arguments: Any) -> Any:
    """Return what NVML answers; None without it, where the driver cannot, or the binding lacks the function."""
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, function)(*arguments)
    return None


def _nvml() -> Any:
    """Return the NVML module, initialized, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
