"""Measure a device's roofs (peak FLOP/s and bandwidth), and place a case below them.

The roofline model: Williams, Waterman, Patterson, Roofline: an insightful visual performance model for multicore
architectures, CACM 52 (2009), https://doi.org/10.1145/1498765.1498785. No call can be faster than its FLOPs at the
rate that the processor reaches, nor than its bytes at the memory's; both rates are measured here, not read off a sheet.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engines.base import Warning
from engines.catalog import Device
from exporters.single_layers import Conv2d, Layer
from profiler.job.case import Case
from profiler.machine import available_memory_mib
from profiler.processes.messages import Report
from profiler.results.result import Figures, Finding, Result
from profiler.stats.samples import median
from profiler.tables.numbers import milliseconds, times
from profiler.worker.clock import Clock, CpuClock, CudaClock, Run
from profiler.worker.task import Task

if TYPE_CHECKING:
    import torch

Roofs = Mapping[str, float]
"""`fp32_tflops`, `tf32_tflops`, `fp16_tflops`, `bf16_tflops` (10¹² FLOPs a second); `copy_gb_s` (10⁹ bytes read and
written a second); `cache_mib`, the size of the last-level cache. What could not be measured is left out."""

Limit = Literal["arithmetic", "memory"]
Floor = tuple[float, Limit]
"""The shortest time in ms that the roofs allow, and which limit binds."""

MIB = 2**20
_FEWEST, _MOST = 3, 50
_SECONDS = 0.2
"""Of timing a kernel; a case's own sampling time if that is shorter. A kernel of which fewer than two calls fit is not
tried."""
_IMPOSSIBLE = 2.5
"""How many times below its floor a time is not trusted any more. That is a judgement: Winograd's F(2×2, 3×3) needs 2.25
times fewer multiplications for a convolution and F(4×4, 3×3) 4 times fewer (https://arxiv.org/abs/1509.09308), but both
spend part of that on transformations, and a network is not made only of such convolutions."""
_BELOW: Mapping[Limit, tuple[str, str]] = {
    "arithmetic": ("convolutions by Winograd need fewer multiplications", "computes all that flops_per_item counts"),
    "memory": (
        "reading can be faster than the copy that was measured, and an engine may store weights in fewer bytes",
        "reads all of the weights",
    ),
}
"""How a time can be below its floor, and what the call must do to be believed."""
_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def precisions_needed(device: Device, cases: Iterable[Case]) -> tuple[str, ...]:
    """The precisions whose roofs a run needs, fp32 first: all on a GPU, where they are cheap, else the cases'."""
    if device == "cuda":
        return ("fp32", "tf32", "fp16", "bf16")
    requested = {case.precision.removeprefix("amp-") for case in cases}
    return ("fp32", *(precision for precision in ("fp16", "bf16") if precision in requested))


def measure_roofs(argument: tuple[Device, Sequence[str], float], report: Report) -> dict[str, float]:
    """The roofs of this process's device, each the best of many calls; (device, precisions, seconds a kernel).

    A roof whose measurement fails is left out, and the log says why. A narrow type's is at least fp32's, to which every
    library may widen it: eager fp16 runs 100 times slower than fp32 on a CPU without fp16 arithmetic.
    """
    device, precisions, seconds = argument
    clock: Clock = CudaClock() if device == "cuda" else CpuClock()
    seconds = min(seconds, _SECONDS)
    roofs: dict[str, float] = {}

    def add(name: str, measure: Callable[[], float]) -> None:
        try:
            roofs[name] = measure()
        except Exception:
            traceback.print_exc()

    for precision in precisions:
        add(f"{precision}_tflops", lambda: _tflops(clock, device, precision, seconds))  # noqa: B023 -- called at once
        if precision != "fp32" and roofs.keys() >= {"fp32_tflops", f"{precision}_tflops"}:
            roofs[f"{precision}_tflops"] = max(roofs[f"{precision}_tflops"], roofs["fp32_tflops"])
    add("cache_mib", _gpu_cache_mib if device == "cuda" else cpu_cache_mib)
    add("copy_gb_s", lambda: _copy_gb_s(clock, device, roofs.get("cache_mib", 0.0), seconds))
    return roofs


def computed_in(precision: str, compute_types: Mapping[str, int]) -> str | None:
    """The precision whose roof holds: AMP's narrow type, and for `native` the one type that the proof found."""
    if precision != "native":
        return precision.removeprefix("amp-")
    return _TYPES.get(next(iter(compute_types))) if len(compute_types) == 1 else None


@dataclass(frozen=True)
class Work:
    """What one call must do at least. `moved_bytes` are its weights, inputs and outputs; None is unknown."""

    flops_per_item: float | None
    batch_size: int
    moved_bytes: float | None
    precision: str | None
    """Whose roof holds."""


def place(work: Work, latency_ms: float | None, roofs: Roofs) -> Figures:
    """Where a case lies below the roofs, by column; what does not follow is left out."""
    if work.flops_per_item is None:
        return {}
    figures: Figures = {"flops_per_item": work.flops_per_item}
    if work.moved_bytes is not None:
        figures["moved_mib"] = work.moved_bytes / MIB
    if lowest := floor(work, roofs):
        figures["floor_ms"] = lowest[0]
    if latency_ms:
        tflops = work.flops_per_item * work.batch_size / latency_ms / 1e9
        peak = roofs.get(f"{work.precision}_tflops")
        figures |= {"tflops": tflops, "fraction_of_peak": tflops / peak if peak else None}
    return figures


def floor(work: Work, roofs: Roofs) -> Floor | None:
    """The longer of the two limits' times, or None.

    Of what a call moves, only what the last-level cache cannot hold has to be moved in every one of the calls, which
    repeat back to back; where the cache's size is unknown that may be nothing.
    """
    peak, copy, cache_mib = roofs.get(f"{work.precision}_tflops"), roofs.get("copy_gb_s"), roofs.get("cache_mib")
    if work.flops_per_item is None or work.moved_bytes is None or not peak or not copy:
        return None
    uncached = max(0.0, work.moved_bytes - cache_mib * MIB) if cache_mib else 0.0
    arithmetic, memory = work.flops_per_item * work.batch_size / peak / 1e9, uncached / copy / 1e6
    return (memory, "memory") if memory > arithmetic else (arithmetic, "arithmetic")


def arithmetic_saved(layer: Layer | None) -> float:
    """How many times fewer multiplications than the FLOPs say a case may do with before it is not trusted.

    A convolution that is measured by itself may go by Fourier transforms, whose cost per output does not grow with the
    kernel (https://arxiv.org/abs/1312.5851): one multiply-add instead of one for each of the kernel's places.
    """
    return max(_IMPOSSIBLE, math.prod(layer.kernel)) if isinstance(layer, Conv2d) else _IMPOSSIBLE


def judge(fastest_ms: float | None, floor: Floor | None, saved: float = _IMPOSSIBLE) -> Finding:
    """What a time below its floor says of a row: too far below it to be true, or worth a warning.

    `saved` is how far below the limit of arithmetic a time may be.
    """
    if not fastest_ms or not floor or fastest_ms >= floor[0]:
        return None
    floor_ms, limit = floor
    ratio = floor_ms / fastest_ms
    peak = "peak" if limit == "arithmetic" else "bandwidth"
    below = (
        f"{times(ratio)} faster than this machine's measured {peak} allows "
        f"({milliseconds(fastest_ms)}, at least {milliseconds(floor_ms)})"
    )
    reason, work = _BELOW[limit]
    if ratio <= (saved if limit == "arithmetic" else _IMPOSSIBLE):
        return Warning("below-floor", f"{below}; {reason}")
    return (
        f"rejected: {below}; {reason}, but hardly by so much. Check that the clock waits for the end of the call, that "
        f"the call {work}, and that nothing else used the device while peak FLOP/s and bandwidth were measured"
    )


def add_place(task: Task, result: Result, copied_bytes: int, report: Report) -> None:
    """Add where the case lies below the device's roofs; fail a row that lies far above them."""
    case, cost, roofs = task.case, task.prepared.cost, task.roofs
    precision = computed_in(case.precision, (result.proof and result.proof.compute_types) or {})
    weights = cost.weight_bytes(case.precision)
    moved = None if weights is None else weights + copied_bytes
    work = Work(cost.flops(case.pass_), case.batch_size, moved, precision)
    latency, gpu = (median(result.samples.get(name, [])) for name in (result.clock or "", "gpu"))
    fastest = min((ms for ms in (latency, gpu) if ms is not None), default=None)
    saved = arithmetic_saved(case.source.layer)
    finding = judge(fastest, floor(work, roofs), saved)
    if isinstance(finding, str):
        # The machine may have been busy while its roofs were measured: two busy loops on two cores make them 35 times
        # lower. Before a row is thrown away they are measured again.
        precisions = dict.fromkeys(("fp32", precision or "fp32"))
        again = measure_roofs((case.device, tuple(precisions), task.budget.seconds), report)
        roofs = {name: max(roof, again.get(name, roof)) for name, roof in roofs.items()}
        finding = judge(fastest, floor(work, roofs), saved)
    result.figures |= place(work, latency, roofs)
    result.take(finding)


def _tflops(clock: Clock, device: Device, precision: str, seconds: float) -> float:
    """The best rate over kernels of growing size; a kind's rate so far tells which would take too long."""
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    best = {"product": 0.0, "convolution": 0.0}
    try:
        for kind, flops, make in _kernels(device, dtype):
            if not best[kind] or flops / best[kind] / 1e12 < seconds / 2:
                with torch.inference_mode():
                    best[kind] = max(best[kind], flops / _best_ms(clock, make(), seconds) / 1e9)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
    return max(best.values())


def _kernels(device: Device, dtype: torch.dtype) -> Iterator[tuple[str, float, Callable[[], Run]]]:
    """Kinds, FLOPs and makers of products, and on the CPU of convolutions too.

    torch's products are no roof there: on an AMD EPYC (Zen 5) MKL multiplies fp32 at 110 to 220 GFLOP/s where oneDNN's
    convolutions in NHWC reach 510, which is the two cores' peak. A GPU's products come within a few percent of its
    fastest convolutions, and those may be Winograd's, whose rate is none of the processor.
    """
    import torch

    def product(side: int) -> Run:
        # Random, since zeros take a GPU less power and so run faster.
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        c = torch.empty_like(a)
        return lambda mark: torch.mm(a, b, out=c)

    def convolution(items: int, channels: int) -> Run:
        shapes = (items, channels, 58, 58), (channels, channels, 3, 3)
        x, w = (torch.randn(shape).to(dtype, memory_format=torch.channels_last) for shape in shapes)
        return lambda mark: torch.nn.functional.conv2d(x, w)

    for side in (4096, 8192) if device == "cuda" else (512, 1024, 2048, 4096):
        yield "product", 2.0 * side**3, partial(product, side)
        if device == "cpu":
            items, channels = {512: (2, 64), 1024: (2, 256), 2048: (8, 256), 4096: (32, 256)}[side]
            yield "convolution", 2.0 * 9 * 56**2 * items * channels**2, partial(convolution, items, channels)


def _copy_gb_s(clock: Clock, device: Device, cache_mib: float, seconds: float) -> float:
    """A copy between two buffers, each far larger than the cache: 1 GiB on a GPU, and on both an eighth of what is free
    at most."""
    import torch

    free = torch.cuda.mem_get_info()[0] / MIB if device == "cuda" else available_memory_mib() or 8192.0
    largest = 1024.0 if device == "cuda" else min(1024.0, max(256.0, 4 * cache_mib))
    source = torch.randn(MIB // 4, device=device).repeat(int(min(largest, free / 8)))
    target = torch.zeros_like(source)
    return 2 * source.nbytes / _best_ms(clock, lambda mark: target.copy_(source), seconds) / 1e6


def _best_ms(clock: Clock, run: Run, seconds: float) -> float:
    """The shortest call of many after a warm-up: a busy machine can only lengthen a call."""
    warm = clock.time_calls(run, 1)[clock.headline][0]
    calls = max(_FEWEST, min(_MOST, int(seconds * 1000 / max(warm, 1e-6))))
    return min(clock.time_calls(run, calls)[clock.headline])


def _gpu_cache_mib() -> float:
    import torch

    return float(torch.cuda.get_device_properties(0).L2_cache_size) / MIB


def cpu_cache_mib(root: Path = Path("/sys/devices/system/cpu")) -> float:
    """The last-level caches of this process's processors together, as the kernel lists them.

    Raises LookupError if it does not.
    """
    sizes: dict[tuple[int, str], float] = {}
    for cache in root.glob("cpu[0-9]*/cache/index*"):
        if int(cache.parts[-3].removeprefix("cpu")) in os.sched_getaffinity(0):
            level, size, cpus = ((cache / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
            sizes[int(level), cpus] = int(size.removesuffix("K")) / 1024
    if not sizes:
        raise LookupError(f"{root} describes no caches")
    last = max(level for level, _ in sizes)
    return sum(size for (level, _), size in sizes.items() if level == last)
