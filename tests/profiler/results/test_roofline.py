"""Rows below and above roofs that were recorded: their place, what raises a roof, and what is too fast to be true."""

from __future__ import annotations

from typing import Any

import pytest

from engines.base import Proof, Warning
from exporters.catalog import LAYERS, Conv2d
from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.results.result import Result
from profiler.results.roofline import MIB, Roofs, excess, placed, raised, work_of

ROOFS = {"fp32_tflops": 50.0, "fp16_tflops": 600.0, "copy_gb_s": 4000.0, "cache_mib": 50.0}
UNCACHED = {name: roof for name, roof in ROOFS.items() if name != "cache_mib"}
LOW = {"fp32_tflops": 0.03, "bf16_tflops": 0.03, "copy_gb_s": 4.0, "cache_mib": 100.0}
"""As measured on two cores while others took 70 % of them; 0.5 is what they reach alone."""
MOVED_MS = 800 * MIB / 4000e9 * 1e3


def case(precision: str = "fp32", layer: Conv2d | None = None, name: str = "net", batch: int = 1) -> Case:
    return Case(name, "eager", "eager", "inference", precision, batch, "cpu", 0, ModelSource(name, layer=layer))


def measured(
    ms: float | None, gflops: float | None = 1.0, moved_mib: float | None = 10.0, of: Case | None = None, **more: Any
) -> tuple[Case, Result]:
    """Make a row of so many GFLOPs an item that was found right."""
    of = of or case()
    own: dict[str, Any] = {"status": "ok", "reference": "eager-fp32-cpu", "proof": Proof(compute_types={"float32": 3})}
    figures = {"flops_per_item": gflops and gflops * 1e9, "moved_mib": moved_mib}
    samples = {"host": [ms] * 3} if ms else {}
    return of, Result(of.id, clock="host", samples=samples, figures=figures, **own | more)


def share(row: tuple[Case, Result], roofs: Roofs) -> float | None:
    return placed(*row, roofs).figures["fraction_of_peak"]


@pytest.mark.parametrize(
    ("row", "roofs", "tflops", "fraction", "floor"),
    [
        (measured(6.0, 8, 150, case(batch=16)), ROOFS, 16 * 8 / 6, 16 * 8 / 6 / 50, 2.56),
        (measured(1.0, 1e-3, 850, case("fp16")), ROOFS, 1e-3, 1e-3 / 600, MOVED_MS),  # 50 MiB may stay in the cache.
        (measured(1.0, 1e-3, 50), ROOFS, 1e-3, 1e-3 / 50, 2e-5),
        (measured(1.0, 1e-3, 4), UNCACHED, 1e-3, 1e-3 / 50, 2e-5),  # Of a cache of unknown size memory is no limit.
        (measured(1.0, None, 850), ROOFS, None, None, None),
        *((measured(8.0, 8, 1, case(other)), ROOFS, 1.0, None, None) for other in ("bf16", "int8")),
        (measured(8.0, 8, 1), {}, 1.0, None, None),
        (measured(8.0, 8, None), ROOFS, 1.0, 0.02, None),
        (measured(8.0, 8, 1), {"fp32_tflops": 50.0}, 1.0, 0.02, None),
        (measured(None, 8, 1), ROOFS, None, None, 0.16),
        (measured(1.0, 0.0, 850), ROOFS, 0.0, 0.0, MOVED_MS),
        (measured(1.0, 0.0, 0.001), ROOFS, 0.0, 0.0, None),  # It computes and moves next to nothing.
    ],
)
def test_a_row_has_a_place_below_its_roofs(row, roofs, tflops, fraction, floor):
    found = placed(*row, roofs).figures
    known = [found.get(name) for name in ("tflops", "fraction_of_peak", "floor_ms")]
    assert known == [None if each is None else pytest.approx(each) for each in (tflops, fraction, floor)]


