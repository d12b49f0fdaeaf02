"""Readings of a simulated driver, what is made of them, and NVML's own bits."""

from __future__ import annotations

import types

import pynvml
import pytest

from profiler import nvml as nvml_module
from profiler.errors import ConfigError
from profiler.machine import Target, resolve_device
from profiler.nvml import Gpu, Nvml, Reading, power_capped, slowdowns, summarize, visible_gpus


class NVMLError(Exception):
    pass


def driver(**answers: object) -> types.SimpleNamespace:
    """NVML with one device, which does not answer what is not given."""

    def function(name: str):
        def call(handle: object, *arguments: object) -> object:
            assert handle == "GPU-1"
            if name not in answers:
                raise NVMLError
            return answers[name]

        return call

    asked = ("MemoryInfo", "TotalEnergyConsumption", "PowerUsage", "ClockInfo", "Temperature", "UtilizationRates")
    names = [*(f"nvmlDeviceGet{name}" for name in asked), "nvmlDeviceGetCurrentClocksEventReasons"]
    return types.SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        **{name: function(name) for name in names},
    )


def test_readings_have_the_columns_units(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=3 * 2**20),
        "nvmlDeviceGetTotalEnergyConsumption": 12_000,
        "nvmlDeviceGetPowerUsage": 250_000,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetTemperature": 41,
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=35, memory=2),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x24,
    }
    monkeypatch.setattr(nvml_module, "_nvml", lambda: driver(**answers))
    nvml = Nvml("GPU-1")
    reading = nvml.read()
    assert (reading.memory_mib, reading.power_w, reading.sm_clock_mhz) == (3.0, 250.0, 1980.0)
    assert (reading.temperature_c, reading.reasons) == (41.0, 0x24)
    assert nvml.energy_mj() == 12_000
    assert nvml.utilization() == 0.35


@pytest.mark.parametrize(
    ("code", "watts"),
    [(pynvml.NVML_SUCCESS, 612.5), (pynvml.NVML_ERROR_NOT_SUPPORTED, 250.0), (None, 250.0)],
    ids=["instant", "average", "older driver"],
)
def test_power_is_the_instant_figure_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, code: int | None, watts: float
) -> None:
    def field_values(handle: object, fields: list[int]) -> object:
        assert (handle, fields) == ("GPU-1", [pynvml.NVML_FI_DEV_POWER_INSTANT])
        if code is None:
            raise NVMLError
        values = (pynvml.c_nvmlFieldValue_t * 1)()
        values[0].fieldId, values[0].nvmlReturn, values[0].value.uiVal = fields[0], code, 612_500
        return values

    nvml = driver(nvmlDeviceGetPowerUsage=250_000)
    nvml.nvmlDeviceGetFieldValues = field_values
    monkeypatch.setattr(nvml_module, "_nvml", lambda: nvml)
    assert Nvml("GPU-1").read().power_w == watts


