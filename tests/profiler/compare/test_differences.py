"""What differs between environments: what tells, and not what every run has anew."""

from __future__ import annotations

from typing import Any

import pytest

from profiler.compare.command import differences

ONE = {
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cpu_cores": 64,
    "memory_mib": 515850.8,
    "sm_clock_mhz": 1980.0,
    "packages": {"torch": "2.11.0", "numpy": "2.5.2"},
    "variables": {},
    "command": ["python", "-m", "profiler"],
    "wall_seconds": {"measure": 100.0},
}


def found(other: dict[str, Any], one: dict[str, Any] = ONE) -> dict[str, tuple[str, str]]:
    return {row["what"]: (row["A"], row["B"]) for row in differences({"A": [one], "B": [other]})}


def test_equal_environments_differ_in_nothing() -> None:
    assert differences({"A": [ONE], "B": [dict(ONE)]}) == []


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({"driver": "590.2"}, {"driver": ("580.1", "590.2")}),
        ({"cpu_cores": 2}, {"cpu_cores": ("64", "2")}),
        ({"gpu": None}, {"gpu": ("NVIDIA H200", "none")}),
        ({"sm_clock_mhz": 1400.0}, {"sm_clock_mhz": ("1,980", "1,400")}),
        ({"sm_clock_mhz": 1975.0, "memory_mib": 515000.0}, {}),
        ({"packages": {"torch": "2.12.0", "numpy": "2.6.0"}}, {"packages.numpy": ("2.5.2", "2.6.0")}),
        ({"packages": {"torch": "2.11.0"}}, {"packages.numpy": ("2.5.2", "none")}),
        ({"variables": {"OMP_NUM_THREADS": "1"}}, {"variables.OMP_NUM_THREADS": ("none", "1")}),
        ({"command": ["other"], "wall_seconds": {"measure": 7.0}}, {}),
    ],
)
def test_what_differs_is_a_row(change: dict[str, Any], rows: dict[str, tuple[str, str]]) -> None:
    assert found({**ONE, **change}) == rows


def test_roofs_that_other_work_lowered_are_no_difference_of_the_machines() -> None:
    low = {**ONE, "roofs": {"fp32_tflops": 0.04}, "roofs_disturbance": "other processes took 70 % of 2 processors"}
    rows = found(low, {**ONE, "roofs": {"fp32_tflops": 0.22}})
    assert rows == {"roofs.fp32_tflops": ("0.22", "0.04 (beside other work)")}


def test_what_a_run_did_not_record_is_no_difference() -> None:
    assert found({"gpu": "NVIDIA H200"}) == {}


def test_machine_and_driver_come_before_packages() -> None:
    other = {**ONE, "packages": {"numpy": "1"}, "driver": "1", "gpu": "other", "brand_new": 1}
    assert [*found(other, {**ONE, "brand_new": 2})] == ["gpu", "driver", "packages.numpy", "brand_new"]


def test_a_side_of_several_runs_tells_all_its_values() -> None:
    rows = differences({"A": [ONE, {**ONE, "driver": "570"}], "B": [ONE]})
    assert rows == [{"what": "driver", "A": "580.1, 570", "B": "580.1"}]


def test_a_side_has_the_versions_of_its_rows_engines_only() -> None:
    ran = {"torch_version": "2.13", "onnxruntime_version": "1.31", "packages": {"jax": "0.10", "jaxlib": "0.10"}}
    other = {"torch_version": "2.12", "onnxruntime_version": "1.27", "openvino_version": "2026.4", "packages": {}}
    rows = differences({"ort": [{**ran, "engines": ["ort"]}], "ov": [{**other, "engines": ["openvino"]}]})
    assert rows == [{"what": "torch_version", "ort": "2.13", "ov": "2.12"}], "PyTorch exports for all"
    every = differences({"ort": [{**ran, "engines": ["ort", "jax"]}], "ov": [{**other, "engines": ["ort"]}]})
    assert [row["what"] for row in every] == ["torch_version", "onnxruntime_version"]
    assert every[1] == {"what": "onnxruntime_version", "ort": "1.31", "ov": "1.27"}
