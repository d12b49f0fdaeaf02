"""Choose the device to measure on, and describe this machine for environment.json."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engines.catalog import ENGINES
from engines.options import Device
from exporters.packages import installed_version
from profiler.errors import ConfigError
from profiler.machine import nvml
from profiler.machine.nvml import Gpu

DEVICE_WORDS = "auto, cpu, cuda, cuda:1"
_OWN_VARIABLES = ("PROFILER_FORKSERVER_LOG", "PROFILER_PRELOAD", "PROFILER_STARTED_FOR", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that a run sets itself."""
_LOOK_SECONDS, _NOTICEABLE = 0.5, 0.2
"""Time for reading the load of the cores, and the difference of their loads that counts."""
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files with a control group's limit and use, and the key of its inactive files, in versions 2 and 1 of cgroups."""


@dataclass(frozen=True)
class Target:
    """The device of a run: the CPU or one GPU."""

    kind: Device
    gpu: Gpu | None = None

    def __str__(self) -> str:
        """Return its name in a job, such as "cuda:0"."""
        return f"cuda:{self.gpu.index}" if self.gpu else self.kind

    @property
    def name(self) -> str:
        """Return its name in a table's title."""
        return self.gpu.name if self.gpu else cpu_model()

    @property
    def hardware(self) -> str | None:
        """Return the GPU's compute capability, such as "9.0", or None."""
        return self.gpu.compute_capability if self.gpu else None


def check_device(requested: str) -> str:
    """Return the value of --device. Raises ConfigError if it is invalid."""
    if not is_device(requested):
        raise ConfigError(f"--device {requested}: valid: {DEVICE_WORDS}")
    return requested


def is_device(text: str) -> bool:
    return re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?", text) is not None


def resolve_device(requested: str, facts: Mapping[str, Any] | None = None) -> Target:
    """Return the device for `requested` ("auto", "cpu", "cuda:1"); "auto" is the first GPU, else the CPU.

    Ignores GPUs that torch cannot use according to `facts` (processes.forkserver.libraries). Raises ConfigError for a
    GPU that is not available.
    """
    if requested == "cpu":
        return Target("cpu")
    gpus = nvml.visible_gpus()
    facts = {"cuda_available": True} if facts is None else facts
    usable = bool(gpus and facts.get("cuda_available"))
    if requested == "auto" and not usable:
        return Target("cpu")
    if not usable:
        reason = "torch was installed without CUDA" if gpus and not facts.get("torch_cuda") else "no NVIDIA GPU answers"
        raise ConfigError(f"device {requested}: {reason}; use device: cpu or auto")
    index = int(requested.partition(":")[2] or 0)
    if index >= len(gpus):
        listing = ", ".join(f"cuda:{g.index} ({g.name})" for g in gpus)
        raise ConfigError(f"device {requested}: there are {len(gpus)} GPUs: {listing}")
    return Target("cuda", gpus[index])


def host_and_user() -> dict[str, str]:
    """Return the names of this host and user; a user without a name has a number."""
    return {"host": socket.gethostname(), "user": psutil.Process().username()}


def describe(target: Target, facts: dict[str, Any]) -> dict[str, Any]:
    """Return environment.json's facts about this machine; some are columns of the results, under the same names."""
    variables = {name for name in os.environ if name.startswith(("CUDA", "OMP", "TORCH", "PROFILER", "NVIDIA"))}
    packages = [p for e in ENGINES.values() for p in (*(e.version.packages if e.version else ()), *e.packages)]
    packages += ["onnx", "onnxscript", "numpy", "polars"]
    versions: dict[str, str | None] = {}
    for library in (engine.version for engine in ENGINES.values() if engine.version):
        versions[library.column] = versions.get(library.column) or installed_version(*library.packages)
    gpu, of_cuda = target.gpu, facts if target.gpu else {}
    return {
        "gpu": gpu and gpu.name,
        **host_and_user(),
        "cuda": of_cuda.get("torch_cuda"),
        "driver": gpu and gpu.driver,
        "cudnn": of_cuda.get("cudnn"),
        **versions,
        "device": target.kind,
        "gpu_uuid": gpu and gpu.uuid,
        "gpu_memory_mib": gpu and gpu.memory_mib,
        "compute_capability": of_cuda.get("compute_capability"),
        "cpu": cpu_model(),
        "cpu_cores": usable_cores(),
        "cores": sorted(os.sched_getaffinity(0)),
        "memory_mib": psutil.virtual_memory().total / 2**20,
        "torch_threads": facts.get("torch_threads"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in dict.fromkeys(packages) if (version := installed_version(name))},
        "command": sys.argv,
        "variables": {name: os.environ[name] for name in sorted(variables.difference(_OWN_VARIABLES))},
    }


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0))


def core_loads() -> dict[int, float]:
    """Return the share of each usable core that is busy for half a second, idle cores first."""
    loads = dict(enumerate(psutil.cpu_percent(_LOOK_SECONDS, percpu=True)))
    shares = {core: loads.get(core, 0.0) / 100 for core in sorted(os.sched_getaffinity(0))}
    # Among alike cores the first ones: neighbours share a cache and a memory.
    return dict(sorted(shares.items(), key=lambda pair: pair[1] // _NOTICEABLE))


@contextlib.contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """Limit this process, its children and the runtimes' threads to `count` cores, idle ones first.

    Raises ConfigError for too many.
    """
    allowed = os.sched_getaffinity(0)
    if count is not None and count > len(allowed):
        raise ConfigError(f"--threads {count}: this process may use {len(allowed)} cores")
    if count is not None and count < len(allowed):
        os.sched_setaffinity(0, list(core_loads())[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def cores_of_gpu(uuid: str | None) -> list[int]:
    """Return a GPU's share of the cores near it, which other GPUs may share; without a GPU all cores."""
    usable = os.sched_getaffinity(0)
    near = {card: (cores & usable) or usable for card, cores in nvml.near_cores().items()}
    if uuid is None or uuid not in near:
        return sorted(usable)
    beside = sorted(card for card, cores in near.items() if cores & near[uuid])
    # Every n-th number mostly gives both threads of a core to one GPU: second threads come after all first ones.
    return sorted(near[uuid])[beside.index(uuid) :: len(beside)] or sorted(near[uuid])


def cpu_model() -> str:
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def has_bf16() -> bool:
    """Return whether the processor multiplies bf16 in hardware: AVX512-BF16 or AMX."""
    return bool(re.search(r"\b(avx512_bf16|amx_bf16)\b", Path("/proc/cpuinfo").read_text()))


def available_memory_mib() -> float:
    """Return the memory available without swapping: the machine's, or less under a control group's limit."""
    return min([psutil.virtual_memory().available / 2**20, *map(_available_mib, control_groups())])


def control_groups(root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's control groups of memory, innermost first (cgroups(7), version 2 or 1).

    A container that sees the host's paths has only the mounted folder, its innermost group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mount = root / "sys/fs/cgroup"
    groups = [(controller, path.lstrip("/")) for _, controller, path in (line.split(":", 2) for line in lines)]
    innermost = [mount / controller / path for controller, path in groups if controller in ("", "memory")]
    folders = [folder for path in innermost for folder in (path, *path.parents)]
    return [folder for folder in folders if folder.is_relative_to(mount) and folder.is_dir()]


def _available_mib(folder: Path) -> float:
    """Return the memory within a control group's limit, inf without a limit."""
    for *names, inactive in _MEMORY_FILES:
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in names)  # Or "max".
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # The kernel frees inactive pages of files when memory is short.
            return max(limit - used + int(stat.get(inactive, 0)), 0) / 2**20
    return math.inf
