"""Readings of a simulated driver, what is made of them, and NVML's own bits."""

from __future__ import annotations

import types
from typing import Any

import pynvml
import pytest

from profiler.errors import ConfigError
from profiler.machine.nvml import Gpu, Nvml, Reading, power_capped, slowdowns, summarize, visible_gpus
from profiler.machine.target import Target, resolve_device

CARDS = ("GPU-aa11", "GPU-bb22")
DRIVER = {
    "nvmlInit": lambda: None,
    "nvmlSystemGetDriverVersion": lambda: "580.95",
    "nvmlDeviceGetCount": lambda: 2,
    "nvmlDeviceGetHandleByIndex": CARDS.__getitem__,
    **dict.fromkeys(("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID"), lambda handle: handle),
    "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
    "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
    "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=35, memory=2),
    "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=141 * 2**30, used=2**30),
    "nvmlDeviceGetFieldValues": lambda handle, fields: fails(handle),
    **dict.fromkeys(("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"), lambda handle: 400_000),
    **dict.fromkeys(("nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature"), lambda handle, of: 400_000),
    "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 400_000,
}
"""What NVML answers on a machine with two H200s; handles are UUIDs."""


def fails(*_: object) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in DRIVER.items():
        monkeypatch.setattr(pynvml, name, function)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def answering(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Nvml:
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", answer)
    return Nvml("GPU-bb22")


def test_readings_have_the_columns_units(driver, monkeypatch):
    gpu, other = visible_gpus()
    assert gpu == Gpu(0, "GPU-aa11", "NVIDIA H200", 141 * 1024.0, "580.95", "9.0")
    assert resolve_device("cuda:1", {"cuda_available": True}) == Target("cuda", other)
    nvml = Nvml(gpu.uuid)
    reading = nvml.read()
    assert (reading.memory_mib, reading.power_w, reading.sm_clock_mhz) == (1024.0, 400.0, 400_000.0)
    assert (reading.temperature_c, reading.reasons) == (400_000.0, 400_000)
    assert (nvml.energy_mj(), nvml.utilization()) == (400_000, 0.35)
    blank = answering(monkeypatch, MemoryInfo=fails, CurrentClocksEventReasons=fails).read()
    assert (blank.memory_mib, blank.power_w, blank.reasons) == (None, 400.0, None)
    nothing = Nvml(None)
    assert (nothing.memory_mib(), nothing.energy_mj(), nothing.read().power_w, nothing.pids()) == (None,) * 4


@pytest.mark.parametrize(
    ("code", "watts"),
    [(pynvml.NVML_SUCCESS, 612.5), (pynvml.NVML_ERROR_NOT_SUPPORTED, 400.0)],
    ids=["instant", "average"],
)
def test_power_is_the_instant_figure_where_there_is_one(driver, monkeypatch, code, watts):
    def field_values(handle: object, fields: list[int]) -> object:
        values = (pynvml.c_nvmlFieldValue_t * 1)()
        values[0].fieldId, values[0].nvmlReturn, values[0].value.uiVal = fields[0], code, 612_500
        return values

    assert answering(monkeypatch, FieldValues=field_values).read().power_w == watts


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb22"]),
        ("0", ["GPU-aa11"]),
        ("GPU-bb22,GPU-a", ["GPU-bb22", "GPU-aa11"]),  # CUDA takes the start of a UUID that only one GPU has.
        (" 1 , 0", ["GPU-bb22", "GPU-aa11"]),
        *((value, ["GPU-bb22"]) for value in ("1,7,0", "1,-1,0", "1,GPU-")),
        *((value, []) for value in ("", "-1", "NoDevFiles")),
    ],
)
def test_visible_devices_are_cudas(driver, monkeypatch, value, uuids):
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert [(gpu.index, gpu.uuid) for gpu in visible_gpus()] == [*enumerate(uuids)]


@pytest.mark.parametrize("value", ["2", "GPU-", "GPU-ff,0", "MIG-ff", "cuda:0", "all"])
def test_what_matches_nothing_is_an_error_that_names_what_is_there(driver, monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(ConfigError, match=rf"CUDA_VISIBLE_DEVICES={value} .* 0 or GPU-aa11 .*, 1 or GPU-bb22"):
        resolve_device("auto")
    assert resolve_device("cpu") == Target("cpu")


def test_the_bits_are_nvmls():
    for kind in ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"):
        (name,) = slowdowns(getattr(pynvml, f"nvmlClocksEventReason{kind}"))
        assert name.replace("-", "") == kind.lower()
    assert slowdowns(pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle) == []
    assert power_capped(pynvml.nvmlClocksEventReasonSwPowerCap)
    assert not power_capped(pynvml.nvmlClocksEventReasonHwSlowdown)


def test_a_summary_is_medians_and_whether_the_card_slowed_down():
    readings = [Reading(float(n), None, 100.0 + n, 1980.0, None, 0x4) for n in range(5)]
    assert summarize(readings) == {"power_w": 102.0, "sm_clock_mhz": 1980.0, "temperature_c": None, "throttled": False}
    assert summarize([*readings, Reading(5.0, None, None, None, None, 0x40)])["throttled"]
    assert set(summarize([]).values()) == {None}


def test_the_processes_on_a_gpu_and_what_each_had_of_it(driver, monkeypatch):
    """A process without samples is left out, and so are samples of the time before."""
    told = ((7, 2_000_000, 40), (7, 2_500_000, 60), (8, 900_000, 90))
    samples = [types.SimpleNamespace(pid=pid, timeStamp=at, smUtil=share) for pid, at, share in told]
    running = [types.SimpleNamespace(pid=pid) for pid in (7, 8)]
    nvml = answering(
        monkeypatch,
        ComputeRunningProcesses=lambda handle: running,
        ProcessUtilization=lambda handle, since: samples if since == 1_000_000 else [],
    )
    assert (nvml.pids(), nvml.used_by(1.0)) == (frozenset({7, 8}), {7: 0.5})
    for code, says in ((pynvml.NVML_ERROR_NOT_FOUND, {}), (pynvml.NVML_ERROR_NOT_SUPPORTED, None)):

        def refuse(handle: object, since: int, code: int = code) -> None:
            raise pynvml.NVMLError(code)

        assert answering(monkeypatch, ProcessUtilization=refuse).used_by(1.0) == says
    assert (answering(monkeypatch, ComputeRunningProcesses=fails).pids(), Nvml(None).used_by(1.0)) == (None, None)
