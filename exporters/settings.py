"""Read and put back torch's global settings, which a model's code may change for all that runs after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

KEEPS_DOUBLES = "_keeps_doubles"
"""Attribute of a module with doubles whose example inputs are floats: it converts them itself."""


def _flag(name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: getattr(torch.backends.cudnn, name), lambda value: setattr(torch.backends.cudnn, name, value)


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
    **{f"cudnn.{name}": _flag(name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")},
}
UNDONE: dict[str, str] = {}
"""What models' code set as it was imported or as it made a module, until that was put back."""


def read() -> dict[str, Any]:
    """Return all settings by name."""
    return {name: get() for name, (get, _) in _SETTINGS.items()}


def changes(before: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the changed settings with their former and present values."""
    return {name: [str(before[name]), str(value)] for name, value in read().items() if value != before[name]}


def put_back(before: Mapping[str, Any]) -> None:
    """Restore the changed settings, and note them."""
    for name, (_, now) in changes(before).items():
        _SETTINGS[name][1](before[name])
        UNDONE[name] = now
