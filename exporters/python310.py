"""Backport StrEnum to Python 3.10: TensorRT 8.5, whose wheel holds its libraries, has no bindings for later ones."""

from __future__ import annotations

import sys
from enum import Enum

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:

    class StrEnum(str, Enum):
        """A string enumeration whose members print as their values."""

        __str__ = str.__str__
