"""Look at what a machine gives a measurement: driver, card, clocks and power, cores, memory, load, disk, versions."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exporters.cache import CacheError, check_root, default_root
from profiler.machine import (
    Target,
    available_memory_mib,
    core_quota,
    cpu_model,
    total_memory_mib,
    untested,
    usable_cores,
)
from profiler.nvml import Nvml, slowdowns, visible_gpus
from profiler.tables.numbers import counted

Status = Literal["ok", "note", "missing", "failed"]
STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "missing": "yellow", "failed": "red"}
"""`note`: figures may suffer, or it is nothing for this device; `missing`: a library that is not installed; `failed`:
what is there does not work."""


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what mends it."""

    status: Status
    what: str
    text: str


_LEAST_GIB = 5.0
"""Room on a disk below which graphs, references and engines of a job of large networks do not fit."""
_LEAST_MIB = 2048
"""Below it the larger networks cannot be prepared: VGG-16's weights alone are 0.5 GiB, and there are copies."""
_MEND = {"Cache": "name another folder in PROFILER_CACHE", "Temporary files": "name another folder in TMPDIR"}
_BUSY = 0.25
"""Load by core from which other work is likely to be seen in the figures."""


def of_machine(target: Target, facts: Mapping[str, Any]) -> list[Check]:
    """All that can be said before anything is measured; `facts` are the libraries' (processes.forkserver.libraries)."""
    versions = (Check("note", "Version", text) for text in untested())
    return [*_card(target, facts), *_processor(), *_memory(), *_disks(), *versions]


def _card(target: Target, facts: Mapping[str, Any]) -> Iterator[Check]:
    gpus, gpu = visible_gpus(), target.gpu
    if gpu is None:
        if gpus and not facts.get("cuda_available"):
            why = "cannot use it" if facts.get("torch_cuda") else "was installed without CUDA"
            text = f"{gpus[0].name} answers with driver {gpus[0].driver}, but torch {why}: install torch for its CUDA"
            yield Check("failed", "GPU", f"{text} (docs/first-run.md)")
        else:
            yield Check("note", "GPU", "no NVIDIA driver answers" if not gpus else "not asked for")
        return
    card = f"{gpu.name}, compute capability {gpu.compute_capability}, {gpu.memory_mib / 1024:.0f} GiB"
    yield Check("ok", "GPU", f"{card}; driver {gpu.driver}, torch's CUDA {facts.get('torch_cuda')}")
    if gpu.card:
        yield Check("note", "MIG", "a slice of a card: power, clock and temperature are the whole card's")
    nvml = Nvml(gpu.uuid)
    limit, usual, clock = nvml.power_limit_w(), nvml.default_power_limit_w(), nvml.most_sm_clock_mhz()
    if limit and usual and limit < usual:
        text = f"limited to {limit:.0f} W of {usual:.0f} W, under load it is slower: sudo nvidia-smi -pl {usual:.0f}"
        yield Check("note", "Power", text)
    reading = nvml.read()
    if clock:
        slowed = slowdowns(reading.reasons or 0)
        text = f"at most {clock:.0f} MHz, now {reading.sm_clock_mhz or 0:.0f}"
        yield Check("note" if slowed else "ok", "Clock", f"{text}{''.join(f', {each}' for each in slowed)}")
    if users := nvml.users():
        text = f"{users} others compute on it: nvidia-smi names them; --wait-for-idle 10 waits for their end"
        yield Check("note", "Other processes", text)


def _processor() -> Iterator[Check]:
    cores, there, quota = usable_cores(), os.cpu_count() or 1, core_quota()
    text = f"{cpu_model()}, {counted(cores, 'core')}" + (f" of {there}" if cores < there else "")
    yield Check("ok", "CPU", text)
    if quota is not None and quota < cores:
        text = f"a control group gives {quota:g} of {cores} cores: give it all, or fewer threads by taskset"
        yield Check("note", "CPU limit", text)
    load = os.getloadavg()[0]
    if load > max(1.0, _BUSY * cores):
        text = f"{load:.1f} on {counted(cores, 'core')}: other work runs; --wait-for-idle 10 waits for its end"
        yield Check("note", "Load", text)
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.is_file() and (mode := governor.read_text().strip()) == "powersave":
        yield Check("note", "Clock of the CPU", f"governor {mode}: sudo cpupower frequency-set -g performance")


def _memory() -> Iterator[Check]:
    total, free = total_memory_mib(), available_memory_mib()
    if total and free:
        yield Check(
            "ok" if free > _LEAST_MIB else "note", "Memory", f"{free / 1024:.1f} GiB of {total / 1024:.1f} can be had"
        )


def _disks() -> Iterator[Check]:
    folders = {"Cache": default_root(), "Temporary files": Path(tempfile.gettempdir())}
    try:
        check_root(folders["Cache"])
    except CacheError as error:
        yield Check("failed", "Cache", str(error))
        del folders["Cache"]
    for what, folder in folders.items():
        free = shutil.disk_usage(folder).free / 2**30
        mend = f": {_MEND[what]}" if free < _LEAST_GIB else ""
        yield Check("note" if mend else "ok", what, f"{folder}, {free:.1f} GiB free{mend}")
