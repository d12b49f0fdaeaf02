"""Read a batch size, or a range of them, as a user writes it."""

from __future__ import annotations

import re


def parse_batches(text: str) -> tuple[int, int, int]:
    """A batch size, "16", or a range, "1:8:32" (least, most likely, largest). Raises ValueError, which says why."""
    if not re.fullmatch(r"\d+(:\d+:\d+)?", text):
        raise ValueError(f"'{text}' is neither a batch size such as 16 nor a range min:opt:max such as 1:8:32")
    sizes = [int(word) for word in text.split(":")]
    least, likely, largest = sizes * 3 if len(sizes) == 1 else sizes
    if not 1 <= least <= likely <= largest:
        raise ValueError(f"'{text}': expected a batch size from 1, or 1 ≤ min ≤ opt ≤ max")
    return least, likely, largest
