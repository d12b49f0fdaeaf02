"""One line of what doctor found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
