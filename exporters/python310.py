"""Backport StrEnum to Python 3.10, the latest for which TensorRT 8.5 has bindings; its wheel holds its libraries."""

from __future__ import annotations

import sys
from enum import Enum

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:

    class StrEnum(str, Enum):
        """A string enumeration whose members print as their values."""

        __str__ = str.__str__