class Driver:
    """As NVML answers on a machine with an H200 in two slices, where the second card is whole.

    Handles are UUIDs; a slice answers neither for power, clocks and temperature, nor for a slice that was destroyed.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = pynvml.NVML_CLOCK_SM, pynvml.NVML_TEMPERATURE_GPU
    CARDS = ("GPU-aa11", "GPU-bb22")
    SLICES = (None, "MIG-cc33", "MIG-cd44")
    nvmlSystemGetDriverVersion = staticmethod(lambda: "580.95")
    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(CARDS.__getitem__)
    nvmlDeviceGetHandleByUUID = nvmlDeviceGetUUID = staticmethod(lambda handle: handle)
    nvmlDeviceGetName = staticmethod(lambda handle: "NVIDIA H200" + " MIG 1g.18gb" * handle.startswith("MIG"))
    nvmlDeviceGetCudaComputeCapability = staticmethod(lambda handle: (9, 0))
    nvmlDeviceGetMigMode = staticmethod(lambda card: [int(card == "GPU-aa11")] * 2)
    nvmlDeviceGetMaxMigDeviceCount = staticmethod(lambda card: 7)
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle = staticmethod({"MIG-cc33": "GPU-aa11", "MIG-cd44": "GPU-aa11"}.get)

    @staticmethod
    def nvmlDeviceGetMemoryInfo(handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(total=(18 if handle.startswith("MIG") else 141) * 2**30, used=2**30)

    @classmethod
    def nvmlDeviceGetMigDeviceHandleByIndex(cls, card: str, index: int) -> str:
        if card != "GPU-aa11" or index >= len(cls.SLICES) or cls.SLICES[index] is None:
            raise NVMLError
        return str(cls.SLICES[index])

    @staticmethod
    def whole(handle: str, *_: object) -> int:
        if handle.startswith("MIG"):
            raise NVMLError
        return 400_000

    nvmlDeviceGetPowerUsage = nvmlDeviceGetClockInfo = nvmlDeviceGetTemperature = whole
    nvmlDeviceGetTotalEnergyConsumption = nvmlDeviceGetCurrentClocksEventReasons = whole


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "_nvml", Driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        (None, ["MIG-cc33", "GPU-bb22"]),
        ("MIG-cd44", ["MIG-cd44"]),
        ("0", ["MIG-cc33"]),
        ("GPU-a", ["MIG-cc33"]),
        ("GPU-b,MIG-cd", ["GPU-bb22", "MIG-cd44"]),
        (" 1 , 0", ["GPU-bb22", "MIG-cc33"]),
        ("1,7,0", ["GPU-bb22"]),
        ("1,-1,0", ["GPU-bb22"]),
        ("1,MIG-c", ["GPU-bb22"]),
        ("", []),
        ("-1", []),
        ("-1,0", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_cudas(
    sliced: None, monkeypatch: pytest.MonkeyPatch, value: str | None, uuids: list[str]
) -> None:
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    found = visible_gpus()
    assert [gpu.uuid for gpu in found] == uuids
    assert [gpu.index for gpu in found] == list(range(len(uuids)))


@pytest.mark.parametrize("value", ["2", "MIG-ff", "MIG-c", "GPU-", "GPU-ff,0", "cuda:0", "all"])
def test_what_matches_nothing_is_an_error_that_names_what_is_there(
    sliced: None, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    here = r"0 or MIG-cc33 \(.*\), 0 or MIG-cd44 \(.*\), 1 or GPU-bb22 \(NVIDIA H200\); or unset it"
    with pytest.raises(
        ConfigError, match=rf"CUDA_VISIBLE_DEVICES={value} names no device, or several; there are {here}"
    ):
        resolve_device("auto")
    assert resolve_device("cpu") == Target("cpu")


def test_a_card_that_is_to_be_cut_and_has_no_slice_is_none(sliced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "SLICES", ())
    assert [gpu.uuid for gpu in visible_gpus()] == ["GPU-bb22"]


def test_a_slice_has_its_own_memory_and_its_cards_sensors(sliced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cd44")
    (gpu,) = visible_gpus()
    name = "NVIDIA H200 MIG 1g.18gb"
    assert gpu == Gpu(0, "MIG-cd44", name, 18 * 1024.0, "580.95", "9.0", card="GPU-aa11")
    assert resolve_device("cuda", {"cuda_available": True}) == Target("cuda", gpu)
    nvml = Nvml(gpu.uuid)
    reading = nvml.read()
    assert (reading.memory_mib, reading.power_w, reading.temperature_c) == (1024.0, 400.0, 400_000.0)
    assert nvml.energy_mj() is None
    assert Nvml("GPU-bb22").energy_mj() == 400_000


def test_nvmls_binding_has_what_is_asked_of_it() -> None:
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == nvml_module._POWER_INSTANT
    for name in vars(Driver):
        assert not name.lower().startswith("nvml") or hasattr(pynvml, name), name


def test_what_a_driver_does_not_answer_is_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "_nvml", lambda: driver(nvmlDeviceGetPowerUsage=1000))
    reading = Nvml("GPU-1").read()
    assert (reading.memory_mib, reading.power_w, reading.reasons) == (None, 1.0, None)
    assert summarize([reading])["throttled"] is None


def test_older_bindings_know_the_reasons_by_their_older_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = driver()
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x40
    monkeypatch.setattr(nvml_module, "_nvml", lambda: nvml)
    assert Nvml("GPU-1").read().reasons == 0x40


def test_without_a_gpu_everything_is_blank() -> None:
    nvml = Nvml(None)
    assert nvml.memory_mib() is None
    assert nvml.energy_mj() is None
    assert nvml.read().power_w is None


def test_a_summary_is_medians_and_whether_the_card_slowed_down() -> None:
    readings = [Reading(float(n), None, 100.0 + n, 1980.0, None, 0x4) for n in range(5)]
    assert summarize(readings) == {"power_w": 102.0, "sm_clock_mhz": 1980.0, "temperature_c": None, "throttled": False}
    assert summarize([*readings, Reading(5.0, None, None, None, None, 0x40)])["throttled"]
    assert set(summarize([]).values()) == {None}


def test_the_power_cap_is_marked_and_is_no_slowdown() -> None:
    assert slowdowns(pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle) == []
    assert power_capped(pynvml.nvmlClocksEventReasonSwPowerCap)
    assert not power_capped(pynvml.nvmlClocksEventReasonHwSlowdown)


@pytest.mark.parametrize(
    ("bit", "name"),
    [
        (pynvml.nvmlClocksEventReasonHwSlowdown, "hw-slowdown"),
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, "sw-thermal-slowdown"),
        (pynvml.nvmlClocksEventReasonHwThermalSlowdown, "hw-thermal-slowdown"),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, "hw-power-brake-slowdown"),
    ],
)
def test_slowdowns_have_nvmls_bits(bit: int, name: str) -> None:
    assert slowdowns(bit) == [name]


def test_the_processes_on_a_gpu_and_what_each_had_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without samples is left out, and so are samples of the time before."""
    samples = [
        types.SimpleNamespace(pid=7, timeStamp=2_000_000, smUtil=40),
        types.SimpleNamespace(pid=7, timeStamp=2_500_000, smUtil=60),
        types.SimpleNamespace(pid=8, timeStamp=900_000, smUtil=90),
    ]
    asked = []
    recorded = driver()
    recorded.nvmlDeviceGetComputeRunningProcesses = lambda handle: [
        types.SimpleNamespace(pid=7, usedGpuMemory=1),
        types.SimpleNamespace(pid=8, usedGpuMemory=None),
    ]
    recorded.nvmlDeviceGetProcessUtilization = lambda handle, since: asked.append(since) or samples
    monkeypatch.setattr(nvml_module, "_nvml", lambda: recorded)
    nvml = Nvml("GPU-1")
    assert (nvml.pids(), nvml.users()) == (frozenset({7, 8}), 2)
    assert nvml.used_by(1.0) == {7: 0.5}
    assert asked == [1_000_000]


@pytest.mark.parametrize(("error", "says"), [("NVML_ERROR_NOT_FOUND", {}), ("NVML_ERROR_NOT_SUPPORTED", None)])
def test_a_gpu_without_samples_of_processes(monkeypatch: pytest.MonkeyPatch, error: str, says: object) -> None:
    def refuse(handle: object, since: int) -> None:
        raise pynvml.NVMLError(getattr(pynvml, error))

    recorded = driver()
    recorded.NVMLError, recorded.NVML_ERROR_NOT_FOUND = pynvml.NVMLError, pynvml.NVML_ERROR_NOT_FOUND
    recorded.nvmlDeviceGetProcessUtilization = refuse
    monkeypatch.setattr(nvml_module, "_nvml", lambda: recorded)
    assert Nvml("GPU-1").used_by(1.0) == says
    assert Nvml("GPU-1").pids() is None
    assert Nvml(None).used_by(1.0) is None
