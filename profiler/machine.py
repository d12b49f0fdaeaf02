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
from profiler import nvml
from profiler.errors import ConfigError
from profiler.nvml import Gpu

DEVICES = "auto, cpu, cuda, cuda:1"
"""Names of devices, for messages."""
_OWN_VARIABLES = ("PROFILER_FORKSERVER_LOG", "PROFILER_PRELOAD", "PROFILER_STARTED_FOR", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that a run sets itself, each time differently."""


@dataclass(frozen=True)
class Target:
    """Name the device of a run: "cpu", or "cuda" and one GPU."""

    kind: Device
    gpu: Gpu | None = None

    def __str__(self) -> str:
        """Return the name that a job gives it, such as "cuda:0"."""
        return f"cuda:{self.gpu.index}" if self.gpu else self.kind

    @property
    def name(self) -> str:
        """Return what a table's title calls it."""
        return self.gpu.name if self.gpu else cpu_model()

    @property
    def hardware(self) -> str | None:
        """Return the GPU's compute capability, such as "9.0"; None where it is not known."""
        return self.gpu.compute_capability if self.gpu else None


def check_device(requested: str) -> str:
    """Return the argument of --device. Raises ConfigError for a word that is no device."""
    if not is_device(requested):
        raise ConfigError(f"--device {requested}: valid: {DEVICES}")
    return requested


def is_device(text: str) -> bool:
    return re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?", text) is not None


def resolve_device(requested: str, facts: Mapping[str, Any] | None = None) -> Target:
    """Return the device that `requested` ("auto", "cpu", "cuda:1") means here; "auto" is the first GPU, else the CPU.

    `facts` are what the installed libraries say (processes.forkserver.libraries): a GPU that torch cannot use is none.
    Raises ConfigError where a GPU is requested and cannot be had.
    """
    if requested == "cpu":
        return Target("cpu")
    gpus = nvml.visible_gpus()
    facts = {"cuda_available": True} if facts is None else facts
    usable = bool(gpus and facts.get("cuda_available"))
    if requested == "auto" and not usable:
        return Target("cpu")
    if not usable:
        why = "torch was installed without CUDA" if gpus and not facts.get("torch_cuda") else "no NVIDIA GPU answers"
        raise ConfigError(f"device {requested}: {why}; use device: cpu, or auto for whatever there is")
    index = int(requested.partition(":")[2] or 0)
    if index >= len(gpus):
        listing = ", ".join(f"cuda:{g.index} ({g.name})" for g in gpus)
        raise ConfigError(f"device {requested}: there are {len(gpus)} GPUs: {listing}")
    return Target("cuda", gpus[index])


def host_and_user() -> dict[str, str]:
    """Name this host, and its user by name or, where there is none, by number."""
    return {"host": socket.gethostname(), "user": psutil.Process().username()}


def describe(target: Target, facts: dict[str, Any]) -> dict[str, Any]:
    """Return all about the machine that a reader may ask for; the first keys are columns of the results."""
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
        "variables": {name: os.environ[name] for name in sorted(variables - {*_OWN_VARIABLES})},
    }


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """Limit this process and its children to `count` cores. Raises ConfigError for more than it may use.

    Every runtime starts a thread for each core that it may use.
    """
    allowed = os.sched_getaffinity(0)
    if count is not None and count > len(allowed):
        raise ConfigError(f"--threads {count}: this process may use {len(allowed)} cores")
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def own_cores(uuid: str | None) -> list[int]:
    """Share the cores next to a GPU among the GPUs that they are next to; without a GPU all are its own."""
    usable = os.sched_getaffinity(0)
    near = {card: (cores & usable) or usable for card, cores in nvml.near_cores().items()}
    if uuid is None or uuid not in near:
        return sorted(usable)
    beside = sorted(card for card, cores in near.items() if cores & near[uuid])
    # The second threads of cores are numbered after all first ones: every n-th one mostly leaves both to one GPU.
    return sorted(near[uuid])[beside.index(uuid) :: len(beside)] or sorted(near[uuid])


def cpu_model() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def has_bf16() -> bool:
    """Tell whether the processor multiplies bf16 in hardware: AVX512-BF16 or AMX."""
    with contextlib.suppress(OSError):
        return bool(re.search(r"\b(avx512_bf16|amx_bf16)\b", Path("/proc/cpuinfo").read_text()))
    return False


def available_memory_mib() -> float:
    """Return the memory to be had without swapping: the machine's, or what control groups leave, if that is less."""
    return min([psutil.virtual_memory().available / 2**20, *map(_left, control_groups())])


def control_groups(root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's control groups, its own first (cgroups(7), version 2).

    In a container that sees the host's paths none of them is there, and the mounted folder is the container's own.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mount = root / "sys/fs/cgroup"
    own = [mount / line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")]
    every = [folder for path in own for folder in (path, *path.parents)]
    return [folder for folder in every if folder.is_relative_to(mount) and folder.is_dir()]


def _left(folder: Path) -> float:
    """Return the MiB that a control group may still take, inf without a limit."""
    with contextlib.suppress(OSError, ValueError):
        most, now = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))  # Or "max".
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # The kernel gives back by itself what files hold that nobody read lately.
        return max(most - now + int(stat.get("inactive_file", 0)), 0) / 2**20
    return math.inf
