"""Define the error of a config, file or argument that cannot be used."""

from __future__ import annotations

import errno
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from exporters.errors import cut
from exporters.errors import nearest as nearest

PROGRAM = "cnn-profiler" if Path(sys.argv[0]).stem == "cnn-profiler" else "python -m profiler"
"""How the program was called, for messages that give a command."""
WHEN_IDLE = "--wait-for-idle 10"
"""What a message advises where other work runs."""


def resuming(run: Path) -> str:
    """The command that goes on with the run in that folder."""
    return f"{PROGRAM} --resume {shlex.quote(str(run))}"


def measuring_anew(job: Path | str, only: str, options: str) -> str:
    """The command that measures into a run of its own what the conditions let through of the job, or all of it."""
    conditions = f" \\\n  --only {shlex.quote(only)}" if only else ""
    return f"{PROGRAM} {shlex.quote(str(job))}{conditions}{options and f' {options}'}"


class ConfigError(Exception):
    """A config, file or argument that cannot be used; the message says where and how to mend it. Exit code 2."""


def unusable_path(error: Exception) -> str | None:
    """What to say of an error that is about a name which no file can have, whichever argument it is of; else None."""
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return f"{cut(str(error.filename or ''), 200)}: {error.strerror}; give another name"
    # What Python 3.11 makes of a loop of links.
    return str(error) if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop") else None


def check_arguments(arguments: Iterable[str]) -> None:
    """Raises ConfigError for an argument that is no text, or has a number of more digits than any number here."""
    for number, argument in enumerate(arguments, 1):
        if re.search(r"[\ud800-\udfff]", argument):
            raise ConfigError(f"argument {number}, {cut(argument, 200)!r}, is not UTF-8")
        if re.search(r"\d{30}", argument):
            raise ConfigError(f"argument {number} has a number of 30 digits or more, which nothing here takes")


def check_choice(option: str, word: str, valid: Iterable[str]) -> None:
    """Raises ConfigError for a word that the option does not take."""
    if word not in list(valid):
        raise ConfigError(f"{option}: unknown '{word}'{nearest(word, valid)}")
