"""Read and restore settings of torch and the process, since a model's code may change them for everything after it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

KEEPS_DOUBLES = "_keeps_doubles"
"""Attribute of a module without double example inputs: its own doubles stay, since it converts to them itself."""


def _flag(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: getattr(owner, name, None), lambda value: setattr(owner, name, value)


_CUDA = torch.backends.cuda
_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
_FLAGS: Mapping[str, tuple[Any, Sequence[str]]] = {
    "cudnn": (torch.backends.cudnn, ("enabled", "benchmark", "deterministic", "allow_tf32")),
    "mkldnn": (torch.backends.mkldnn, ("enabled", "deterministic")),
    "cuda.matmul": (_CUDA.matmul, _REDUCTIONS),
}
_SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    **{
        f"{device} autocast": (partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device))
        for device in ("cpu", "cuda")
    },
    **{f"{kind}.{name}": _flag(owner, name) for kind, (owner, names) in _FLAGS.items() for name in names},
    **{
        f"{kind} attention": (getattr(_CUDA, f"{name}_sdp_enabled"), getattr(_CUDA, f"enable_{name}_sdp"))
        for kind, name in (("flash", "flash"), ("memory-efficient", "mem_efficient"), ("plain", "math"))
    },
    "detection of anomalies": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "default device": (torch.get_default_device, torch.set_default_device),
    "flushing of denormals": (lambda: bool(np.float32(2e-38) * np.float32(0.25) == 0), torch.set_flush_denormal),
    "affinity": (lambda: sorted(os.sched_getaffinity(0)), partial(os.sched_setaffinity, 0)),
    "nice": (partial(os.getpriority, os.PRIO_PROCESS, 0), partial(os.setpriority, os.PRIO_PROCESS, 0)),
    "scheduler": (
        partial(os.sched_getscheduler, 0),
        lambda policy: os.sched_setscheduler(0, policy, os.sched_param(0)),
    ),
}
UNDONE: dict[str, str] = {}
"""Settings that a model's code changed on import or in a factory, and the values that were undone."""


def read() -> dict[str, Any]:
    """Return all settings by name."""
    return {name: get() for name, (get, _) in _SETTINGS.items()}


def changes(before: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the changed settings with their former and present values."""
    return {name: [str(before[name]), str(value)] for name, value in read().items() if value != before[name]}


def put_back(before: Mapping[str, Any]) -> None:
    """Restore the changed settings, and note them in UNDONE."""
    for name, (_, now) in changes(before).items():
        with contextlib.suppress(OSError):  # A process may not take back its lower priority.
            _SETTINGS[name][1](before[name])
        UNDONE[name] = now if _SETTINGS[name][0]() == before[name] else f"{now}, for good"
