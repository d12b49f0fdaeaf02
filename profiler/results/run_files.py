"""Open the files of a run's folder, which anybody may have made: a regular file in that folder, of a bounded size."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from exporters.whole_file import open_regular
from profiler.errors import ConfigError

UNPRINTABLE = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069{}]"
"""Control characters but line breaks and tabs, which would move a terminal's cursor or colour what follows, and marks
that turn the direction of text; to be completed by surrogates where a text may have them. For `re` and for polars."""
_UNPRINTABLE = re.compile(UNPRINTABLE.format("\ud800-\udfff"))
MOST_TEXT = 65_536
"""Characters of a text in a results folder; the longest that a run writes is a proof, of some thousands."""
_MOST_JSON = 8 << 20
_MOST_DEPTH = 12
_LARGEST = 2**63
_FILES = (".parquet", ".json", ".jsonl", ".yaml", ".html", ".md")
_FOLDERS = ("logs", "tables")


def printable(value: Any) -> Any:
    """A value of JSON in whose texts what no table, terminal or file can take is written as its escape.

    Halves of a pair are in no encoding. Texts come from models, libraries and journals.
    """
    if isinstance(value, str):
        return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], float)):  # Samples are many.
        return list(map(printable, value))
    return value


def open_run_file(path: Path, most: int | None = None) -> io.BufferedReader:
    """Open a file of a run's folder. Raises OSError for one that is no file, leads elsewhere, or has over `most` bytes.

    A link within the folder is followed. One that leads out of it would put a file of the reader's into a report.
    """
    folder = os.path.realpath(path.parent, strict=True)
    target = os.path.realpath(path, strict=True)
    if os.path.commonpath([folder, target]) != folder:
        raise OSError(errno.EPERM, "it is a link that leads out of the run's folder", str(path))
    return open_regular(Path(target), most)


def check_readable(path: Path) -> None:
    """Raises ConfigError where `open_run_file` cannot open a file of a run."""
    try:
        open_run_file(path).close()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give another run") from None


def read_text(path: Path, most: int = 1 << 20) -> str:
    """The text in a run's file, printable. Raises OSError as `open_run_file` does."""
    with open_run_file(path, most) as file:
        return str(printable(file.read(most).decode(errors="replace")))


def read_json(path: Path, most: int = _MOST_JSON) -> Any:
    """The JSON in a run's file, as `plain`. Raises OSError as `open_run_file` does, ValueError for what is no JSON."""
    with open_run_file(path, most) as file:
        return parse_json(file.read(most + 1))


def parse_json(text: str | bytes) -> Any:
    """A JSON document, as `plain`. Raises ValueError for what is none, or is nested too deeply."""
    try:
        return plain(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_object(text: str | None) -> dict[str, Any]:
    """What a text of the results holds as JSON, such as a row's options; nothing where it is none or no object."""
    try:
        found = parse_json(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def plain(value: Any, depth: int = 0) -> Any:
    """The value with printable texts, and null for numbers and texts that no run writes: endless or huge ones.

    Raises ValueError for one that is nested too deeply.
    """
    if depth > _MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        return {printable(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, str):
        return printable(value) if len(value) <= MOST_TEXT else None
    if isinstance(value, float | int):
        return value if -_LARGEST < value < _LARGEST else None
    return value


def check_writable(folder: Path) -> None:
    """Raises ConfigError for what in a run's folder would lead elsewhere what is written there, or stop it.

    That is a link out of the folder, a pipe or a device, and a folder in place of a file or the other way round.
    """
    home = os.path.realpath(folder)
    for place, folders, files in os.walk(home):
        for path in (Path(place, name) for name in (*folders, *files)):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) and os.path.commonpath([home, os.path.realpath(path)]) != home:
                why = "it is a link that leads out of the run's folder"
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                why = "it is no regular file"
            elif place == home and path.suffix in _FILES and path.is_dir():
                why = "it is a folder in place of a file"
            elif place == home and path.name in _FOLDERS and not path.is_dir():
                why = "it is a file in place of a folder"
            else:
                continue
            raise ConfigError(f"{path}: {why}, so nothing is written into this folder; remove it, or give another one")
