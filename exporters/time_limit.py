"""End a module's run that takes too long, wherever in Python it is."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class TooLong(Exception):
    """A run was ended since it took longer than its limit."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooLong once that many seconds are over, as soon as Python's code runs: one operator takes what it takes.
    In the main thread only, where Python handles signals; elsewhere there is no limit. Infinity is none either."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TooLong(f"ended after {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, end)
    others = signal.getitimer(signal.ITIMER_REAL)
    try:
        signal.setitimer(signal.ITIMER_REAL, min(max(seconds, 1e-6), 1e8))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, handler)
