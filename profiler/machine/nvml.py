"""Read GPUs through NVML: memory in use, clocks, power, temperature, throttle reasons; empty without a driver."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from profiler.errors import ConfigError

UTILIZATION_SECONDS = 1.0
"""Longest period that NVML's utilization covers (a sixth of a second to a second), so it may include earlier work."""
# NVML's bits: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_SLOWDOWNS = {
    "hw-slowdown": 0x8,
    "sw-thermal-slowdown": 0x20,
    "hw-thermal-slowdown": 0x40,
    "hw-power-brake-slowdown": 0x80,
}
_POWER_CAP = 0x4


@dataclass(frozen=True)
class Gpu:
    """A visible GPU; `index` is CUDA's, among the devices of CUDA_VISIBLE_DEVICES."""

    index: int
    uuid: str
    name: str
    memory_mib: float
    driver: str
    compute_capability: str | None = None


@dataclass(frozen=True)
class Reading:
    """One poll of the device; None for a figure that it does not report."""

    seconds: float
    """On the machine's monotonic clock."""
    memory_mib: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    reasons: int | None
    """NVML's bits for clock events."""


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that a new process sees. Raises ConfigError if CUDA_VISIBLE_DEVICES names only missing ones."""
    if not _has_driver():
        return []
    driver, cards = pynvml.nvmlSystemGetDriverVersion(), []
    for number in range(pynvml.nvmlDeviceGetCount()):
        card = pynvml.nvmlDeviceGetHandleByIndex(number)
        uuid, name = pynvml.nvmlDeviceGetUUID(card), pynvml.nvmlDeviceGetName(card)
        capability = ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(card)))
        memory_mib = pynvml.nvmlDeviceGetMemoryInfo(card).total / 2**20
        cards.append(Gpu(number, uuid, name, memory_mib, driver, capability))
    requested = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = cards if requested is None else _requested(requested, cards)
    return [replace(gpu, index=number) for number, gpu in enumerate(chosen)]


def near_cores() -> dict[str, set[int]]:
    """Return the cores of each GPU's NUMA node, by the GPU's UUID; empty without a driver."""
    near = dict[str, set[int]]()
    for number in range(pynvml.nvmlDeviceGetCount() if _has_driver() else 0):
        card = pynvml.nvmlDeviceGetHandleByIndex(number)
        with contextlib.suppress(pynvml.NVMLError):
            words = pynvml.nvmlDeviceGetCpuAffinity(card, -(-(os.cpu_count() or 1) // 64))
            near[pynvml.nvmlDeviceGetUUID(card)] = {
                64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
            }
    return near


def _requested(value: str, cards: list[Gpu]) -> list[Gpu]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, up to the first word that names none or several, as CUDA does."""
    chosen: list[Gpu] = []
    words = [word.strip() for word in value.split(",")]
    for word in words:
        match = [gpu for gpu in cards if word == str(gpu.index) or ("GPU-" in word and gpu.uuid.startswith(word))]
        if len(match) != 1:
            break
        chosen += match
    if not chosen and cards and words[0] not in ("", "-1", "NoDevFiles"):  # Slurm sets NoDevFiles.
        listing = ", ".join(f"{gpu.index} or {gpu.uuid} ({gpu.name})" for gpu in cards)
        raise ConfigError(f"CUDA_VISIBLE_DEVICES={value} names no GPU; there are {listing}; or unset it")
    return chosen


class Nvml:
    """Reads one GPU; without a GPU or a driver all figures are None."""

    def __init__(self, uuid: str | None) -> None:
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid) if uuid and _has_driver() else None

    def memory_mib(self) -> float | None:
        memory = self._ask("MemoryInfo")
        return None if memory is None else float(memory.used / 2**20)

    def energy_mj(self) -> float | None:
        """Return millijoules since the driver was loaded."""
        energy: float | None = self._ask("TotalEnergyConsumption")
        return energy

    def pids(self) -> frozenset[int] | None:
        """Return the processes that compute on the device. A container may see none, or other numbers."""
        running = self._ask("ComputeRunningProcesses")
        return None if running is None else frozenset(process.pid for process in running)

    def used_by(self, since: float) -> dict[int, float] | None:
        """Return each process's mean share of the device since then (time.time()); None if NVML does not know."""
        if self._handle is None:
            return None
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, int(since * 1e6))
        except pynvml.NVMLError as error:
            return {} if error.value == pynvml.NVML_ERROR_NOT_FOUND else None  # Not found: no process has samples.
        used = [(int(sample.pid), sample.smUtil / 100) for sample in samples if sample.timeStamp >= since * 1e6]
        return {pid: statistics.mean(share for other, share in used if other == pid) for pid, _ in used}

    def utilization(self) -> float | None:
        """Return the share of time with a running kernel, in at most the last UTILIZATION_SECONDS."""
        rates = self._ask("UtilizationRates")
        return None if rates is None else float(rates.gpu / 100)

    def read(self) -> Reading:
        return Reading(
            time.monotonic(),
            self.memory_mib(),
            self._power_w(),
            self._ask("ClockInfo", pynvml.NVML_CLOCK_SM),
            self._ask("Temperature", pynvml.NVML_TEMPERATURE_GPU),
            self._ask("CurrentClocksEventReasons"),
        )

    def _power_w(self) -> float | None:
        """Return the power at this instant, or the average if the driver has only that.

        nvmlDeviceGetPowerUsage averages over a second on most GPUs since Ampere, which is longer than many a case's
        samples (https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html).
        """
        values = self._ask("FieldValues", [pynvml.NVML_FI_DEV_POWER_INSTANT])
        milliwatts = values[0].value.uiVal if values and values[0].nvmlReturn == 0 else self._ask("PowerUsage")
        return None if milliwatts is None else float(milliwatts / 1000)

    def _ask(self, query: str, *arguments: Any) -> Any:
        """Call nvmlDeviceGet…; return None without a GPU, or if the driver does not support the query."""
        if self._handle is not None:
            with contextlib.suppress(pynvml.NVMLError):
                return getattr(pynvml, f"nvmlDeviceGet{query}")(self._handle, *arguments)
        return None


def summarize(readings: Iterable[Reading]) -> dict[str, float | None]:
    """Return the medians by column, and `throttled` if the card slowed down; None without readings."""
    readings = list(readings)
    figures: dict[str, float | None] = {}
    for name in ("power_w", "sm_clock_mhz", "temperature_c"):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        figures[name] = statistics.median(values) if values else None
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    return figures | {"throttled": any(map(slowdowns, reasons)) if reasons else None}


def slowdowns(reasons: int) -> list[str]:
    """Name the slowdowns that cast doubt on a figure; the power cap does not: it is normal under load."""
    return [name for name, bit in _SLOWDOWNS.items() if reasons & bit]


def power_capped(reasons: int) -> bool:
    """Return whether the card was at its power limit, which lowers its clocks."""
    return bool(reasons & _POWER_CAP)


def _has_driver() -> bool:
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return True
    return False
