"""What enters: this machine. What leaves: `Target`, the device to measure on, and what environment.json holds."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engines.catalog import Device
from profiler.errors import ConfigError
from profiler.nvml import Gpu, visible_gpus

_PACKAGES = (
    "torch",
    "onnxruntime-gpu",
    "onnxruntime",
    "onnx",
    "onnxscript",
    "openvino",
    "tensorrt",
    "tensorrt-rtx-cu13-bindings",
    "tensorrt-rtx-cu13-libs",
    "pycuda",
    "triton",
    "numpy",
    "polars",
)

_OWN_VARIABLES = ("PROFILER_FORKSERVER_LOG", "TORCHINDUCTOR_CACHE_DIR")
"""Which a run sets itself, to folders that are others every time."""


@dataclass(frozen=True)
class Target:
    """The device of a run: "cpu", or "cuda" and one GPU."""

    kind: Device
    gpu: Gpu | None = None

    @property
    def name(self) -> str:
        """What to call it in a table's title."""
        return self.gpu.name if self.gpu else cpu_model()

    @property
    def compute_capability(self) -> str | None:
        """The GPU's, such as "9.0"."""
        return self.gpu.compute_capability if self.gpu else None


def choose_device(wanted: str, facts: dict[str, Any]) -> Target:
    """The device that `wanted` ("auto", "cpu", "cuda", "cuda:1") means here; `facts` are the probe's.

    "auto" is the first GPU that torch can use, else the CPU. Raises ConfigError where a GPU was asked for by name and
    cannot be had.
    """
    if wanted == "cpu":
        return Target("cpu")
    gpus = visible_gpus()
    if not gpus or not facts.get("cuda_available"):
        if wanted == "auto":
            return Target("cpu")
        why = "torch was installed without CUDA" if gpus and not facts.get("torch_cuda") else "no NVIDIA GPU answers"
        raise ConfigError(f"device {wanted}: {why}; use device: cpu, or auto for whatever there is")
    index = int(wanted.partition(":")[2] or 0)
    if index >= len(gpus):
        listing = ", ".join(f"cuda:{g.index} ({g.name})" for g in gpus)
        raise ConfigError(f"device {wanted}: there are {len(gpus)} GPUs: {listing}")
    return Target("cuda", gpus[index])


def describe(target: Target, facts: dict[str, Any]) -> dict[str, Any]:
    """Everything about the machine that a reader may ask for; the first keys are columns of the results."""
    return {
        "gpu": target.gpu.name if target.gpu else None,
        "host": socket.gethostname(),
        "cuda": facts.get("torch_cuda") if target.gpu else None,
        "driver": target.gpu.driver if target.gpu else None,
        "cudnn": facts.get("cudnn") if target.gpu else None,
        "torch_version": _version("torch"),
        "onnxruntime_version": _version("onnxruntime-gpu") or _version("onnxruntime"),
        "tensorrt_version": _version("tensorrt"),
        "device": target.kind,
        "gpu_memory_mib": target.gpu.memory_mib if target.gpu else None,
        "compute_capability": facts.get("compute_capability") if target.gpu else None,
        "cpu": cpu_model(),
        "cpu_cores": usable_cores(),
        "memory_mib": total_memory_mib(),
        "torch_threads": facts.get("torch_threads"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "command": sys.argv,
        "variables": {
            k: v
            for k, v in sorted(os.environ.items())
            if k.startswith(("CUDA", "OMP", "TORCH", "PROFILER", "NVIDIA")) and k not in _OWN_VARIABLES
        },
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    found = _proc("cpuinfo", "model name")
    return found or platform.processor() or platform.machine()


def total_memory_mib() -> float | None:
    """Main memory of the machine."""
    return _memory("MemTotal")


def available_memory_mib() -> float | None:
    """Main memory that could be had without swapping."""
    return _memory("MemAvailable")


def _memory(key: str) -> float | None:
    found = _proc("meminfo", key)
    return float(found.split()[0]) / 1024 if found else None


def _proc(file: str, key: str) -> str | None:
    try:
        lines = Path(f"/proc/{file}").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
