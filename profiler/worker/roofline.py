"""Measure a device's roofs: peak FLOP/s by precision, and bandwidth. profiler.results.roofline applies them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from engines.options import Device
from profiler.machine import processor
from profiler.machine.nvml import Nvml, slowdowns, visible_gpus
from profiler.machine.target import available_memory_mib
from profiler.processes.messages import Report
from profiler.results.roofline import MIB, Measured, widened
from profiler.worker.clock import Clock, CpuClock, CudaClock, TimedCall
from profiler.worker.disturbance import CARD, disturbances, settled_utilization

_FEWEST, _MOST = 3, 50
_SECONDS = 0.2
"""Seconds for each kernel, at most a case's sampling time; a kernel is skipped if two calls do not fit."""


def measure_roofs(argument: tuple[Device, Sequence[str], float], report: Report) -> Measured:
    """Measure the device's roofs, except those that fail. The argument is (device, precisions, seconds a kernel)."""
    device, precisions, seconds = argument
    nvml = Nvml(visible_gpus()[0].uuid if device == "cuda" else None)
    used, before = settled_utilization(nvml), processor.read()
    roofs = _roofs(device, precisions, min(seconds, _SECONDS))
    if device == "cuda":
        return Measured(roofs, used is not None and used < CARD and not slowdowns(nvml.read().reasons or 0))
    load = processor.read().since(before)
    return Measured(roofs, load.others is not None and not disturbances(load))


def _roofs(device: Device, precisions: Sequence[str], seconds: float) -> dict[str, float]:
    clock: Clock = CudaClock() if device == "cuda" else CpuClock()
    roofs: dict[str, float] = {}
    measures: dict[str, Callable[[], float]] = {
        **{f"{name}_tflops": partial(_tflops, clock, device, name, seconds) for name in precisions},
        "cache_mib": cpu_cache_mib
        if device == "cpu"
        else lambda: torch.cuda.get_device_properties(0).L2_cache_size / MIB,
        "copy_gb_s": lambda: _copy_gb_s(clock, device, roofs.get("cache_mib", 0.0), seconds),
    }
    for name, measure in measures.items():
        try:
            roofs[name] = measure()
        except Exception:
            traceback.print_exc()
    return widened(roofs)


def _tflops(clock: Clock, device: Device, precision: str, seconds: float) -> float:
    """Return the best rate of kernels of growing size, except those that would take too long."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    best = {"product": 0.0, "convolution": 0.0}
    with torch.inference_mode():
        for kind, flops, make in _kernels(device, dtype):
            if not best[kind] or flops / best[kind] / 1e12 < seconds / 2:
                best[kind] = max(best[kind], flops / _best_ms(clock, make(), seconds) / 1e9)
    return max(best.values())


def _kernels(device: Device, dtype: torch.dtype) -> Iterator[tuple[str, float, Callable[[], TimedCall]]]:
    """Yield kinds, FLOPs and makers of products, and on the CPU of convolutions.

    torch's products are no roof on the CPU: on an AMD EPYC (Zen 5) MKL multiplies fp32 at 110 to 220 GFLOP/s where
    oneDNN's convolutions in NHWC reach 510, the two cores' peak. A GPU's products come within a few percent of its
    fastest convolutions, which may be Winograd's and exceed the processor's rate.
    """

    def product(side: int) -> TimedCall:
        # Not zeros, which take a GPU less power and so run faster.
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        c = torch.empty_like(a)
        return lambda mark: torch.mm(a, b, out=c)

    def convolution(items: int, channels: int) -> TimedCall:
        shapes = (items, channels, 58, 58), (channels, channels, 3, 3)
        x, w = (torch.randn(shape).to(dtype, memory_format=torch.channels_last) for shape in shapes)
        return lambda mark: torch.nn.functional.conv2d(x, w)

    for side in (4096, 8192) if device == "cuda" else (512, 1024, 2048, 4096):
        yield "product", 2.0 * side**3, partial(product, side)
        if device == "cpu":
            items, channels = {512: (2, 64), 1024: (2, 256), 2048: (8, 256), 4096: (32, 256)}[side]
            yield "convolution", 2.0 * 9 * 56**2 * items * channels**2, partial(convolution, items, channels)


def _copy_gb_s(clock: Clock, device: Device, cache_mib: float, seconds: float) -> float:
    """Copy between two buffers far larger than the cache: 1 GiB on a GPU, at most an eighth of the free memory."""
    free = torch.cuda.mem_get_info()[0] / MIB if device == "cuda" else available_memory_mib()
    largest = 1024.0 if device == "cuda" else min(1024.0, max(256.0, 4 * cache_mib))
    source = torch.randn(MIB // 4, device=device).repeat(int(min(largest, free / 8)))
    target = torch.zeros_like(source)
    return 2 * source.nbytes / _best_ms(clock, lambda mark: target.copy_(source), seconds) / 1e6


def _best_ms(clock: Clock, run: TimedCall, seconds: float) -> float:
    """Return the shortest of many calls after a warm-up: a busy machine only lengthens calls."""
    warm = clock.time_calls(run, 1)[clock.headline][0]
    calls = max(_FEWEST, min(_MOST, int(seconds * 1000 / max(warm, 1e-6))))
    return min(clock.time_calls(run, calls)[clock.headline])


def cpu_cache_mib(root: Path = Path("/sys/devices/system/cpu")) -> float:
    """Add up the last-level caches of this process's processors. Raises LookupError if the kernel lists none."""
    sizes: dict[tuple[int, str], float] = {}
    for cache in root.glob("cpu[0-9]*/cache/index*"):
        if int(cache.parts[-3].removeprefix("cpu")) in os.sched_getaffinity(0):
            level, size, cpus = ((cache / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
            sizes[int(level), cpus] = int(size.removesuffix("K")) / 1024
    if not sizes:
        raise LookupError(f"{root} describes no caches")
    last = max(level for level, _ in sizes)
    return sum(size for (level, _), size in sizes.items() if level == last)
