"""Compare a row with its device's roofs, peak FLOP/s and bandwidth, and judge a time that is too short for them.

Williams, Waterman, Patterson, Roofline, CACM 52 (2009), https://doi.org/10.1145/1498765.1498785. The roofs are the
highest rates of this machine: measured by profiler.worker.roofline, or reached by a row of the run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engines.base import Warning
from engines.options import PRECISION_TABLE, Device
from profiler.job.case import Case
from profiler.results.result import Result
from profiler.tables.numbers import milliseconds, times

Roofs = Mapping[str, float]
"""`fp32_tflops`, `tf32_tflops`, `fp16_tflops`, `bf16_tflops` (10¹² FLOPs a second); `copy_gb_s` (10⁹ bytes read and
written a second); `cache_mib`, the size of the last-level cache. A roof that could not be measured is absent."""

MIB = 2**20
_IMPOSSIBLE = 2.5
"""No time is trusted beyond this speed-up over the floor: Winograd's F(2×2, 3×3) needs 2.25 times fewer
multiplications (https://arxiv.org/abs/1509.09308)."""
_ROUNDING = 1 + 1e-9
"""Tolerance of rounding, so that the row that set a roof is not above it."""
_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def precisions_needed(device: Device, cases: Iterable[Case]) -> tuple[str, ...]:
    """Return the precisions whose roofs a run needs, fp32 first: all on a GPU, where they are cheap."""
    if device == "cuda":
        return ("fp32", "tf32", "fp16", "bf16")
    requested = {PRECISION_TABLE[case.precision].roof for case in cases}
    return ("fp32", *(precision for precision in ("fp16", "bf16") if precision in requested))


@dataclass(frozen=True)
class Measured:
    """Roofs; `quiet` is true if the counters could be read and showed neither other work nor a slowdown."""

    roofs: dict[str, float]
    quiet: bool


@dataclass(frozen=True)
class Work:
    """Minimum work of one call: FLOPs and bytes of weights, inputs and outputs, or None if unknown."""

    flops: float | None
    moved_bytes: float | None
    precision: str | None
    """Precision of the roof that applies."""
    saved: float = _IMPOSSIBLE
    """Largest plausible speed-up over the roof. It is higher for a single convolution: the cost of Fourier transforms
    does not grow with the kernel (https://arxiv.org/abs/1312.5851)."""

    def floor(self, roofs: Roofs) -> tuple[float, Literal["peak", "bandwidth"]] | None:
        """Return the shortest time in ms and the roof that sets it; None if unknown or zero."""
        peak, copy = roofs.get(f"{self.precision}_tflops"), roofs.get("copy_gb_s")
        if self.flops is None or self.moved_bytes is None or not peak or not copy:
            return None
        arithmetic, memory = self.flops / peak / 1e9, self.uncached(roofs) / copy / 1e6
        longest = (memory, "bandwidth") if memory > arithmetic else (arithmetic, "peak")
        return longest if longest[0] else None  # type: ignore[return-value]

    def uncached(self, roofs: Roofs) -> float:
        """Return the bytes beyond the last-level cache, which calls move again; 0 for an unknown cache."""
        return max(0.0, (self.moved_bytes or 0.0) - (roofs.get("cache_mib") or math.inf) * MIB)


class Excess(NamedTuple):
    """How far a time is below its floor, in words, and whether that is impossible."""

    text: str
    is_impossible: bool


def work_of(case: Case, result: Result) -> Work:
    """Return the minimum work of one call of a measured case."""
    flops, moved_mib = (result.figures.get(name) for name in ("flops_per_item", "moved_mib"))
    types = (result.proof and result.proof.compute_types) or {}
    precision: str | None = PRECISION_TABLE[case.precision].roof
    if precision == "native":
        precision = _TYPES.get(next(iter(types))) if len(types) == 1 else None
    layer = case.source.layer
    saved = max(_IMPOSSIBLE, math.prod(layer.kernel)) if layer else _IMPOSSIBLE
    flops, moved = flops and flops * case.batch_size, moved_mib and moved_mib * MIB
    return Work(flops, moved, precision, saved)


def excess(case: Case, result: Result, roofs: Roofs) -> Excess | None:
    """Return how much faster a row is than the roofs allow; None if it is not, or if roofs or work are unknown."""
    work, fastest = work_of(case, result), _fastest_ms(result)
    floor = work.floor(roofs)
    if not fastest or not floor or floor[0] <= fastest * _ROUNDING:
        return None
    shortest, roof = floor
    took = f"{milliseconds(fastest)}, at least {milliseconds(shortest)}"
    text = f"{times(shortest / fastest)} faster than the measured {roof} allows ({took})"
    return Excess(text, shortest / fastest > (work.saved if roof == "peak" else _IMPOSSIBLE))


def raised(measured: Roofs, rows: Iterable[tuple[Case, Result]]) -> dict[str, float]:
    """Raise each measured roof to the highest plausible rate of a row with checked outputs."""
    roofs = dict(measured)
    for case, result in rows:
        fastest, work, over = _fastest_ms(result), work_of(case, result), excess(case, result, measured)
        is_doubted = result.has("inconsistent") or result.has("unchecked-outputs") or (over and over.is_impossible)
        if not fastest or is_doubted or result.status != "ok" or result.reference is None:
            continue
        rates = {"copy_gb_s": work.uncached(measured) / fastest / 1e6}
        # Fourier transforms save multiplications, so the counted FLOPs are no rate of the processor.
        if work.flops is not None and work.saved == _IMPOSSIBLE:
            rates[f"{work.precision}_tflops"] = work.flops / fastest / 1e9
        roofs |= {name: max(roofs[name], rate) for name, rate in rates.items() if name in roofs}
    return widened(roofs)


def widened(roofs: Roofs) -> dict[str, float]:
    """Raise a narrow type's roof to fp32's, since every library may compute it in fp32.

    On a CPU without fp16 arithmetic eager fp16 runs 100 times slower than fp32.
    """
    fp32 = roofs.get("fp32_tflops", 0.0)
    return {name: max(roof, fp32) if name.endswith("_tflops") else roof for name, roof in roofs.items()}


def placed(case: Case, result: Result, roofs: Roofs) -> Result:
    """Add the result's figures relative to these roofs, and a warning if it is above them."""
    if result.status != "ok":
        return result
    work, latency, over = work_of(case, result), result.latency_ms, excess(case, result, roofs)
    figures = dict(result.figures)
    if floor := work.floor(roofs):
        figures["floor_ms"] = floor[0]
    if latency and work.flops is not None:
        figures["tflops"] = tflops = work.flops / latency / 1e9
        peak = roofs.get(f"{work.precision}_tflops")
        share = tflops / peak if peak else math.inf
        figures["fraction_of_peak"] = min(share, 1.0) if share <= _ROUNDING else None
    warnings = [Warning("below-floor", over.text)] if over else []
    return dataclasses.replace(result, figures=figures, warnings=[*result.warnings, *warnings])


def _fastest_ms(result: Result) -> float | None:
    return min((ms for clock in (result.clock, "gpu") if (ms := result.median(clock)) is not None), default=None)
