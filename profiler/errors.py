"""Say in an error which command mends it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from exporters.errors import ConfigError as ConfigError
from exporters.errors import nearest as nearest

PROGRAM = "runtime-profiler" if Path(sys.argv[0]).stem == "runtime-profiler" else "python -m profiler"
"""How the program was called, for messages that give a command."""
WHEN_IDLE = "--wait-for-idle 10"
"""Option that a message advises where other work runs."""


def resuming(run: Path) -> str:
    """Return the command that goes on with the run in that folder."""
    return f"{PROGRAM} --resume {shlex.quote(str(run))}"


def check_choice(option: str, word: str, valid: Iterable[str]) -> None:
    """Raises ConfigError for a word that the option does not take."""
    if word not in list(valid):
        raise ConfigError(f"{option}: unknown '{word}'{nearest(word, valid)}")
