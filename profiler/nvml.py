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
    card: str | None = None
    """UUID of a MIG slice's card."""


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
    """Return the GPUs and MIG slices that a process started now could use; empty without a driver.

    Creates no CUDA context. Of a card in MIG mode CUDA uses one slice, by itself the first. Raises ConfigError where
    CUDA_VISIBLE_DEVICES names none of what is here, and does not ask for no GPU either.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    cards = [_devices(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    requested = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = [card[0] for card in cards if card] if requested is None else _requested(requested, cards)
    return [replace(gpu, index=number) for number, gpu in enumerate(chosen)]


def _requested(value: str, cards: list[list[Gpu]]) -> list[Gpu]:
    """Return the devices that CUDA_VISIBLE_DEVICES names, up to the first word that names none, or several.

    This is CUDA's rule: "If one of the indices is invalid, only the devices whose index precedes the invalid index are
    visible" (CUDA C++ Programming Guide, section "CUDA Environment Variables"). A UUID may be cut short.
    """
    chosen: list[Gpu] = []
    words = [word.strip() for word in value.split(",")]
    for word in words:
        names_card = word.isdigit() or word.startswith("GPU-")
        devices = [device for card in cards for device in (card[:1] if names_card else card)]
        match = [gpu for gpu in devices if word == str(gpu.index) or _uuid(gpu, names_card).startswith(word or "none")]
        if len(match) != 1:
            break
        chosen += match
    # Slurm says NoDevFiles where a job has no GPU.
    if not chosen and cards and words[0] not in ("", "NoDevFiles") and not re.fullmatch(r"-\d+", words[0]):
        here = ", ".join(f"{gpu.index} or {gpu.uuid} ({gpu.name})" for card in cards for gpu in card)
        raise ConfigError(f"CUDA_VISIBLE_DEVICES={value} names no device, or several; there are {here}; or unset it")
    return chosen


def _uuid(gpu: Gpu, of_card: bool) -> str:
    return gpu.card or gpu.uuid if of_card else gpu.uuid


def _devices(nvml: Any, number: int) -> list[Gpu]:
    """Return a card, or of one in MIG mode its slices."""
    card, driver = nvml.nvmlDeviceGetHandleByIndex(number), nvml.nvmlSystemGetDriverVersion()
    capability = _answer(nvml, "nvmlDeviceGetCudaComputeCapability", card)
    capability = capability and ".".join(map(str, capability))

    def described(handle: Any, parent: str | None = None) -> Gpu:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total / MIB
        uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        return Gpu(number, uuid, name, memory, driver, capability, parent)

    if not (_answer(nvml, "nvmlDeviceGetMigMode", card) or [0])[0]:
        return [described(card)]
    # Slices' indices need not be without gaps.
    most, uuid = _answer(nvml, "nvmlDeviceGetMaxMigDeviceCount", card) or 0, nvml.nvmlDeviceGetUUID(card)
    slices = (_answer(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", card, index) for index in range(most))
    return [described(handle, uuid) for handle in slices if handle is not None]


class Nvml:
    """Read one GPU; without a GPU or a driver each figure is None.

    A MIG slice has its own memory, and its card's power, clock, temperature and clock events.
    """

    def __init__(self, uuid: str | None) -> None:
        self._nvml = _nvml() if uuid else None
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid) if self._nvml else None
        self._card = self._handle
        if self._nvml and uuid and uuid.startswith("MIG-"):
            self._card = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)

    def memory_mib(self) -> float | None:
        return self._ask("MemoryInfo", lambda memory: memory.used / MIB, self._handle)

    def energy_mj(self) -> float | None:
        """Return millijoules since the driver was loaded; None of a slice, whose card counts other slices' too."""
        return self._ask("TotalEnergyConsumption") if self._card is self._handle else None

    def pids(self) -> frozenset[int] | None:
        """Return the processes that compute on the device. A container may see none, or other numbers."""
        running = _answer(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._handle)
        return None if running is None else frozenset(int(process.pid) for process in running)

    def used_by(self, since: float) -> dict[int, float] | None:
        """Return by process its mean share of the device since then (time.time()), without those that had none.

        None where NVML does not tell, as with MIG.
        """
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
        return self._ask("UtilizationRates", lambda rates: rates.gpu / 100, self._handle)

    def power_limits_w(self) -> tuple[float | None, float | None]:
        """Return the limit that is set, which slows a card down under load, and the card's default."""
        return self._ask("EnforcedPowerLimit", _watts), self._ask("PowerManagementDefaultLimit", _watts)

    def read(self) -> Reading:
        reasons = self._ask("CurrentClocksEventReasons")
        return Reading(
            time.monotonic(),
            self.memory_mib(),
            self._power_w(),
            self._ask("ClockInfo", float, self._card, "NVML_CLOCK_SM"),
            self._ask("Temperature", float, self._card, "NVML_TEMPERATURE_GPU"),
            None if reasons is None else int(reasons),
        )

    def _power_w(self) -> float | None:
        """Return the power at this instant, or where the driver has only that an average.

        nvmlDeviceGetPowerUsage averages over a second on most GPUs since Ampere, which is longer than many a case's
        samples (https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html).
        """
        values = _answer(self._nvml, "nvmlDeviceGetFieldValues", self._card, [_POWER_INSTANT])
        if values and values[0].nvmlReturn == 0:
            return _watts(values[0].value.uiVal)
        return self._ask("PowerUsage", _watts)

    def _ask(self, what: str, convert: Any = float, handle: Any = None, *constants: str) -> float | None:
        """Return what the card, or another handle, answers to nvmlDeviceGet…"""
        arguments = (getattr(self._nvml, name, None) for name in constants)
        found = _answer(self._nvml, f"nvmlDeviceGet{what}", handle or self._card, *arguments)
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
