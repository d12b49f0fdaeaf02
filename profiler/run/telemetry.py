"""What enters: a GPU's UUID. What leaves: its memory in use, clocks, power, temperature and throttle reasons, by NVML.

A process of its own reads them all through a run and writes one line a reading, so that neither the measured process
nor the display is disturbed; the parent takes out the lines of a case once it has ended. Blank without NVML.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from profiler.processes.process import Call, Child, Report

MIB = 2**20
_HERTZ = 10.0
_FIELDS = ("seconds", "memory_mib", "power_w", "sm_clock_mhz", "temperature_c", "reasons")
"""Columns of telemetry.csv; `seconds` is the machine's monotonic clock, `reasons` NVML's bits for clock events."""


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
    memory_mib: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    reasons: int | None


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
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return gpus
    chosen = []
    for word in filter(None, wanted.split(",")):
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


def watch(argument: tuple[str, Path], report: Report) -> None:
    """Read the GPU of that UUID ten times a second and append a line each time, until the process is ended."""
    uuid, path = argument
    nvml = Nvml(uuid)
    with path.open("a", buffering=1) as file:
        while True:
            reading = nvml.read()
            values = [getattr(reading, name) for name in _FIELDS]
            file.write(",".join("" if value is None else f"{value:.10g}" for value in values) + "\n")
            time.sleep(max(0.0, reading.seconds + 1 / _HERTZ - time.monotonic()))


class Watcher:
    """The process that reads a GPU all through a run. Without a GPU there is none, and no readings."""

    def __init__(self, uuid: str | None, path: Path, log: Path) -> None:
        self._child: Child | None = None
        self._file: BinaryIO | None = None
        self._readings: list[Reading] = []
        self._ended = False
        if uuid is not None:
            if not path.exists():  # A resumed run goes on with its file.
                path.write_text(",".join(_FIELDS) + "\n")
            self._file = path.open("rb")
            self._file.seek(0, os.SEEK_END)
            self._child = Child(Call("profiler.run.telemetry:watch", (uuid, path), log, math.inf, math.inf))

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None and self._file is not None:
            self._child.kill()
            self._file.close()

    def ended(self) -> bool:
        """Whether the reading process has ended, as it never should while the run lasts."""
        if self._child is not None and not self._ended:
            self._ended = self._child.poll() is not None
        return self._ended

    def between(self, start: float, end: float) -> list[Reading]:
        """Readings from `start` to `end`, on time.monotonic(); earlier ones are forgotten."""
        if self._file is not None:
            # A line that is being written is left for the next time.
            at, text = self._file.tell(), self._file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._file.seek(at + len(whole))
            self._readings += [_parse(line) for line in whole.decode().splitlines()]
        self._readings = [reading for reading in self._readings if reading.seconds >= start]
        return [reading for reading in self._readings if reading.seconds <= end]


def summarize(readings: Iterable[Reading]) -> dict[str, Any]:
    """The columns power_w, sm_clock_mhz and temperature_c (medians) and throttled; null without readings."""
    readings = list(readings)
    found: dict[str, Any] = {}
    for name in ("power_w", "sm_clock_mhz", "temperature_c"):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        found[name] = statistics.median(values) if values else None
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
    found["throttled"] = any(map(slowdowns, reasons)) if reasons else None
    return found


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


def _parse(line: str) -> Reading:
    seconds, memory, power, clock, temperature, reasons = (float(word) if word else None for word in line.split(","))
    return Reading(seconds or 0.0, memory, power, clock, temperature, None if reasons is None else int(reasons))


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
