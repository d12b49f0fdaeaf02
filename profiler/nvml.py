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
    """Of a MIG slice the UUID of its card."""


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
        return self._ask("nvmlDeviceGetMemoryInfo", lambda memory: memory.used / MIB)

    def energy_mj(self) -> float | None:
        """Millijoules since the driver was loaded; of a slice None, for the card's has what other slices take."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption") if self._card is self._handle else None

    def users(self) -> int | None:
        """How many processes compute on the device; one that only draws a screen does not count."""
        pids = self.pids()
        return None if pids is None else len(pids)

    def pids(self) -> frozenset[int] | None:
        """The processes that compute on the device. A container may see none, its own included, or other numbers."""
        running = _answer(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._handle)
        return None if running is None else frozenset(int(process.pid) for process in running)

    def used_by(self, since: float) -> dict[int, float] | None:
        """By process the share of the device that it had since then (time.time()), on average over NVML's samples.

        Processes that had none are left out. None where NVML does not tell, as with MIG.
        """
        if self._nvml is None:
            return None
        try:
            found = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, int(since * 1e6))
        except (self._nvml.NVMLError, AttributeError) as error:
            # So NVML says that there are no samples.
            none = getattr(error, "value", None) == getattr(self._nvml, "NVML_ERROR_NOT_FOUND", "")
            return {} if none else None
        shares: dict[int, list[float]] = {}
        for sample in found:
            if sample.timeStamp >= since * 1e6:
                shares.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        return {pid: statistics.mean(values) for pid, values in shares.items()}

    def utilization(self) -> float | None:
        """Share of the last period, at most UTILIZATION_SECONDS, in which any process had a kernel running."""
        return self._ask("nvmlDeviceGetUtilizationRates", lambda rates: rates.gpu / 100)

    def power_limit_w(self) -> float | None:
        """The limit that is set; under load a card is slowed down to stay below it."""
        return self._ask_card("nvmlDeviceGetEnforcedPowerLimit", lambda milliwatts: milliwatts / 1000)

    def default_power_limit_w(self) -> float | None:
        return self._ask_card("nvmlDeviceGetPowerManagementDefaultLimit", lambda milliwatts: milliwatts / 1000)

    def most_sm_clock_mhz(self) -> float | None:
        return self._ask_card("nvmlDeviceGetMaxClockInfo", float, "NVML_CLOCK_SM")

    def read(self) -> Reading:
        return Reading(
            time.monotonic(),
            self.memory_mib(),
            self._power_w(),
            self._ask_card("nvmlDeviceGetClockInfo", float, "NVML_CLOCK_SM"),
            self._ask_card("nvmlDeviceGetTemperature", float, "NVML_TEMPERATURE_GPU"),
            self._reasons(),
        )

    def _power_w(self) -> float | None:
        """Power at this instant, or where the driver has only that an average.

        nvmlDeviceGetPowerUsage averages over a second on most GPUs since Ampere, which is longer than many a case's
        samples (https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html).
        """
        values = _answer(self._nvml, "nvmlDeviceGetFieldValues", self._card, [_POWER_INSTANT])
        if values and values[0].nvmlReturn == 0:
            return float(values[0].value.uiVal) / 1000
        return self._ask_card("nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1000)

    def _reasons(self) -> int | None:
        # Older bindings have the function under its older name.
        for name in ("ClocksEventReasons", "ClocksThrottleReasons"):
            found = self._ask_card(f"nvmlDeviceGetCurrent{name}")
            if found is not None:
                return int(found)
        return None

    def _ask(self, function: str, convert: Any = float) -> float | None:
        """What the device answers, a slice for itself."""
        found = _answer(self._nvml, function, self._handle)
        return None if found is None else float(convert(found))

    def _ask_card(self, function: str, convert: Any = float, *constants: str) -> float | None:
        found = _answer(self._nvml, function, self._card, *(getattr(self._nvml, name, None) for name in constants))
        return None if found is None else float(convert(found))


def summarize(readings: Iterable[Reading]) -> dict[str, float | None]:
    """By column the medians of what was read, and `throttled`: whether the card slowed down; None without readings."""
    readings = list(readings)
    found: dict[str, float | None] = {}
    for name in ("power_w", "sm_clock_mhz", "temperature_c"):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        found[name] = statistics.median(values) if values else None
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    return found | {"throttled": any(map(slowdowns, reasons)) if reasons else None}


def slowdowns(reasons: int) -> list[str]:
    """Names of the reasons that make a figure doubtful; the power cap is a card's normal state under load."""
    return [name for name, bit in _SLOWDOWNS.items() if reasons & bit]


def power_capped(reasons: int) -> bool:
    """Whether the card was at its power limit, which slows its clocks and is no fault."""
    return bool(reasons & _POWER_CAP)


def _answer(nvml: Any, function: str, *arguments: Any) -> Any:
    """What NVML answers; None without it, where the driver cannot, or the binding does not know the function."""
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, function)(*arguments)
    return None


def _nvml() -> Any:
    """The NVML module, initialized, or None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
