"""Say in an error which command mends it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from exporters.errors import ConfigError as ConfigError
from exporters.errors import nearest as nearest

PROGRAM = "runtime-profiler" if Path(sys.argv[0]).stem == "runtime-profiler" else "python -m profiler"
"""How the program was called, for messages that give a command."""
WHEN_IDLE = "--wait-for-idle 10"
"""Option that a message advises where other work runs."""
_NO_PROCESS = ("can't start new thread", "Resource temporarily unavailable")
"""Texts of Python and of the system where no process or thread can be started."""


def resuming(run: Path) -> str:
    """Return the command that goes on with the run in that folder."""
    return f"{PROGRAM} --resume {shlex.quote(str(run))}"


def check_choice(option: str, word: str, valid: Iterable[str]) -> None:
    """Raises ConfigError for a word that the option does not take."""
    if word not in list(valid):
        raise ConfigError(f"{option}: unknown '{word}'{nearest(word, valid)}")


@contextlib.contextmanager
def naming_limits(advice: str) -> Iterator[None]:
    """Raise ConfigError, with what to do next, where the user's limit of processes and threads is reached."""
    try:
        yield
    except BaseException as error:  # What Polars' Rust raises is no Exception.
        if not any(text in str(error) for text in _NO_PROCESS):
            raise
        why = "no further process or thread can be started"
        raise ConfigError(f"{why}: end others or raise the limit (ulimit -u), then {advice}") from None
