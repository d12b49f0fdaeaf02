"""Read what a user writes as the value of an option, and tell a file from a package."""

from __future__ import annotations

import re

_PAIRS = "written as key=value; key=value"


def key_values(text: str) -> dict[str, str]:
    """The options in "device_id=0; cache_dir=/tmp". Raises ValueError, which says what is none."""
    pairs = [pair.partition("=") for pair in text.split(";") if pair.strip()]
    for key, equals, value in pairs:
        if not equals or not key.strip():
            raise ValueError(f"'{(key + equals + value).strip()}' is no option; they are {_PAIRS}")
    found = {key.strip(): value.strip() for key, _, value in pairs}
    if len(found) < len(pairs):
        raise ValueError(f"'{text}' gives an option twice; they are {_PAIRS}")
    return found


def is_path(library: str) -> bool:
    """Whether it names a file rather than an installed package."""
    return not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", library) or library.endswith((".so", ".dll", ".dylib"))


def parse_batches(text: str) -> tuple[int, int, int]:
    """A batch size, "16", or a range, "1:8:32" (least, most likely, largest). Raises ValueError, which says why."""
    if not re.fullmatch(r"\d+(:\d+:\d+)?", text):
        raise ValueError(f"'{text}' is neither a batch size such as 16 nor a range min:opt:max such as 1:8:32")
    sizes = [int(word) for word in text.split(":")]
    least, likely, largest = sizes * 3 if len(sizes) == 1 else sizes
    if not 1 <= least <= likely <= largest:
        raise ValueError(f"'{text}': expected a batch size from 1, or 1 ≤ min ≤ opt ≤ max")
    return least, likely, largest
