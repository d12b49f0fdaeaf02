"""End a module's run that takes too long, between two of the modules in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook


class TooLong(Exception):
    """A run was ended since it took longer than its limit."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooLong at the first module that begins once that many seconds are over; one alone takes what it takes."""
    end = time.monotonic() + seconds

    def check(module: Any, inputs: Any) -> None:
        if time.monotonic() > end:
            raise TooLong(f"ended after {seconds:g} s")

    handle = register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()
