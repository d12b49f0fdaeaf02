"""Readings of a simulated driver, what is made of them, and NVML's own bits."""

from __future__ import annotations

import types
from typing import Any

import pynvml
import pytest

from profiler import nvml as nvml_module
from profiler.errors import ConfigError
from profiler.machine import Target, resolve_device
from profiler.nvml import Gpu, Nvml, Reading, power_capped, slowdowns, summarize, visible_gpus


class Driver:
    """As NVML answers on a machine with two H200s; handles are UUIDs."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = pynvml.NVML_CLOCK_SM, pynvml.NVML_TEMPERATURE_GPU
    CARDS = ("GPU-aa11", "GPU-bb22")
    nvmlSystemGetDriverVersion = staticmethod(lambda: "580.95")
    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(CARDS.__getitem__)
    nvmlDeviceGetHandleByUUID = nvmlDeviceGetUUID = staticmethod(lambda handle: handle)
    nvmlDeviceGetName = staticmethod(lambda handle: "NVIDIA H200")
    nvmlDeviceGetCudaComputeCapability = staticmethod(lambda handle: (9, 0))
    nvmlDeviceGetUtilizationRates = staticmethod(lambda handle: types.SimpleNamespace(gpu=35, memory=2))
    nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: types.SimpleNamespace(total=141 * 2**30, used=2**30))
    nvmlDeviceGetPowerUsage = nvmlDeviceGetClockInfo = nvmlDeviceGetTemperature = staticmethod(lambda *_: 400_000)
    nvmlDeviceGetTotalEnergyConsumption = nvmlDeviceGetCurrentClocksEventReasons = staticmethod(lambda _: 400_000)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "_nvml", Driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def answering(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Nvml:
    """The whole card, of which some functions answer otherwise; None is one that the driver lacks."""
    for name, answer in answers.items():
        if answer is None:
            monkeypatch.delattr(Driver, f"nvmlDeviceGet{name}", raising=False)
        else:
            monkeypatch.setattr(Driver, f"nvmlDeviceGet{name}", staticmethod(answer), raising=False)
    return Nvml("GPU-bb22")


def test_readings_have_the_columns_units(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, other = visible_gpus()
    assert gpu == Gpu(0, "GPU-aa11", "NVIDIA H200", 141 * 1024.0, "580.95", "9.0")
    assert resolve_device("cuda:1", {"cuda_available": True}) == Target("cuda", other)
    nvml = Nvml(gpu.uuid)
    reading = nvml.read()
    assert (reading.memory_mib, reading.power_w, reading.sm_clock_mhz) == (1024.0, 400.0, 400_000.0)
    assert (reading.temperature_c, reading.reasons) == (400_000.0, 400_000)
    assert (nvml.energy_mj(), nvml.utilization()) == (400_000, 0.35)
    blank = answering(monkeypatch, MemoryInfo=None, CurrentClocksEventReasons=None).read()
    assert (blank.memory_mib, blank.power_w, blank.reasons) == (None, 400.0, None)
    nothing = Nvml(None)
    assert (nothing.memory_mib(), nothing.energy_mj(), nothing.read().power_w, nothing.pids()) == (None,) * 4


@pytest.mark.parametrize(
    ("code", "watts"),
    [(pynvml.NVML_SUCCESS, 612.5), (pynvml.NVML_ERROR_NOT_SUPPORTED, 400.0), (None, 400.0)],
    ids=["instant", "average", "older driver"],
)
def test_power_is_the_instant_figure_where_there_is_one(
    driver: None, monkeypatch: pytest.MonkeyPatch, code: int | None, watts: float
) -> None:
    def field_values(handle: object, fields: list[int]) -> object:
        values = (pynvml.c_nvmlFieldValue_t * 1)()
        values[0].fieldId, values[0].nvmlReturn, values[0].value.uiVal = fields[0], code, 612_500
        return values

    assert answering(monkeypatch, FieldValues=None if code is None else field_values).read().power_w == watts


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb22"]),
        ("0", ["GPU-aa11"]),
        ("GPU-b,GPU-a", ["GPU-bb22", "GPU-aa11"]),
        (" 1 , 0", ["GPU-bb22", "GPU-aa11"]),
        *((value, ["GPU-bb22"]) for value in ("1,7,0", "1,-1,0", "1,GPU-")),
        *((value, []) for value in ("", "-1", "-1,0", "NoDevFiles")),
    ],
)
def test_visible_devices_are_cudas(
    driver: None, monkeypatch: pytest.MonkeyPatch, value: str | None, uuids: list[str]
) -> None:
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert [(gpu.index, gpu.uuid) for gpu in visible_gpus()] == [*enumerate(uuids)]


@pytest.mark.parametrize("value", ["2", "GPU-", "GPU-ff,0", "MIG-ff", "cuda:0", "all"])
def test_what_matches_nothing_is_an_error_that_names_what_is_there(
    driver: None, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(ConfigError, match=rf"CUDA_VISIBLE_DEVICES={value} .* 0 or GPU-aa11 .*, 1 or GPU-bb22"):
        resolve_device("auto")
    assert resolve_device("cpu") == Target("cpu")


def test_nvmls_binding_has_what_is_asked_of_it_and_its_bits() -> None:
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == nvml_module._POWER_INSTANT
    for name in vars(Driver):
        assert not name.lower().startswith("nvml") or hasattr(pynvml, name), name
    for kind in ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"):
        (name,) = slowdowns(getattr(pynvml, f"nvmlClocksEventReason{kind}"))
        assert name.replace("-", "") == kind.lower()
    assert slowdowns(pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle) == []
    assert power_capped(pynvml.nvmlClocksEventReasonSwPowerCap)
    assert not power_capped(pynvml.nvmlClocksEventReasonHwSlowdown)


def test_a_summary_is_medians_and_whether_the_card_slowed_down() -> None:
    readings = [Reading(float(n), None, 100.0 + n, 1980.0, None, 0x4) for n in range(5)]
    assert summarize(readings) == {"power_w": 102.0, "sm_clock_mhz": 1980.0, "temperature_c": None, "throttled": False}
    assert summarize([*readings, Reading(5.0, None, None, None, None, 0x40)])["throttled"]
    assert set(summarize([]).values()) == {None}


def test_the_processes_on_a_gpu_and_what_each_had_of_it(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (answering(monkeypatch, ComputeRunningProcesses=None).pids(), Nvml(None).used_by(1.0)) == (None, None)
