"""Define the messages of a child process to its parent, and the outcome that the parent makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engines.base import Phase

Status = Literal["ok", "oom", "unsupported", "failed", "timeout", "crashed", "waiting"]


@dataclass(frozen=True)
class Entered:
    """Begin a phase: one of engines.base.Phase, or a script's own."""

    phase: str
    at: float | None = None
    """Seconds on the clock by which the process measures."""


@dataclass(frozen=True)
class Progress:
    """Tell how far the phase is, in words for the display."""

    text: str


@dataclass(frozen=True)
class Salvage:
    """Keep a value in case the process ends before its function returns; the last one counts."""

    value: Any


@dataclass(frozen=True)
class Serves:
    """Tell where the process forks others from itself, and what it `made` before."""

    address: str
    made: Any


@dataclass
class Outcome:
    """How a call ended: what its function returned, and the last `salvage` that it reported."""

    status: Status
    reason: str | None = None
    value: Any = None
    salvage: Any = None
    phase: str = Phase.FORK
    """The phase in which the call ended."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent by phase."""
    entered: dict[str, float] = field(default_factory=dict)
    """When each phase was entered first, on time.monotonic()."""
    contradiction: str | None = None
    """How the process's clock contradicts its parent's."""
    log: Path | None = None
    """The output of a call that failed, with the traceback of its error."""


Message = Entered | Progress | Salvage | Serves | Outcome
"""The last one is the outcome; the child knows its status, reason and value."""
Report = Callable[[Message], None]


def is_sound(message: object) -> bool:
    """Return whether a message has the types that it declares: a model's code can send others."""
    match message:
        case Progress(text=str()) | Salvage() | Serves(address=str()) | Entered(phase=str(), at=None):
            return True
        case Entered(phase=str(), at=float() | int() as at):
            return math.isfinite(at)
        case Outcome(status=str() as status, reason=None | str()):
            return status in get_args(Status)
    return False
