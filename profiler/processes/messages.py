"""Define the messages from a child process to its parent, and the outcome that the parent derives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

Status = Literal["ok", "oom", "unsupported", "failed", "timeout", "crashed", "waiting", "skipped"]


@dataclass(frozen=True)
class Entered:
    """Begin a phase: one of engines.base.Phase, or a script's own."""

    phase: str
    at: float | None = None
    """Seconds on the process's own clock."""


@dataclass(frozen=True)
class Progress:
    """Report the phase's progress in words for the display."""

    text: str


@dataclass(frozen=True)
class Salvage:
    """Save a value in case the process ends before its function returns; the last one counts."""

    value: Any


@dataclass(frozen=True)
class Serves:
    """Report the address of the process's fork server, and its value."""

    address: str
    value: Any


@dataclass
class Outcome:
    """How a call ended: its function's value, and the last `salvage` that it reported."""

    status: Status
    reason: str | None = None
    value: Any = None
    salvage: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent by phase."""
    entered: dict[str, float] = field(default_factory=dict)
    """When each phase was entered first, on time.monotonic()."""
    contradiction: str | None = None
    """Why the process's clock contradicts its parent's."""
    log: Path | None = None
    """Output of a failed call, with its traceback."""


Message = Entered | Progress | Salvage | Serves | Outcome
"""A child that ends by itself sends an Outcome last, with only status, reason and value."""
Report = Callable[[Message], None]


def is_sound(message: object) -> bool:
    """Return whether a message has its declared types: a model's code can send others."""
    match message:
        case Progress(text=str()) | Salvage() | Serves(address=str()) | Entered(phase=str(), at=None):
            return True
        case Entered(phase=str(), at=float() | int() as at):
            return math.isfinite(at)
        case Outcome(status=str() as status, reason=None | str()):
            return status in get_args(Status)
    return False
