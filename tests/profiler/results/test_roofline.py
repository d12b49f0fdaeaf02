"""Rows below and above roofs that were recorded: their place, what raises a roof, and what is too fast to be true."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.base import Proof, Warning
from exporters.single_layers import LAYERS, Conv2d, Layer, Linear
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.results import roofline
from profiler.results.result import Result
from profiler.results.roofline import (
    Excess,
    Floor,
    Work,
    arithmetic_saved,
    computed_in,
    excess,
    floor,
    place,
    placed,
    raised,
)
from profiler.results.run_folder import RunFolder

ROOFS = {"fp32_tflops": 50.0, "fp16_tflops": 600.0, "copy_gb_s": 4000.0, "cache_mib": 50.0}
MIB = 2**20


# Where a case lies.


def found_place(
    flops: float | None,
    batch: int,
    latency: float | None,
    moved: float | None,
    precision: str | None,
    roofs: roofline.Roofs,
) -> SimpleNamespace:
    unknown = dict.fromkeys(("tflops", "fraction_of_peak", "floor_ms"))
    return SimpleNamespace(**unknown | place(Work(flops, batch, moved, precision), latency, roofs))


def test_case_bound_by_computation() -> None:
    found = found_place(8e9, 16, 6.0, 150 * MIB, "fp32", ROOFS)
    assert found.tflops == pytest.approx(16 * 8e9 / 6e-3 / 1e12)
    assert found.fraction_of_peak == pytest.approx(16 * 8e9 / 6e-3 / 50e12)
    assert found.floor_ms == pytest.approx(16 * 8e9 / 50e12 * 1e3)


def test_case_bound_by_memory() -> None:
    found = found_place(1e6, 1, 1.0, 850 * MIB, "fp16", ROOFS)
    assert found.tflops == pytest.approx(1e-3)
    assert found.floor_ms == pytest.approx(800 * MIB / 4000e9 * 1e3), "50 MiB may stay in the cache"


def test_case_that_fits_into_the_cache_is_bound_by_computation() -> None:
    assert found_place(1e6, 1, 1.0, 50 * MIB, "fp32", ROOFS).floor_ms == pytest.approx(1e6 / 50e12 * 1e3)


@pytest.mark.parametrize("unknown", [{}, {"cache_mib": 0.0}])
def test_memory_is_no_limit_while_the_size_of_the_cache_is_unknown(unknown: dict[str, float]) -> None:
    roofs = {name: roof for name, roof in ROOFS.items() if name != "cache_mib"} | unknown
    assert found_place(1e6, 1, 1.0, 4e6, "fp32", roofs).floor_ms == pytest.approx(1e6 / 50e12 * 1e3)


def test_floor_names_its_limit() -> None:
    assert floor(Work(8e9, 16, 150 * MIB, "fp32"), ROOFS) == (pytest.approx(2.56), "arithmetic")
    assert floor(Work(1e6, 1, 850 * MIB, "fp32"), ROOFS) == (pytest.approx(800 * MIB / 4000e9 * 1e3), "memory")


def test_unknown_flops_leave_everything_unknown() -> None:
    assert place(Work(None, 1, 850 * MIB, "fp16"), 1.0, ROOFS) == {}


@pytest.mark.parametrize("precision", ["bf16", None])
def test_unknown_roof_leaves_what_is_relative_to_it_unknown(precision: str | None) -> None:
    found = found_place(8e9, 1, 8.0, 1e6, precision, ROOFS)
    assert found.tflops == pytest.approx(1.0)
    assert (found.fraction_of_peak, found.floor_ms) == (None, None)


def test_without_roofs_or_sizes_there_is_no_floor() -> None:
    assert found_place(8e9, 1, 8.0, 1e6, "fp32", {}).floor_ms is None
    assert found_place(8e9, 1, 8.0, None, "fp32", ROOFS).floor_ms is None
    assert found_place(8e9, 1, 8.0, 1e6, "fp32", {"fp32_tflops": 50.0}).floor_ms is None


def test_a_precision_whose_roof_is_not_measured_has_a_rate_and_no_more() -> None:
    found = found_place(8e9, 1, 8.0, 1e6, "int8", ROOFS)
    assert (found.tflops, found.fraction_of_peak, found.floor_ms) == (1.0, None, None)


def test_without_samples_there_is_no_rate() -> None:
    found = found_place(8e9, 1, None, 1e6, "fp32", ROOFS)
    assert (found.tflops, found.fraction_of_peak) == (None, None)
    assert found.floor_ms


def test_model_without_products_has_no_rate_but_a_floor() -> None:
    found = found_place(0, 1, 1.0, 850 * MIB, "fp32", ROOFS)
    assert (found.tflops, found.fraction_of_peak) == (0.0, 0.0)
    assert found.floor_ms == pytest.approx(800 * MIB / 4000e9 * 1e3)


def test_a_model_that_computes_and_moves_next_to_nothing_has_no_floor() -> None:
    assert found_place(0, 1, 1.0, 1024, "fp32", ROOFS).floor_ms is None


# What is above the roofs.

LOW = {"fp32_tflops": 0.03, "bf16_tflops": 0.03, "copy_gb_s": 4.0, "cache_mib": 100.0}
"""As measured on two cores while others took 70 % of them; 0.5 is what they reach alone."""


def case(precision: str = "fp32", layer: Layer | None = None, name: str = "net", kind: str = "eager") -> Case:
    return Case(name, "eager", kind, "inference", precision, 1, "cpu", 0, ModelSource(name, layer=layer))


def measured(
    ms: float, gflops: float = 1.0, moved_mib: float = 10.0, of: Case | None = None, **more: Any
) -> tuple[Case, Result]:
    """A row of so many GFLOPs that was found right."""
    of = of or case()
    own: dict[str, Any] = {"status": "ok", "reference": "eager-fp32-cpu", "proof": Proof(compute_types={"float32": 3})}
    figures = {"flops_per_item": gflops * 1e9, "moved_mib": moved_mib}
    return of, Result(of.id, clock="host", samples={"host": [ms] * 3}, figures=figures, **own | more)


def share(row: tuple[Case, Result], roofs: roofline.Roofs) -> float | None:
    return placed(*row, roofs).figures["fraction_of_peak"]


@pytest.mark.parametrize("ms", [33.4, 1000.0])
def test_time_above_the_floor_is_good(ms: float) -> None:
    assert excess(*measured(ms), LOW) is None


def test_without_a_time_or_roofs_nothing_is_too_fast() -> None:
    of, result = measured(1e-3)
    assert excess(of, result, {}) is None
    result.samples = {}
    assert excess(of, result, LOW) is None


def test_the_fastest_clock_counts() -> None:
    of, result = measured(40.0)
    result.samples["gpu"] = [20.0] * 3
    over = excess(of, result, LOW)
    assert over is not None
    assert over.ratio == pytest.approx(1 / 0.03 / 20)


def test_time_below_the_floor_is_warned_of() -> None:
    assert str(Excess(1.93, (2.31, "arithmetic")).warning()) == (
        "below-floor: 1.20× faster than the measured peak allows (1.93 ms, at least 2.31 ms)"
    )
    assert "the measured bandwidth allows" in Excess(1.93, (2.31, "memory")).warning().text


@pytest.mark.parametrize("lowest", [(2.5, "arithmetic"), (2.5, "memory")])
@pytest.mark.parametrize(("fastest", "fails"), [(1.0, False), (0.999, True), (0.1, True)])
def test_time_far_below_the_floor_is_impossible(fastest: float, fails: bool, lowest: Floor) -> None:
    over = Excess(fastest, lowest)
    assert over.is_impossible == fails
    assert over.rejection().startswith("rejected: ")
    assert f"({fastest:g} ms, at least 2.5 ms)" in over.rejection()


def test_large_times_have_no_exponents() -> None:
    assert "(1,234 ms, at least 1,500 ms)" in Excess(1234.4, (1500.0, "memory")).rejection()


def test_convolution_alone_may_go_by_fourier_transforms() -> None:
    """L2's 9×9 kernel on cuDNN's FFT; of memory, of a product and of a network nobody saves so much."""
    saved = arithmetic_saved(LAYERS["L2"])
    assert not Excess(1.0, (60.0, "arithmetic"), saved).is_impossible
    assert Excess(1.0, (90.0, "arithmetic"), saved).is_impossible
    assert Excess(1.0, (60.0, "memory"), saved).is_impossible
    for other in (Linear(64, 64), Conv2d((64, 8, 8), 64, (1, 1)), None):
        assert Excess(1.0, (3.0, "arithmetic"), arithmetic_saved(other)).is_impossible


# What raises a roof.


def test_a_row_raises_the_roof_to_what_it_reached_and_is_at_it() -> None:
    fast, slow = measured(20.0), measured(100.0)
    roofs = raised(LOW, [fast, slow])
    assert roofs == {**LOW, "fp32_tflops": pytest.approx(0.05), "bf16_tflops": pytest.approx(0.05)}
    assert share(fast, roofs) == 1.0
    assert share(slow, roofs) == pytest.approx(0.2)
    assert placed(*fast, roofs).figures["floor_ms"] == pytest.approx(20.0)
    assert placed(*fast, roofs).warnings == []


@pytest.mark.parametrize("ms", [3.0, 7.0, 11.0, 13.0, 19.0, 23.0, 29.0])
def test_rounding_makes_no_row_faster_than_its_own_roof(ms: float) -> None:
    row = measured(ms, gflops=1 / 7, moved_mib=1000 / 3)
    roofs = raised({**LOW, "fp32_tflops": 1e-3 / 7 / ms * 1e3 / 2, "copy_gb_s": 1e9}, [row])
    assert share(row, roofs) == 1.0
    assert placed(*row, roofs).warnings == []


def test_a_row_raises_the_bandwidth_too() -> None:
    row = measured(100.0, gflops=0.001, moved_mib=100.0 + 800.0)
    roofs = raised(LOW, [row])
    assert roofs["copy_gb_s"] == pytest.approx(800 * MIB / 0.1 / 1e9)
    assert placed(*row, roofs).warnings == []


def test_no_roof_is_lowered_or_made_up() -> None:
    assert raised(LOW, [measured(1000.0)]) == LOW
    assert raised({"fp32_tflops": 0.03}, [measured(20.0, of=case("fp16"))]) == {"fp32_tflops": 0.03}
    assert raised({}, [measured(20.0)]) == {}


@pytest.mark.parametrize(
    "doubt",
    [
        {"reference": None},
        {"status": "failed", "reasons": ["the outputs are wrong"]},
        {"warnings": [Warning("inconsistent", "two clocks")]},
    ],
    ids=["unchecked", "failed", "clocks"],
)
def test_a_row_that_is_no_evidence_raises_nothing(doubt: dict[str, Any]) -> None:
    assert raised(LOW, [measured(20.0, **doubt)]) == LOW


def test_a_row_that_is_impossible_raises_nothing_and_has_no_share() -> None:
    """An engine that computes nothing would else be at the peak, and all others far below it."""
    row = measured(2.0)
    assert raised(LOW, [row]) == LOW
    assert share(row, LOW) is None
    (warning,) = placed(*row, LOW).warnings
    assert warning.kind == "below-floor"


def test_rows_cannot_raise_the_roof_step_by_step() -> None:
    steps = [measured(1 / 0.03 / 2.4**n) for n in range(6)]
    assert raised(LOW, steps)["fp32_tflops"] == pytest.approx(0.03 * 2.4)


def test_a_convolution_alone_whose_multiplications_can_be_saved_raises_nothing() -> None:
    layer = measured(10.0, of=case(layer=Conv2d((64, 58, 58), 64, (3, 3))))
    roofs = raised(LOW, [layer])
    assert roofs == LOW
    assert share(layer, roofs) is None, "its FLOPs are not those that were computed"
    assert [warning.kind for warning in placed(*layer, roofs).warnings] == ["below-floor"]
    assert raised(LOW, [measured(20.0, of=case(layer=Linear(64, 64)))])["fp32_tflops"] == pytest.approx(0.05)


def test_tables_go_by_the_roofs_that_rows_raised(tmp_path: Path) -> None:
    first, second = measured(100.0), measured(20.0, of=case(name="other"))
    run = RunFolder.create(tmp_path)
    for _, result in (first, second):
        run.append(result)
    rows, _ = run.write_parquet("suite", [first[0], second[0]], {"roofs": LOW})
    assert rows["fraction_of_peak"].to_list() == [pytest.approx(0.2), 1.0]
    assert rows["floor_ms"].to_list() == [pytest.approx(20.0)] * 2
    rows, _ = run.write_parquet("suite", [first[0], second[0]], {})
    assert rows["fraction_of_peak"].to_list() == [None, None]
    assert rows["tflops"].to_list() == [pytest.approx(0.01), pytest.approx(0.05)]


@pytest.mark.parametrize(
    ("precision", "types", "expected"),
    [
        ("fp32", {"float16": 3}, "fp32"),
        ("tf32", {"float32": 3}, "tf32"),
        ("amp-fp16", {"float16": 3, "float32": 1}, "fp16"),
        ("amp-bf16", {}, "bf16"),
        ("int8", {"int8": 3, "float32": 1}, "int8"),
        ("native", {"float32": 3}, "fp32"),
        ("native", {"float16": 3}, "fp16"),
        ("native", {"float16": 3, "float32": 1}, None),
        ("native", {"int8": 3}, None),
        ("native", {}, None),
    ],
)
def test_roof_is_that_of_the_type_that_computes(precision: str, types: dict[str, int], expected: str | None) -> None:
    assert computed_in(precision, types) == expected