@pytest.mark.parametrize(
    ("ms", "gflops", "moved_mib", "layer", "is_impossible"),
    [
        (33.4, 1.0, 10.0, None, None),  # The floor is at 33.3 ms.
        (None, 1.0, 10.0, None, None),
        (20.0, 1.0, 10.0, None, False),
        (13.3, 1.0, 10.0, None, True),  # More than 2.5 times below.
        (90.0, 0.001, 1000.0, None, True),  # 236 ms for what the cache cannot hold.
        (100.0, 0.001, 1000.0, None, False),
        # L2's 9×9 kernel on cuDNN's FFT; of memory, of a product and of a small kernel nobody saves so much.
        (0.5, 1.0, 10.0, LAYERS["L2"], False),
        (0.4, 1.0, 10.0, LAYERS["L2"], True),
        (90.0, 0.001, 1000.0, LAYERS["L2"], True),
        (13.3, 1.0, 10.0, Conv2d((64, 8, 8), 64, (1, 1)), True),
    ],
)
def test_a_time_below_the_floor_is_warned_of_and_far_below_impossible(ms, gflops, moved_mib, layer, is_impossible):
    row = measured(ms, gflops, moved_mib, case(layer=layer))
    over = excess(*row, LOW)
    assert (over and over.is_impossible) is is_impossible
    assert [warning.kind for warning in placed(*row, LOW).warnings] == ["below-floor"] * (over is not None)
    assert excess(*row, {}) is None


def test_the_fastest_clock_counts_and_large_times_have_no_exponents():
    of, result = measured(40.0)
    result.samples["gpu"] = [20.0] * 3
    over = excess(of, result, LOW)
    assert over and over.text == "1.67× faster than the measured peak allows (20 ms, at least 33.3 ms)"
    slow = excess(*measured(1234.4, 0.001, 100 + 1.5 * 4e9 / MIB), LOW)
    assert slow and slow.text.startswith("1.22× faster than the measured bandwidth allows (1,234 ms, ")


@pytest.mark.parametrize("ms", [3.0, 7.0, 11.0, 13.0, 19.0, 23.0, 29.0])
def test_rounding_makes_no_row_faster_than_its_own_roof(ms):
    row = measured(ms, gflops=1 / 7, moved_mib=1000 / 3)
    roofs = raised({**LOW, "fp32_tflops": 1e-3 / 7 / ms * 1e3 / 2, "copy_gb_s": 1e9}, [row])
    assert share(row, roofs) == 1.0
    assert placed(*row, roofs).warnings == []


NARROW = pytest.approx(0.05)


@pytest.mark.parametrize(
    ("rows", "raises"),
    [
        ([measured(20.0), measured(100.0)], {"fp32_tflops": NARROW, "bf16_tflops": NARROW}),
        ([measured(100.0, 0.001, 900.0)], {"copy_gb_s": pytest.approx(800 * MIB / 0.1 / 1e9)}),
        ([measured(20.0, of=case("fp16"))], {}),  # It has no roof.
        ([measured(20.0, reference=None)], {}),
        ([measured(20.0, status="failed", reasons=["the outputs are wrong"])], {}),
        ([measured(20.0, warnings=[Warning("inconsistent", "two clocks")])], {}),
        ([measured(2.0)], {}),  # Impossible: an engine that computes nothing would else be at the peak.
        ([measured(1 / 0.03 / 2.4**n) for n in range(6)], dict.fromkeys(("fp32_tflops", "bf16_tflops"), 0.03 * 2.4)),
        ([measured(10.0, of=case(layer=Conv2d((64, 58, 58), 64, (3, 3))))], {}),  # Its multiplications can be saved.
    ],
)
def test_rows_that_are_right_raise_a_roof(rows, raises):
    assert raised(LOW, rows) == pytest.approx(LOW | raises)
    assert raised({}, rows) == {}


@pytest.mark.parametrize(
    ("precision", "types", "expected"),
    [
        ("fp32", {"float16": 3}, "fp32"),
        ("amp-fp16", {"float16": 3, "float32": 1}, "fp16"),
        ("int8", {"int8": 3, "float32": 1}, "int8"),
        ("native", {"float32": 3}, "fp32"),
        ("native", {"float16": 3, "float32": 1}, None),
        ("native", {}, None),
    ],
)
def test_roof_is_that_of_the_type_that_computes(precision, types, expected):
    assert work_of(*measured(1.0, of=case(precision), proof=Proof(compute_types=types))).precision == expected
