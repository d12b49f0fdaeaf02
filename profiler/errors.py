"""Write error messages that name the command to run next."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from exporters.errors import ConfigError as ConfigError
from exporters.errors import nearest as nearest

PROGRAM = "runtime-profiler" if Path(sys.argv[0]).stem == "runtime-profiler" else "python -m profiler"
"""The program's name in messages with a command, as the user called it."""
WHEN_IDLE = "--wait-for-idle 10"
"""Option to advise while other work runs."""
_NO_PROCESS = ("can't start new thread", "Resource temporarily unavailable")
"""Texts of Python and of the system at the limit of processes and threads."""


def resuming(run: Path) -> str:
    """Return the command that resumes the run in that folder."""
    return f"{PROGRAM} --resume {shlex.quote(str(run))}{on_threads(run)}"


def on_threads(run: Path) -> str:
    """Return the option --threads of the run in that folder, after a space; empty without one."""
    with contextlib.suppress(Exception):  # A damaged file is reported where its facts count.
        return f" --threads {int(json.loads((run / 'environment.json').read_bytes())['threads'])}"
    return ""


def check_choice(option: str, word: str, valid: Iterable[str]) -> None:
    """Raise ConfigError if the word is not among the option's valid ones."""
    if word not in list(valid):
        raise ConfigError(f"{option}: unknown '{word}'{nearest(word, valid)}")


@contextlib.contextmanager
def naming_limits(advice: str) -> Iterator[None]:
    """Raise ConfigError with advice at the user's limit of processes and threads."""
    try:
        yield
    except BaseException as error:  # A panic of Polars' Rust is no Exception.
        if not any(text in str(error) for text in _NO_PROCESS):
            raise
        reason = "no further process or thread can be started"
        raise ConfigError(f"{reason}: end others or raise the limit (ulimit -u), then {advice}") from None
