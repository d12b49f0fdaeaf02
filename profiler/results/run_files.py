"""Open the files of a run's folder, and make their texts printable."""

from __future__ import annotations

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

from exporters.whole_file import open_regular
from profiler.errors import ConfigError

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but line breaks and tabs, marks that turn the direction of text, and halves of a pair."""


def printable(value: Any) -> Any:
    """Escape in the texts of a JSON value the characters that no table, terminal or file can take."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], float)):  # Samples are many.
        return list(map(printable, value))
    return value


def first_line(error: BaseException) -> str:
    """Say on one line what an error says."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def open_run_file(path: Path) -> io.BufferedReader:
    """Open a file of a run's folder. Raises OSError for a link out of it: a report would publish the reader's file."""
    folder = os.path.realpath(path.parent, strict=True)
    target = os.path.realpath(path, strict=True)
    if os.path.commonpath([folder, target]) != folder:
        raise OSError(errno.EPERM, "it is a link that leads out of the run's folder", str(path))
    return open_regular(Path(target))


def check_readable(path: Path) -> None:
    """Raises ConfigError where `open_run_file` cannot open a file of a run."""
    try:
        open_run_file(path).close()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give another run") from None


def read_text(path: Path) -> str:
    """Read a run's file as printable text. Raises OSError."""
    with open_run_file(path) as file:
        return str(printable(file.read().decode(errors="replace")))


def read_json(path: Path) -> Any:
    """Read the JSON in a run's file. Raises OSError, and ValueError for what is no JSON."""
    with open_run_file(path) as file:
        return parse_json(file.read())


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document with printable texts. Raises ValueError."""
    return printable(json.loads(text))


def json_object(text: str | None) -> dict[str, Any]:
    """Parse a text column that holds a JSON object, such as a row's options; null is an empty one."""
    return dict(parse_json(text or "{}"))
