"""Place a row below its device's roofs, peak FLOP/s and bandwidth, and judge a time that is too short for them.

The roofline model: Williams, Waterman, Patterson, Roofline: an insightful visual performance model for multicore
architectures, CACM 52 (2009), https://doi.org/10.1145/1498765.1498785. No call can be faster than its FLOPs at the
rate that the processor reaches, nor than its bytes at the memory's. Both rates are the most that was seen on this
machine: measured by profiler.worker.roofline, or reached by a row. So a row's place follows once its run has ended.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from engines.base import Warning
from exporters.single_layers import Conv2d, Layer
from profiler.job.case import Case
from profiler.results.result import Figures, Result
from profiler.stats.samples import median
from profiler.tables.numbers import milliseconds, times

Roofs = Mapping[str, float]
"""`fp32_tflops`, `tf32_tflops`, `fp16_tflops`, `bf16_tflops` (10¹² FLOPs a second); `copy_gb_s` (10⁹ bytes read and
written a second); `cache_mib`, the size of the last-level cache. What could not be measured is left out."""

Limit = Literal["arithmetic", "memory"]
Floor = tuple[float, Limit]
"""The shortest time in ms that the roofs allow, and which limit binds."""

MIB = 2**20
_IMPOSSIBLE = 2.5
"""How many times below its floor a time is not trusted any more. That is a judgement: Winograd's F(2×2, 3×3) needs 2.25
times fewer multiplications for a convolution and F(4×4, 3×3) 4 times fewer (https://arxiv.org/abs/1509.09308), but both
spend part of that on transformations, and a network is not made only of such convolutions."""
_ROUNDING = 1 + 1e-9
"""A row that has set its own roof is at it, whatever the last bits of the quotients say."""
_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Work:
    """What one call must do at least. `moved_bytes` are its weights, inputs and outputs; None is unknown."""

    flops_per_item: float | None
    batch_size: int
    moved_bytes: float | None
    precision: str | None
    """Whose roof holds."""


@dataclass(frozen=True)
class Excess:
    """A time that is below its floor; `saved` is how many times below a row is still believed."""

    fastest_ms: float
    floor: Floor
    saved: float = _IMPOSSIBLE

    @property
    def ratio(self) -> float:
        return self.floor[0] / self.fastest_ms

    @property
    def is_impossible(self) -> bool:
        """Tell whether the roofs or the row must be wrong."""
        return self.ratio > (self.saved if self.floor[1] == "arithmetic" else _IMPOSSIBLE)

    def warning(self) -> Warning:
        return Warning("below-floor", self._below)

    def rejection(self) -> str:
        """Say why the row is `failed`."""
        return f"rejected: {self._below}; check that the call does all its work, and that the clock waits for it"

    @property
    def _below(self) -> str:
        roof = "peak" if self.floor[1] == "arithmetic" else "bandwidth"
        took, least = milliseconds(self.fastest_ms), milliseconds(self.floor[0])
        return f"{times(self.ratio)} faster than the measured {roof} allows ({took}, at least {least})"


def place(work: Work, latency_ms: float | None, roofs: Roofs) -> Figures:
    """Where a case lies below the roofs, by column; what does not follow is left out.

    `fraction_of_peak` is None for a rate above the peak: either is wrong.
    """
    if work.flops_per_item is None:
        return {}
    figures: Figures = {}
    if lowest := floor(work, roofs):
        figures["floor_ms"] = lowest[0]
    if latency_ms:
        tflops = work.flops_per_item * work.batch_size / latency_ms / 1e9
        peak = roofs.get(f"{work.precision}_tflops")
        share = tflops / peak if peak else math.inf
        figures |= {"tflops": tflops, "fraction_of_peak": min(share, 1.0) if share <= _ROUNDING else None}
    return figures


def floor(work: Work, roofs: Roofs) -> Floor | None:
    """The longer of the two limits' times; None if one is unknown, or if there is nothing to compute or to move."""
    peak, copy = roofs.get(f"{work.precision}_tflops"), roofs.get("copy_gb_s")
    if work.flops_per_item is None or work.moved_bytes is None or not peak or not copy:
        return None
    arithmetic = work.flops_per_item * work.batch_size / peak / 1e9
    memory = _uncached(work.moved_bytes, roofs) / copy / 1e6
    if not memory and not arithmetic:
        return None
    return (memory, "memory") if memory > arithmetic else (arithmetic, "arithmetic")


def arithmetic_saved(layer: Layer | None) -> float:
    """How many times fewer multiplications than the FLOPs say a case may do with before it is not trusted.

    A convolution that is measured by itself may go by Fourier transforms, whose cost per output does not grow with the
    kernel (https://arxiv.org/abs/1312.5851): one multiply-add instead of one for each of the kernel's places.
    """
    return max(_IMPOSSIBLE, math.prod(layer.kernel)) if isinstance(layer, Conv2d) else _IMPOSSIBLE


def excess(case: Case, result: Result, roofs: Roofs) -> Excess | None:
    """By how much a row is faster than the roofs allow; None if it is not, or nothing is known."""
    fastest, lowest = _fastest_ms(result), floor(work_of(case, result), roofs)
    if not fastest or not lowest or lowest[0] <= fastest * _ROUNDING:
        return None
    return Excess(fastest, lowest, arithmetic_saved(case.source.layer))


def raised(measured: Roofs, rows: Iterable[tuple[Case, Result]]) -> dict[str, float]:
    """Raise each measured roof to the highest rate that a row reached.

    A row counts whose outputs or gradients were found right, whose clocks agree, and which the measured roofs do not
    make impossible: it is right far more often than a roof is off by so much, and if not, it would hide what is wrong
    with itself and understate all other rows.
    """
    roofs = dict(measured)
    for case, result in rows:
        for name, rate in _reached(case, result, measured).items():
            if name in measured:
                roofs[name] = max(roofs[name], rate)
    return widened(roofs)


def widened(roofs: Roofs) -> dict[str, float]:
    """A narrow type's roof is at least fp32's, to which every library may widen it: eager fp16 runs 100 times slower
    than fp32 on a CPU without fp16 arithmetic."""
    least = roofs.get("fp32_tflops", 0.0)
    return {name: max(roof, least) if name.endswith("_tflops") else roof for name, roof in roofs.items()}


def placed(case: Case, result: Result, roofs: Roofs) -> Result:
    """Add to the result its place below these roofs, and a warning if it is above them."""
    if result.status != "ok":
        return result
    latency = median(result.samples.get(result.clock or "", []))
    over = excess(case, result, roofs)
    warnings = [*result.warnings, *([over.warning()] if over else [])]
    figures = result.figures | place(work_of(case, result), latency, roofs)
    return dataclasses.replace(result, figures=figures, warnings=warnings)


def work_of(case: Case, result: Result) -> Work:
    """What a call of a measured case must do at least."""
    flops, moved_mib = (result.figures.get(name) for name in ("flops_per_item", "moved_mib"))
    precision = computed_in(case.precision, (result.proof and result.proof.compute_types) or {})
    return Work(flops, case.batch_size, None if moved_mib is None else moved_mib * MIB, precision)


def computed_in(precision: str, compute_types: Mapping[str, int]) -> str | None:
    """The precision whose roof holds: AMP's narrow type, and for `native` the one type that the proof found."""
    if precision != "native":
        return precision.removeprefix("amp-")
    return _TYPES.get(next(iter(compute_types))) if len(compute_types) == 1 else None


def _reached(case: Case, result: Result, measured: Roofs) -> dict[str, float]:
    """The rates that a row reached, by the roofs that they are of; of a row that is no evidence none."""
    fastest, work, over = _fastest_ms(result), work_of(case, result), excess(case, result, measured)
    is_right = result.status == "ok" and result.reference is not None
    doubts = any(warning.kind in ("inconsistent", "unchecked-outputs") for warning in result.warnings)
    if not fastest or not is_right or doubts or (over and over.is_impossible):
        return {}
    rates = {}
    if work.moved_bytes is not None:
        rates["copy_gb_s"] = _uncached(work.moved_bytes, measured) / fastest / 1e6
    # Where Fourier transforms do with fewer multiplications, FLOPs that are counted are no rate of the processor.
    if work.flops_per_item is not None and arithmetic_saved(case.source.layer) == _IMPOSSIBLE:
        rates[f"{work.precision}_tflops"] = work.flops_per_item * work.batch_size / fastest / 1e9
    return rates


def _fastest_ms(result: Result) -> float | None:
    medians = (median(result.samples.get(name, [])) for name in (result.clock or "", "gpu"))
    return min((ms for ms in medians if ms is not None), default=None)


def _uncached(moved_bytes: float, roofs: Roofs) -> float:
    """Of what a call moves, only what the last-level cache cannot hold has to be moved in every one of the calls, which
    repeat back to back; where the cache's size is unknown that may be nothing."""
    cache_mib = roofs.get("cache_mib")
    return max(0.0, moved_bytes - cache_mib * MIB) if cache_mib else 0.0
